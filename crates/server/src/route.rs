//! What a request asks for, in words of ours: of a fixed set, whatever clients send.

use hyper::Method;

/// The paths of the API; a part in braces stands for any.
const ROUTES: [&str; 10] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/limits",
    "/v1/limits/{name}",
    "/v1/limits/{name}/keys/{key}",
    "/v1/refund",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
];

/// Which path of the API that is: `/v1/limits/free` is `/v1/limits/{name}`.
pub(crate) fn of(path: &str) -> Option<&'static str> {
    ROUTES.into_iter().find(|route| is_of(path, route))
}

fn is_of(path: &str, route: &str) -> bool {
    let (mut parts, mut names) = (path.split('/'), route.split('/'));
    loop {
        match (parts.next(), names.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if name.starts_with('{') && !part.is_empty() => {}
            (Some(part), Some(name)) if part == name => {}
            _ => return false,
        }
    }
}

/// The method, if it is a common one.
pub(crate) fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_by_its_pattern() {
        let table = [
            ("/v1/check", Some("/v1/check")),
            ("/v1/limits", Some("/v1/limits")),
            ("/v1/limits/free", Some("/v1/limits/{name}")),
            ("/v1/limits/free/keys/a%2Fb", Some("/v1/limits/{name}/keys/{key}")),
            ("/v1/limits/", None),
            ("/v1/limits/free/keys", None),
            ("/v1/limits/free/keys/", None),
            ("/v1/limits/free/keys/a/b", None),
            ("/v1/check/", None),
            ("v1/check", None),
            ("/", None),
            ("", None),
        ];
        for (path, route) in table {
            assert_eq!(of(path), route, "{path}");
        }
    }

    #[test]
    fn an_invented_method_is_none_of_ours() {
        assert_eq!(method(&Method::POST), "POST");
        assert_eq!(method(&Method::from_bytes(b"STEAL").unwrap()), "_OTHER");
    }
}
