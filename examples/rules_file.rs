//! Rules from a file that is read again when it changes, and on SIGHUP:
//! `cargo run -p tollgate --features watch --example rules_file -- examples/rules.yaml`

use std::time::Duration;

use tollgate::Limiter;
use tollgate::rules::RulesFile;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "examples/rules.yaml".to_owned());
    let file = RulesFile::open(&Limiter::memory(), &path)?;
    // Without `and_on_hangup`, SIGHUP ends the process.
    let _following = file.follow()?.and_on_hangup()?;
    println!("{path}: version 1 of the rules; process {}", std::process::id());
    let mut shown = 1;
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let version = file.status().generation;
        if version != shown {
            println!("{path}: version {version} of the rules");
            shown = version;
        }
    }
}
