//! The cost of rules: a check with few rules in a domain and with many, when equally many apply.
//!
//! Every group of rules is for one value, and a request is of one group: so the same number of rules
//! applies, however many there are. Requests go round all groups.
//!
//! - `networks`: the same for sets of few networks and of many

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

use files::{KINDS, Kind};

/// The rules that apply to a request.
const APPLYING: [usize; 2] = [1, 10];
const RULES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 15;
const CHECKS: usize = 20_000;

const NOTES: &str = "\
Nanoseconds a check in memory, and beside it the ratio to 10 rules; the median of 15 rounds that take
turns. The requests of all columns come from 1,000 clients; with more rules they are for more values.
Loaded: from the file's text to rules that decide.";

const NETWORK_NOTES: &str = "\
The same with one rule and a set of networks: all /24 of IPv4, and 20,000 addresses inside them or between.";

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
    let mut lines =
        vec![[vec!["rules by".to_owned(), "apply".to_owned()], titles.to_vec()].concat()];
    for kind in &KINDS {
        for applying in APPLYING {
            lines.push(measured(kind, applying)?);
        }
    }
    lines.push(loaded()?);
    show_progress("networks");
    let networks = networks::lines()?;
    show_progress("");
    println!("{}\n{NOTES}\n", table::markdown(&lines));
    println!("{}\n{NETWORK_NOTES}", table::markdown(&networks));
    Ok(())
}

fn measured(kind: &Kind, applying: usize) -> Result<Vec<String>> {
    show_progress(&format!("{}, {applying} apply", kind.name));
    let subjects = RULES
        .iter()
        .map(|&count| Subject::new(kind, count, applying))
        .collect::<Result<Vec<_>>>()?;
    Ok([vec![kind.name.to_owned(), applying.to_string()], timed(&subjects)?].concat())
}

/// Returns the time of a check of each subject, and its ratio to the first one.
fn timed(subjects: &[Subject]) -> Result<Vec<String>> {
    let mut rounds = vec![Vec::new(); subjects.len()];
    for _ in 0..ROUNDS {
        for (subject, times) in subjects.iter().zip(&mut rounds) {
            times.push(subject.nanoseconds_a_check()?);
        }
    }
    let times: Vec<f64> = rounds.into_iter().map(median).collect();
    let cell = |time: &f64| format!("{time:.0} ({:.2}x)", time / times[0]);
    Ok(times.iter().map(cell).collect())
}

/// Measures how long files of rules take to load.
fn loaded() -> Result<Vec<String>> {
    let mut cells = vec!["loaded".to_owned(), "-".to_owned()];
    for count in RULES {
        let text = KINDS[0].file(count, 10);
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

struct Subject {
    rules: Rules,
    requests: Vec<Vec<(String, String)>>,
}

impl Subject {
    fn new(kind: &Kind, count: usize, applying: usize) -> Result<Subject> {
        let rules = rules(&kind.file(count, applying))?;
        let groups = count / applying;
        // The number of requests is the same, whatever the number of groups.
        let requests = (0..1_000).map(|client| kind.request(client % groups, client)).collect();
        let subject = Subject { rules, requests };
        for request in &subject.requests {
            let ruling = subject.check(request)?;
            anyhow::ensure!(ruling.rules().count() == applying, "{request:?} in {}", kind.name);
        }
        Ok(subject)
    }

    fn check(&self, request: &[(String, String)]) -> Result<tollgate::rules::Ruling> {
        let pairs = request.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes: Attributes<'_> = pairs.collect();
        self.rules.check("api", &attributes).now().context("a check in memory")
    }

    fn nanoseconds_a_check(&self) -> Result<f64> {
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
