//! How well leases use a limit, and what they cost.

use tollgate_lease::{LeaseTerms, TableSize};
use tollgate_simulator::{
    NetworkModel, RunReport, SimulatedFault, SimulatedKey, SimulatedScenario, TimedFault,
    TrafficModel, TrafficSource, run,
};

const PROCESSES: usize = 8;
const SECOND_US: u64 = 1_000_000;

/// A scenario without faults in a network like that of one data centre: 8 processes and one key.
fn scenario(limit: &str, seconds: u64, model: impl Fn(u64) -> TrafficModel) -> SimulatedScenario {
    let terms = LeaseTerms::new(limit.parse().unwrap()).unwrap();
    let source =
        |process| TrafficSource { process, key: 0, model: model(process as u64), max_cost: 1 };
    SimulatedScenario {
        seed: 1,
        duration_us: seconds * SECOND_US,
        keys: vec![SimulatedKey { terms }],
        processes: PROCESSES,
        table_size: TableSize::default(),
        deadline_us: 10_000,
        drift_ppm: 100,
        wall_skew_us: 10_000,
        given_back_permille: 0,
        network: NetworkModel {
            min_delay_us: 50,
            max_delay_us: 500,
            lost_permille: 0,
            repeated_permille: 0,
            late_permille: 0,
            late_us: 0,
        },
        traffic: (0..PROCESSES).map(source).collect(),
        faults: Vec::new(),
        mutant: None,
    }
}

/// All processes ask for `units_per_second` together.
fn saturating(units_per_second: u64) -> impl Fn(u64) -> TrafficModel {
    let together = (units_per_second / 50_000).max(1);
    let gap_us = SECOND_US * together * PROCESSES as u64 / units_per_second;
    move |_| TrafficModel::Even { gap_us, together: together as u32 }
}

/// Runs a scenario, prints its figures, and returns the report with the admitted part of `most` units in percent.
fn figures(name: &str, scenario: &SimulatedScenario, most: u64) -> (RunReport, f64) {
    let report = run(scenario);
    assert_eq!(report.violations, []);
    let used = report.admitted_units as f64 / most as f64 * 100.0;
    println!(
        "{name}: {used:.2}% used, {} store calls a second, {} of {} checks decided by a lease, {} local refusals",
        report.store_calls_per_second(),
        report.hits,
        report.checks,
        report.local_refusals,
    );
    (report, used)
}

#[test]
fn eight_processes_use_a_saturated_token_bucket() {
    let seconds = 5;
    let limit = "token-bucket capacity=100000 refill=100000/s";
    let scenario = scenario(limit, seconds, saturating(200_000));
    let (report, used) = figures(limit, &scenario, 100_000 * (seconds + 1));
    assert!(used >= 98.0, "{used}");
    assert!(report.store_calls_per_second() <= 900);
}

#[test]
fn eight_processes_use_a_saturated_fixed_window() {
    let limit = "fixed-window limit=100000 window=10s";
    // The run starts at the start of a window.
    let (_, used) = figures(limit, &scenario(limit, 30, saturating(20_000)), 300_000);
    assert!(used >= 98.0, "{used}");
}

#[test]
fn eight_processes_use_a_saturated_sliding_window_log() {
    let limit = "sliding-window-log limit=50000 window=60s";
    let (_, used) = figures(limit, &scenario(limit, 120, saturating(2_000)), 100_000);
    assert!(used >= 98.0, "{used}");
}

#[test]
fn demand_that_jumps_between_processes_uses_the_limit() {
    let (limit, seconds) = ("token-bucket capacity=100000 refill=100000/s", 5);
    let in_turn = |turn| TrafficModel::InTurn {
        gap_us: 100,
        together: 20,
        turn_us: SECOND_US,
        turn,
        turns: PROCESSES as u64,
    };
    let (_, used) = figures("in turn", &scenario(limit, seconds, in_turn), 100_000 * (seconds + 1));
    assert!(used >= 90.0, "{used}");
}

/// Below the limit, every check is admitted, and almost all of them by a lease.
#[test]
fn checks_below_the_limit_are_not_refused() {
    let limit = "token-bucket capacity=100000 refill=100000/s";
    for (name, model) in [
        ("half of the limit", TrafficModel::Random { mean_gap_us: 160 }),
        ("a hundredth of the limit", TrafficModel::Random { mean_gap_us: 8_000 }),
        ("30 at once", TrafficModel::Even { gap_us: 100_000, together: 30 }),
        ("300 at once", TrafficModel::Even { gap_us: 300_000, together: 300 }),
    ] {
        let (report, _) = figures(name, &scenario(limit, 3, |_| model), 100_000 * 4);
        assert_eq!(report.local_refusals + report.store_refusals + report.failures, 0, "{name}");
        assert!(report.hits * 10 > report.checks * 9, "{name}: {report:?}");
    }
}

#[test]
fn idle_process_gives_its_units_back_within_the_lease_time() {
    let limit = "token-bucket capacity=100000 refill=100000/s";
    let stops = |_| TrafficModel::Stops { mean_gap_us: 100, after_us: SECOND_US };
    let at_us = |end_us| SimulatedScenario { duration_us: end_us, ..scenario(limit, 0, stops) };
    let busy = run(&at_us(SECOND_US));
    assert!(busy.held_units > 100, "{busy:?}");
    let idle = run(&at_us(2 * SECOND_US));
    assert_eq!((idle.held_units, idle.counters.held), (0, 0), "{idle:?}");
    assert!(idle.counters.returned_units > 100);
}

/// A process without answers uses up what it has, and then fails its checks. It neither admits nor refuses them.
#[test]
fn leases_are_used_up_when_the_store_is_down() {
    let limit = "token-bucket capacity=100000 refill=100000/s";
    let mut scenario = scenario(limit, 3, |_| TrafficModel::Random { mean_gap_us: 500 });
    let fault = SimulatedFault::StoreDown { for_us: SECOND_US };
    scenario.faults.push(TimedFault { at_us: SECOND_US, fault });
    let (report, _) = figures("store down", &scenario, 400_000);
    assert_eq!(report.local_refusals, 0);
    let second = report.checks / 3;
    assert!(report.failures < second && report.failures > second / 2, "{report:?}");
    // One request a pace and process, 100 and 8 for a second, and the answers of checks that were in flight.
    assert!(report.counters.failures <= 820, "{report:?}");
}
