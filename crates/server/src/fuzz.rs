//! Entry points for fuzzers; not part of the API.

use crate::http::{
    ApiProblem, decode_batch, decode_check, decode_extend, decode_reserve, decode_settle,
    split_batch,
};

/// Reads the body of a check. The error is the problem document that the client would get.
pub fn check(body: &[u8]) -> Result<(), String> {
    decode_check(body).map(drop).map_err(problem_document)
}

/// Reads the body of a batch and each of its checks. The errors are the problem documents that the client would get.
pub fn batch(body: &[u8]) -> Result<Vec<Result<(), String>>, String> {
    let each = decode_batch(body).map_err(problem_document)?;
    Ok(each.map(|check| check.map(drop).map_err(problem_document)).collect())
}

/// The result of reading a body. The error is the problem document that the client would get.
pub type BodyResult = Result<(), String>;

/// Reads the body of a reservation, of a settlement and of an extension.
pub fn holds(body: &[u8]) -> [BodyResult; 3] {
    [
        decode_reserve(body).map(drop).map_err(problem_document),
        decode_settle(body).map(drop).map_err(problem_document),
        decode_extend(body).map(drop).map_err(problem_document),
    ]
}

/// Reads the body of a batch of operations on holds. Returns what each item is as a reservation, as a settlement and as an
/// extension.
pub fn hold_batch(body: &[u8]) -> Result<Vec<[BodyResult; 3]>, String> {
    Ok(split_batch(body).map_err(problem_document)?.map(holds).collect())
}

/// Reads a message of Envoy. The error is the message that Envoy would get.
pub fn rate_limit(message: &[u8]) -> Result<(), String> {
    crate::grpc::fuzz(message)
}

/// Reads the input as the text of a receipt, and as the content of a signed receipt.
pub fn receipt(input: &[u8]) {
    crate::receipt::fuzz(input);
}

/// Reads the input as the text of a hold token, as the content of a signed one, and as a change of a signed one.
pub fn hold_token(input: &[u8]) {
    crate::receipt::fuzz_hold_token(input);
}

fn problem_document(problem: ApiProblem) -> String {
    serde_json::to_string(&problem).unwrap_or_default()
}
