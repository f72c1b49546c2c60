//! What fuzzers try; no part of the API.

use crate::http::{ApiProblem, decode_batch, decode_check};

/// Reads the body of a check; if it is wrong, what its client is told.
pub fn check(body: &[u8]) -> Result<(), String> {
    decode_check(body).map(drop).map_err(told)
}

/// Reads the body of a batch, and each of its checks.
pub fn batch(body: &[u8]) -> Result<Vec<Result<(), String>>, String> {
    let each = decode_batch(body).map_err(told)?;
    Ok(each.map(|asked| asked.map(drop).map_err(told)).collect())
}

/// Reads a message of Envoy's; if it is wrong, what Envoy is told.
pub fn rate_limit(message: &[u8]) -> Result<(), String> {
    crate::grpc::fuzz(message)
}

/// Reads whatever is sent as a receipt, or could be signed as one.
pub fn receipt(input: &[u8]) {
    crate::receipt::fuzz(input);
}

fn told(problem: ApiProblem) -> String {
    serde_json::to_string(&problem).unwrap_or_default()
}
