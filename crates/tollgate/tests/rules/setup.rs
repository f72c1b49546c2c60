//! Rules in memory, and requests.

use tollgate::rules::{Attributes, Config, Rules, Ruling};
use tollgate::{Limiter, ManualClock};

/// A time that is not near the end of any window in the tests.
pub(crate) const NOON_US: u64 = 1_800_000_000_000_000;

pub(crate) const EXAMPLE: &str = include_str!("../../../../examples/rules.yaml");

/// Rules with a domain `api`, on a memory limiter at noon.
pub(crate) struct Fixture {
    pub(crate) rules: Rules,
    pub(crate) clock: ManualClock,
}

impl Fixture {
    pub(crate) fn new(text: &str) -> Fixture {
        let clock = ManualClock::at_us(NOON_US);
        let limiter = Limiter::builder().clock(&clock).build();
        Fixture { rules: Rules::new(&limiter, &config(text)).unwrap(), clock }
    }

    pub(crate) fn check(&self, request: &[(&str, &str)]) -> Ruling {
        self.rules.check("api", &attributes(request)).now().unwrap()
    }

    /// The names of the rules that apply.
    pub(crate) fn applied(&self, request: &[(&str, &str)]) -> Vec<String> {
        let ruling = self.check(request);
        ruling.rules().map(|part| part.name().name().to_owned()).collect()
    }

    /// Makes the same check `times` times. Returns how many were allowed.
    pub(crate) fn admitted(&self, times: usize, request: &[(&str, &str)]) -> usize {
        (0..times).filter(|_| self.check(request).is_allowed()).count()
    }
}

pub(crate) fn config(text: &str) -> Config {
    Config::parse("rules.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

pub(crate) fn attributes<'a>(request: &[(&'a str, &'a str)]) -> Attributes<'a> {
    request.iter().copied().collect()
}

/// The name of the rule that refused.
pub(crate) fn refuser(ruling: &Ruling) -> Option<String> {
    ruling.refused_by().map(|part| part.name().name().to_owned())
}
