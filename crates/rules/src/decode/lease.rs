//! Whether limits are leased: `mode` and `lease` of rules, of limits and of the file's defaults.

use std::time::Duration;

use tollgate_core::{Excerpt, Limit, duration_text};
use tollgate_limiter::{LeaseOptions, TermsError};

use super::fields::{Mapping, MappingFields};
use crate::config::{DecisionMode, LeaseSettings};
use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;

const MODE_REMEDY: &str = "use `strict` or `leased`";

const LEASE: Mapping = Mapping {
    name: "`lease`",
    fields: &["for", "max_share", "pace"],
    remedy: "write it like `lease: { for: 1s, max_share: 25% }`",
};

const SHARE_REMEDY: &str = "use a whole number with a percent sign, `1%` to `100%`";

/// The shortest window or time to full, in paces, of a limit that leases use well.
const MIN_INTERVAL_PACES: u64 = 20;

/// Reads `mode` and `lease`.
pub(super) fn read(fields: &MappingFields<'_, '_>, report: &mut Report) -> LeaseSettings {
    LeaseSettings {
        mode: fields.get("mode").and_then(|node| mode(node, report)),
        options: fields.get("lease").and_then(|node| options(node, report)),
    }
}

/// Reads `mode` and `lease` of a limit whose algorithm has a `mode` of its own. Only a mode of leases is read.
pub(super) fn read_beside_mode(
    fields: &MappingFields<'_, '_>,
    report: &mut Report,
) -> LeaseSettings {
    let text = fields.get("mode").and_then(YamlNode::as_text);
    LeaseSettings {
        mode: text.and_then(mode_of),
        options: fields.get("lease").and_then(|node| options(node, report)),
    }
}

fn mode_of(text: &str) -> Option<DecisionMode> {
    match text {
        "strict" => Some(DecisionMode::Strict),
        "leased" => Some(DecisionMode::Leased),
        _ => None,
    }
}

fn mode(node: &YamlNode<'_>, report: &mut Report) -> Option<DecisionMode> {
    let text = report.text(node, "`mode`", MODE_REMEDY)?;
    let mode = mode_of(text);
    if mode.is_none() {
        let remedy = match (text, nearest(text, ["strict", "leased"])) {
            ("policing" | "shaping", _) => {
                "use `strict` or `leased`; `policing` and `shaping` are modes of a leaky-bucket"
                    .into()
            }
            (_, Some(meant)) => format!("did you mean `{meant}`?"),
            (_, None) => MODE_REMEDY.into(),
        };
        report.error(node.at, format!("`mode: {}` is unknown", Excerpt::of(text)), remedy);
    }
    mode
}

fn options(node: &YamlNode<'_>, report: &mut Report) -> Option<LeaseOptions> {
    let errors_before = report.errors();
    let fields = MappingFields::read(node, &LEASE, report)?;
    let mut options = LeaseOptions::default();
    let time = |name, into: &mut Duration, report: &mut Report| {
        let time = fields.get(name).and_then(|node| report.duration(node, name));
        *into = time.unwrap_or(*into);
    };
    time("for", &mut options.lease_for, report);
    time("pace", &mut options.pace, report);
    if let Some(share) = fields.get("max_share").and_then(|node| share(node, report)) {
        options.max_share_percent = share;
    }
    if report.errors() > errors_before {
        return None;
    }
    // The ranges do not depend on the limit.
    if let Err(error) = options.max_unused(&Limit::per_second(1).into()) {
        refused(&error, options, &fields, report);
        return None;
    }
    Some(options)
}

fn share(node: &YamlNode<'_>, report: &mut Report) -> Option<u32> {
    let text = report.text(node, "`max_share`", SHARE_REMEDY)?;
    let digits =
        text.strip_suffix('%').filter(|digits| digits.bytes().all(|it| it.is_ascii_digit()));
    let share =
        digits.and_then(|digits| digits.parse().ok()).filter(|share| (1..=100).contains(share));
    if share.is_none() {
        let message = format!("`max_share` is `{}`, which is not a share", Excerpt::of(text));
        report.error(node.at, message, SHARE_REMEDY);
    }
    share
}

fn refused(
    error: &TermsError,
    options: LeaseOptions,
    fields: &MappingFields<'_, '_>,
    report: &mut Report,
) {
    let at = |name| fields.get(name).map(|node| node.at);
    let (at, message, remedy) = match error {
        TermsError::LeaseTime(_) => {
            let found = text(options.lease_for);
            (at("for"), format!("`for` is {found}"), "use 100ms to 1h")
        }
        TermsError::ShortPace(_) => {
            let found = text(options.pace);
            (at("pace"), format!("`pace` is {found}"), "use 100us to a tenth of `for`")
        }
        TermsError::LongPace { .. } => {
            let (pace, lease) = (text(options.pace), text(options.lease_for));
            let message = format!("`pace` is {pace}, more than a tenth of `for`, which is {lease}");
            (at("pace"), message, "use a shorter `pace`, or a longer `for`")
        }
        other => (None, other.to_string(), LEASE.remedy),
    };
    report.error(at.unwrap_or(fields.at), message, remedy);
}

fn text(time: Duration) -> String {
    duration_text(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Whether leases are chosen for a rule or a limit itself, or for the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModeOrigin {
    Own,
    Defaults,
}

/// A limit that is leased, and the position that problems with that are reported at.
pub(super) struct LeasedLimit<'l> {
    pub(super) name: &'l str,
    pub(super) limit: &'l Limit,
    pub(super) options: LeaseOptions,
    pub(super) origin: ModeOrigin,
    pub(super) at: Position,
}

impl LeasedLimit<'_> {
    /// Warns if leases are of no use for the limit. A limit that never has leases is only noted if the whole file is
    /// leased: that is no mistake.
    pub(super) fn warn(&self, report: &mut Report) {
        let Self { name, limit, options, origin, at } = self;
        if let Some(why) = self.why_never() {
            let message = format!("limit `{name}` is never leased: {why}");
            return warn_never_leased(message, *origin, *at, report);
        }
        let interval_us = limit.bound().interval_us;
        let pace_us = u64::try_from(options.pace.as_micros()).unwrap_or(u64::MAX);
        if interval_us < pace_us.saturating_mul(MIN_INTERVAL_PACES) {
            let (interval, pace) = (duration_text(interval_us), text(options.pace));
            let message = format!(
                "limit `{name}` recovers in {interval}, less than {MIN_INTERVAL_PACES} times the pace of {pace}: leases leave a part of it unused"
            );
            let remedy = "use `mode: strict`, a longer window or a larger capacity, or a shorter pace, like `lease: { pace: 1ms }`";
            report.warn(*at, message, remedy);
        }
    }

    fn why_never(&self) -> Option<String> {
        if self.limit.only_holds() {
            return Some(
                "the places of a concurrency limit are always reserved on the store".into(),
            );
        }
        if self.limit.is_shaping() {
            return Some("a shaping leaky bucket always decides on the store".into());
        }
        let percent = self.options.max_share_percent;
        let is_none = self.options.max_unused(self.limit) == Ok(0);
        is_none.then(|| format!("{percent}% of {} is less than one unit", self.limit.size()))
    }
}

/// Warns of checks that always go to the store although leases were chosen for them.
pub(super) fn warn_never_leased(
    message: String,
    origin: ModeOrigin,
    at: Position,
    report: &mut Report,
) {
    match origin {
        ModeOrigin::Own => {
            report.warn(at, message, "leave `mode: leased` out, or use `mode: strict`");
        }
        ModeOrigin::Defaults => {
            report.note(at, message, "its checks go to the store, as with `mode: strict`".into());
        }
    }
}
