//! At most three exports of one team at a time: `cargo run -p tollgate --example concurrency`
//!
//! A hold of a concurrency limit is a permit. Each export keeps its permit as long as it runs; when the export is dropped, so
//! is the permit, and another export may start. The export of a process that crashes keeps its permit until the hold
//! expires, here after five minutes. An export that takes longer extends its permit.

use std::time::Duration;

use tollgate::{Error, Hold, Limit, Limiter, Scope};

const AT_MOST: Duration = Duration::from_secs(5 * 60);

/// An export that runs.
struct Export {
    number: u32,
    permit: Hold,
}

impl Export {
    /// Starts an export of a team; `None` if too many of its exports run already.
    fn start(exports: &Scope, team: &str, number: u32) -> Result<Option<Export>, Error> {
        let reserved = exports.reserve(team).now()?;
        let left = reserved.decision().remaining();
        let Some(permit) = reserved.into_hold() else {
            println!("export {number}: refused, three run already");
            return Ok(None);
        };
        println!("export {number}: started, {left} more may start");
        Ok(Some(Export { number, permit }))
    }

    /// Does a part of the work. A long export keeps its permit from expiring.
    fn write_rows(&self) -> Result<(), Error> {
        let is_kept = self.permit.extend_now(0, AT_MOST)?.is_granted();
        println!("export {}: wrote rows, permit kept: {is_kept}", self.number);
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let limiter = Limiter::memory();
    let exports = limiter.scope("exports", Limit::concurrent(3).held_for(AT_MOST))?;

    let first = Export::start(&exports, "team:7", 1)?;
    let second = Export::start(&exports, "team:7", 2)?;
    let third = Export::start(&exports, "team:7", 3)?;
    Export::start(&exports, "team:7", 4)?;
    Export::start(&exports, "team:8", 5)?; // another team, and dropped at once

    if let Some(first) = &first {
        first.write_rows()?;
    }
    drop(second);
    println!("export 2: ended");
    let sixth = Export::start(&exports, "team:7", 6)?;

    drop((first, third, sixth));
    println!("all exports have ended: {} may start", exports.peek("team:7").now()?.remaining());
    Ok(())
}
