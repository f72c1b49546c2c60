//! Draws `docs/pictures/*.svg` by running `tollgate replay`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use clap::Parser;
use tollgate_core::Limit;
use tollgate_pictures::{ReplayedDecision, TraceRequest, pictures};

/// Draw the pictures of docs/guide/algorithms.md from real replays
#[derive(Debug, Parser)]
struct PictureArgs {
    /// The `tollgate` command to run
    #[arg(long, default_value = "target/release/tollgate")]
    tollgate: PathBuf,

    /// The directory to write the pictures to
    #[arg(long, default_value = "docs/pictures")]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = PictureArgs::parse();
    for picture in pictures(|limit, requests| replay(&args.tollgate, limit, requests))? {
        let path = args.out.join(&picture.file_name);
        fs::write(&path, &picture.svg).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Runs `tollgate replay` with the trace on its standard input.
fn replay(
    tollgate: &Path,
    limit: &Limit,
    requests: &[TraceRequest],
) -> anyhow::Result<Vec<ReplayedDecision>> {
    let mut child = Command::new(tollgate)
        .args(["replay", "--limit", &limit.to_string(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| {
            format!(
                "cannot run {}; build it first with `cargo build --release -p tollgate-server`",
                tollgate.display()
            )
        })?;
    let mut stdin = child.stdin.take().context("standard input is a pipe")?;
    let trace = csv(requests);
    // Written on another thread, because the command writes while it reads, and either pipe can be full.
    let writer = thread::spawn(move || stdin.write_all(trace.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{} replay --limit \"{limit}\": {}", tollgate.display(), errors.trim());
    }
    if let Ok(written) = writer.join() {
        written.context("cannot write the trace")?;
    }
    let lines = str::from_utf8(&output.stdout)?.lines();
    lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Returns the trace as CSV.
fn csv(requests: &[TraceRequest]) -> String {
    let header = "at_us,key,cost\n".to_owned();
    requests.iter().fold(header, |text, it| text + &format!("{},a,{}\n", it.at_us, it.cost))
}
