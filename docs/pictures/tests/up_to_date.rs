//! The committed pictures, and the sizes that the documents state, are up to date.

use std::fs;
use std::path::Path;

use tollgate_core::{Fill, Log, State, Window, WindowPair};
use tollgate_pictures::{decide, pictures};

/// Compares every picture before it fails, so that the failure names all stale pictures.
#[test]
fn committed_pictures_are_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stale: Vec<String> = pictures(decide)
        .unwrap()
        .into_iter()
        .filter(|it| fs::read_to_string(directory.join(&it.file_name)).ok() != Some(it.svg.clone()))
        .map(|it| format!("docs/pictures/{} is stale; run `make pictures`", it.file_name))
        .collect();
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}

#[test]
fn pictures_are_small() {
    for picture in pictures(decide).unwrap() {
        assert!(picture.svg.len() < 60_000, "{picture:?}");
    }
}

#[test]
fn documented_state_sizes_are_correct() {
    let document = include_str!("../../guide/algorithms.md");
    assert!(document.contains(&format!("is {} bytes whichever it holds", size_of::<State>())));
    for (state, bytes) in [
        ("Window", size_of::<Window>()),
        ("Log", size_of::<Log>()),
        ("WindowPair", size_of::<WindowPair>()),
        ("Fill", size_of::<Fill>()),
    ] {
        let stated = format!("`{state}`, {bytes} bytes");
        assert!(document.contains(&stated), "docs/guide/algorithms.md does not have {stated}");
    }
}
