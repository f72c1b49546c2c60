//! The memory of a log, and its compact forms when it is small.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::store::{LogFastPath, LogStorage, OneChargeLog, ThreeUnitLog};
use tollgate_core::{Algorithm, Cost, Log, SlidingWindowLog, UnitRequest};

/// Milliseconds since the previous step, possibly negative; the cost; whether it is refunded at once.
fn steps() -> impl Strategy<Value = Vec<(i64, u64, bool)>> {
    let back = prop_oneof![6 => 0_i64..400, 3 => Just(0), 1 => -20_000_i64..0];
    let cost = prop_oneof![2 => Just(1), 1 => 1_u64..4];
    prop::collection::vec((back, cost, prop::bool::weighted(0.1)), 1..120)
}

proptest! {
    /// `growth_bytes` returns before a charge by exactly how many bytes the log will grow. A log of at most one charge
    /// survives the conversion to three numbers, and a log of three units the conversion to three times.
    #[test]
    fn growth_is_predicted_and_compact_forms_are_equal(limit in 1_u64..40, steps in steps()) {
        let limit = SlidingWindowLog::new(limit, Duration::from_secs(1)).unwrap();
        let mut log = Log::default();
        let mut now_us = 1_000_000_000_u64;
        for (step_ms, cost, is_refunded) in steps {
            now_us = now_us.saturating_add_signed(step_ms * 1_000);
            let request = UnitRequest::new(Cost::new(cost).unwrap());
            let before = log.heap_bytes();
            let growth = limit.growth_bytes(&log, now_us, request.cost);
            for same in log.as_one_charge().map(Log::from).into_iter().chain(log.as_three_units().map(Log::from)) {
                prop_assert_eq!(&same, &log);
                prop_assert_eq!(limit.peek(&same, now_us, request), limit.peek(&log, now_us, request));
                prop_assert!(limit.entries(&same, now_us).eq(limit.entries(&log, now_us)));
                prop_assert_eq!(same.heap_bytes(), 0);
            }
            let checked = limit.check(&mut log, now_us, request);
            let grown = log.heap_bytes() - before;
            prop_assert_eq!(grown, if checked.decision.is_allowed() { growth } else { 0 });
            if let (Some(receipt), true) = (checked.receipt, is_refunded) {
                limit.refund(&mut log, now_us, receipt);
                prop_assert_eq!(log.heap_bytes(), before + grown);
            }
        }
    }

    /// When all charges are merged into one at the time of the newest, the same units count at least as long.
    #[test]
    fn merged_charges_forgive_no_units(limit in 1_u64..40, steps in steps(), later_us in 0..2_000_000_u64) {
        let limit = SlidingWindowLog::new(limit, Duration::from_secs(1)).unwrap();
        let mut log = Log::default();
        let mut now_us = 1_000_000_000_u64;
        for (step_ms, cost, _) in steps {
            now_us = now_us.saturating_add_signed(step_ms.max(0) * 1_000);
            limit.check(&mut log, now_us, UnitRequest::new(Cost::new(cost).unwrap()));
        }
        let coarse = Log::from(log.coarsened());
        let request = UnitRequest::new(Cost::ONE);
        let (exact, coarse) =
            (limit.peek(&log, now_us + later_us, request), limit.peek(&coarse, now_us + later_us, request));
        prop_assert!(coarse.remaining <= exact.remaining);
        prop_assert_eq!(coarse.reset_after_us, exact.reset_after_us);
    }
}

/// Several charges at one time are each in the list, and each can be refunded.
#[test]
fn charges_of_one_time_are_listed_and_refunded_one_by_one() {
    let limit = SlidingWindowLog::new(20, Duration::from_secs(1)).unwrap();
    let costs =
        |log: &Log| -> Vec<u64> { limit.entries(log, 5).map(|entry| entry.cost.units()).collect() };
    let mut log = Log::default();
    let charge = |log: &mut Log, units| {
        limit.check(log, 5, UnitRequest::new(Cost::new(units).unwrap())).receipt.unwrap()
    };
    let mut receipts: Vec<_> = [1, 1, 1, 2, 1, 1, 2, 2].map(|units| charge(&mut log, units)).into();
    assert_eq!(costs(&log), [1, 1, 1, 2, 1, 1, 2, 2]);
    assert_eq!(limit.refund(&mut log, 5, receipts.remove(3)), 2);
    assert_eq!(costs(&log), [1, 1, 1, 1, 1, 2, 2]);
    for left in [[1, 1, 1, 1, 2, 2].as_slice(), &[1, 1, 1, 2, 2], &[1, 1, 2, 2]] {
        assert_eq!(limit.refund(&mut log, 5, receipts.remove(0)), 1);
        assert_eq!(costs(&log), left);
    }
    for receipt in receipts {
        limit.refund(&mut log, 5, receipt);
    }
    assert!(costs(&log).is_empty());
}

/// Only a charge with another time or another cost takes memory.
#[test]
fn single_units_of_one_time_take_no_memory() {
    let limit = SlidingWindowLog::new(65_536, Duration::from_secs(1)).unwrap();
    let mut log = Log::default();
    for _ in 0..10_000 {
        assert_eq!(limit.growth_bytes(&log, 5, Cost::ONE), 0);
        assert!(limit.check(&mut log, 5, UnitRequest::new(Cost::ONE)).decision.is_allowed());
    }
    assert_eq!((log.heap_bytes(), limit.entries(&log, 5).count()), (0, 10_000));
}

#[test]
fn refunded_or_uncharged_log_is_brief() {
    assert_eq!(Log::default().as_one_charge(), Some(OneChargeLog::default()));
    let limit = SlidingWindowLog::new(3, Duration::from_secs(1)).unwrap();
    let mut log = Log::default();
    let receipt = limit.check(&mut log, 5, UnitRequest::new(Cost::ONE)).receipt.unwrap();
    assert_eq!(log.as_one_charge(), Some(OneChargeLog { charged_us: 5, at_us: 5, units: 1 }));
    limit.refund(&mut log, 5, receipt);
    assert_eq!(log.as_one_charge(), Some(OneChargeLog { charged_us: 5, at_us: 0, units: 0 }));
    assert_eq!(log.as_three_units(), None);
    for (at_us, expected) in [(6, [6, 0, 0]), (6, [6, 6, 0]), (7, [7, 6, 6])] {
        limit.check(&mut log, at_us, UnitRequest::new(Cost::ONE));
        assert_eq!(log.as_three_units(), Some(ThreeUnitLog { at_us: expected }));
    }
    assert_eq!(log.as_one_charge(), None);
}
