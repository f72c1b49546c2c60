//! Receipts that no check has written: with any content, a refund stays within the limit and does not panic.

use proptest::prelude::*;
use tollgate_core::{Ask, Cost, Limit, MAX_UNITS, Place, Receipt, State};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

fn receipt(numbers: impl Strategy<Value = u64> + Clone) -> impl Strategy<Value = (Cost, Place)> {
    let two = || (numbers.clone(), numbers.clone());
    let place = prop_oneof![
        two().prop_map(|(start_us, window_us)| Place::Window { start_us, window_us }),
        numbers.clone().prop_map(|at_us| Place::Entry { at_us }),
        two().prop_map(|(charged, over_us)| Place::Bucket { charged, over_us }),
    ];
    let cost = prop_oneof![1..10_u64, 1..=MAX_UNITS, Just(MAX_UNITS)];
    (cost.prop_map(|units| Cost::new(units).unwrap()), place)
}

fn number() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![0..20_u64, any::<u64>(), Just(MAX_UNITS), Just(u64::MAX)]
}

/// Moves the times and the count of a made-up receipt near the values of a real one, because others have no effect.
fn near((cost, place): (Cost, Place), real: Option<&Receipt>) -> Receipt {
    let place = match (real.map(Receipt::place), place) {
        (Some(Place::Window { start_us, window_us }), Place::Window { .. }) => {
            Place::Window { start_us: start_us.saturating_sub(window_us), window_us }
        }
        (Some(place @ Place::Entry { .. }), Place::Entry { .. }) => place,
        (Some(Place::Bucket { over_us, .. }), Place::Bucket { charged, .. }) => {
            Place::Bucket { charged, over_us }
        }
        _ => place,
    };
    Receipt::of(cost, place)
}

fn refund(limit: &Limit, state: &mut State, now_us: u64, receipt: Receipt) -> (u64, u64) {
    let back = limit.refund(state, now_us, receipt);
    (back, limit.peek(state, now_us, Ask::new(Cost::ONE)).remaining)
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
            for receipt in [Receipt::of(made_up.0, made_up.1), near(made_up, real.as_ref())] {
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
        let (_, remaining) = refund(&limit, &mut state, now_us, Receipt::of(cost, place));
        prop_assert!(remaining <= limit.size());
    }
}
