//! A layer that paces the requests of a client.
