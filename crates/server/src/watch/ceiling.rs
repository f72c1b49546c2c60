//! Notices when keys no longer fit into memory, and when they fit again. No clock and no I/O.

use tollgate::CeilingCounts;

/// An episode is over after this number of looks without a change, one look a second. The next episode is logged only
/// after that, so there are at most two lines a minute.
const QUIET_LOOKS: u32 = 60;

/// Watches the counts of the memory store at its ceiling. Called once a second.
#[derive(Debug, Default)]
pub(super) struct CeilingWatch {
    seen: CeilingCounts,
    /// `None` while all keys fit.
    episode: Option<Episode>,
}

/// A time during which keys do not fit.
#[derive(Debug)]
struct Episode {
    before: CeilingCounts,
    quiet_looks: u32,
}

/// A change that is logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CeilingChange {
    Reached,
    /// Keys have fitted for a minute. The counts cover the episode.
    Left {
        overflowed: u64,
        coarsened: u64,
    },
}

impl CeilingWatch {
    /// Compares the counts with the counts of the last look.
    pub(super) fn look(&mut self, now: CeilingCounts) -> Option<CeilingChange> {
        let before = std::mem::replace(&mut self.seen, now);
        let has_grown = now != before;
        match &mut self.episode {
            None if has_grown => {
                self.episode = Some(Episode { before, quiet_looks: 0 });
                Some(CeilingChange::Reached)
            }
            None => None,
            Some(episode) if has_grown => {
                episode.quiet_looks = 0;
                None
            }
            Some(episode) => {
                // OK because it never exceeds `QUIET_LOOKS`.
                episode.quiet_looks += 1;
                if episode.quiet_looks < QUIET_LOOKS {
                    return None;
                }
                let overflowed = now.overflowed.saturating_sub(episode.before.overflowed);
                let coarsened = now.coarsened.saturating_sub(episode.before.coarsened);
                self.episode = None;
                Some(CeilingChange::Left { overflowed, coarsened })
            }
        }
    }
}

impl CeilingChange {
    pub(super) fn log(&self, max_bytes: usize) {
        match self {
            CeilingChange::Reached => tracing::warn!(
                max_bytes,
                "keys take all the memory that --max-memory allows: new keys of a limit share one state, and logs \
                 merge entries; raise --max-memory, or see in GET /v1/operations whether a client makes up keys"
            ),
            CeilingChange::Left { overflowed, coarsened } => {
                tracing::info!(
                    overflowed,
                    coarsened,
                    "new keys have fitted into memory for a minute"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks once for each count of overflowed checks. Returns each change with the number of its look.
    fn looks(
        watch: &mut CeilingWatch,
        counts: impl IntoIterator<Item = u64>,
    ) -> Vec<(usize, CeilingChange)> {
        let at = |overflowed| {
            let mut counts = CeilingCounts::default();
            counts.overflowed = overflowed;
            counts
        };
        let changes = counts.into_iter().map(|count| watch.look(at(count)));
        changes.enumerate().filter_map(|(look, change)| Some((look, change?))).collect()
    }

    #[test]
    fn nothing_is_logged_while_keys_fit() {
        assert_eq!(looks(&mut CeilingWatch::default(), [0; 500]), []);
    }

    #[test]
    fn an_episode_of_any_length_is_two_lines() {
        let mut watch = CeilingWatch::default();
        let pressure = (0..1_000).map(|look| look / 30 * 10);
        assert_eq!(looks(&mut watch, pressure), [(30, CeilingChange::Reached)]);
        let left = CeilingChange::Left { overflowed: 330, coarsened: 0 };
        // The last 10 of the looks above were quiet already.
        assert_eq!(looks(&mut watch, [330; 500]), [(50, left)]);
        assert_eq!(looks(&mut watch, [331]), [(0, CeilingChange::Reached)]);
    }
}
