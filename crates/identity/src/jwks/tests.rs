//! Fetching key sets: from a server that tests start, and on a clock that tests set.

mod fetching;
mod refreshing;

use crate::jwt::KeySet;

/// A set of one key, which is named `id`.
fn set_text(id: &str) -> String {
    format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}}]}}"#
    )
}

fn set(id: &str) -> KeySet {
    KeySet::parse(set_text(id).as_bytes()).unwrap()
}
