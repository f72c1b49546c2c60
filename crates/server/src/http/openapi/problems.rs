//! The problems that paths may return, for the OpenAPI document.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ContentBuilder, Object, Ref, RefOr, Response, ResponseBuilder};

/// The problems of a path that takes a body.
pub(in crate::http) struct BodyProblems;

/// The problems of a path with a variable part.
pub(in crate::http) struct PathProblems;

/// The problems of a path for operators.
pub(in crate::http) struct OperatorProblems;

/// The problems of a path that uses the store.
pub(in crate::http) struct StoreProblems;

/// All answers to a proxy.
pub(in crate::http) struct AuthorizeAnswers;

/// The problems of a path of the playground.
pub(in crate::http) struct PlaygroundProblems;

type Responses = BTreeMap<String, RefOr<Response>>;

impl IntoResponses for BodyProblems {
    fn responses() -> Responses {
        let mut all = problems(&[
            (400, "The body is not valid: `detail` says where."),
            (413, "The body is too long."),
            (415, "The body is not declared as JSON."),
        ]);
        let exhausted = problem("The server is out of memory for requests and answers.");
        let exhausted = with_header(exhausted, "Retry-After", Type::Integer, "Seconds.");
        all.extend([(503, exhausted)].map(by_status));
        all
    }
}

impl IntoResponses for PathProblems {
    fn responses() -> Responses {
        problems(&[
            (400, "The path or its query is not valid: `detail` says where."),
            (404, "There is no such limit or rule."),
        ])
    }
}

impl IntoResponses for OperatorProblems {
    fn responses() -> Responses {
        let forbidden = problem(
            "The server has no operator token, and the request is not from the server's own machine.",
        );
        let unauthorized = problem("The token is missing or wrong.");
        let unauthorized = with_header(unauthorized, "WWW-Authenticate", Type::String, "`Bearer`.");
        let guessing =
            problem("Too many wrong tokens came from this address; this one was not compared.");
        let guessing = with_header(guessing, "Retry-After", Type::Integer, "Seconds.");
        [(401, unauthorized), (403, forbidden), (429, guessing)].map(by_status).into()
    }
}

impl IntoResponses for AuthorizeAnswers {
    fn responses() -> Responses {
        let mut all = problems(&[
            (400, "The path or a header is not valid: `detail` says where."),
            (404, "The domain has no rules."),
        ]);
        let unauthorized = refusal(
            "The request's token is not accepted, and the rules file refuses such requests.",
        );
        let unauthorized = with_header(unauthorized, "WWW-Authenticate", Type::String, "`Bearer`.");
        let about = "Seconds; absent if waiting does not help.";
        let again = |refusal| with_header(refusal, "Retry-After", Type::Integer, about);
        let blocked = refusal(
            "A rule blocks the request, or the caller is not a trusted proxy: `X-Tollgate-Reason` says which.",
        );
        let refused = again(refusal("A quota is spent."));
        let deny_status = again(refusal(
            "A spent quota, a blocked request, a failing store or a stopping server, if the settings have \
                           `deny_status`.",
        ));
        let failed = again(refusal(
            "The store fails, and a rule has the failure policy `closed`; the request cannot be decided for another \
             reason (`undecided`); or the server stops before the request's delay has passed.",
        ));
        let refusals = [(401, unauthorized), (403, blocked), (429, refused), (503, failed)];
        all.extend([(200, allowed())].into_iter().chain(refusals).map(by_status));
        all.insert("4XX".to_owned(), deny_status.build().into());
        all
    }
}

impl IntoResponses for StoreProblems {
    fn responses() -> Responses {
        let failed = problem(
            "The store fails, and the request is not decided without it; or the server is out of memory for \
             requests and answers.",
        );
        let about = "Seconds; absent if waiting does not help.";
        let failed = with_header(failed, "Retry-After", Type::Integer, about);
        [(503, failed)].map(by_status).into()
    }
}

impl IntoResponses for PlaygroundProblems {
    fn responses() -> Responses {
        let about =
            "The playground has too many users at the moment, or the session too many open holds.";
        let busy = problem(about);
        let busy = with_header(busy, "Retry-After", Type::Integer, "Seconds.");
        [(404, problem("The playground is switched off.")), (429, busy)].map(by_status).into()
    }
}

fn problems(each: &[(u16, &str)]) -> Responses {
    each.iter().map(|(status, about)| by_status((*status, problem(about)))).collect()
}

fn by_status((status, response): (u16, ResponseBuilder)) -> (String, RefOr<Response>) {
    (status.to_string(), response.build().into())
}

fn problem(about: &str) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(about).content("application/problem+json", content)
}

/// Returns the response to an allowed request.
fn allowed() -> ResponseBuilder {
    let headers = [
        ("RateLimit", Type::String, "The remaining units of each limit: `\"free\";r=12;t=5`."),
        ("RateLimit-Policy", Type::String, "Each limit: `\"free\";q=60;w=60`."),
        ("X-RateLimit-Limit", Type::Integer, "The size of the tightest limit."),
        ("X-RateLimit-Remaining", Type::Integer, "The remaining units of the tightest limit."),
        (
            "X-RateLimit-Reset",
            Type::Integer,
            "The time when the whole tightest limit is available again, in Unix seconds.",
        ),
    ];
    let response = ResponseBuilder::new().description("The request is allowed.");
    headers.into_iter().fold(response, |response, (name, of_type, about)| {
        with_header(response, name, of_type, about)
    })
}

fn refusal(about: &str) -> ResponseBuilder {
    let schema = Ref::from_schema_name("RefusalProblem");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(about);
    let response = response.content("application/problem+json", content);
    let about = "The reason, in one word: `quota`, `blocked`, `token`, `store-failed`, `undecided` (for a reason \
                 other than the store), `stopping`, `untrusted-proxy`.";
    with_header(response, "X-Tollgate-Reason", Type::String, about)
}

fn with_header(
    response: ResponseBuilder,
    name: &str,
    of_type: Type,
    about: &str,
) -> ResponseBuilder {
    let header = HeaderBuilder::new().schema(Some(Object::with_type(of_type)));
    response.header(name, header.description(Some(about)).build())
}
