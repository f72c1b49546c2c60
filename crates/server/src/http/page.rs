//! `GET /`: the web page, whose files are part of the program.
//!
//! - `features`: the features that the page can show

mod features;

use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use siphasher::sip128::SipHasher13;

use super::api::Api;

/// The Content-Security-Policy: only files from this server, and no inline scripts or styles.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A browser keeps the files but validates them each time, because a new version of the server has a new page.
const CACHE_POLICY: &str = "no-cache";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page, ready to be sent.
struct PageFile {
    path: &'static str,
    content_type: &'static str,
    plain: &'static [u8],
    gzip: Bytes,
    tag: HeaderValue,
}

macro_rules! files {
    ($($path:literal $name:literal $content_type:expr;)*) => {
        [$(PageFile::new($path, $content_type, include_bytes!(concat!("../../web/", $name)))),*]
    };
}

static FILES: LazyLock<Vec<PageFile>> = LazyLock::new(|| {
    Vec::from(files! {
        "/" "index.html" HTML;
        "/page/style.css" "style.css" CSS;
        "/page/icon.svg" "icon.svg" SVG;
        "/page/main.js" "main.js" SCRIPT;
        "/page/api.js" "api.js" SCRIPT;
        "/page/dom.js" "dom.js" SCRIPT;
        "/page/algorithms.js" "algorithms.js" SCRIPT;
        "/page/pictures.js" "pictures.js" SCRIPT;
        "/page/advance.js" "advance.js" SCRIPT;
        "/page/holds.js" "holds.js" SCRIPT;
        "/page/jobs.js" "jobs.js" SCRIPT;
        "/page/cards.js" "cards.js" SCRIPT;
        "/page/compare.js" "compare.js" SCRIPT;
        "/page/patterns.js" "patterns.js" SCRIPT;
        "/page/timeline.js" "timeline.js" SCRIPT;
        "/page/operations.js" "operations.js" SCRIPT;
        "/page/lookup.js" "lookup.js" SCRIPT;
        "/page/rates.js" "rates.js" SCRIPT;
    })
});

impl PageFile {
    fn new(path: &'static str, content_type: &'static str, plain: &'static [u8]) -> PageFile {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        // OK because writing to memory cannot fail.
        let _ = gzip.write_all(plain);
        let gzip = gzip.finish().unwrap_or_default().into();
        // A weak tag, because it is the same for both encodings.
        let tag = format!("W/\"{:032x}\"", SipHasher13::new().hash(plain).as_u128());
        let tag = HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("W/\"\""));
        PageFile { path, content_type, plain, gzip, tag }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let mut response = Response::new(Body::empty());
        let own = response.headers_mut();
        let mut set = |name: HeaderName, value: &'static str| {
            own.insert(name, HeaderValue::from_static(value))
        };
        set(CACHE_CONTROL, CACHE_POLICY);
        set(VARY, "accept-encoding");
        set(CONTENT_SECURITY_POLICY, CONTENT_POLICY);
        set(X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(REFERRER_POLICY, "no-referrer");
        set(CONTENT_TYPE, self.content_type);
        own.insert(ETAG, self.tag.clone());
        if headers.get_all(IF_NONE_MATCH).iter().any(|tags| has_tag(tags, &self.tag)) {
            own.remove(CONTENT_TYPE);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let is_gzip = headers.get_all(ACCEPT_ENCODING).iter().any(accepts_gzip);
        if is_gzip {
            own.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        *response.body_mut() = match is_gzip {
            true => Body::from(self.gzip.clone()),
            false => Body::from(self.plain),
        };
        response
    }
}

/// Returns whether a list of tags has this tag, weak or strong, or is `*`.
fn has_tag(tags: &HeaderValue, tag: &HeaderValue) -> bool {
    fn bare(tag: &[u8]) -> &[u8] {
        tag.strip_prefix(b"W/").unwrap_or(tag)
    }
    let mut tags = tags.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|own| own == b"*" || bare(own) == bare(tag.as_bytes()))
}

/// Returns whether a list of encodings has `gzip` with a weight above 0.
fn accepts_gzip(accepted: &HeaderValue) -> bool {
    let Ok(accepted) = accepted.to_str() else { return false };
    accepted.split(',').any(|own| {
        let (coding, weight) = own.split_once(';').unwrap_or((own, ""));
        let weight = weight.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        coding.trim().eq_ignore_ascii_case("gzip") && weight.is_ok_and(|weight| weight > 0.0)
    })
}

/// Returns the routes of the page's files.
pub(super) fn routes() -> Router<Api> {
    let router = Router::new().route("/page/server.json", get(features::features));
    FILES.iter().fold(router, |router, file| {
        router.route(file.path, get(move |headers: HeaderMap| async move { file.answer(&headers) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_page_are_small() {
        let bytes: usize = FILES.iter().map(|file| file.plain.len()).sum();
        assert!(bytes < 150_000, "{bytes}");
    }

    #[test]
    fn unchanged_file_is_answered_with_304() {
        let file = &FILES[0];
        let tag = file.tag.to_str().unwrap();
        for (sent, want) in [
            (tag.to_owned(), 304),
            (tag[2..].to_owned(), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            ("\"other\"".to_owned(), 200),
            (tag[3..].to_owned(), 200),
        ] {
            let headers =
                HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::try_from(&sent).unwrap())]);
            assert_eq!(file.answer(&headers).status().as_u16(), want, "{sent}");
        }
    }

    #[test]
    fn file_is_compressed_if_the_client_accepts_gzip() {
        for (accepted, want) in [
            ("gzip, deflate, br", true),
            ("br;q=1, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("xgzip", false),
            ("", false),
        ] {
            let headers =
                HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(accepted))]);
            let answer = FILES[0].answer(&headers);
            assert_eq!(answer.headers().contains_key(CONTENT_ENCODING), want, "{accepted}");
        }
    }
}
