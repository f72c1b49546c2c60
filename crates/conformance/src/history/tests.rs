//! Histories that the algorithms made are explained; histories with a planted fault are not.

mod generated;
mod units;

use proptest::prelude::*;
use tollgate_core::{Cost, Intent, Limit, Retry, State, Verdict};

use super::order::explain_within;
use super::{
    Histories, OrderStep, RecordedAnswer, RecordedRequest, Recorder, Unexplained, explain,
};
use generated::plan;

/// Three units, none of which comes back in these tests.
const THREE: &str = "fixed-window limit=3 window=1h";

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A charge without an answer.
fn charge(began_us: u64, units: u64) -> RecordedRequest {
    let cost = Cost::new(units).unwrap();
    RecordedRequest { began_us, at_us: Some(began_us), cost, intent: Intent::Charge, answer: None }
}

/// Decides the request now, and sets its answer.
fn answered(
    limit: &Limit,
    state: &mut State,
    request: RecordedRequest,
    ended_us: u64,
) -> RecordedRequest {
    let decision = request.decide(limit, state);
    RecordedRequest { answer: Some(RecordedAnswer { ended_us, decision }), ..request }
}

#[track_caller]
fn no_order(limit: &Limit, history: &[RecordedRequest], most_losses: usize) -> String {
    match explain(limit, history, most_losses) {
        Err(Unexplained::NoOrder(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_that_overlap_are_put_in_the_order_of_their_answers() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    // Decided from the last to the first, while all were in flight.
    let mut history: Vec<RecordedRequest> = (0..4)
        .map(|number| answered(&limit, &mut state, charge(10 - number, 1), 20 + number))
        .collect();
    history.reverse();
    let order = explain(&limit, &history, 0).unwrap();
    assert_eq!(order.steps, [3, 2, 1, 0].map(OrderStep::Request));
    assert_eq!(order.losses(), 0);
}

#[test]
fn last_unit_that_two_requests_got_is_found() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let first = answered(&limit, &mut state, charge(0, 2), 5);
    let read = state.clone();
    let second = answered(&limit, &mut state, charge(10, 1), 20);
    let third = answered(&limit, &mut read.clone(), charge(11, 1), 19);
    assert!(third.answer.unwrap().decision.is_allowed());
    let text = no_order(&limit, &[first, second, third], 0);
    assert!(text.contains("2 answered requests can be put in order"), "{text}");
    assert!(text.contains("the limit would answer: refused for"), "{text}");
}

/// The answer is the right one for a request that was decided earlier.
#[test]
fn stale_answer_is_found() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let read = state.clone();
    let first = answered(&limit, &mut state, charge(0, 1), 5);
    let peek = |began_us| RecordedRequest { intent: Intent::Peek, ..charge(began_us, 1) };
    let stale = |began_us| answered(&limit, &mut read.clone(), peek(began_us), 9);
    no_order(&limit, &[first, stale(6)], 0);
    // A peek that overlaps the charge may come before it.
    assert!(explain(&limit, &[first, stale(4)], 0).is_ok());
}

#[test]
fn charge_that_was_made_twice_is_found() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let first = answered(&limit, &mut state, charge(0, 1), 5);
    charge(0, 1).decide(&limit, &mut state);
    let second = answered(&limit, &mut state, charge(6, 1), 9);
    no_order(&limit, &[first, second], 0);
    no_order(&limit, &[first, second], 3);
    // A request with an unknown outcome explains the second charge.
    let order = explain(&limit, &[first, second, charge(3, 1)], 0).unwrap();
    assert_eq!(order.steps, [0, 2, 1].map(OrderStep::Request));
}

#[test]
fn charge_for_a_refused_request_is_found() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let refused = answered(&limit, &mut state, charge(0, 4), 5);
    charge(0, 1).decide(&limit, &mut state);
    let next = answered(&limit, &mut state, charge(6, 1), 9);
    no_order(&limit, &[refused, next], 0);
}

#[test]
fn request_with_an_unknown_outcome_is_not_decided_before_it_began() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let unknown = charge(10, 1);
    unknown.decide(&limit, &mut state);
    let early = answered(&limit, &mut state, charge(0, 1), 9);
    no_order(&limit, &[early, unknown], 0);
    let late = RecordedRequest { began_us: 4, ..unknown };
    assert_eq!(explain(&limit, &[early, late], 0).unwrap().steps, [1, 0].map(OrderStep::Request));
}

/// It may wait in a queue of the network.
#[test]
fn request_with_an_unknown_outcome_is_decided_long_after_it_began() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let mut history = vec![charge(0, 1)];
    for began_us in [10, 20] {
        history.push(answered(&limit, &mut state, charge(began_us, 1), began_us + 5));
    }
    charge(0, 1).decide(&limit, &mut state);
    history.push(answered(&limit, &mut state, charge(30, 1), 35));
    let order = explain(&limit, &history, 0).unwrap();
    assert_eq!(order.steps, [1, 2, 0, 3].map(OrderStep::Request));
}

#[test]
fn loss_of_state_is_explained_as_often_as_it_is_accepted() {
    let (limit, mut history) = (limit(THREE), Vec::new());
    for lifetime in 0..3 {
        let mut state = limit.fresh();
        for number in 0..4 {
            let request = charge(lifetime * 100 + number * 10, 1);
            history.push(answered(&limit, &mut state, request, request.began_us + 5));
        }
    }
    for losses in 0..2 {
        let text = no_order(&limit, &history, losses);
        let placed = format!("{} answered requests can be put in order", 4 * (losses + 1));
        assert!(text.contains(&placed), "{text}");
    }
    assert_eq!(explain(&limit, &history, 2).unwrap().losses(), 2);
    assert_eq!(explain(&limit, &history, 5).unwrap().losses(), 2);
}

/// As a replica that missed the last two writes.
#[test]
fn loss_goes_back_to_any_earlier_state_and_to_no_other() {
    let limit = limit("token-bucket capacity=10 refill=1/h");
    let mut state = limit.fresh();
    let (mut history, mut states) = (Vec::new(), Vec::new());
    for number in 0..6 {
        states.push(state.clone());
        history.push(answered(&limit, &mut state, charge(number * 10, 1), number * 10 + 5));
    }
    for early in states.iter().skip(1) {
        let after = answered(&limit, &mut early.clone(), charge(100, 1), 105);
        let order = explain(&limit, &[&history[..], &[after]].concat(), 1).unwrap();
        assert_eq!(order.steps[6..], [OrderStep::Loss, OrderStep::Request(6)]);
    }
    let mut foreign = limit.fresh();
    charge(0, 8).decide(&limit, &mut foreign);
    let after = answered(&limit, &mut foreign, charge(100, 1), 105);
    no_order(&limit, &[&history[..], &[after]].concat(), 1);
}

/// The store's clock is a little later than that of the caller.
#[test]
fn only_units_are_compared_when_the_stores_clock_decided() {
    let (limit, mut state) = (limit(THREE), limit(THREE).fresh());
    let decided = |state: &mut State, began_us, units| {
        let request = answered(&limit, state, charge(began_us + 3, units), began_us + 9);
        RecordedRequest { began_us, at_us: None, ..request }
    };
    let history = [decided(&mut state, 10, 2), decided(&mut state, 20, 2)];
    assert!(explain(&limit, &history, 0).is_ok());
    let at_their_time = history.map(|own| RecordedRequest { at_us: Some(own.began_us), ..own });
    no_order(&limit, &at_their_time, 0);
    let stale = decided(&mut limit.fresh(), 30, 1);
    let text = no_order(&limit, &[history[0], history[1], stale], 0);
    assert!(text.contains("Charge of 1 at the store's time"), "{text}");
}

/// Twelve requests are in flight when a server is killed. Its replica lacks some charges, and gets six of the requests.
/// Without a loss no order explains that, and the search need not try every combination of the twelve to find out.
#[test]
fn failover_with_many_unknown_outcomes_is_explained_in_few_decisions() {
    let limit = limit("fixed-window limit=1000000 window=1h");
    let (mut state, mut history) = (limit.fresh(), Vec::new());
    let mut on_replica = limit.fresh();
    for number in 0..100 {
        history.push(answered(&limit, &mut state, charge(number * 10, 2), number * 10 + 5));
        if number == 29 {
            on_replica = state.clone();
        }
    }
    history.extend((0..12).map(|number| charge(1_000 + number, 5 + number)));
    for reached in [101, 103, 104, 106, 108, 111] {
        history[reached].decide(&limit, &mut on_replica);
    }
    for number in 0..50 {
        let request = charge(2_000 + number * 10, 2);
        history.push(answered(&limit, &mut on_replica, request, request.began_us + 5));
    }
    let order = explain_within(&limit, &history, 1, 10_000).unwrap();
    assert_eq!(order.losses(), 1);
    let without_loss = explain_within(&limit, &history, 0, 10_000);
    assert!(matches!(without_loss, Err(Unexplained::NoOrder(_))), "{without_loss:?}");
}

#[test]
fn search_that_takes_too_long_is_given_up() {
    let limit = limit("fixed-window limit=1000000 window=1h");
    let mut state = limit.fresh();
    let first = answered(&limit, &mut state, charge(0, 1), 5);
    // The sum of no subset of these costs is odd.
    let unknown: Vec<RecordedRequest> =
        (1..=40).map(|number| charge(1, 2 * number * number)).collect();
    charge(0, 101).decide(&limit, &mut state);
    let second = answered(&limit, &mut state, charge(6, 1), 9);
    let history = [&[first, second], &unknown[..]].concat();
    match explain_within(&limit, &history, 0, 20_000) {
        Err(Unexplained::Undecided(text)) => {
            assert!(text.starts_with("given up after 20000 decisions"), "{text}");
            assert!(text.contains("40 unknown outcomes"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn record_of_a_killed_process_is_read_up_to_its_last_whole_line() {
    let limit = limit(THREE);
    let mut state = limit.fresh();
    let mut output = Vec::new();
    let mut recorder = Recorder::new(&mut output, 1, 2);
    let refused = answered(&limit, &mut state, charge(10, 4), 15);
    let allowed = answered(&limit, &mut state, charge(20, 2), 25);
    for (key, request) in [("a key", refused), ("b", allowed)] {
        let number = recorder.begin(key, &request).unwrap();
        recorder.end(number, &request.answer.unwrap()).unwrap();
    }
    let cached = recorder.begin("b", &charge(30, 1)).unwrap();
    recorder.unsent(cached).unwrap();
    let killed = recorder.begin("a key", &charge(40, 1)).unwrap();
    assert_eq!(killed, 7);
    output.extend_from_slice(b"begin 9 50 50 1 char");
    let mut histories = Histories::default();
    histories.read(str::from_utf8(&output).unwrap()).unwrap();
    assert_eq!(histories.0["a key"], [refused, charge(40, 1)]);
    assert_eq!(histories.0["b"], [allowed]);
    let error = Histories::default().read("end 1 5 allowed 0 3 2 5 0\n").unwrap_err();
    assert_eq!(error.to_string(), r#"line 1: not a line of a record: "end 1 5 allowed 0 3 2 5 0""#);
}

proptest! {
    #![proptest_config(crate::store::cases(128))]

    #[test]
    fn history_that_the_limit_made_is_explained(plan in plan()) {
        let history = plan.history();
        let explained = explain(&plan.limit, &history, plan.losses());
        prop_assert!(explained.is_ok(), "{}", explained.unwrap_err());
    }

    /// Without overlaps there is only one order.
    #[test]
    fn changed_answer_is_found(plan in plan(), which in any::<prop::sample::Index>(), field in 0..5) {
        let mut history = plan.without_overlaps().history();
        prop_assert!(explain(&plan.limit, &history, 0).is_ok());
        let at = which.index(history.len());
        change(&mut history[at].answer.as_mut().unwrap().decision, field);
        prop_assert!(explain(&plan.limit, &history, 0).is_err());
    }

    /// No unit comes back, so each charge finds less than all before it; two that find the same are a lost update.
    #[test]
    fn lost_update_is_found_unless_a_loss_is_accepted(
        plan in plan(),
        which in any::<prop::sample::Index>(),
    ) {
        let mut plan = plan.without_losses_and_unknown_outcomes();
        plan.limit = limit("sliding-window-log limit=500 window=366d");
        let charged = plan.charged();
        prop_assume!(charged.len() > 1);
        // Another request is charged after it.
        let lost = charged[which.index(charged.len() - 1)];
        plan.requests[lost].loses_own_charge = true;
        let history = plan.history();
        let explained = explain(&plan.limit, &history, 0);
        prop_assert!(matches!(explained, Err(Unexplained::NoOrder(_))), "{explained:?}");
        prop_assert_eq!(explain(&plan.limit, &history, 1).map(|order| order.losses()), Ok(1));
    }

    #[test]
    fn record_is_read_as_it_was_written(plan in plan()) {
        let history = plan.history();
        let mut output = Vec::new();
        let mut recorder = Recorder::new(&mut output, 0, 1);
        for request in &history {
            let number = recorder.begin("key", request).unwrap();
            if let Some(answer) = &request.answer {
                recorder.end(number, answer).unwrap();
            }
        }
        let mut histories = Histories::default();
        histories.read(str::from_utf8(&output).unwrap()).unwrap();
        // Unknown outcomes are read last, in any order.
        let sorted = |mut history: Vec<RecordedRequest>| {
            history.sort_by_key(|request| format!("{request:?}"));
            history
        };
        prop_assert_eq!(sorted(histories.0.remove("key").unwrap()), sorted(history));
    }
}

/// Changes one field of a decision.
fn change(decision: &mut tollgate_core::LimitDecision, field: i32) {
    match field {
        0 => decision.remaining += 1,
        1 => decision.reset_after_us += 1,
        2 => decision.first_back_us += 1,
        3 => decision.limit += 1,
        _ => {
            decision.verdict = match decision.verdict {
                Verdict::Allowed { .. } => Verdict::Denied { retry: Retry::AfterUs(1) },
                Verdict::Denied { retry: Retry::AfterUs(wait_us) } => {
                    Verdict::Denied { retry: Retry::AfterUs(wait_us + 1) }
                }
                Verdict::Denied { retry: Retry::Never } => Verdict::Allowed { delay_us: 0 },
            };
        }
    }
}
