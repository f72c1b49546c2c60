//! Draws the pictures of `docs/guide/algorithms.md` from replayed traffic.
//!
//! - `limits`: the six limits that are drawn
//! - `traffic`: the requests that they decide
//! - `decisions`: their decisions, and counts of these
//! - `svg`: text and shapes; `chart`: panels with scales
//! - `timeline`, `comparison`, `bounds`: one kind of picture each
//!
//! The caller of [`pictures`] chooses how to replay: the program runs `tollgate replay`, and the test that the
//! committed pictures are up to date calls the library with [`decide`].

mod bounds;
mod chart;
mod comparison;
mod decisions;
mod limits;
pub mod svg;
mod timeline;
mod traffic;

use std::fmt;

use anyhow::Context;
use tollgate_core::Limit;

pub use decisions::{ReplayedDecision, decide};
use limits::{DrawnLimit, LIMITS};
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

/// A limit, and its decisions on each kind of traffic.
struct LimitRun {
    drawn: &'static DrawnLimit,
    limit: Limit,
    /// The everyday traffic.
    everyday: Vec<ReplayedDecision>,
    /// The everyday traffic with probes between the requests. The probes show how `remaining` changes between requests.
    probed: Vec<ReplayedDecision>,
    /// The traffic that makes each limit admit as many units as it can.
    attack: Vec<ReplayedDecision>,
}

impl LimitRun {
    /// Returns the number of everyday requests that were allowed, and the number that were refused.
    fn allowed_and_refused(&self) -> (usize, usize) {
        let allowed = self.everyday.iter().filter(|it| it.allowed).count();
        (allowed, self.everyday.len() - allowed)
    }
}

/// Returns every picture. `replay` makes the decisions of a limit on a trace.
pub fn pictures(
    replay: impl Fn(&Limit, &[TraceRequest]) -> anyhow::Result<Vec<ReplayedDecision>>,
) -> anyhow::Result<Vec<Picture>> {
    let runs: Vec<LimitRun> =
        LIMITS.iter().map(|limit| run(limit, &replay)).collect::<Result<_, _>>()?;
    let mut pictures: Vec<Picture> = runs
        .iter()
        .map(|run| Picture {
            file_name: format!("{}.svg", run.drawn.slug),
            svg: timeline::draw(run),
        })
        .collect();
    pictures.push(Picture { file_name: "compared.svg".to_owned(), svg: comparison::draw(&runs) });
    pictures.push(Picture { file_name: "bounds.svg".to_owned(), svg: bounds::draw(&runs) });
    Ok(pictures)
}

/// Makes the decisions of one limit.
fn run(
    drawn: &'static DrawnLimit,
    replay: impl Fn(&Limit, &[TraceRequest]) -> anyhow::Result<Vec<ReplayedDecision>>,
) -> anyhow::Result<LimitRun> {
    let limit: Limit = drawn.limit.parse().context(drawn.limit)?;
    let everyday = traffic::everyday();
    let probed = traffic::with_probes(&everyday, limit.size());
    Ok(LimitRun {
        drawn,
        limit,
        everyday: replay(&limit, &everyday)?,
        probed: replay(&limit, &probed)?,
        attack: replay(&limit, &traffic::attack())?,
    })
}
