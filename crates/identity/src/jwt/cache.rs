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

/// A token has weight 1, and 1 more for each of these many bytes: its claims are about as long.
const BYTES_PER_WEIGHT: usize = 1024;

/// Verified tokens, in two generations.
///
/// New tokens are young. When the young generation is full, the old one is forgotten and the young one becomes old; an
/// old token that is used becomes young again. So of 10,000 tokens at least the 5,000 last used are known, depending
/// on how evenly they fall on the shards, and no order need be kept.
pub(super) struct Cache {
    fingerprints: SipHasher13,
    shards: Box<[Mutex<Shard>]>,
    /// The largest weight of a generation of one shard.
    per_generation: usize,
}

/// A fingerprint of a token, which itself is not kept.
///
/// Without the secret that this process drew, no client can make two tokens with the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of the same token under other keys: what was found with one set of keys is not found with
    /// another.
    pub(super) fn under(self, generations: u128) -> Fingerprint {
        Fingerprint(self.0 ^ generations)
    }
}

/// The weight of a token: 1 for a token of 300 bytes, 9 for one of 8 KiB.
#[derive(Clone, Copy)]
pub(super) struct Weight(usize);

impl Weight {
    pub(super) fn of(token: &str) -> Weight {
        Weight(1 + token.len() / BYTES_PER_WEIGHT)
    }
}

#[derive(Default)]
struct Shard {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    tokens: HashMap<Fingerprint, CachedToken, RandomState>,
    /// The weight of all its tokens.
    weight: usize,
}

#[derive(Clone)]
struct CachedToken {
    claims: Arc<Claims>,
    weight: Weight,
}

impl Cache {
    /// Returns a cache for tokens of at most this weight.
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

    /// Returns whether a token that was verified before counts now; `None` if it is not known. An expired token is
    /// forgotten.
    pub(super) fn get(
        &self,
        token: Fingerprint,
        now_us: u64,
    ) -> Option<Result<Arc<Claims>, InvalidToken>> {
        let mut shard = self.shard(token).lock();
        let (known, forgotten) = match shard.young.tokens.get(&token) {
            Some(known) => (known.clone(), None),
            None => {
                let known = shard.old.remove(token)?;
                let forgotten = shard.insert(token, known.clone(), self.per_generation);
                (known, forgotten)
            }
        };
        let counts = known.claims.counts_at(now_us);
        if counts == Err(InvalidToken::Expired) {
            shard.young.remove(token);
        }
        drop(shard);
        // Dropped without the lock, because there may be thousands.
        drop(forgotten);
        Some(counts.map(|()| known.claims))
    }

    pub(super) fn insert(&self, token: Fingerprint, weight: Weight, claims: Arc<Claims>) {
        if weight.0 > self.per_generation {
            return;
        }
        let known = CachedToken { claims, weight };
        let forgotten = self.shard(token).lock().insert(token, known, self.per_generation);
        // Dropped without the lock, because there may be thousands.
        drop(forgotten);
    }

    fn shard(&self, Fingerprint(token): Fingerprint) -> &Mutex<Shard> {
        // OK because there is a shard, and the remainder is below their number.
        &self.shards[(token % self.shards.len() as u128) as usize]
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let shards = self.shards.iter().map(Mutex::lock);
        shards.map(|shard| shard.young.tokens.len() + shard.old.tokens.len()).sum()
    }

    /// Returns the weight of all tokens, added up again.
    #[cfg(test)]
    pub(super) fn weight(&self) -> usize {
        let of = |generation: &Generation| -> usize {
            let weight = generation.tokens.values().map(|known| known.weight.0).sum();
            assert_eq!(weight, generation.weight);
            weight
        };
        self.shards.iter().map(Mutex::lock).map(|shard| of(&shard.young) + of(&shard.old)).sum()
    }
}

impl Shard {
    /// Adds a young token, which fits an empty generation. Returns the tokens that are forgotten for it.
    fn insert(
        &mut self,
        token: Fingerprint,
        known: CachedToken,
        per_generation: usize,
    ) -> Option<Generation> {
        let is_full = self.young.weight + known.weight.0 > per_generation;
        let forgotten = is_full.then(|| mem::replace(&mut self.old, mem::take(&mut self.young)));
        self.young.insert(token, known);
        forgotten
    }
}

impl Generation {
    fn insert(&mut self, token: Fingerprint, known: CachedToken) {
        // Two threads may have verified it at once.
        self.remove(token);
        self.weight += known.weight.0;
        self.tokens.insert(token, known);
    }

    fn remove(&mut self, token: Fingerprint) -> Option<CachedToken> {
        let known = self.tokens.remove(&token)?;
        // OK because it was added with the token.
        self.weight -= known.weight.0;
        Some(known)
    }
}
