//! Five logins per quarter of an hour: `cargo run -p tollgate --example first_use`

use tollgate::{Limit, Limiter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::memory();
    let limit: Limit = "sliding-window-log limit=5 window=15m".parse()?;
    let logins = limiter.scope("logins", limit)?;

    for attempt in 1..=6 {
        let decision = logins.check("203.0.113.9").now()?;
        match decision.retry_after() {
            None => println!("attempt {attempt}: go on, {} left", decision.remaining()),
            Some(wait) => println!("attempt {attempt}: refused, come back in {wait:?}"),
        }
    }
    Ok(())
}
