//! An HTTP client for the commands that send one request to a running server.
//!
//! The request has a timeout, and the response a maximum length.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;

/// The longest body of a response.
const MAX_BYTES: usize = 64 * 1024;

/// The longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time until the whole response has arrived, and the advice that the error message gives after that.
#[derive(Clone, Copy)]
pub(crate) struct ResponseTimeout {
    pub(crate) total: Duration,
    pub(crate) remedy: &'static str,
}

/// A client of one server.
pub(crate) struct ServerClient {
    url: Url,
    timeout: ResponseTimeout,
    /// The server's name in messages.
    name: String,
    client: Client,
}

/// A server's response.
pub(crate) struct ServerResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

impl ServerClient {
    /// Makes a client of the server at a URL: `http://127.0.0.1:8080`, or behind a gateway
    /// `https://example.com/limits`.
    pub(crate) fn new(text: &str, timeout: ResponseTimeout) -> anyhow::Result<ServerClient> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url
            .context("--server: not an http or https URL; use one such as http://127.0.0.1:8080")?;
        // The message does not repeat the URL, which has a password here.
        anyhow::ensure!(
            url.username().is_empty() && url.password().is_none(),
            "--server: the URL has a user name or a password, which would not be sent; remove it, \
             and give the operator token in TOLLGATE_OPERATOR_TOKEN"
        );
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout.total)
            .redirect(Policy::none())
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
        // On a proxy, a loopback address would be the proxy's own machine.
        let client = if is_this_machine(&url) { client.no_proxy() } else { client };
        let name = url.as_str().trim_end_matches('/').to_owned();
        Ok(ServerClient { client: client.build().context("the HTTP client")?, url, timeout, name })
    }

    /// Returns whether requests leave this machine unencrypted.
    pub(crate) fn is_unencrypted(&self) -> bool {
        self.url.scheme() == "http" && !is_this_machine(&self.url)
    }

    /// Makes a GET request of a path, with or without a query, which is percent-encoded already.
    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(self.url_of(path))
    }

    /// Makes a POST request of a path.
    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(self.url_of(path))
    }

    /// Returns the URL of a path on the server.
    fn url_of(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        url.set_query(query);
        url.set_fragment(None);
        url
    }

    /// Sends a request and waits for the response.
    pub(crate) fn send(&self, request: RequestBuilder) -> anyhow::Result<ServerResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let response = runtime.block_on(self.response(request));
        // A lookup of the server's name may still run in a thread of the runtime: do not wait for that thread.
        runtime.shutdown_background();
        response
    }

    async fn response(&self, request: RequestBuilder) -> anyhow::Result<ServerResponse> {
        let mut response = request.send().await.map_err(|error| self.failure(&error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(&error))? {
            // OK because the chunk and the body are both in memory: their sum fits usize.
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(self.not_tollgate(status));
            }
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8(body).map_err(|_| self.not_tollgate(status))?;
        Ok(ServerResponse { status, body })
    }

    /// Returns the error for a request without a response.
    fn failure(&self, error: &reqwest::Error) -> anyhow::Error {
        let mut cause: &dyn Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let cause = printable(&cause.to_string());
        let (problem, remedy) = match (error.is_timeout(), error.is_connect()) {
            (_, true) if cause.contains("certificate") => (
                format!("cannot be trusted: {cause}"),
                "check that its certificate is for this name, from an authority that this machine trusts",
            ),
            (false, true) if self.url.scheme() == "https" => {
                (format!("cannot be reached: {cause}"), START_HTTPS)
            }
            (true, true) => {
                (format!("does not accept a connection within {CONNECT_TIMEOUT:?}"), START)
            }
            (false, true) => (format!("cannot be reached: {cause}"), START),
            (true, false) => {
                (format!("did not answer within {:?}", self.timeout.total), self.timeout.remedy)
            }
            (false, false) => (
                format!("did not answer: {cause}"),
                "check that it is a Tollgate server, and that http or https is right",
            ),
        };
        anyhow!("{}: {problem}\n  {remedy}", self.name)
    }

    /// Returns the error for a response that reports a problem, with the server's own description of the problem if the
    /// response has one.
    pub(crate) fn problem(&self, response: &ServerResponse) -> anyhow::Error {
        let status = response.status;
        match serde_json::from_str::<ProblemDetail>(&response.body) {
            Ok(problem) => {
                anyhow!("{}: {} ({status})", self.name, printable(&problem.detail))
            }
            Err(_) if status.is_redirection() => anyhow!(
                "{}: redirects to another URL ({status})\n  give the URL of the server itself with --server",
                self.name
            ),
            Err(_) => self.not_tollgate(status),
        }
    }

    /// Returns the error for a response that is not Tollgate's.
    pub(crate) fn not_tollgate(&self, status: StatusCode) -> anyhow::Error {
        let name = &self.name;
        let remedy =
            "give the URL of a Tollgate server with --server, or check the proxy in front of it";
        anyhow!("{name}: answers {status}, but not as Tollgate does\n  {remedy}")
    }
}

const START: &str = "is it running? start it with `tollgate serve`, or give its URL with --server";
const START_HTTPS: &str =
    "is it running, with https? start it with `tollgate serve`, or give its URL with --server";

/// The part of a problem (RFC 9457) that error messages quote.
#[derive(Deserialize)]
struct ProblemDetail {
    detail: String,
}

/// Returns whether a URL is of this machine: `localhost` or a loopback address.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse().map_or(host == "localhost", |address: IpAddr| address.is_loopback())
}

/// Percent-encodes a key or a name for use as one part of a path: `user:42/a` becomes `user%3A42%2Fa`.
pub(crate) fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                segment.push(char::from(byte));
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

/// Makes text from the network safe for a terminal: at most 500 characters, control characters escaped.
fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 500;
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().take(MAX_CHARS).map(escaped).collect()
}
