//! `--log`: which events are logged.

use anyhow::{Context, bail};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The targets of all crates of this project begin with this.
const OURS: &str = "tollgate";

/// The target of the library's lines about a failing store. They are off, because this server logs its own, which name
/// each server of the store.
const LIBRARY_OUTAGES: &str = "tollgate::outage";

/// Reads `--log`: a level, or parts such as `info,hyper=debug`.
///
/// A level alone is the level of this server's events; other crates log from `warn` on. `debug` means `tollgate=debug`
/// and `warn` for other crates, `error` means `error` for all crates.
pub(super) fn parse(text: &str) -> anyhow::Result<Targets> {
    let mut targets = Targets::new().with_default(LevelFilter::WARN);
    targets = targets.with_target(OURS, LevelFilter::INFO);
    targets = targets.with_target(LIBRARY_OUTAGES, LevelFilter::OFF);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        targets = match part.split_once('=') {
            Some((target, level)) => targets.with_target(name(target)?, self::level(level)?),
            None => {
                let level = self::level(part)?;
                let others = level.min(LevelFilter::WARN);
                targets.with_default(others).with_target(OURS, level)
            }
        };
    }
    Ok(targets)
}

fn level(text: &str) -> anyhow::Result<LevelFilter> {
    let is_word = text.chars().all(|letter| letter.is_ascii_alphabetic());
    // The parser would accept numbers as levels, too.
    let level = Some(text).filter(|text| is_word && !text.is_empty()).map(str::parse);
    level.and_then(Result::ok).with_context(|| {
        format!(
            "--log: `{}` is not a level; use off, error, warn, info, debug or trace, or parts such as \
             info,tollgate=debug",
            text.escape_debug()
        )
    })
}

fn name(text: &str) -> anyhow::Result<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_:-".contains(letter);
    if text.is_empty() || !text.chars().all(is_name) {
        bail!(
            "--log: `{}` is not the name of a crate or module; use a name such as tollgate or hyper",
            text.escape_debug()
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_level_alone_is_for_this_server() {
        let table = [
            //       ours             others
            ("", Level::INFO, Level::WARN),
            ("error", Level::ERROR, Level::ERROR),
            ("warn", Level::WARN, Level::WARN),
            ("info", Level::INFO, Level::WARN),
            ("debug", Level::DEBUG, Level::WARN),
            ("TRACE", Level::TRACE, Level::WARN),
            (" info , tollgate=debug ", Level::DEBUG, Level::WARN),
            ("hyper=debug", Level::INFO, Level::DEBUG),
            ("error,hyper=trace", Level::ERROR, Level::TRACE),
        ];
        for (text, ours, others) in table {
            let targets = parse(text).unwrap();
            for (target, most) in [("tollgate_server::serve", ours), ("hyper::proto", others)] {
                for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                    let would = targets.would_enable(target, &level);
                    assert_eq!(would, level <= most, "--log `{text}`: {target} at {level}");
                }
            }
        }
    }

    #[test]
    fn outage_lines_of_the_library_are_off_unless_named() {
        let is_logged = |text| parse(text).unwrap().would_enable(LIBRARY_OUTAGES, &Level::WARN);
        assert!(!is_logged("") && !is_logged("trace") && !is_logged("tollgate=debug"));
        assert!(is_logged("tollgate::outage=info"));
    }

    #[test]
    fn off_disables_every_event() {
        let targets = parse("off").unwrap();
        assert!(!targets.would_enable("tollgate", &Level::ERROR));
        assert!(!targets.would_enable("hyper", &Level::ERROR));
    }

    #[test]
    fn mistakes_are_reported_with_a_remedy() {
        for text in
            ["debgu", "5", "info,=debug", "tollgate=", "tollgate=loud", "a b=info", "[x]=info"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("--log: `"), "{error}");
            assert!(error.contains("; use "), "{error}");
        }
    }
}
