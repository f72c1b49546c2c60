//! What a path may answer instead.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ContentBuilder, Object, Ref, RefOr, Response, ResponseBuilder};

/// Of a path that takes a body.
pub(in crate::http) struct BodyProblems;

/// Of a path with a name in it.
pub(in crate::http) struct PathProblems;

/// Of a path for operators.
pub(in crate::http) struct OperatorProblems;

/// Of a path that asks the store.
pub(in crate::http) struct StoreProblems;

/// Every answer to a proxy.
pub(in crate::http) struct AuthorizeAnswers;

/// Of a path to play with.
pub(in crate::http) struct PlaygroundProblems;

type Responses = BTreeMap<String, RefOr<Response>>;

impl IntoResponses for BodyProblems {
    fn responses() -> Responses {
        let mut all = problems(&[
            (400, "It is wrong: the detail says where."),
            (413, "The body is too long."),
            (415, "The body does not say that it is JSON."),
        ]);
        let exhausted = problem("Bodies and answers take all the memory that they may.");
        let exhausted = with_header(exhausted, "Retry-After", Type::Integer, "Seconds.");
        all.extend([(503, exhausted)].map(of_status));
        all
    }
}

impl IntoResponses for PathProblems {
    fn responses() -> Responses {
        problems(&[
            (400, "The path or its query is wrong: the detail says where."),
            (404, "There is no such limit."),
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
        [(401, unauthorized), (403, forbidden), (429, guessing)].map(of_status).into()
    }
}

impl IntoResponses for AuthorizeAnswers {
    fn responses() -> Responses {
        let mut all = problems(&[
            (400, "The path or a header is wrong: the detail says where."),
            (404, "There is no rule of that domain."),
        ]);
        let unauthorized = refusal("Its token is not accepted, and such requests are not wanted.");
        let unauthorized = with_header(unauthorized, "WWW-Authenticate", Type::String, "`Bearer`.");
        let about = "Seconds, unless waiting does not help.";
        let again = |refusal| with_header(refusal, "Retry-After", Type::Integer, about);
        let blocked = refusal(
            "A rule blocks the request, or the caller is not a trusted proxy: `X-Tollgate-Reason` says which.",
        );
        let refused = again(refusal("A quota is spent."));
        let told = again(refusal("The same, if the settings have `deny_status`."));
        let failed = again(refusal(
            "The store fails, and a rule says that nobody goes then; or the server stops before its turn comes.",
        ));
        let refusals = [(401, unauthorized), (403, blocked), (429, refused), (503, failed)];
        all.extend([(200, allowed())].into_iter().chain(refusals).map(of_status));
        all.insert("4XX".to_owned(), told.build().into());
        all
    }
}

impl IntoResponses for StoreProblems {
    fn responses() -> Responses {
        let failed = problem(
            "The store fails, and nothing is decided without it; or bodies and answers take all the memory \
                              that they may.",
        );
        let about = "Seconds, unless waiting does not help.";
        let failed = with_header(failed, "Retry-After", Type::Integer, about);
        [(503, failed)].map(of_status).into()
    }
}

impl IntoResponses for PlaygroundProblems {
    fn responses() -> Responses {
        let busy = problem("Too many play at the moment.");
        let busy = with_header(busy, "Retry-After", Type::Integer, "Seconds.");
        [(404, problem("The playground is switched off.")), (429, busy)].map(of_status).into()
    }
}

fn problems(each: &[(u16, &str)]) -> Responses {
    each.iter().map(|(status, about)| of_status((*status, problem(about)))).collect()
}

fn of_status((status, response): (u16, ResponseBuilder)) -> (String, RefOr<Response>) {
    (status.to_string(), response.build().into())
}

fn problem(about: &str) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(about).content("application/problem+json", content)
}

/// The answer for a request that may go.
fn allowed() -> ResponseBuilder {
    let headers = [
        ("RateLimit", Type::String, "What is left of each limit: `\"free\";r=12;t=5`."),
        ("RateLimit-Policy", Type::String, "Each limit: `\"free\";q=60;w=60`."),
        ("X-RateLimit-Limit", Type::Integer, "The tightest limit."),
        ("X-RateLimit-Remaining", Type::Integer, "What is left of the tightest limit."),
        ("X-RateLimit-Reset", Type::Integer, "When all of it is available again, in Unix seconds."),
    ];
    let response = ResponseBuilder::new().description("The request may go.");
    headers.into_iter().fold(response, |response, (name, of_type, about)| {
        with_header(response, name, of_type, about)
    })
}

fn refusal(about: &str) -> ResponseBuilder {
    let schema = Ref::from_schema_name("RefusalProblem");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(about);
    let response = response.content("application/problem+json", content);
    let about = "Why, in a word: `quota`, `blocked`, `token`, `store-failed`, `stopping`, `untrusted-proxy`.";
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
