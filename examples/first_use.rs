//! Five logins per quarter of an hour: `cargo run -p tollgate --example first_use`

use tollgate::{Limiter, Verdict};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::memory();
    let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;

    for attempt in 1..=6 {
        let decision = logins.check("203.0.113.9").now()?;
        match decision.verdict() {
            Verdict::Allowed { .. } => {
                println!("attempt {attempt}: allowed, {} left", decision.remaining());
            }
            Verdict::Denied { retry } => match retry.after() {
                Some(wait) => println!("attempt {attempt}: refused, retry in {wait:?}"),
                None => println!("attempt {attempt}: refused, the cost is above the limit"),
            },
        }
    }
    Ok(())
}
