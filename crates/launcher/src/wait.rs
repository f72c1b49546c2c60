//! Waits until a condition holds.

use std::thread;
use std::time::{Duration, Instant};

use crate::LaunchError;
use crate::error::Scene;

/// How long any wait may take before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true. An error counts as false.
pub(crate) fn until(
    what: &str,
    mut holds: impl FnMut() -> Result<bool, LaunchError>,
) -> Result<(), LaunchError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let last = match holds() {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) => Some(Box::new(error)),
        };
        if Instant::now() > deadline {
            let (what, scene) = (what.to_owned(), Scene::default());
            return Err(LaunchError::TimedOut { what, waited: PATIENCE, scene, last });
        }
        thread::sleep(Duration::from_millis(20));
    }
}
