//! Parts of the OpenAPI document that are written by hand.
//!
//! - `bodies`, `hold_bodies`: schemas of bodies that serde does not read or write; `problems`: the problems that each path may return

mod bodies;
mod hold_bodies;
mod problems;

pub(super) use bodies::{
    BatchAnswer, BatchRequest, CheckAnswer, CheckRequestSchema, RefusalProblem,
};
pub(super) use hold_bodies::{
    ExtendAnswers, ExtendRequestSchema, ExtendRequests, ReserveAnswerSchema, ReserveAnswers,
    ReserveRequestSchema, ReserveRequests, SettleAnswers, SettleRequestSchema, SettleRequests,
};
pub(super) use problems::{
    AuthorizeAnswers, BodyProblems, OperatorProblems, PathProblems, PlaygroundProblems,
    StoreProblems,
};
