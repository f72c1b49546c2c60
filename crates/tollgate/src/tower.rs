//! Middleware for [tower](https://docs.rs/tower): one layer limits the requests to a service, another paces those of a client.

mod pace;
