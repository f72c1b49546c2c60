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
        let forbidden = problem("There is no token, and it is not asked from the same machine.");
        let unauthorized = problem("The token is missing, or the wrong one.");
        let unauthorized = with_header(unauthorized, "WWW-Authenticate", Type::String, "`Bearer`.");
        [(401, unauthorized), (403, forbidden)].map(of_status).into()
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

fn with_header(
    response: ResponseBuilder,
    name: &str,
    of_type: Type,
    about: &str,
) -> ResponseBuilder {
    let header = HeaderBuilder::new().schema(Some(Object::with_type(of_type)));
    response.header(name, header.description(Some(about)).build())
}
