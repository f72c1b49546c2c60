//! Receipts that no check has written: with any content, a refund stays within the limit and does not panic.

use proptest::prelude::*;
use tollgate_core::{ChargePlace, ChargeReceipt, Cost, Limit, MAX_UNITS, State, UnitRequest};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

fn receipt(
    numbers: impl Strategy<Value = u64> + Clone,
) -> impl Strategy<Value = (Cost, ChargePlace)> {
    let two = || (numbers.clone(), numbers.clone());
    let place = prop_oneof![
        two().prop_map(|(start_us, window_us)| ChargePlace::Window { start_us, window_us }),
        numbers.clone().prop_map(|at_us| ChargePlace::Entry { at_us }),
        two().prop_map(|(charged, over_us)| ChargePlace::Bucket { charged, over_us }),
    ];
    let cost = prop_oneof![1..10_u64, 1..=MAX_UNITS, Just(MAX_UNITS)];
    (cost.prop_map(|units| Cost::new(units).unwrap()), place)
}

fn number() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![0..20_u64, any::<u64>(), Just(MAX_UNITS), Just(u64::MAX)]
}

/// Moves the times and the count of a made-up receipt near the values of a real one, because others have no effect.
fn near((cost, place): (Cost, ChargePlace), real: Option<&ChargeReceipt>) -> ChargeReceipt {
    let place = match (real.map(ChargeReceipt::place), place) {
        (Some(ChargePlace::Window { start_us, window_us }), ChargePlace::Window { .. }) => {
            ChargePlace::Window { start_us: start_us.saturating_sub(window_us), window_us }
        }
        (Some(place @ ChargePlace::Entry { .. }), ChargePlace::Entry { .. }) => place,
        (Some(ChargePlace::Bucket { over_us, .. }), ChargePlace::Bucket { charged, .. }) => {
            ChargePlace::Bucket { charged, over_us }
        }
        _ => place,
    };
    ChargeReceipt::of(cost, place)
}

fn refund(limit: &Limit, state: &mut State, now_us: u64, receipt: ChargeReceipt) -> (u64, u64) {
    let back = limit.refund(state, now_us, receipt);
    (back, limit.peek(state, now_us, UnitRequest::new(Cost::ONE)).remaining)
}

proptest! {
    #[test]
    fn made_up_receipts_give_back_no_more_than_was_spent(
        limit in any::limit(),
        steps in trace::any(),
        receipts in prop::collection::vec(receipt(number()), 40),
    ) {
        let mut walk = Walk::new(limit);
        for (step, made_up) in steps.iter().zip(receipts) {
            let Some(cost) = walk.aim(step) else { break };
            let real = walk.check(cost).receipt;
            for receipt in [ChargeReceipt::of(made_up.0, made_up.1), near(made_up, real.as_ref())] {
                let before = walk.remaining_after(0);
                let (back, remaining) = refund(&limit, &mut walk.state, walk.now_us, receipt);
                prop_assert_eq!(before + back, remaining);
                prop_assert!(remaining <= limit.size());
            }
        }
    }

    #[test]
    fn made_up_receipts_do_not_panic_on_states_that_no_check_left(
        limit in any::limit(),
        mut state in any::state(),
        now_us in number(),
        (cost, place) in receipt(number()),
    ) {
        let (_, remaining) = refund(&limit, &mut state, now_us, ChargeReceipt::of(cost, place));
        prop_assert!(remaining <= limit.size());
    }
}
