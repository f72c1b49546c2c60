//! The URLs of Redis and Valkey.
//!
//! | URL | servers |
//! |---|---|
//! | `redis://[user[:password]@]host[:port][/database]` | one server |
//! | `redis+unix:///path/of/a.sock[?db=…&user=…&pass=…]` | one server, on a socket |
//! | `redis+cluster://[user[:password]@]host[:port],…` | some servers of a Cluster |
//! | `redis+sentinel://[user[:password]@]host[:port],…/name[/database]` | Sentinels and the primary that they watch |
//! | `redis+shards://[user[:password]@]host[:port],…[/database]` | servers that share the keys |
//!
//! All but the socket use TLS with `rediss…`. `?ca=` then trusts other certificates than the system's, and `?cert=…&key=…`
//! shows a certificate to the server. `valkey` may stand for `redis` everywhere.
//!
//! No error quotes a part of the URL that may contain a password.

use std::sync::Arc;

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion, parse_redis_url};

use super::{Deployment, ServerSettings};
use crate::tls::Certificates;

/// The most servers in one URL.
const MAX_SERVERS: usize = 1_024;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The login of a connection without user and password.
const NO_LOGIN: &str = "";

/// Parses a URL. The error says what is wrong with it and what to do.
pub(super) fn deployment(url: &str) -> Result<Deployment, String> {
    // As in redis-rs: spaces around a URL, and line breaks anywhere, are not part of it.
    let url = url.trim_matches(|letter| letter <= ' ').replace(['\t', '\n', '\r'], "");
    let (scheme, rest) = url.split_once(':').ok_or(FORMS)?;
    let scheme = scheme.to_ascii_lowercase();
    if SOCKETS.contains(&&*scheme) {
        check_fragment(rest)?;
        return socket(&url, rest).map(Deployment::One);
    }
    let (form, security) = form(&scheme).ok_or(FORMS)?;
    check_fragment(rest)?;
    let address = UrlParts::of(rest, form, security)?;
    Ok(match form {
        UrlForm::One => Deployment::One(address.only_server()?),
        UrlForm::Cluster => Deployment::Cluster { seeds: address.servers()? },
        UrlForm::Shards => Deployment::Shards(address.servers()?),
        UrlForm::Sentinel => Deployment::Sentinel {
            sentinels: address.sentinels()?,
            // The sentinels know the primary's address, which replaces this one before every connection. Until then, the
            // primary's name takes the place of the host.
            primary: address.server("primary", "the primary")?.at(address.name, REDIS_PORT),
            name: address.name.to_owned(),
        },
    })
}

const FORMS: &str = "this is not a Redis URL; use redis://[user[:password]@]host[:port][/database], \
                     redis+unix:///path, redis+cluster://host,…, redis+sentinel://host,…/name or \
                     redis+shards://host,…, and rediss for TLS";

fn check_fragment(rest: &str) -> Result<(), &'static str> {
    match rest.split_once('#') {
        None => Ok(()),
        Some((_, "insecure")) => Err(
            "`#insecure` is not supported, a certificate is always verified; name the one to trust \
             with `?ca=/path/to/ca.pem`",
        ),
        Some(_) => Err(
            "the URL has a `#`, and nothing after a `#` is used; write it as %23 if it is part of a \
                 password, or leave it out",
        ),
    }
}

const SOCKETS: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlForm {
    One,
    Cluster,
    Sentinel,
    Shards,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    Plain,
    Tls,
}

fn form(scheme: &str) -> Option<(UrlForm, Security)> {
    let (protocol, form) = match scheme.split_once('+') {
        None => (scheme, UrlForm::One),
        Some((protocol, "cluster")) => (protocol, UrlForm::Cluster),
        Some((protocol, "sentinel")) => (protocol, UrlForm::Sentinel),
        Some((protocol, "shards")) => (protocol, UrlForm::Shards),
        Some(_) => return None,
    };
    match protocol {
        "redis" | "valkey" => Some((form, Security::Plain)),
        "rediss" | "valkeys" => Some((form, Security::Tls)),
        _ => None,
    }
}

/// Parses the URL of a Unix socket, with redis-rs.
fn socket(url: &str, rest: &str) -> Result<ServerSettings, String> {
    let (_, query) = rest.split_once('?').unwrap_or_default();
    let protocol = UrlParameters::of(query, &["protocol", "db", "user", "pass"])?.protocol()?;
    let connection = url.into_connection_info().map_err(|_| {
        "the URL has no path, or a database that is not a number; use \
         redis+unix:///path/of/a.sock[?db=…&user=…&pass=…]"
    })?;
    let server = ServerSettings::new(connection, None);
    Ok(if protocol == "resp3" { server.with_protocol(ProtocolVersion::RESP3) } else { server })
}

/// The parts of a URL whose servers have hosts and ports.
struct UrlParts<'a> {
    /// User and password as they are written, with the `@`.
    login: &'a str,
    hosts: &'a str,
    /// The name of the primary in the sentinels' configuration.
    name: &'a str,
    database: u32,
    parameters: UrlParameters<'a>,
    certificates: Option<Arc<Certificates>>,
}

impl<'a> UrlParts<'a> {
    fn of(rest: &'a str, form: UrlForm, security: Security) -> Result<UrlParts<'a>, String> {
        let rest = rest.strip_prefix("//").ok_or(FORMS)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        // Otherwise a part of a password could look like a port, a database or a parameter.
        if path.contains('@') || query.contains('@') {
            let problem = "the URL has an `@` after a `/` or `?`; in a user or password write / as %2F \
                           and ? as %3F, in a parameter write @ as %40";
            return Err(problem.to_owned());
        }
        let hosts_at = authority.rfind('@').map_or(0, |at| at + 1);
        let (login, hosts) = authority.split_at(hosts_at);
        if form != UrlForm::One && login.matches('@').count() > 1 {
            let problem = "the URL has more than one `@`; say user and password once, before the first \
                           server, and write @ in them as %40";
            return Err(problem.to_owned());
        }
        let (name, database) = name_and_database(path, form)?;
        let parameters = UrlParameters::of(query, known_parameters(form, security))?;
        let certificates = match security {
            Security::Plain => None,
            Security::Tls => Some(Arc::new(Certificates::read(|name| parameters.value(name))?)),
        };
        Ok(UrlParts { login, hosts, name, database, parameters, certificates })
    }

    fn only_server(&self) -> Result<ServerSettings, String> {
        if self.hosts.contains(',') {
            let problem = "the URL names several servers; say what they are with redis+cluster://, \
                           redis+sentinel:// or redis+shards://";
            return Err(problem.to_owned());
        }
        self.server(self.hosts, "the server")
    }

    fn servers(&self) -> Result<Vec<ServerSettings>, String> {
        self.listed(|text, place| self.server(text, place))
    }

    fn sentinels(&self) -> Result<Vec<ServerSettings>, String> {
        let (user, password) = self.parameters.sentinel_login()?;
        self.listed(|text, place| {
            let (host, port) = host_and_port(text, place)?;
            let port = port.unwrap_or(SENTINEL_PORT);
            let sentinel = self.connection_info(NO_LOGIN, host, port, place)?;
            let mut settings = sentinel.redis_settings().clone().set_db(0);
            if let Some(user) = &user {
                settings = settings.set_username(user);
            }
            if let Some(password) = &password {
                settings = settings.set_password(password);
            }
            Ok(ServerSettings::new(
                sentinel.set_redis_settings(settings),
                self.certificates.clone(),
            ))
        })
    }

    /// Returns all servers, or an error if one is named twice.
    fn listed(
        &self,
        server: impl Fn(&str, &str) -> Result<ServerSettings, String>,
    ) -> Result<Vec<ServerSettings>, String> {
        let count = self.hosts.split(',').count();
        if count > MAX_SERVERS {
            return Err(format!("the URL names {count} servers; use at most {MAX_SERVERS}"));
        }
        let mut servers: Vec<ServerSettings> = Vec::with_capacity(count);
        for (index, text) in self.hosts.split(',').enumerate() {
            let server = server(text, &format!("server {} of {count}", index + 1))?;
            if servers.iter().any(|other| other.name == server.name) {
                return Err(format!("the URL names `{}` twice; leave one out", server.name));
            }
            servers.push(server);
        }
        Ok(servers)
    }

    fn server(&self, text: &str, place: &str) -> Result<ServerSettings, String> {
        let (host, port) = host_and_port(text, place)?;
        let port = port.unwrap_or(REDIS_PORT);
        let connection = self.connection_info(self.login, host, port, place)?;
        Ok(ServerSettings::new(connection, self.certificates.clone()))
    }

    /// Returns the connection settings for one server, without connecting: redis-rs parses the URL of this one server.
    fn connection_info(
        &self,
        login: &str,
        host: &str,
        port: u16,
        place: &str,
    ) -> Result<ConnectionInfo, String> {
        let (database, protocol) = (self.database, self.parameters.protocol()?);
        let url = format!("redis://{login}{host}:{port}/{database}?protocol={protocol}");
        let url = parse_redis_url(&url).ok_or_else(|| {
            format!("{place} has an invalid host; use a name or an address, IPv6 in brackets")
        })?;
        if matches!(url.host_str(), Some("0.0.0.0" | "[::]")) {
            return Err(format!(
                "{place} is the unspecified address; use the address of one server"
            ));
        }
        url.into_connection_info().map_err(|_| {
            let problem = "the URL has a user or a password that is not UTF-8 when its %… are decoded; \
                           write it as UTF-8";
            problem.to_owned()
        })
    }
}

/// Splits at the last colon; IPv6 addresses keep their brackets.
fn host_and_port<'a>(text: &'a str, place: &str) -> Result<(&'a str, Option<u16>), String> {
    let colon = text.rfind(':').filter(|&colon| !text[colon..].contains(']'));
    let (host, port) = colon.map_or((text, ""), |colon| (&text[..colon], &text[colon + 1..]));
    if host.is_empty() {
        return Err(format!("{place} has no host; name one, or remove the extra comma"));
    }
    if host.contains(':') && !host.starts_with('[') {
        return Err(format!("{place} has more than one colon; put an IPv6 address in brackets"));
    }
    if port.is_empty() {
        return Ok((host, None));
    }
    match number(port).and_then(|port| u16::try_from(port).ok()) {
        None | Some(0) => Err(format!("{place} has an invalid port; use a number from 1 to 65535")),
        Some(port) => Ok((host, Some(port))),
    }
}

fn name_and_database(path: &str, form: UrlForm) -> Result<(&str, u32), String> {
    let path = path.trim_matches('/');
    let (name, database) = match form {
        UrlForm::Sentinel => path.split_once('/').unwrap_or((path, "")),
        _ => ("", path),
    };
    // The letters that Sentinel's documentation allows.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if form == UrlForm::Sentinel && (name.is_empty() || !name.bytes().all(is_name)) {
        let problem = "the URL does not name the primary that the Sentinels watch, with letters, digits and \
                       `.-_`; use redis+sentinel://host,…/name[/database]";
        return Err(problem.to_owned());
    }
    let database = if database.is_empty() { Some(0) } else { number(database) };
    let problem = match (form, database) {
        (_, None) => "the URL has a database that is not a number; use one from 0, or leave it out",
        (UrlForm::Cluster, Some(1..)) => {
            "the URL has a database, and a Cluster has only database 0; leave it out"
        }
        (_, Some(database)) => return Ok((name, database)),
    };
    Err(problem.to_owned())
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

const fn known_parameters(form: UrlForm, security: Security) -> &'static [&'static str] {
    match (form, security) {
        (UrlForm::Sentinel, Security::Plain) => &["protocol", "sentinel_user", "sentinel_password"],
        (UrlForm::Sentinel, Security::Tls) => {
            &["protocol", "ca", "cert", "key", "sentinel_user", "sentinel_password"]
        }
        (_, Security::Plain) => &["protocol"],
        (_, Security::Tls) => &["protocol", "ca", "cert", "key"],
    }
}

/// The parameters after the `?`, each at most once.
struct UrlParameters<'a>(Vec<(&'a str, &'a str)>);

impl<'a> UrlParameters<'a> {
    fn of(query: &'a str, known: &[&str]) -> Result<UrlParameters<'a>, String> {
        let mut all: Vec<(&str, &str)> = Vec::new();
        for text in query.split('&').filter(|text| !text.is_empty()) {
            let (name, value) = text.split_once('=').unwrap_or(("", text));
            if !known.contains(&name) {
                return Err(unknown_parameter(name, &all, known));
            }
            if all.iter().any(|(other, _)| *other == name) {
                return Err(format!("`{name}` is given twice; leave one out"));
            }
            all.push((name, value));
        }
        Ok(UrlParameters(all))
    }

    /// Returns the value with `%…` decoded. A `+` stands for itself.
    fn value(&self, name: &str) -> Result<Option<String>, String> {
        let Some((_, value)) = self.0.iter().find(|(other, _)| *other == name) else {
            return Ok(None);
        };
        let decoded = decoded(value);
        decoded.map(Some).ok_or_else(|| {
            format!("`{name}` is not UTF-8 when its %… are decoded; write it as UTF-8")
        })
    }

    fn protocol(&self) -> Result<&'static str, String> {
        match self.value("protocol")?.as_deref() {
            Some("2" | "resp2") => Ok("resp2"),
            None | Some("3" | "resp3") => Ok("resp3"),
            Some(_) => Err("`protocol` is neither resp2 nor resp3; use one of them".to_owned()),
        }
    }

    fn sentinel_login(&self) -> Result<(Option<String>, Option<String>), String> {
        let login = (self.value("sentinel_user")?, self.value("sentinel_password")?);
        if let (Some(_), None) = login {
            return Err(
                "`sentinel_user` needs a `sentinel_password`; give both, or neither".to_owned()
            );
        }
        Ok(login)
    }
}

/// Returns the error for an unknown parameter. It names the parameter, unless that may be the rest of a password with an
/// `&` in it.
fn unknown_parameter(name: &str, before: &[(&str, &str)], known: &[&str]) -> String {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let is_plain = !name.is_empty() && name.len() <= 32 && name.bytes().all(is_name);
    let is_after_password =
        before.iter().any(|(name, _)| ["pass", "sentinel_password"].contains(name));
    let known = known.join(", ");
    if ["ca", "cert", "key"].contains(&name) && !is_after_password {
        return format!("`{name}` is for TLS; use rediss, or leave it out");
    }
    if is_plain && !is_after_password {
        return format!("`{name}` is not known; use only {known}");
    }
    let number = before.len() + 1;
    format!(
        "parameter {number} after the `?` is not known; use only {known}, and write & in a value as %26"
    )
}

/// Decodes `%41` to `A`; a `%` without two hex digits stands for itself.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8(bytes).ok()
}
