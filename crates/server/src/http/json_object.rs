//! Writes JSON objects whose names need no escapes. Serde would search every name for letters to escape, in every
//! answer. [`append`] writes other values with serde, for which `is_false` and `micros` are.

use std::time::Duration;

use serde::Serialize;

/// Appends a value as JSON.
pub(super) fn append(to: &mut Vec<u8>, answer: &impl Serialize) {
    // OK because writing to memory cannot fail, and every struct of texts and numbers can be written as JSON.
    let _ = serde_json::to_writer(to, answer);
}

/// Whether a flag is left out.
// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}

/// Returns a time in microseconds. OK because no time of an answer is above 2^64 us.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A JSON object that is being written.
pub(super) struct JsonObject<'a> {
    to: &'a mut Vec<u8>,
    /// The byte before the next name: `{`, then `,`.
    separator: u8,
}

impl<'a> JsonObject<'a> {
    pub(super) fn new(to: &'a mut Vec<u8>) -> JsonObject<'a> {
        JsonObject { to, separator: b'{' }
    }

    /// Writes a flag.
    pub(super) fn flag(&mut self, name: &'static str, value: bool) {
        self.name(name).extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes a flag if it is set, and nothing otherwise.
    pub(super) fn flag_if_set(&mut self, name: &'static str, value: bool) {
        if value {
            self.flag(name, value);
        }
    }

    /// Writes a number, or `null` for `None`.
    pub(super) fn number(&mut self, name: &'static str, value: impl Into<Option<u64>>) {
        match value.into() {
            Some(value) => {
                let mut buffer = itoa::Buffer::new();
                self.name(name).extend_from_slice(buffer.format(value).as_bytes());
            }
            None => self.name(name).extend_from_slice(b"null"),
        }
    }

    /// Writes a text, or `null` for `None`.
    pub(super) fn text(&mut self, name: &'static str, value: Option<&str>) {
        // OK because writing to memory cannot fail, and every text can be written as JSON.
        let _ = serde_json::to_writer(self.name(name), &value);
    }

    /// Writes a text that needs no escapes, such as base64.
    pub(super) fn plain_text(&mut self, name: &'static str, value: &str) {
        let to = self.name(name);
        to.push(b'"');
        to.extend_from_slice(value.as_bytes());
        to.push(b'"');
    }

    /// Writes an array, with a function that writes one item.
    pub(super) fn array<T>(
        &mut self,
        name: &'static str,
        items: &[T],
        write: impl Fn(&T, &mut Vec<u8>),
    ) {
        let to = self.name(name);
        to.push(b'[');
        for (nth, item) in items.iter().enumerate() {
            if nth > 0 {
                to.push(b',');
            }
            write(item, to);
        }
        to.push(b']');
    }

    /// Ends the object.
    pub(super) fn end(self) {
        self.to.push(b'}');
    }

    /// Writes a name, which needs no escapes. Returns the buffer, to which the value must be appended.
    fn name(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.to.push(std::mem::replace(&mut self.separator, b','));
        self.to.push(b'"');
        self.to.extend_from_slice(name.as_bytes());
        self.to.extend_from_slice(b"\":");
        self.to
    }
}
