//! The units of time of limits.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub(super) const ALL: [(&'static str, Unit); 7] = [
        ("second", Unit::Second),
        ("minute", Unit::Minute),
        ("hour", Unit::Hour),
        ("day", Unit::Day),
        ("week", Unit::Week),
        ("month", Unit::Month),
        ("year", Unit::Year),
    ];

    pub(super) fn name(self) -> &'static str {
        Unit::ALL.iter().find(|(_, unit)| *unit == self).map_or("", |(name, _)| name)
    }

    pub(super) fn seconds(self) -> u64 {
        match self.length() {
            (count, "d") => count * 86_400,
            (_, "h") => 3_600,
            (_, "m") => 60,
            (count, _) => count,
        }
    }

    /// Returns the length in a unit of Tollgate: a month of envoyproxy/ratelimit is 30 days, a year 365.
    pub(super) fn length(self) -> (u64, &'static str) {
        match self {
            Unit::Second => (1, "s"),
            Unit::Minute => (1, "m"),
            Unit::Hour => (1, "h"),
            Unit::Day => (1, "d"),
            Unit::Week => (7, "d"),
            Unit::Month => (30, "d"),
            Unit::Year => (365, "d"),
        }
    }
}
