//! Requests over HTTP: who a client is, and what it is told.

