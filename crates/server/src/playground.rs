//! The algorithms to play with, each session with counters of its own.
//!
//! - `play`: sessions send requests to algorithms; `bodies`: what is sent and answered
//! - `state`: how a session stands; `compare`: what all algorithms make of the same traffic
//! - `algorithm`: the algorithms, and their parameters; `configs`: those of all of them
//! - `session`: which session a request is of; `sessions`: how many there are
//! - `fields`: how fields of bodies are read; `error`: why there is no answer

mod algorithm;
mod bodies;
mod compare;
mod configs;
mod error;
mod fields;
mod play;
mod session;
mod sessions;
mod state;

pub(crate) use algorithm::Algorithm;
pub(crate) use bodies::{BurstBody, DecisionJson, RequestBody, ResetJson};
pub(crate) use compare::{Compared, Traffic, compare};
pub(crate) use error::PlaygroundError;
pub(crate) use play::{Played, Playground};
pub(crate) use session::Session;
pub(crate) use state::{StateBody, StateJson};
