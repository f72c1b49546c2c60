//! What a log takes, and what it is when it is small.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, BriefLog, Cost, Log, SlidingWindowLog};

/// Milliseconds since the step before, or back; what it costs; whether it is refunded at once.
fn steps() -> impl Strategy<Value = Vec<(i64, u64, bool)>> {
    let back = prop_oneof![9 => 0_i64..400, 1 => -20_000_i64..0];
    prop::collection::vec((back, 1_u64..4, prop::bool::weighted(0.1)), 1..120)
}

proptest! {
    /// Whoever has to find the memory for a charge is told how much, to the byte. A log of at most
    /// one charge is the same log as three numbers.
    #[test]
    fn growth_is_foretold_and_a_brief_log_is_the_same(limit in 1_u64..40, steps in steps()) {
        let limit = SlidingWindowLog::new(limit, Duration::from_secs(1)).unwrap();
        let mut log = Log::default();
        let mut now_us = 1_000_000_000_u64;
        for (step_ms, cost, is_refunded) in steps {
            now_us = now_us.saturating_add_signed(step_ms * 1_000);
            let ask = Ask::new(Cost::new(cost).unwrap());
            let before = log.heap_bytes();
            let growth = limit.growth_bytes(&log, now_us);
            if let Some(brief) = log.brief() {
                let same = Log::from(brief);
                prop_assert_eq!(limit.peek(&same, now_us, ask), limit.peek(&log, now_us, ask));
                prop_assert!(limit.entries(&same, now_us).eq(limit.entries(&log, now_us)));
                prop_assert_eq!(same.heap_bytes(), 0);
            }
            let checked = limit.check(&mut log, now_us, ask);
            let grown = log.heap_bytes() - before;
            prop_assert_eq!(grown, if checked.decision.is_allowed() { growth } else { 0 });
            if let (Some(receipt), true) = (checked.receipt, is_refunded) {
                limit.refund(&mut log, now_us, receipt);
                prop_assert_eq!(log.heap_bytes(), before + grown);
            }
        }
    }

    /// All charges as one, at the time of the newest: as much is spent, and for no shorter.
    #[test]
    fn charges_made_one_are_forgiven_nobody(limit in 1_u64..40, steps in steps(), later_us in 0..2_000_000_u64) {
        let limit = SlidingWindowLog::new(limit, Duration::from_secs(1)).unwrap();
        let mut log = Log::default();
        let mut now_us = 1_000_000_000_u64;
        for (step_ms, cost, _) in steps {
            now_us = now_us.saturating_add_signed(step_ms.max(0) * 1_000);
            limit.check(&mut log, now_us, Ask::new(Cost::new(cost).unwrap()));
        }
        let coarse = Log::from(log.coarsened());
        let ask = Ask::new(Cost::ONE);
        let (exact, coarse) =
            (limit.peek(&log, now_us + later_us, ask), limit.peek(&coarse, now_us + later_us, ask));
        prop_assert!(coarse.remaining <= exact.remaining);
        prop_assert_eq!(coarse.reset_after_us, exact.reset_after_us);
    }
}

#[test]
fn a_log_that_was_refunded_or_never_charged_is_brief() {
    assert_eq!(Log::default().brief(), Some(BriefLog::default()));
    let limit = SlidingWindowLog::new(3, Duration::from_secs(1)).unwrap();
    let mut log = Log::default();
    let receipt = limit.check(&mut log, 5, Ask::new(Cost::ONE)).receipt.unwrap();
    assert_eq!(log.brief(), Some(BriefLog { charged_us: 5, at_us: 5, units: 1 }));
    limit.refund(&mut log, 5, receipt);
    assert_eq!(log.brief(), Some(BriefLog { charged_us: 5, at_us: 0, units: 0 }));
    for _ in 0..2 {
        limit.check(&mut log, 6, Ask::new(Cost::ONE));
    }
    assert_eq!(log.brief(), None);
}
