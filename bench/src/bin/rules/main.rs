//! The time of a check with few rules and with many, when the same number of rules applies.
//!
//! All rules of a group have the same condition, and a request matches exactly one group, so the number of
//! rules that apply does not depend on the number of rules. The requests match all groups in turn.
//!
//! The layout: [`files`] makes rules files; [`networks`] measures sets of few networks and of many.

mod files;
mod networks;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use tollgate::Limiter;
use tollgate::rules::{Attributes, Config, Rules};
use tollgate_bench::statistics::median;
use tollgate_bench::{show_progress, table};

use files::{CONDITION_KINDS, ConditionKind};

/// The numbers of rules that apply to a request.
const APPLYING: [usize; 2] = [1, 10];
/// The numbers of rules in a file.
const RULES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 15;
const CHECKS: usize = 20_000;

const NOTES: &str = "\
Nanoseconds per check in memory, and in brackets the ratio to 10 rules: medians of 15 rounds, in which the columns take
turns. In all columns the requests come from 1,000 clients. With more rules, the requests have more different values.
\"Load\" is the time from the file's text to rules that decide, and the size of the file.";

const NETWORK_NOTES: &str = "\
The same with one rule and one set of IPv4 networks, each a /24. The requests have 20,000 addresses, inside or outside of
these networks.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: rules: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let titles = RULES.map(|count| format!("{count} rules"));
    let mut lines = vec![
        [vec!["condition".to_owned(), "rules that apply".to_owned()], titles.to_vec()].concat(),
    ];
    for kind in &CONDITION_KINDS {
        for applying in APPLYING {
            lines.push(measure(kind, applying)?);
        }
    }
    lines.push(load_times()?);
    show_progress("networks");
    let networks = networks::lines()?;
    show_progress("");
    println!("{}\n{NOTES}\n", table::markdown(&lines));
    println!("{}\n{NETWORK_NOTES}", table::markdown(&networks));
    Ok(())
}

/// Measures the checks of one row.
fn measure(kind: &ConditionKind, applying: usize) -> Result<Vec<String>> {
    show_progress(&format!("{}, {applying} apply", kind.name));
    let cases = RULES
        .iter()
        .map(|&count| RulesCase::new(kind, count, applying))
        .collect::<Result<Vec<_>>>()?;
    Ok([vec![kind.name.to_owned(), applying.to_string()], ratios(&cases)?].concat())
}

/// Measures the time of a check of each case. Returns it with its ratio to the first case.
fn ratios(cases: &[RulesCase]) -> Result<Vec<String>> {
    let mut rounds = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut rounds) {
            times.push(case.ns_per_check()?);
        }
    }
    let times: Vec<f64> = rounds.into_iter().map(median).collect();
    let cell = |time: &f64| format!("{time:.0} ({:.2}x)", time / times[0]);
    Ok(times.iter().map(cell).collect())
}

/// Measures how long rules files take to load.
fn load_times() -> Result<Vec<String>> {
    let mut cells = vec!["load".to_owned(), "-".to_owned()];
    for count in RULES {
        let text = CONDITION_KINDS[0].file(count, 10);
        let took = (0..5).map(|_| -> Result<f64> {
            let began = Instant::now();
            black_box(rules(&text)?);
            Ok(began.elapsed().as_secs_f64() * 1e3)
        });
        let took = median(took.collect::<Result<Vec<_>>>()?);
        cells.push(format!("{took:.1} ms, {} kB", text.len() / 1_000));
    }
    Ok(cells)
}

/// Rules, and the attributes of the requests that are checked with them.
struct RulesCase {
    rules: Rules,
    requests: Vec<Vec<(String, String)>>,
}

impl RulesCase {
    fn new(kind: &ConditionKind, count: usize, applying: usize) -> Result<RulesCase> {
        let rules = rules(&kind.file(count, applying))?;
        let groups = count / applying;
        // The number of requests does not depend on the number of groups.
        let requests = (0..1_000).map(|client| kind.request(client % groups, client)).collect();
        let case = RulesCase { rules, requests };
        for request in &case.requests {
            let ruling = case.check(request)?;
            anyhow::ensure!(ruling.rules().count() == applying, "{request:?} in {}", kind.name);
        }
        Ok(case)
    }

    fn check(&self, request: &[(String, String)]) -> Result<tollgate::rules::Ruling> {
        let pairs = request.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes: Attributes<'_> = pairs.collect();
        self.rules.check("api", &attributes).now().context("a check in memory")
    }

    fn ns_per_check(&self) -> Result<f64> {
        let began = Instant::now();
        for request in self.requests.iter().cycle().take(CHECKS) {
            black_box(self.check(request)?.is_allowed());
        }
        Ok(began.elapsed().as_nanos() as f64 / CHECKS as f64)
    }
}

fn rules(text: &str) -> Result<Rules> {
    let config =
        Config::parse("rules.yaml", text).map_err(|problems| anyhow::anyhow!("{problems}"))?;
    Ok(Rules::new(&Limiter::memory(), &config)?)
}
