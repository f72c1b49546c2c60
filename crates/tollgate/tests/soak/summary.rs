//! A printed summary of a run, and the assertions that it is within the bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::callers::{DEADLINE, LIMIT, SoakTally, Turn};
use crate::world::Fault;

/// How much a busy machine may add to a deadline.
const MARGIN: Duration = Duration::from_secs(3);

pub(crate) struct Summary {
    name: String,
    /// How often each fault was injected, and the longest time until callers were answered again.
    faults: BTreeMap<&'static str, (u64, Duration)>,
}

impl Summary {
    pub(crate) fn new(name: &str) -> Summary {
        Summary { name: name.to_owned(), faults: BTreeMap::new() }
    }

    pub(crate) fn recovered_after(&mut self, fault: Fault, recovered: Duration) {
        let (count, longest) = self.faults.entry(fault.name()).or_default();
        (*count, *longest) = (*count + 1, recovered.max(*longest));
    }

    /// Prints the summary, then asserts the bounds.
    pub(crate) fn print_and_assert(self, tally: Arc<SoakTally>, took: Duration) {
        let turns = tally.turns();
        let (kept, lost) = most_admitted(&turns);
        let (allowed, denied) =
            (tally.allowed.load(Ordering::Relaxed), tally.denied.load(Ordering::Relaxed));
        let failed: u64 = tally.failed().values().sum();
        println!("\n{}, {:.0} s", self.name, took.as_secs_f64());
        for (fault, (count, longest)) in &self.faults {
            let longest = longest.as_secs_f64();
            println!("  {count:>4} x {fault:<26} answered again {longest:.1} s later at most");
        }
        println!("  {:>9} decisions: {allowed} allowed, {denied} denied", allowed + denied);
        let each: Vec<String> =
            tally.failed().iter().map(|(why, count)| format!("{count} {why}")).collect();
        println!("  {failed:>9} failures: {}", each.join(", "));
        let longest = tally.longest().as_millis();
        println!("  longest wait for an answer: {longest} ms of {}", DEADLINE.as_millis());
        println!("  most admitted for one key: {kept} of {LIMIT} without a loss of state,");
        println!("                             {lost} of {} after a loss of state", 2 * LIMIT);
        assert!(kept <= LIMIT, "{}: {kept} admitted without a loss of state", self.name);
        assert!(lost <= 2 * LIMIT, "{}: {lost} admitted after a loss of state", self.name);
        turns.iter().for_each(|turn| assert_denied_when_spent(turn));
        assert!(tally.longest() < DEADLINE + MARGIN, "{}: {:?}", self.name, tally.longest());
    }
}

/// Asserts that a key was denied only after its limit was spent, by allowed checks and by checks in doubt.
fn assert_denied_when_spent(turn: &Turn) {
    for key in &turn.keys {
        let spent = key.admitted.load(Ordering::Relaxed) + key.in_doubt.load(Ordering::Relaxed);
        assert!(spent >= LIMIT, "denied, though only {spent} of {LIMIT} were spent");
    }
}

/// The most that one key was admitted in a turn that cannot lose state, and in a turn that can. For a turn with
/// two possible losses, one more burst is subtracted.
fn most_admitted(turns: &[Arc<Turn>]) -> (u64, u64) {
    let (mut kept, mut lost) = (0, 0);
    for (at, turn) in turns.iter().enumerate() {
        // A request in flight may arrive after the next fault has begun.
        let nearby = turns.iter().skip(at).take(2);
        let losses = nearby.filter(|turn| turn.may_lose_state).count() as u64;
        let admitted = turn.keys.iter().map(|key| key.admitted.load(Ordering::Relaxed));
        let most = admitted.max().unwrap_or(0);
        match losses {
            0 => kept = kept.max(most),
            1 => lost = lost.max(most),
            // Counted as if there had been one loss.
            _ => lost = lost.max(most.saturating_sub(LIMIT)),
        }
    }
    (kept, lost)
}
