//! Scenarios from a seed.

use tollgate_core::Limit;
use tollgate_lease::{LeaseTerms, TableSize};

use super::{SimulatedKey, SimulatedScenario, TimedFault, TrafficSource};
use crate::faults::{Direction, SimulatedFault};
use crate::network::NetworkModel;
use crate::random_source::RandomSource;
use crate::store::StateLoss;
use crate::traffic::TrafficModel;

/// About as many checks arrive in a run.
const CHECKS: u64 = 2_500;

impl SimulatedScenario {
    /// Makes a scenario: up to five processes, each algorithm, small and large limits, all kinds of traffic and faults.
    pub fn random(seed: u64) -> SimulatedScenario {
        let random = &mut RandomSource::new(seed);
        let keys: Vec<SimulatedKey> =
            (0..random.one_of(&[1, 1, 2])).map(|_| random_key(random)).collect();
        let processes = random.between(1, 5) as usize;
        let duration_us = random.between(1_000_000, 4_000_000);
        let traffic = random_traffic(random, &keys, processes, duration_us);
        let faults = (0..random.between(0, 6))
            .map(|_| TimedFault {
                at_us: random.between(0, duration_us),
                fault: random_fault(random, processes),
            })
            .collect();
        let mut scenario = SimulatedScenario {
            seed,
            duration_us,
            keys,
            processes,
            table_size: TableSize { leases: random.one_of(&[1, 2, 1_024]), counted_keys: 16 },
            deadline_us: random.one_of(&[5_000, 10_000, 10_000, 50_000]),
            drift_ppm: random.one_of(&[0, 500, 9_000]),
            wall_skew_us: random.one_of(&[0, 1_000, 200_000]),
            given_back_permille: random.one_of(&[0, 0, 100]),
            network: random_network(random),
            traffic,
            faults,
            mutant: None,
        };
        match random.between(0, 7) {
            0 | 1 => fade_out(random, &mut scenario),
            2 | 3 => waves(random, &mut scenario),
            _ => {}
        }
        scenario
    }
}

/// Makes a limit whose units come back within a short time, so that a run sees that often.
fn random_limit(random: &mut RandomSource, min_size: u64, max_size: u64) -> Limit {
    let size = random.between(min_size, max_size);
    let window_ms = random.one_of(&[150, 300, 700, 1_000, 2_000]);
    let text = match random.between(0, 4) {
        0 => format!("fixed-window limit={size} window={window_ms}ms"),
        1 => format!("sliding-window-log limit={size} window={window_ms}ms"),
        2 => format!("sliding-window-counter limit={size} window={window_ms}ms"),
        3 => format!("token-bucket capacity={size} refill={size}/{window_ms}ms"),
        _ => format!("leaky-bucket mode=policing capacity={size} leak={size}/{window_ms}ms"),
    };
    // OK because all of these are valid.
    text.parse().unwrap_or_else(|_| Limit::per_second(100).into())
}

fn random_key(random: &mut RandomSource) -> SimulatedKey {
    let (min_size, max_size) = random.one_of(&[(4, 30), (30, 500), (500, 10_000)]);
    let terms = LeaseTerms::new(random_limit(random, min_size, max_size));
    let lease_us = random.one_of(&[100_000, 200_000, 500_000, 1_000_000]);
    let pace_us = random.one_of(&[1_000, 2_000, 5_000, 10_000]);
    let percent = random.one_of(&[10, 25, 25, 50, 100]);
    let terms = terms.and_then(|terms| terms.pace_us(pace_us)?.lease_for_us(lease_us));
    // OK because the pace is at most a tenth of the lease time.
    #[allow(clippy::expect_used)]
    let terms = terms.and_then(|terms| terms.max_share(percent)).expect("the terms are valid");
    SimulatedKey { terms }
}

fn random_network(random: &mut RandomSource) -> NetworkModel {
    let min_delay_us = random.one_of(&[20, 50, 200, 1_000]);
    NetworkModel {
        min_delay_us,
        max_delay_us: min_delay_us * random.between(1, 10),
        lost_permille: random.one_of(&[0, 0, 5, 50]),
        repeated_permille: random.one_of(&[0, 10, 100]),
        late_permille: random.one_of(&[0, 5, 30]),
        late_us: random.one_of(&[5_000, 100_000, 1_500_000]),
    }
}

/// Makes the traffic of all processes: from a fraction of the limit to several times it.
fn random_traffic(
    random: &mut RandomSource,
    keys: &[SimulatedKey],
    processes: usize,
    duration_us: u64,
) -> Vec<TrafficSource> {
    let mut sources = Vec::new();
    let checks = CHECKS / (keys.len() * processes) as u64;
    for (key, own) in keys.iter().enumerate() {
        let size = own.terms.limit().size();
        // Costs at which the expected checks ask for about the limit or more.
        let max_cost = random.one_of(&[1, 1, 3, (size / 50).max(1), (size / 5).max(1)]);
        for process in 0..processes {
            let share = random.one_of(&[checks / 10, checks, checks, checks * 2]).max(1);
            let gap_us = (duration_us / share).max(20);
            let model = random_model(random, gap_us, duration_us, process, processes);
            sources.push(TrafficSource { process, key: key as u32, model, max_cost });
        }
    }
    sources
}

/// Lets a process use a lease to its end: it has far more units than it needs, and its renewals are lost.
fn fade_out(random: &mut RandomSource, scenario: &mut SimulatedScenario) {
    let process = random.index(scenario.processes);
    let limit = random_limit(random, 20_000, 50_000);
    let lease_us = random.one_of(&[100_000, 200_000]);
    let terms = LeaseTerms::new(limit).and_then(|terms| terms.lease_for_us(lease_us));
    let Ok(terms) = terms else { return };
    let key = scenario.keys.len() as u32;
    scenario.keys.push(SimulatedKey { terms });
    // Until then the process has asked for a lease a few times.
    let after_us = random.between(lease_us, 3 * lease_us);
    let model = TrafficModel::Fades { gap_us: lease_us / 200, together: 15, after_us };
    scenario.traffic.push(TrafficSource { process, key, model, max_cost: 1 });
    let cut = SimulatedFault::Cut { process, for_us: 2 * lease_us, direction: Direction::ToStore };
    scenario.faults.push(TimedFault { at_us: after_us, fault: cut });
    // Near the end of the lease, the speed of the clocks decides.
    scenario.drift_ppm = 9_000;
    (scenario.network.min_delay_us, scenario.network.max_delay_us) = (20, 200);
}

/// Lets a process use a lease slowly between waves, so that it is seldom settled. Two waves use up the limit together.
fn waves(random: &mut RandomSource, scenario: &mut SimulatedScenario) {
    let process = random.index(scenario.processes);
    let (fast_ms, slow_ms) = (random.between(30, 80), random.between(100, 600));
    let size = 22 * fast_ms * random.between(12, 18) / 10;
    let window_ms = (fast_ms + slow_ms) * random.between(11, 20) / 10;
    let limit = format!("sliding-window-log limit={size} window={window_ms}ms").parse();
    let Some(Ok(terms)) = limit.ok().map(LeaseTerms::new) else { return };
    let key = scenario.keys.len() as u32;
    scenario.keys.push(SimulatedKey { terms });
    let model = TrafficModel::Waves {
        gap_us: 1_000,
        together: 5,
        fast_us: fast_ms * 1_000,
        slow_us: slow_ms * 1_000,
    };
    scenario.traffic.push(TrafficSource { process, key, model, max_cost: 8 });
}

fn random_model(
    random: &mut RandomSource,
    gap_us: u64,
    duration_us: u64,
    process: usize,
    processes: usize,
) -> TrafficModel {
    let together = random.one_of(&[1, 10, 50]);
    match random.between(0, 4) {
        0 | 1 => TrafficModel::Random { mean_gap_us: gap_us },
        2 => TrafficModel::Even { gap_us: gap_us * u64::from(together), together },
        3 => TrafficModel::InTurn {
            gap_us: (gap_us * u64::from(together) / processes as u64).max(20),
            together,
            turn_us: random.one_of(&[50_000, 300_000]),
            turn: process as u64,
            turns: processes as u64,
        },
        _ => TrafficModel::Stops { mean_gap_us: gap_us, after_us: random.between(0, duration_us) },
    }
}

fn random_fault(random: &mut RandomSource, processes: usize) -> SimulatedFault {
    let process = random.index(processes);
    let for_us = random.one_of(&[1_000, 30_000, 150_000, 600_000, 1_500_000]);
    match random.between(0, 12) {
        0 | 1 => SimulatedFault::Crash { process, for_us },
        2..=4 => SimulatedFault::Freeze { process, for_us },
        5..=7 => {
            let direction =
                random.one_of(&[Direction::ToStore, Direction::FromStore, Direction::Both]);
            SimulatedFault::Cut { process, for_us, direction }
        }
        8 => SimulatedFault::StoreDown { for_us },
        9 => SimulatedFault::WallStep { process, by_us: random.around_zero(2_000_000) },
        10 => SimulatedFault::StoreStep {
            by_us: random.one_of(&[
                1_000,
                -500,
                -700_000,
                -9_000_000,
                -60_000_000,
                60_000,
                5_000_000,
            ]),
        },
        11 => SimulatedFault::Loss(match random.between(0, 2) {
            0 => StateLoss::All,
            _ => StateLoss::Since { back_us: random.between(1_000, 300_000) },
        }),
        _ => SimulatedFault::EndLeases { process },
    }
}
