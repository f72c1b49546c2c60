//! The server, as a process of its own, over real sockets.

mod check;
mod server;
