//! Whether the store across the network answers.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tollgate::{Error, Limit, Limiter, OnFailure, Scope};

/// With a space in it: no limit and no rule of a file can have that name.
const SCOPE: &str = "tollgate readiness";

/// Nothing is ever charged to it.
const LIMIT: &str = "fixed-window limit=1 window=1s";

/// Longer than a check may take: a connection may have to be opened first.
const DEADLINE: Duration = Duration::from_millis(500);

/// The store is not asked again for so long, however many want to know.
const FRESH: Duration = Duration::from_millis(100);

/// Of several servers, each has some keys: one in 3,000 has none of 8 for each.
const KEYS_OF_EACH: usize = 8;
const MAX_KEYS: usize = 256;

/// Asks a store across the network whether it is there. Those who want to know at the same time share the
/// answer.
#[derive(Debug)]
pub(crate) struct Probe {
    scope: Scope,
    /// Who holds it asks, and the others wait for what comes of that.
    last: Mutex<Option<Asked>>,
}

/// What came of asking.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// When it was known.
    at: Instant,
    is_answered: bool,
}

impl Probe {
    /// `None` of a limiter in memory, which is always there.
    pub(crate) fn new(limiter: &Limiter) -> Result<Option<Probe>, Error> {
        if limiter.health().is_none() {
            return Ok(None);
        }
        let scope = limiter.scope(SCOPE, LIMIT.parse::<Limit>()?)?;
        let scope = scope.on_failure(OnFailure::Closed).deadline(DEADLINE);
        Ok(Some(Probe { scope, last: Mutex::new(None) }))
    }

    /// Whether every server of the store answers, as of at most 100 ms ago.
    pub(crate) async fn is_answered(&self) -> bool {
        let now = Instant::now();
        let mut last = self.last.lock().await;
        if let Some(asked) = *last
            && now.saturating_duration_since(asked.at) < FRESH
        {
            return asked.is_answered;
        }
        let answer = self.ask().await;
        let was_answered = last.is_none_or(|asked| asked.is_answered);
        match &answer {
            Err(error) if was_answered => tracing::warn!(%error, "the store does not answer"),
            Ok(()) if !was_answered => tracing::info!("the store answers again"),
            _ => {}
        }
        let is_answered = answer.is_ok();
        *last = Some(Asked { at: Instant::now(), is_answered });
        is_answered
    }

    /// Looks at keys that are never charged. Of a cluster or of shards, at so many that every server is
    /// asked: their breakers tell less, as one that is open closes only when somebody asks, and one of a
    /// node that was replaced never does.
    async fn ask(&self) -> Result<(), Error> {
        let servers = self.scope.limiter().health().map_or(0, |health| health.servers.len());
        let keys = match servers {
            0 | 1 => 1,
            several => several.saturating_mul(KEYS_OF_EACH).min(MAX_KEYS),
        };
        let peek = |key: usize| self.scope.peek(&key.to_ne_bytes()).into_future();
        // All are on their way before the first is waited for.
        let answers: Vec<_> = (0..keys).map(peek).collect();
        for answer in answers {
            answer.await?;
        }
        Ok(())
    }
}
