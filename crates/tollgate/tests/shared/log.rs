//! A log that tests can read.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events of a thread, each as a line.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) lines: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                match field.name() {
                    "message" => self.0.insert_str(0, &format!("{value:?} ")),
                    name => self.0 += &format!("{name}={value:?} "),
                }
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lines.lock().unwrap().push(format!("{} {}", event.metadata().level(), line.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
