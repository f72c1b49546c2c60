//! What the document of the API says of bodies and problems.
//!
//! - `bodies`: those that are read and written by hand; `problems`: what paths may answer instead

mod bodies;
mod problems;

pub(super) use bodies::{BatchAnswer, BatchRequest, CheckAnswer, CheckRequest, RefusalProblem};
pub(super) use problems::{
    AuthorizeAnswers, BodyProblems, OperatorProblems, PathProblems, PlaygroundProblems,
    StoreProblems,
};
