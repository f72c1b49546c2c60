//! Writes objects of JSON whose names are ours: serde looks at every letter of a name, at every answer, for what
//! it might have to escape.

/// An object, of which some is written.
pub(super) struct Object<'a> {
    to: &'a mut Vec<u8>,
    /// What comes before the next name.
    before: u8,
}

impl<'a> Object<'a> {
    pub(super) fn new(to: &'a mut Vec<u8>) -> Object<'a> {
        Object { to, before: b'{' }
    }

    pub(super) fn flag(&mut self, name: &'static str, value: bool) {
        self.name(name).extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Nothing if it is not set.
    pub(super) fn flag_if_set(&mut self, name: &'static str, value: bool) {
        if value {
            self.flag(name, value);
        }
    }

    /// `null` if there is none.
    pub(super) fn number(&mut self, name: &'static str, value: impl Into<Option<u64>>) {
        match value.into() {
            Some(value) => {
                let mut buffer = itoa::Buffer::new();
                self.name(name).extend_from_slice(buffer.format(value).as_bytes());
            }
            None => self.name(name).extend_from_slice(b"null"),
        }
    }

    /// `null` if there is none.
    pub(super) fn text(&mut self, name: &'static str, value: Option<&str>) {
        // OK because memory takes all of it, and every text has a JSON.
        let _ = serde_json::to_writer(self.name(name), &value);
    }

    /// A text of letters and digits, such as base64.
    pub(super) fn plain_text(&mut self, name: &'static str, value: &str) {
        let to = self.name(name);
        to.push(b'"');
        to.extend_from_slice(value.as_bytes());
        to.push(b'"');
    }

    /// An array, each of whose items writes itself.
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

    pub(super) fn end(self) {
        self.to.push(b'}');
    }

    /// A name has no letter that JSON would escape. Returns where its value goes.
    fn name(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.to.push(std::mem::replace(&mut self.before, b','));
        self.to.push(b'"');
        self.to.extend_from_slice(name.as_bytes());
        self.to.extend_from_slice(b"\":");
        self.to
    }
}
