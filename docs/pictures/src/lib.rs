//! Draws the pictures of `docs/guide/algorithms.md` from replayed traffic.
//!
//! - `decider`: the six limits that are drawn
//! - `traffic`: the requests that they decide
//! - `decided`: their decisions, and counts of them
//! - `svg`, `chart`: text and shapes, then panels with scales
//! - `timeline`, `compared`, `bounds`: one kind of picture each
//!
//! The caller of [`pictures`] chooses how to replay: the program runs `tollgate replay`, and the test that the
//! committed pictures are up to date calls the library with [`decide`].

mod bounds;
mod chart;
mod compared;
mod decided;
mod decider;
pub mod svg;
mod timeline;
mod traffic;

use std::fmt;

use anyhow::Context;
use tollgate_core::Limit;

pub use decided::{ReplayedDecision, decide};
use decider::{ALL, Decider};
pub use traffic::TraceRequest;

/// One finished picture.
pub struct Picture {
    /// The file's name, without a directory.
    pub file_name: String,
    /// The file's text.
    pub svg: String,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.file_name, self.svg.len())
    }
}

/// One limit, and its decisions on each kind of traffic.
struct LimitRun {
    decider: &'static Decider,
    limit: Limit,
    /// The everyday traffic.
    everyday: Vec<ReplayedDecision>,
    /// The same with probes in between, which show how `remaining` changes between requests.
    probed: Vec<ReplayedDecision>,
    /// The traffic that gets the most out of each limit.
    attack: Vec<ReplayedDecision>,
}

impl LimitRun {
    /// Returns the number of everyday requests that were allowed, and the number that were refused.
    fn allowed_and_refused(&self) -> (usize, usize) {
        let allowed = self.everyday.iter().filter(|it| it.allowed).count();
        (allowed, self.everyday.len() - allowed)
    }
}

/// Returns every picture, from the decisions that `replay` makes for a limit on a trace.
pub fn pictures(
    replay: impl Fn(&Limit, &[TraceRequest]) -> anyhow::Result<Vec<ReplayedDecision>>,
) -> anyhow::Result<Vec<Picture>> {
    let runs: Vec<LimitRun> = ALL.iter().map(|it| run(it, &replay)).collect::<Result<_, _>>()?;
    let mut pictures: Vec<Picture> = runs
        .iter()
        .map(|run| Picture {
            file_name: format!("{}.svg", run.decider.slug),
            svg: timeline::draw(run),
        })
        .collect();
    pictures.push(Picture { file_name: "compared.svg".to_owned(), svg: compared::draw(&runs) });
    pictures.push(Picture { file_name: "bounds.svg".to_owned(), svg: bounds::draw(&runs) });
    Ok(pictures)
}

fn run(
    decider: &'static Decider,
    replay: impl Fn(&Limit, &[TraceRequest]) -> anyhow::Result<Vec<ReplayedDecision>>,
) -> anyhow::Result<LimitRun> {
    let limit: Limit = decider.limit.parse().context(decider.limit)?;
    let everyday = traffic::everyday();
    let probed = traffic::with_probes(&everyday, limit.size());
    Ok(LimitRun {
        decider,
        limit,
        everyday: replay(&limit, &everyday)?,
        probed: replay(&limit, &probed)?,
        attack: replay(&limit, &traffic::attack())?,
    })
}
