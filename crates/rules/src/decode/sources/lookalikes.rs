//! Names that look like attributes of HTTP requests, but that no such request has.

use crate::nearest::nearest;

/// The attributes of HTTP requests, besides headers and claims.
const USUAL: [&str; 5] = ["method", "path", "ip", "api_key", "tier"];

/// The shortest name that may be a misspelling: shorter names are too often near to another.
const SHORTEST_NEAR: usize = 5;

/// The names of each attribute in other software, in lower case and with `_` for `-`.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "ip",
        &[
            "client_ip",
            "clientip",
            "remote_ip",
            "source_ip",
            "src_ip",
            "peer_ip",
            "user_ip",
            "real_ip",
            "ip_address",
            "ip_addr",
            "ipaddress",
            "remote_addr",
            "remote_address",
            "masked_remote_address",
            "client_addr",
            "client_address",
            "source_address",
            "forwarded_for",
            "x_forwarded_for",
            "x_real_ip",
        ],
    ),
    ("method", &["http_method", "request_method", "verb"]),
    ("path", &["url", "uri", "url_path", "uri_path", "http_path", "request_path", "request_uri"]),
    ("api_key", &["apikey", "x_api_key"]),
    ("header.user-agent", &["user_agent", "useragent", "http_user_agent"]),
    ("header.host", &["host", "hostname", "http_host", "authority"]),
    ("header.referer", &["referer", "referrer", "http_referer"]),
    ("header.content-type", &["content_type"]),
    ("header.accept-language", &["accept_language"]),
    ("header.cookie", &["cookie"]),
    ("header.authorization", &["authorization"]),
    ("jwt.sub", &["sub", "jwt_sub"]),
];

/// Prefixes that look like `header.` and `jwt.`.
const PREFIXES: [(&str, &str); 5] = [
    ("headers.", "header."),
    ("claim.", "jwt."),
    ("claims.", "jwt."),
    ("token.", "jwt."),
    ("x-", "header.x-"),
];

/// Returns the attribute that was probably meant by a name that no HTTP request has.
///
/// `client_ip` is probably `ip`, `Method` is `method`, and `header.X-Tenant` is `header.x-tenant`.
pub(super) fn meant(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let plain = lower.replace('-', "_");
    let usual = || USUAL.into_iter().find(|usual| *usual == plain);
    let elsewhere = || {
        let other = ELSEWHERE.iter().find(|(_, others)| others.contains(&&*plain));
        other.map(|(meant, _)| *meant)
    };
    let prefixed = || {
        let (prefix, meant) = PREFIXES.iter().find(|(prefix, _)| lower.starts_with(prefix))?;
        Some(format!("{meant}{}", &lower[prefix.len()..]))
    };
    let meant = match lower.starts_with("header.") {
        true => Some(lower.clone()),
        false => usual().or_else(elsewhere).map(str::to_owned).or_else(prefixed).or_else(|| {
            let near = (name.len() >= SHORTEST_NEAR).then(|| nearest(name, USUAL));
            near.flatten().map(str::to_owned)
        }),
    };
    meant.filter(|meant| *meant != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookalikes_find_the_attribute_that_is_meant() {
        for (name, expected) in [
            ("client_ip", Some("ip")),
            ("Remote-Addr", Some("ip")),
            ("remote_address", Some("ip")),
            ("x-forwarded-for", Some("ip")),
            ("user_agent", Some("header.user-agent")),
            ("host", Some("header.host")),
            ("x-tenant", Some("header.x-tenant")),
            ("headers.X-Tenant", Some("header.x-tenant")),
            ("header.X-Tenant", Some("header.x-tenant")),
            ("claims.plan", Some("jwt.plan")),
            ("mehtod", Some("method")),
            ("IP", Some("ip")),
            ("uri", Some("path")),
            ("ip", None),
            ("api_key", None),
            ("header.host", None),
            ("jwt.Sub", None),
            ("tenant", None),
            ("user", None),
            ("zip", None),
            ("plan", None),
            ("route", None),
            ("generic_key", None),
        ] {
            assert_eq!(meant(name).as_deref(), expected, "{name}");
        }
    }
}
