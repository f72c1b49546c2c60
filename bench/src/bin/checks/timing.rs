//! Nanoseconds per check: each competitor's best of several passes, in which the competitors take turns.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::competitors::{COMPETITORS, Competitor, Limits};
use crate::measured_limiter::MeasuredLimiter;
use crate::traffic::{CheckSequences, KEYS, MAX_THREADS, Sequence, Workload, keys};
use tollgate_bench::show_progress;

/// The number of times that each pass is made.
const ROUNDS: usize = 7;

/// The number of attempts at a pass in each round: a disturbed pass is tried again.
const ATTEMPTS: usize = 3;

/// A pass is disturbed if its threads waited for a CPU for more than this share of its time. Two threads that run one
/// after the other do not compete for a key, so a disturbed pass can look faster than an undisturbed one.
const MAX_WAITED_SHARE: f64 = 0.02;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Allowed {
        workload: Workload,
        threads: usize,
    },
    /// One key whose quota is spent, and one thread.
    Denied,
}

impl Column {
    pub(crate) fn all() -> Vec<Column> {
        let allowed = |threads| {
            Workload::ALL.into_iter().map(move |workload| Column::Allowed { workload, threads })
        };
        allowed(1).chain(allowed(2)).chain([Column::Denied]).collect()
    }

    pub(crate) fn title(self) -> String {
        match self {
            Column::Allowed { workload, threads: 1 } => workload.name().to_owned(),
            Column::Allowed { workload, threads } => {
                format!("{}, {threads} threads", workload.name())
            }
            Column::Denied => "one key, denied".to_owned(),
        }
    }

    /// Returns the number that the table shows for several passes: the best one, which other programs disturbed least.
    /// If threads compete for one key it is the median, because a lock can be lucky for a whole pass.
    fn summary(self, mut passes_ns: Vec<f64>) -> f64 {
        passes_ns.sort_unstable_by(f64::total_cmp);
        let at = match self {
            Column::Allowed { workload: Workload::OneKey, threads: 2.. } => passes_ns.len() / 2,
            _ => 0,
        };
        passes_ns.get(at).copied().unwrap_or(f64::INFINITY)
    }
}

/// A competitor's limiters, with all keys already added.
struct Contestant {
    competitor: &'static Competitor,
    generous: Box<dyn MeasuredLimiter>,
    stingy: Box<dyn MeasuredLimiter>,
}

impl Contestant {
    fn new(competitor: &'static Competitor, all: &Sequence) -> Result<Contestant> {
        show_progress(&format!("{}: filling with {KEYS} keys", competitor.name));
        let generous = competitor.build(Limits::Generous)?;
        let stingy = competitor.build(Limits::Stingy)?;
        let contestant = Contestant { competitor, generous, stingy };
        contestant.expect(all.checks(), contestant.generous.pass(all))?;
        let overflowed = contestant.generous.overflowed();
        ensure!(overflowed == 0, "{} had no memory for {overflowed} keys", competitor.name);
        Ok(contestant)
    }

    /// Makes one pass, and returns its time per check; `None` if other programs disturbed the pass.
    fn ns_per_check(&self, column: Column, traffic: &CheckSequences) -> Result<Option<f64>> {
        let (limiter, workload, threads) = match column {
            Column::Allowed { workload, threads } => (&*self.generous, workload, threads),
            Column::Denied => (&*self.stingy, Workload::OneKey, 1),
        };
        let sequences = &traffic.sequences(workload)[..threads];
        let timed = time(limiter, sequences)?;
        let checks: usize = sequences.iter().map(Sequence::checks).sum();
        if column != Column::Denied {
            self.expect(checks, timed.allowed)?;
        }
        Ok(timed.is_undisturbed().then(|| timed.wall_ns * threads as f64 / checks as f64))
    }

    fn expect(&self, want: usize, allowed: usize) -> Result<()> {
        let name = self.competitor.name;
        ensure!(allowed == want, "{name} allowed {allowed} of {want}: its limit is too small");
        Ok(())
    }
}

/// Returns for each competitor the nanoseconds per check in each column; infinite if every pass was disturbed.
pub(crate) fn measure(traffic: &CheckSequences) -> Result<Vec<Vec<f64>>> {
    let all = Sequence { keys: keys(KEYS), times: 1 };
    let contestants: Vec<Contestant> =
        COMPETITORS.iter().map(|it| Contestant::new(it, &all)).collect::<Result<_>>()?;
    drop(all);
    let columns = Column::all();
    let mut passes = vec![vec![Vec::new(); columns.len()]; contestants.len()];
    // The first round warms up. It is slower, but neither the best pass nor the median shows that.
    for round in 1..=ROUNDS {
        for (nth, &column) in columns.iter().enumerate() {
            for (contestant, passes) in contestants.iter().zip(&mut passes) {
                let name = contestant.competitor.name;
                show_progress(&format!("round {round} of {ROUNDS}: {}, {name}", column.title()));
                for _ in 0..ATTEMPTS {
                    if let Some(ns) = contestant.ns_per_check(column, traffic)? {
                        passes[nth].push(ns);
                        break;
                    }
                }
            }
        }
    }
    let summarised = |passes: Vec<Vec<f64>>| {
        columns.iter().zip(passes).map(|(column, passes)| column.summary(passes)).collect()
    };
    Ok(passes.into_iter().map(summarised).collect())
}

/// Runs a workload with one competitor `passes` times, for a profiler.
pub(crate) fn repeat(name: &str, workload: &str, threads: usize, passes: usize) -> Result<()> {
    ensure!((1..=MAX_THREADS).contains(&threads), "threads: 1 or {MAX_THREADS}");
    let workload = Workload::ALL.into_iter().find(|it| it.name() == workload);
    let workload = workload.context("unknown workload; use `one key`, `Zipf` or `uniform`")?;
    let all = Sequence { keys: keys(KEYS), times: 1 };
    let contestant = Contestant::new(Competitor::named(name)?, &all)?;
    let traffic = CheckSequences::new();
    let column = Column::Allowed { workload, threads };
    for _ in 0..passes {
        match contestant.ns_per_check(column, &traffic)? {
            Some(ns) => println!("{ns:.1} ns"),
            None => println!("disturbed"),
        }
    }
    Ok(())
}

/// The result of one pass.
struct PassResult {
    allowed: usize,
    /// The time from the first thread's start to the last thread's end.
    wall_ns: f64,
    /// The time that all threads together waited for a CPU.
    waited_ns: f64,
}

impl PassResult {
    fn is_undisturbed(&self) -> bool {
        self.waited_ns <= MAX_WAITED_SHARE * self.wall_ns
    }
}

/// The result of one thread's part of a pass.
struct ThreadResult {
    allowed: usize,
    start: Instant,
    end: Instant,
    waited_ns: f64,
}

/// Runs one pass, with a thread for each sequence. If there are several threads, each has its own CPU.
fn time(limiter: &dyn MeasuredLimiter, sequences: &[Sequence]) -> Result<PassResult> {
    let cpus = core_affinity::get_core_ids().context("cannot list the CPUs")?;
    let count = sequences.len();
    ensure!(count <= cpus.len(), "{count} threads need {count} CPUs; there are {}", cpus.len());
    let together = Barrier::new(count);
    let run = |sequence, cpu| {
        let is_placed = count == 1 || core_affinity::set_for_current(cpu);
        together.wait();
        let (start, before_ns) = (Instant::now(), waited_ns()?);
        let allowed = limiter.pass(sequence);
        let (end, after_ns) = (Instant::now(), waited_ns()?);
        ensure!(is_placed, "cannot put a thread on its own CPU");
        Ok(ThreadResult { allowed, start, end, waited_ns: after_ns - before_ns })
    };
    let runs: Vec<ThreadResult> = thread::scope(|scope| {
        let run = &run;
        let spawn = |(sequence, cpu)| scope.spawn(move || run(sequence, cpu));
        let threads: Vec<_> = sequences.iter().zip(cpus).map(spawn).collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok());
        joined.map(|run| run.context("a limiter panicked")?).collect::<Result<_>>()
    })?;
    let start = runs.iter().map(|run| run.start).min().context("no thread")?;
    let end = runs.iter().map(|run| run.end).max().context("no thread")?;
    Ok(PassResult {
        allowed: runs.iter().map(|run| run.allowed).sum(),
        wall_ns: (end - start).as_nanos() as f64,
        waited_ns: runs.iter().map(|run| run.waited_ns).sum(),
    })
}

/// Returns how long this thread has waited for a CPU while it was ready to run.
fn waited_ns() -> Result<f64> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).with_context(|| format!("{path}: Linux is needed"))?;
    let waited = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    waited.with_context(|| format!("{path} has no second number: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured_limiter::limiter_by;

    #[test]
    fn pass_counts_the_allowed_checks_of_all_threads() {
        let sequence = |key: &str| Sequence { keys: vec![key.to_owned(); 3], times: 5 };
        let timed = time(&*limiter_by(|key| key == "a"), &[sequence("a"), sequence("b")]).unwrap();
        assert_eq!(timed.allowed, 15);
    }

    #[test]
    fn pass_is_disturbed_when_its_threads_waited_for_a_cpu() {
        let timed = |waited_ns| PassResult { allowed: 0, wall_ns: 75e6, waited_ns };
        assert!(timed(0.2e6).is_undisturbed());
        assert!(!timed(38e6 + 37e6).is_undisturbed());
    }

    #[test]
    fn summary_of_two_threads_on_one_key_is_the_median() {
        let passes_ns = vec![152.0, 88.0, 153.0];
        let one_key = |threads| Column::Allowed { workload: Workload::OneKey, threads };
        assert_eq!(one_key(1).summary(passes_ns.clone()), 88.0);
        assert_eq!(one_key(2).summary(passes_ns), 152.0);
        assert_eq!(one_key(2).summary(Vec::new()), f64::INFINITY);
    }

    #[test]
    fn every_column_has_its_own_title() {
        let titles: Vec<String> = Column::all().into_iter().map(Column::title).collect();
        assert_eq!(titles[0], "one key");
        assert_eq!(titles[4], "Zipf, 2 threads");
        assert_eq!(titles[6], "one key, denied");
    }
}
