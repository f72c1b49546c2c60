//! Decisions and rulings as JSON.

use serde::Serialize;
use tollgate::rules::{RulePart, Ruling};
use tollgate::{Decision, Entry};
use utoipa::ToSchema;

use super::json_object::{JsonObject, is_false, micros};

/// The decision of a limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decision)]
pub(super) struct DecisionJson {
    /// Whether the request is allowed.
    allowed: bool,
    /// The limit's size: its `limit` or `capacity`.
    #[schema(example = 60)]
    limit: u64,
    /// The largest cost that would be allowed at the same instant.
    #[schema(example = 59)]
    remaining: u64,
    /// The exact time that a refused request must wait; null if it was allowed, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The exact time until nothing is spent.
    #[schema(example = 1_000_000)]
    reset_after_us: u64,
    /// How long an allowed request should wait before it proceeds; 0 except from a shaping limit.
    delay_us: u64,
    /// Whether the store failed, and this was decided without it.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// Whether this is a remembered refusal, which is at most a second old.
    #[serde(skip_serializing_if = "is_false")]
    cached: bool,
    /// Whether this process decided with a lease: `remaining` and `reset_after_us` are estimates then.
    #[serde(skip_serializing_if = "is_false")]
    leased: bool,
    /// The receipt to refund the charge with; absent if nothing was charged, or if it would have more than 4,096
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    receipt: Option<String>,
    /// The charges that count, oldest first, if the request has `entries=true`; empty unless the limit is a sliding
    /// window log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    entries: Option<Vec<EntryJson>>,
}

/// A charge in a sliding window log.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Entry)]
pub(super) struct EntryJson {
    /// The time of the charge, in microseconds since the Unix epoch.
    at_us: u64,
    /// The units that were charged.
    #[schema(minimum = 1)]
    cost: u64,
}

/// The decision of all rules that apply. Either all of them were charged, or none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Ruling)]
pub(super) struct RulingJson<'r> {
    /// Whether the request is allowed.
    allowed: bool,
    /// Set if a rule with `limit: block` refuses the request. Nothing was charged, and waiting does not help.
    #[serde(skip_serializing_if = "is_false")]
    blocked: bool,
    /// The size of the tightest limit: the limit that refuses the request for longest, or else the limit that allows
    /// the fewest more such requests. Null if no limit applies, and for a blocked request.
    #[schema(required, example = 600)]
    limit: Option<u64>,
    /// The units left of the tightest limit; null if `limit` is null.
    #[schema(required, example = 590)]
    remaining: Option<u64>,
    /// How many more such requests fit all limits at this instant; null if no limit applies, 0 for a blocked request.
    #[schema(required, example = 59)]
    requests_remaining: Option<u64>,
    /// The exact time that a refused request must wait; null if it was allowed, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The time until the whole of every limit that can refuse the request is available again.
    reset_after_us: u64,
    /// How long an allowed request should wait before it proceeds.
    delay_us: u64,
    /// Whether the store failed, and one or more of the rules were decided without it.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// Whether this is a remembered refusal, which is at most a second old.
    #[serde(skip_serializing_if = "is_false")]
    cached: bool,
    /// Whether this process decided with a lease: `remaining` and `reset_after_us` are estimates then.
    #[serde(skip_serializing_if = "is_false")]
    leased: bool,
    /// The rule that refuses the request; if several do, the one with the longest wait. Null if none does.
    #[schema(required)]
    rule: Option<&'r str>,
    /// The generation of the rules: 1 for the first rules, and one more each time that they are replaced.
    #[schema(minimum = 1, example = 1)]
    generation: u64,
    /// All rules that apply, in the order of the rules file.
    #[schema(max_items = 256)]
    rules: Vec<RuleJson<'r>>,
    /// The token of the hold, with which a reservation is settled and extended; absent for a check, and for a refused
    /// reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 4096)]
    hold: Option<String>,
    /// The time until the first part of the hold expires and is charged in full; absent if nothing is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hold_expires_after_us: Option<u64>,
    /// The receipt to refund the charge with; absent if nothing was charged, or if it would have more than 4,096
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    receipt: Option<String>,
}

/// One rule's part of the decision. A rule that allows or blocks all such requests spends no limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Rule)]
pub(super) struct RuleJson<'r> {
    /// The rule's name.
    #[schema(example = "per-client")]
    rule: &'r str,
    /// The name of the limit that it spends.
    #[schema(required, example = "free")]
    limit_name: Option<&'r str>,
    /// The cost of the request.
    #[schema(minimum = 1, example = 1)]
    cost: u64,
    /// Whether this is a shadow rule, which refuses nothing.
    shadow: bool,
    /// Whether this rule allows the request; another rule may refuse it.
    allowed: bool,
    /// Whether the store failed, and this rule was decided without it.
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// Whether this is a remembered refusal, which is at most a second old.
    #[serde(skip_serializing_if = "is_false")]
    cached: bool,
    /// Whether this process decided with a lease: `remaining` and `reset_after_us` are estimates then.
    #[serde(skip_serializing_if = "is_false")]
    leased: bool,
    /// The limit's size.
    #[schema(required, example = 60)]
    limit: Option<u64>,
    /// The largest cost that the limit would allow at the same instant.
    #[schema(required, example = 59)]
    remaining: Option<u64>,
    /// The time for which this rule refuses such a request; null if it does not, or if waiting cannot help.
    #[schema(required)]
    retry_after_us: Option<u64>,
    /// The time until the whole limit is available again.
    #[schema(required)]
    reset_after_us: Option<u64>,
    /// How long the limit delays the request.
    #[schema(required)]
    delay_us: Option<u64>,
}

impl From<&Decision> for DecisionJson {
    fn from(decision: &Decision) -> DecisionJson {
        let decided = decision.decided();
        DecisionJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            degraded: decision.is_degraded(),
            cached: decision.is_cached(),
            leased: decision.is_leased(),
            receipt: None,
            entries: None,
        }
    }
}

impl DecisionJson {
    /// Appends the same JSON as serde, in a fifth of the time.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let mut object = JsonObject::new(to);
        object.flag("allowed", self.allowed);
        object.number("limit", self.limit);
        object.number("remaining", self.remaining);
        object.number("retry_after_us", self.retry_after_us);
        object.number("reset_after_us", self.reset_after_us);
        object.number("delay_us", self.delay_us);
        object.flag_if_set("degraded", self.degraded);
        object.flag_if_set("cached", self.cached);
        object.flag_if_set("leased", self.leased);
        if let Some(receipt) = &self.receipt {
            object.plain_text("receipt", receipt);
        }
        if let Some(entries) = &self.entries {
            object.array("entries", entries, EntryJson::write);
        }
        object.end();
    }

    pub(super) fn with_receipt(self, receipt: Option<String>) -> DecisionJson {
        DecisionJson { receipt, ..self }
    }

    pub(super) fn with_entries(self, entries: &[Entry]) -> DecisionJson {
        let entry = |entry: &Entry| EntryJson { at_us: entry.at_us, cost: entry.cost.units() };
        DecisionJson { entries: Some(entries.iter().map(entry).collect()), ..self }
    }
}

impl<'r> From<&'r Ruling> for RulingJson<'r> {
    fn from(ruling: &'r Ruling) -> RulingJson<'r> {
        let verdict = ruling.verdict();
        let mut decisions = ruling.rules().filter_map(|part| part.decision());
        RulingJson {
            allowed: verdict.is_allowed(),
            blocked: ruling.is_blocked(),
            limit: ruling.limit(),
            remaining: ruling.remaining(),
            requests_remaining: ruling.requests_remaining(),
            retry_after_us: verdict.retry_after_us(),
            reset_after_us: micros(ruling.reset_after()),
            delay_us: verdict.delay_us(),
            degraded: ruling.is_degraded(),
            cached: decisions.any(Decision::is_cached),
            leased: ruling.is_leased(),
            rule: ruling.refused_by().map(|part| part.name().name()),
            generation: ruling.generation(),
            rules: ruling.rules().map(RuleJson::from).collect(),
            hold: None,
            hold_expires_after_us: None,
            receipt: None,
        }
    }
}

impl EntryJson {
    fn write(&self, to: &mut Vec<u8>) {
        let mut object = JsonObject::new(to);
        object.number("at_us", self.at_us);
        object.number("cost", self.cost);
        object.end();
    }
}

impl<'r> RulingJson<'r> {
    /// Appends the same JSON as serde, in a fifth of the time.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let mut object = JsonObject::new(to);
        object.flag("allowed", self.allowed);
        object.flag_if_set("blocked", self.blocked);
        object.number("limit", self.limit);
        object.number("remaining", self.remaining);
        object.number("requests_remaining", self.requests_remaining);
        object.number("retry_after_us", self.retry_after_us);
        object.number("reset_after_us", self.reset_after_us);
        object.number("delay_us", self.delay_us);
        object.flag_if_set("degraded", self.degraded);
        object.flag_if_set("cached", self.cached);
        object.flag_if_set("leased", self.leased);
        object.text("rule", self.rule);
        object.number("generation", self.generation);
        object.array("rules", &self.rules, RuleJson::write);
        if let Some(hold) = &self.hold {
            object.plain_text("hold", hold);
        }
        if let Some(expires_after_us) = self.hold_expires_after_us {
            object.number("hold_expires_after_us", expires_after_us);
        }
        if let Some(receipt) = &self.receipt {
            object.plain_text("receipt", receipt);
        }
        object.end();
    }

    pub(super) fn with_receipt(self, receipt: Option<String>) -> RulingJson<'r> {
        RulingJson { receipt, ..self }
    }

    /// Adds the hold of a reservation.
    pub(super) fn with_hold(
        self,
        hold: Option<String>,
        hold_expires_after_us: Option<u64>,
    ) -> RulingJson<'r> {
        RulingJson { hold, hold_expires_after_us, ..self }
    }
}

impl RuleJson<'_> {
    fn write(&self, to: &mut Vec<u8>) {
        let mut object = JsonObject::new(to);
        object.text("rule", Some(self.rule));
        object.text("limit_name", self.limit_name);
        object.number("cost", self.cost);
        object.flag("shadow", self.shadow);
        object.flag("allowed", self.allowed);
        object.flag_if_set("degraded", self.degraded);
        object.flag_if_set("cached", self.cached);
        object.flag_if_set("leased", self.leased);
        object.number("limit", self.limit);
        object.number("remaining", self.remaining);
        object.number("retry_after_us", self.retry_after_us);
        object.number("reset_after_us", self.reset_after_us);
        object.number("delay_us", self.delay_us);
        object.end();
    }
}

impl<'r> From<RulePart<'r>> for RuleJson<'r> {
    fn from(part: RulePart<'r>) -> RuleJson<'r> {
        let decided = part.decision().map(Decision::decided);
        RuleJson {
            rule: part.name().name(),
            limit_name: part.limit_name(),
            cost: part.cost(),
            shadow: part.is_shadow(),
            allowed: part.is_allowed(),
            degraded: part.decision().is_some_and(Decision::is_degraded),
            cached: part.decision().is_some_and(Decision::is_cached),
            leased: part.decision().is_some_and(Decision::is_leased),
            limit: part.limit().map(|limit| limit.size()),
            remaining: decided.map(|decided| decided.remaining),
            retry_after_us: decided.and_then(|decided| decided.retry_after_us()),
            reset_after_us: decided.map(|decided| decided.reset_after_us),
            delay_us: decided.map(|decided| decided.delay_us()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn decisions()(
            numbers in any::<[u64; 4]>(),
            flags in any::<[bool; 4]>(),
            retry_after_us in any::<Option<u64>>(),
            receipt in proptest::option::of("[A-Za-z0-9_-]{0,100}"),
            entries in proptest::option::of(proptest::collection::vec(any::<[u64; 2]>(), 0..4)),
        ) -> DecisionJson {
            let [limit, remaining, reset_after_us, delay_us] = numbers;
            let [allowed, degraded, cached, leased] = flags;
            let entry = |[at_us, cost]: [u64; 2]| EntryJson { at_us, cost };
            let entries = entries.map(|entries| entries.into_iter().map(entry).collect());
            DecisionJson {
                allowed, limit, remaining, retry_after_us, reset_after_us, delay_us, degraded, cached, leased,
                receipt, entries,
            }
        }
    }

    fn rule<'r>(text: &'r str, decision: &DecisionJson) -> RuleJson<'r> {
        RuleJson {
            rule: text,
            limit_name: decision.cached.then_some(text),
            cost: decision.limit,
            shadow: decision.degraded,
            allowed: decision.allowed,
            degraded: decision.degraded,
            cached: decision.cached,
            leased: decision.leased,
            limit: decision.allowed.then_some(decision.limit),
            remaining: decision.cached.then_some(decision.remaining),
            retry_after_us: decision.retry_after_us,
            reset_after_us: decision.allowed.then_some(decision.reset_after_us),
            delay_us: decision.cached.then_some(decision.delay_us),
        }
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    proptest! {
        #[test]
        fn decision_is_written_as_serde_writes_it(decision in decisions()) {
            let want = serde_json::to_string(&decision).unwrap();
            prop_assert_eq!(written(|to| decision.write(to)), want);
        }

        #[test]
        fn ruling_is_written_as_serde_writes_it(
            decision in decisions(),
            texts in proptest::collection::vec(any::<String>(), 0..4),
        ) {
            let ruling = RulingJson {
                allowed: decision.allowed,
                blocked: decision.degraded,
                limit: decision.retry_after_us,
                remaining: decision.cached.then_some(decision.remaining),
                requests_remaining: decision.allowed.then_some(decision.limit),
                retry_after_us: decision.retry_after_us,
                reset_after_us: decision.reset_after_us,
                delay_us: decision.delay_us,
                degraded: decision.degraded,
                cached: decision.cached,
                leased: decision.leased,
                rule: texts.first().map(String::as_str),
                generation: decision.limit,
                rules: texts.iter().map(|text| rule(text, &decision)).collect(),
                hold: decision.receipt.clone().filter(|_| decision.allowed),
                hold_expires_after_us: decision.retry_after_us,
                receipt: decision.receipt.clone(),
            };
            let want = serde_json::to_string(&ruling).unwrap();
            prop_assert_eq!(written(|to| ruling.write(to)), want);
        }
    }
}
