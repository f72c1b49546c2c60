//! A server, asked from the command line: once, within a time, for an answer of a size.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;

const MAX_BYTES: usize = 64 * 1024;
const CONNECT: Duration = Duration::from_secs(2);

/// How long an answer is waited for in all, and what to do if there is none then.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) in_all: Duration,
    pub(crate) remedy: &'static str,
}

/// A server that is asked.
pub(crate) struct Asked {
    url: Url,
    wait: Wait,
    /// As it is named in messages.
    name: String,
    client: Client,
}

/// What it said.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

impl Asked {
    /// `http://127.0.0.1:8080`, or one behind a gateway: `https://example.com/limits`.
    pub(crate) fn at(text: &str, wait: Wait) -> anyhow::Result<Asked> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url =
            url.context("--server: no URL of a server; use http://127.0.0.1:8080, or https")?;
        // What is wrong with it is not echoed.
        anyhow::ensure!(
            url.username().is_empty() && url.password().is_none(),
            "--server: a user or a password in the URL is not sent; leave it out, \
             and give an operator's token in TOLLGATE_OPERATOR_TOKEN"
        );
        let client = Client::builder()
            .connect_timeout(CONNECT)
            .timeout(wait.in_all)
            .redirect(Policy::none())
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
        // A proxy has another loopback.
        let client = if is_here(&url) { client.no_proxy() } else { client };
        let name = url.as_str().trim_end_matches('/').to_owned();
        Ok(Asked { client: client.build().context("the HTTP client")?, url, wait, name })
    }

    /// Whether what is sent can be read on the way: it is not encrypted, and leaves this machine.
    pub(crate) fn is_overheard(&self) -> bool {
        self.url.scheme() == "http" && !is_here(&self.url)
    }

    /// Of a path, with a query or without, that is percent-encoded where it must be.
    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(self.under(path))
    }

    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(self.under(path))
    }

    fn under(&self, path: &str) -> Url {
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        url.set_query(query);
        url.set_fragment(None);
        url
    }

    pub(crate) fn ask(&self, request: RequestBuilder) -> anyhow::Result<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(self.answer(request));
        // The system may still look for the server's name: nobody waits for that.
        runtime.shutdown_background();
        answer
    }

    async fn answer(&self, request: RequestBuilder) -> anyhow::Result<Answer> {
        let mut response = request.send().await.map_err(|error| self.failed(&error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            // OK because a chunk is a piece of memory, and so is the body: their sum fits usize.
            if body.len() + chunk.len() > MAX_BYTES {
                return Err(self.foreign(status));
            }
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8(body).map_err(|_| self.foreign(status))?;
        Ok(Answer { status, body })
    }

    /// There is no answer.
    fn failed(&self, error: &reqwest::Error) -> anyhow::Error {
        let mut cause: &dyn Error = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let cause = printable(&cause.to_string());
        let (problem, remedy) = match (error.is_timeout(), error.is_connect()) {
            (_, true) if cause.contains("certificate") => (
                format!("cannot be trusted: {cause}"),
                "see that its certificate is for this name, from an authority this machine knows",
            ),
            (false, true) if self.url.scheme() == "https" => {
                (format!("cannot be reached: {cause}"), START_HTTPS)
            }
            (true, true) => (format!("does not accept a connection within {CONNECT:?}"), START),
            (false, true) => (format!("cannot be reached: {cause}"), START),
            (true, false) => {
                (format!("did not answer within {:?}", self.wait.in_all), self.wait.remedy)
            }
            (false, false) => (
                format!("did not answer: {cause}"),
                "see that it is a Tollgate, and that http or https is right",
            ),
        };
        anyhow!("{}: {problem}\n  {remedy}", self.name)
    }

    /// The answer is a refusal: in the server's words, if it has some.
    pub(crate) fn refused(&self, answer: &Answer) -> anyhow::Error {
        let status = answer.status;
        match serde_json::from_str::<Problem>(&answer.body) {
            Ok(problem) => {
                anyhow!("{}: {} ({status})", self.name, printable(&problem.detail))
            }
            Err(_) if status.is_redirection() => anyhow!(
                "{}: redirects elsewhere ({status})\n  name the server itself with --server",
                self.name
            ),
            Err(_) => self.foreign(status),
        }
    }

    /// The answer is not one of Tollgate's.
    pub(crate) fn foreign(&self, status: StatusCode) -> anyhow::Error {
        let (name, remedy) = (&self.name, "name one with --server, or see what stands before it");
        anyhow!("{name}: answers {status}, but not as Tollgate does\n  {remedy}")
    }
}

const START: &str = "is it running? start one with `tollgate serve`, or name it with --server";
const START_HTTPS: &str =
    "is it running, with https? start one with `tollgate serve`, or name it with --server";

/// RFC 9457.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse().map_or(host == "localhost", |address: IpAddr| address.is_loopback())
}

/// A key or a name as a part of a path.
///
/// `user:42/a` is `user%3A42%2Fa`.
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

/// What came over the network, for a terminal.
fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 500;
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().take(MAX_CHARS).map(escaped).collect()
}
