//! The playground: a client sends requests to an algorithm. Each session has its own counters, and charges no other
//! limit.
//!
//! [`Playground`] decides a session's requests and shows its state; [`compare`] shows how all algorithms decide the same
//! traffic. The server provides the HTTP interface: it reads the bodies, which are types of this crate, and turns each
//! [`PlaygroundError`] into a response.
//!
//! ```
//! # use tollgate_playground::{BurstBody, Playground, PlaygroundAlgorithm, Session};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate_playground::PlaygroundError> {
//! let playground = Playground::in_memory();
//! // Without a cookie, the session is new.
//! let session = Session::of(&http::HeaderMap::new());
//! let decisions = playground.burst(PlaygroundAlgorithm::TokenBucket, BurstBody::default(), &session).await?;
//! let last = decisions.last().map(|(_, decision)| decision.remaining());
//! assert_eq!(last, Some(0), "a burst is 10 requests, and the bucket holds 10");
//! # Ok(())
//! # }
//! ```
//!
//! - `play`: sessions send requests to algorithms; `holds`: they reserve and settle; `bodies`: the requests and answers as
//!   JSON
//! - `state`: a session's state under every algorithm; `compare`: all algorithms on the same traffic
//! - `algorithm`: one algorithm and its parameters; `configs`: the parameters of all of them
//! - `session`: a session and its cookie; `sessions`: at most a fixed number of sessions; `session_holds`: the open holds
//!   of one
//! - `fields`: how fields of bodies are read
//! - `error`: the errors

mod algorithm;
mod bodies;
mod compare;
mod configs;
mod error;
mod fields;
mod holds;
mod play;
mod session;
mod session_holds;
mod sessions;
mod state;

pub use algorithm::{PlaygroundAlgorithm, RequestAlgorithm};
pub use bodies::{
    AnswerJson, BurstBody, PlaygroundReservationJson, PlaygroundReserveBody, PlaygroundSettleBody,
    PlaygroundSettlementJson, RequestBody, ResetJson,
};
pub use compare::{CompareBody, Comparison, compare};
pub use error::PlaygroundError;
pub use holds::PlaygroundReservation;
pub use play::{Playground, PlaygroundDecisions};
pub use session::Session;
pub use state::{StateBody, StateJson};
