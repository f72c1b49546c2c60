//! Envoy with the configuration of examples/envoy, on other ports.
//!
//! - `config`: the example's file, with the changes of a test
//! - `frames`: an HTTP/2 client that ignores the server's limits
//! - `front`: a service, a server, and an Envoy in front of the service
//! - `process`: Envoy itself
//! - `upstream`: the service

mod bursts;
mod config;
mod costs;
mod enforced;
mod example;
mod failures;
mod frames;
mod front;
mod identity;
mod names;
mod page;
mod paths;
mod process;
mod responses;
mod restarts;
mod upstream;
