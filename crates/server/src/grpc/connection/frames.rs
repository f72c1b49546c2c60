//! Finds where the frames of HTTP/2 begin and end in the bytes of a connection.

/// The length of a frame's head: 3 bytes of length, then type, flags and 4 bytes of stream.
const HEAD_BYTES: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames of a connection, to know whether a header block has begun and not ended.
///
/// The headers of such a block are already decoded and kept by h2, which does not report them before the block ends.
#[derive(Debug)]
pub(super) struct FrameScan {
    head: [u8; HEAD_BYTES],
    /// How many bytes of `head` have arrived.
    head_bytes: usize,
    /// How many bytes follow before the next head: the rest of a payload, at first the connection preface.
    skip_bytes: usize,
    is_block_open: bool,
}

impl FrameScan {
    /// Starts at a connection's first byte; its preface has `preface_bytes`.
    pub(super) fn new(preface_bytes: usize) -> FrameScan {
        let (head, head_bytes) = ([0; HEAD_BYTES], 0);
        FrameScan { head, head_bytes, skip_bytes: preface_bytes, is_block_open: false }
    }

    /// Follows the next bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip_bytes.min(bytes.len());
            self.skip_bytes -= skipped;
            bytes = &bytes[skipped..];
            // OK because a complete head is processed below, which sets `head_bytes` to 0.
            let taken = (HEAD_BYTES - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_bytes += taken;
            bytes = &bytes[taken..];
            if self.head_bytes == HEAD_BYTES {
                self.begin_frame();
            }
        }
    }

    /// Returns whether a header block has begun and not ended.
    pub(super) fn is_block_open(&self) -> bool {
        self.is_block_open
    }

    fn begin_frame(&mut self) {
        let [length_2, length_1, length_0, kind, flags, ..] = self.head;
        self.head_bytes = 0;
        // OK because 24 bits fit in usize.
        self.skip_bytes = u32::from_be_bytes([0, length_2, length_1, length_0]) as usize;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.is_block_open = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Returns the bytes of a connection whose payloads look like heads, and for each byte whether a header block is
    /// open after it.
    fn connection() -> (Vec<u8>, Vec<bool>) {
        let misleading = frame(HEADERS, 0, b"");
        let parts = [
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), false),
            (frame(4, 0, b""), false),
            (frame(0, 0, &misleading.repeat(5_000)), false),
            (frame(HEADERS, END_HEADERS, &misleading), false),
            (frame(HEADERS, 0, &misleading), true),
            (frame(CONTINUATION, 0, b"more"), true),
            (frame(CONTINUATION, END_HEADERS, b"end"), false),
            (frame(6, 0, b"12345678"), false),
        ];
        let (mut bytes, mut is_open) = (Vec::new(), Vec::new());
        for (part, opens) in parts {
            // The state changes with the last byte of the head.
            let before = is_open.last().copied().unwrap_or(false);
            is_open.extend(vec![before; HEAD_BYTES - 1]);
            is_open.extend(vec![opens; part.len() + 1 - HEAD_BYTES]);
            bytes.extend(part);
        }
        (bytes, is_open)
    }

    #[test]
    fn open_header_block_is_found_however_the_bytes_are_split() {
        let (bytes, is_open) = connection();
        for step in [1, 2, 7, 9, 10, 24, 4_096] {
            let mut scan = FrameScan::new(24);
            let mut read = 0;
            for piece in bytes.chunks(step) {
                scan.read(piece);
                read += piece.len();
                assert_eq!(scan.is_block_open(), is_open[read - 1], "after {read}, {step} a piece");
            }
        }
    }
}
