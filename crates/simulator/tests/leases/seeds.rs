//! Random scenarios: nothing is admitted beyond the limit, and planted mistakes are found.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;

use tollgate_simulator::{Mutant, RunReport, SimulatedScenario, run};

/// Runs the scenarios of the seeds on all processors, and returns their reports with the seeds.
fn reports(seeds: Range<u64>, mutant: Option<Mutant>) -> Vec<(u64, RunReport)> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let run_seed =
        |seed| (seed, run(&SimulatedScenario { mutant, ..SimulatedScenario::random(seed) }));
    thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| {
                let own = seeds.clone().skip(thread).step_by(threads);
                scope.spawn(move || own.map(run_seed).collect::<Vec<_>>())
            })
            .collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    })
}

/// `make soak` sets SIMULATOR_SEEDS to a million. SIMULATOR_SEED runs a single seed.
#[test]
fn random_scenarios_admit_nothing_beyond_the_limit() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match (number("SIMULATOR_SEED"), number("SIMULATOR_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(2_000),
    };
    let (mut sum, mut is_bad) = (RunReport::default(), false);
    // In parts, so that the reports of a million seeds take little memory.
    for start in seeds.clone().step_by(2_000) {
        for (seed, report) in reports(start..seeds.end.min(start + 2_000), None) {
            for violation in &report.violations {
                is_bad = true;
                println!("SIMULATOR_SEED={seed}: {violation:?}");
            }
            sum.checks += report.checks;
            sum.hits += report.hits;
            sum.local_refusals += report.local_refusals;
            sum.failures += report.failures;
            sum.store_calls += report.store_calls;
            sum.losses += report.losses;
        }
    }
    println!(
        "{} checks: {} by a lease, {} local refusals, {} failures; {} store calls, {} losses of state",
        sum.checks, sum.hits, sum.local_refusals, sum.failures, sum.store_calls, sum.losses
    );
    assert!(!is_bad, "run one of these seeds alone with SIMULATOR_SEED=<seed>");
    // Otherwise the leases were not tested.
    assert!(sum.hits > sum.checks / 10 || seeds.end - seeds.start < 100);
}

#[test]
fn a_scenario_has_the_same_report_each_time() {
    for seed in 0..20 {
        let scenario = SimulatedScenario::random(seed);
        assert_eq!(run(&scenario), run(&scenario), "seed {seed}");
    }
}

#[test]
fn planted_mistakes_are_found() {
    const SEEDS: u64 = 300;
    for mutant in Mutant::ALL {
        let mut by_kind = BTreeMap::new();
        let mut found = 0;
        for (_, report) in reports(0..SEEDS, Some(mutant)) {
            found += u64::from(!report.violations.is_empty());
            for violation in report.violations {
                *by_kind.entry(violation.kind).or_insert(0) += 1;
            }
        }
        println!("{mutant:?}: found by {found} of {SEEDS} seeds, {by_kind:?}");
        let least = match mutant {
            Mutant::UseAfterExpiry | Mutant::DoubleCredit => SEEDS / 10,
            Mutant::SettleAtUseTime | Mutant::NoMargin => SEEDS / 50,
        };
        assert!(found >= least, "{mutant:?}: {found}");
    }
}
