//! Bytes that an attacker sends on a gRPC connection.

use crate::raw::PATH;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Returns a frame of HTTP/2.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the header block of a call. It adds the path and the content type to the connection's HPACK table.
pub(crate) fn block(path: &str) -> Vec<u8> {
    let literal = |name: u8, value: &[u8]| {
        let length = u8::try_from(value.len()).unwrap();
        [&[0x40 | name, length], value].concat()
    };
    let path = literal(4, path.as_bytes());
    let content_type = literal(31, b"application/grpc");
    [&[0x83, 0x86][..], &path, &content_type].concat()
}

/// The header block of a further call of the same path, which refers to that table.
pub(crate) const NEXT_BLOCK: &[u8] = &[0x83, 0x86, 0xbf, 0xbe];

/// Returns the preface of a connection, with settings.
pub(crate) fn preface(settings: &[u8]) -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, settings)].concat()
}

/// Returns the header block of a call of Envoy's service: the full block for the first call of a connection, and references
/// to the table for later calls.
pub(crate) fn block_of_call(id: u32) -> Vec<u8> {
    if id == 1 { block(PATH) } else { NEXT_BLOCK.to_vec() }
}
