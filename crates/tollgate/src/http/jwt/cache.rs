//! The tokens that were verified, by fingerprint.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use super::{Claims, InvalidToken};

/// Few enough to hold little, enough that threads rarely meet.
const SHARDS: usize = 8;

/// A shard for fewer tokens than this is not worth having.
const MIN_PER_SHARD: usize = 128;

/// Verified tokens, in two generations.
///
/// New ones are young. When the young are full, the old are forgotten and the young become old; an old
/// one that is used is young again. So of 10,000 tokens at least the 5,000 last used are known, give or
/// take how evenly they fall on the shards, and nothing need be kept in order.
pub(super) struct Cache {
    fingerprints: SipHasher13,
    shards: Box<[Mutex<Shard>]>,
    /// How many tokens a generation of one shard holds.
    per_generation: usize,
}

/// Stands for a whole token, which is not kept.
///
/// Nobody can make two tokens that have one without the secret that this process drew.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(u128);

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

type Generation = HashMap<Fingerprint, Arc<Claims>, RandomState>;

impl Cache {
    /// Remembers at most `max` tokens.
    pub(super) fn new(max: usize) -> Cache {
        let seed = RandomState::new();
        let fingerprints = SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8));
        let shards = (max / MIN_PER_SHARD).clamp(1, SHARDS);
        let per_generation = max / shards / 2;
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Cache { fingerprints, shards, per_generation }
    }

    pub(super) fn fingerprint(&self, token: &str) -> Fingerprint {
        Fingerprint(self.fingerprints.hash(token.as_bytes()).as_u128())
    }

    /// A token that was verified before, if it is known: whether it counts now. It is forgotten once it
    /// has expired.
    pub(super) fn get(
        &self,
        token: Fingerprint,
        now_us: u64,
    ) -> Option<Result<Arc<Claims>, InvalidToken>> {
        let mut shard = self.shard(token).lock();
        let (claims, forgotten) = match shard.young.get(&token) {
            Some(claims) => (Arc::clone(claims), None),
            None => {
                let claims = shard.old.remove(&token)?;
                let forgotten = shard.insert(token, Arc::clone(&claims), self.per_generation);
                (claims, forgotten)
            }
        };
        let counts = claims.counts_at(now_us);
        if counts == Err(InvalidToken::Expired) {
            shard.young.remove(&token);
        }
        drop(shard);
        // Only now, as thousands may go.
        drop(forgotten);
        Some(counts.map(|()| claims))
    }

    pub(super) fn insert(&self, token: Fingerprint, claims: Arc<Claims>) {
        if self.per_generation == 0 {
            return;
        }
        let forgotten = self.shard(token).lock().insert(token, claims, self.per_generation);
        // The lock is free again, and thousands may go.
        drop(forgotten);
    }

    fn shard(&self, Fingerprint(token): Fingerprint) -> &Mutex<Shard> {
        // OK because there is a shard, and the remainder is below their number.
        &self.shards[(token % self.shards.len() as u128) as usize]
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let lens = self.shards.iter().map(Mutex::lock);
        lens.map(|shard| shard.young.len() + shard.old.len()).sum()
    }
}

impl Shard {
    /// Adds a young one. Returns those that had to go.
    fn insert(
        &mut self,
        token: Fingerprint,
        claims: Arc<Claims>,
        per_generation: usize,
    ) -> Option<Generation> {
        let is_full = self.young.len() >= per_generation;
        let forgotten = is_full.then(|| mem::replace(&mut self.old, mem::take(&mut self.young)));
        self.young.insert(token, claims);
        forgotten
    }
}
