//! Converts YAML to JSON, as an editor does.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// The document in a text, with numbers, booleans and nulls by YAML's core schema.
pub(crate) fn json(text: &str) -> Value {
    let mut parser = Parser::new_from_str(text);
    let mut events = std::iter::from_fn(|| parser.next_event().map(|event| event.unwrap().0))
        .filter(|event| !matches!(event, Event::StreamStart | Event::DocumentStart(_)));
    match events.next() {
        None | Some(Event::StreamEnd) => Value::Null,
        Some(event) => value(event, &mut events),
    }
}

fn value<'t>(event: Event<'t>, events: &mut impl Iterator<Item = Event<'t>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, ..) => plain(&text),
        Event::Scalar(text, ..) => Value::String(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(value(event, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut fields = Map::new();
            loop {
                match events.next().unwrap() {
                    Event::MappingEnd => return Value::Object(fields),
                    Event::Scalar(key, ..) => {
                        let event = events.next().unwrap();
                        fields.insert(key.into_owned(), value(event, events));
                    }
                    other => unreachable!("{other:?} is not the name of a field"),
                }
            }
        }
        other => unreachable!("{other:?}"),
    }
}

fn plain(text: &str) -> Value {
    let looks_like_a_number =
        text.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit());
    match text {
        "" | "~" | "null" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if !looks_like_a_number => Value::String(text.to_owned()),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(whole), _) => Value::Number(whole.into()),
            (_, Ok(float)) => Value::Number(Number::from_f64(float).unwrap()),
            _ => Value::String(text.to_owned()),
        },
    }
}
