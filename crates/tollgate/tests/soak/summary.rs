//! What happened, for a person to read, and whether it is within the bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::callers::{DEADLINE, LIMIT, Told, Turn};
use crate::world::Fault;

/// What a busy machine may add to a deadline.
const MARGIN: Duration = Duration::from_secs(3);

pub(crate) struct Summary {
    name: String,
    /// How often each was injected, and the longest until callers were answered again.
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

    /// Prints it, then asserts.
    pub(crate) fn hold_against_the_bound(self, told: Arc<Told>, took: Duration) {
        let turns = told.turns();
        let (calm, stormy) = most_admitted(&turns);
        let (allowed, denied) =
            (told.allowed.load(Ordering::Relaxed), told.denied.load(Ordering::Relaxed));
        let failed: u64 = told.failed().values().sum();
        println!("\n{}, {:.0} s", self.name, took.as_secs_f64());
        for (fault, (count, longest)) in &self.faults {
            let longest = longest.as_secs_f64();
            println!("  {count:>4} x {fault:<26} answered again {longest:.1} s later at most");
        }
        println!("  {:>9} decisions: {allowed} allowed, {denied} denied", allowed + denied);
        let each: Vec<String> =
            told.failed().iter().map(|(why, count)| format!("{count} {why}")).collect();
        println!("  {failed:>9} failures: {}", each.join(", "));
        let longest = told.longest().as_millis();
        println!("  longest wait for an answer: {longest} ms of {}", DEADLINE.as_millis());
        println!("  most admitted of one key: {calm} of {LIMIT} where nothing was lost,");
        println!("                            {stormy} of {} where state may be lost", 2 * LIMIT);
        assert!(calm <= LIMIT, "{}: {calm} admitted without a loss", self.name);
        assert!(stormy <= 2 * LIMIT, "{}: {stormy} admitted", self.name);
        turns.iter().for_each(|turn| hold_against_the_limit(turn));
        assert!(told.longest() < DEADLINE + MARGIN, "{}: {:?}", self.name, told.longest());
    }
}

/// A key that was denied had its limit spent: by those it admitted, and those who were not told.
fn hold_against_the_limit(turn: &Turn) {
    for key in &turn.keys {
        let spent = key.admitted.load(Ordering::Relaxed) + key.in_doubt.load(Ordering::Relaxed);
        assert!(spent >= LIMIT, "denied, though only {spent} of {LIMIT} were spent");
    }
}

/// The most that one key was admitted where nothing could be lost, and, over what one loss allows,
/// where it could.
fn most_admitted(turns: &[Arc<Turn>]) -> (u64, u64) {
    let (mut calm, mut stormy) = (0, 0);
    for (at, turn) in turns.iter().enumerate() {
        // One that was on its way may come when the next fault is there already.
        let nearby = turns.iter().skip(at).take(2);
        let losses = nearby.filter(|turn| turn.may_lose_state).count() as u64;
        let admitted = turn.keys.iter().map(|key| key.admitted.load(Ordering::Relaxed));
        let most = admitted.max().unwrap_or(0);
        match losses {
            0 => calm = calm.max(most),
            1 => stormy = stormy.max(most),
            // As if there had been one.
            _ => stormy = stormy.max(most.saturating_sub(LIMIT)),
        }
    }
    (calm, stormy)
}
