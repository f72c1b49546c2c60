//! Tests of the counts of holds by their expiry.

use proptest::prelude::*;

use super::*;

const SECOND_US: u64 = 1_000_000;
/// A time at which slots of every width begin.
const START_US: u64 = 1_717_986_918 / (1 << 20) * (1 << 20) * SECOND_US;

fn expiry(at_us: u64, hold_for_s: u64) -> CountedExpiry {
    CountedExpiry::new(at_us + hold_for_s * SECOND_US, Duration::from_secs(hold_for_s))
}

/// Returns the holds and the units of servers together: open, and expired without a settlement.
fn sums(servers: &[HoldExpiries], now_us: u64) -> [(i128, i128); 2] {
    let flows: Vec<_> = servers.iter().map(|server| server.flow_at(now_us)).collect();
    let sum = |of: fn(&FlowByExpiry) -> HoldFlow| {
        let flows = flows.iter().map(of);
        flows.fold((0, 0), |sum, flow| (sum.0 + flow.holds(), sum.1 + flow.units()))
    };
    [sum(|flow| flow.open), sum(|flow| flow.past)]
}

#[test]
fn hold_that_another_server_settles_is_open_until_then_and_has_not_expired() {
    let servers = <[HoldExpiries; 2]>::default();
    let expiry = expiry(START_US, 60);
    servers[0].add(expiry, HoldFlow::reserved(HoldCount::one(100)), START_US);
    assert_eq!(sums(&servers, START_US), [(1, 100), (0, 0)]);
    servers[1].add(expiry, HoldFlow::ended(HoldCount::of_units(30)), START_US + 1);
    assert_eq!(sums(&servers, START_US + 1), [(1, 70), (0, 0)]);
    servers[1].add(expiry, HoldFlow::ended(HoldCount::one(70)), START_US + 2);
    assert_eq!(servers[1].flow_at(START_US + 2).open.units(), -100);
    for seconds in [0, 59, 60, 64, 100_000] {
        assert_eq!(sums(&servers, START_US + seconds * SECOND_US), [(0, 0), (0, 0)]);
    }
}

#[test]
fn hold_that_is_not_settled_is_counted_when_its_slot_has_passed() {
    for (hold_for_s, slot_s) in
        [(1, 1), (32, 1), (33, 4), (60, 4), (3_600, 256), (366 * 86_400, 1 << 20)]
    {
        let servers = <[HoldExpiries; 1]>::default();
        let expiry = expiry(START_US, hold_for_s);
        servers[0].add(expiry, HoldFlow::reserved(HoldCount::one(7)), START_US);
        let passed_us = START_US + (hold_for_s / slot_s + 1) * slot_s * SECOND_US;
        assert_eq!(sums(&servers, passed_us - 1), [(1, 7), (0, 0)], "{hold_for_s} s");
        assert_eq!(sums(&servers, passed_us), [(0, 0), (1, 7)], "{hold_for_s} s");
        assert!(passed_us - expiry.expires_us <= SECOND_US.max(hold_for_s * SECOND_US / 8));
        // A settlement that the store made before the expiry, and that was counted late.
        servers[0].add(expiry, HoldFlow::ended(HoldCount::one(7)), passed_us);
        assert_eq!(sums(&servers, passed_us), [(0, 0), (0, 0)], "{hold_for_s} s");
    }
}

#[test]
fn nothing_is_allocated_before_a_hold_is_counted() {
    let expiries = HoldExpiries::default();
    assert_eq!(expiries.flow_at(START_US), FlowByExpiry::default());
    assert!(expiries.counts.lock().by_width.iter().all(Option::is_none));
}

/// Counts of one server: at this time, in microseconds, holds that last this long, and whether they are settled.
fn holds() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let hold_for_us = prop_oneof![1..60 * SECOND_US, 1..366 * 86_400 * SECOND_US];
    let times = (0..86_400 * SECOND_US, hold_for_us, any::<bool>());
    prop::collection::vec(times, 1..200).prop_map(|mut holds| {
        holds.sort_unstable();
        holds
    })
}

proptest! {
    /// The clocks of the servers differ from the store's by up to an hour.
    #[test]
    fn every_hold_is_settled_or_expires(holds in holds(), skews in [0..3_600 * SECOND_US, 0..3_600 * SECOND_US]) {
        let servers = <[HoldExpiries; 2]>::default();
        let mut unsettled = (0, 0);
        for (index, (at_us, hold_for_us, is_settled)) in holds.into_iter().enumerate() {
            let (now_us, units) = (START_US + at_us, index as u64 + 1);
            let expiry = CountedExpiry::new(now_us + hold_for_us, Duration::from_micros(hold_for_us));
            let reserved = HoldFlow::reserved(HoldCount::one(units));
            servers[0].add(expiry, reserved, now_us + skews[0]);
            if is_settled {
                let ended = HoldFlow::ended(HoldCount::one(units));
                servers[1].add(expiry, ended, now_us + hold_for_us / 2 + skews[1]);
            } else {
                unsettled = (unsettled.0 + 1, unsettled.1 + i128::from(units));
            }
            let [open, past] = sums(&servers, now_us);
            prop_assert!(open.0 + past.0 == unsettled.0 && open.1 + past.1 == unsettled.1);
        }
        let end_us = START_US + 800 * 86_400 * SECOND_US;
        prop_assert_eq!(sums(&servers, end_us), [(0, 0), unsettled]);
    }
}
