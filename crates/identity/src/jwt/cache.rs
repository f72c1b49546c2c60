//! The tokens that were verified, by fingerprint.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use super::{Claims, InvalidToken};

/// The number of shards: few enough to take little memory, and enough that threads rarely contend for one.
const SHARDS: usize = 8;

/// The least weight of tokens per shard: below that, there are fewer shards.
const MIN_PER_SHARD: usize = 128;

/// A token has weight 1, and 1 more for each 1,024 bytes of its length: its claims are about as long.
const BYTES_PER_WEIGHT: usize = 1024;

/// Verified tokens, in two generations.
///
/// New tokens are young. When the young generation is full, the old one is forgotten and the young one becomes old; an
/// old token that is used becomes young again. So of 10,000 tokens at least the 5,000 last used are remembered, if they are
/// spread evenly over the shards, and no order has to be kept.
pub(super) struct TokenCache {
    fingerprints: SipHasher13,
    shards: Box<[Mutex<CacheShard>]>,
    /// The largest weight of a generation of one shard.
    per_generation: usize,
}

/// A fingerprint of a token, which itself is not kept.
///
/// Without the secret that this process drew, no client can make two tokens with the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenFingerprint(u128);

impl TokenFingerprint {
    /// Returns the fingerprint of the same token under other keys, so that a result under one set of keys is not found under
    /// another.
    pub(super) fn under(self, generations: u128) -> TokenFingerprint {
        TokenFingerprint(self.0 ^ generations)
    }
}

/// The weight of a token: 1 for a token of 300 bytes, 9 for one of 8 KiB.
#[derive(Clone, Copy)]
pub(super) struct TokenWeight(usize);

impl TokenWeight {
    pub(super) fn of(token: &str) -> TokenWeight {
        TokenWeight(1 + token.len() / BYTES_PER_WEIGHT)
    }
}

#[derive(Default)]
struct CacheShard {
    young: TokenGeneration,
    old: TokenGeneration,
}

#[derive(Default)]
struct TokenGeneration {
    tokens: HashMap<TokenFingerprint, CachedToken, RandomState>,
    /// The weight of all its tokens.
    weight: usize,
}

#[derive(Clone)]
struct CachedToken {
    claims: Arc<Claims>,
    weight: TokenWeight,
}

impl TokenCache {
    /// Returns a cache for tokens of at most this weight.
    pub(super) fn new(max: usize) -> TokenCache {
        let seed = RandomState::new();
        let fingerprints = SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8));
        let shards = (max / MIN_PER_SHARD).clamp(1, SHARDS);
        let per_generation = max / shards / 2;
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        TokenCache { fingerprints, shards, per_generation }
    }

    pub(super) fn fingerprint(&self, token: &str) -> TokenFingerprint {
        TokenFingerprint(self.fingerprints.hash(token.as_bytes()).as_u128())
    }

    /// Returns whether a token that was verified before is valid now; `None` if the token is not remembered. An expired token
    /// is forgotten.
    pub(super) fn get(
        &self,
        token: TokenFingerprint,
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

    pub(super) fn insert(&self, token: TokenFingerprint, weight: TokenWeight, claims: Arc<Claims>) {
        if weight.0 > self.per_generation {
            return;
        }
        let known = CachedToken { claims, weight };
        let forgotten = self.shard(token).lock().insert(token, known, self.per_generation);
        // Dropped without the lock, because there may be thousands.
        drop(forgotten);
    }

    fn shard(&self, TokenFingerprint(token): TokenFingerprint) -> &Mutex<CacheShard> {
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
        let of = |generation: &TokenGeneration| -> usize {
            let weight = generation.tokens.values().map(|known| known.weight.0).sum();
            assert_eq!(weight, generation.weight);
            weight
        };
        self.shards.iter().map(Mutex::lock).map(|shard| of(&shard.young) + of(&shard.old)).sum()
    }
}

impl CacheShard {
    /// Adds a young token, which fits an empty generation. Returns the tokens that are forgotten to make room for it.
    fn insert(
        &mut self,
        token: TokenFingerprint,
        known: CachedToken,
        per_generation: usize,
    ) -> Option<TokenGeneration> {
        let is_full = self.young.weight + known.weight.0 > per_generation;
        let forgotten = is_full.then(|| mem::replace(&mut self.old, mem::take(&mut self.young)));
        self.young.insert(token, known);
        forgotten
    }
}

impl TokenGeneration {
    fn insert(&mut self, token: TokenFingerprint, known: CachedToken) {
        // Two threads may have verified it at once.
        self.remove(token);
        self.weight += known.weight.0;
        self.tokens.insert(token, known);
    }

    fn remove(&mut self, token: TokenFingerprint) -> Option<CachedToken> {
        let known = self.tokens.remove(&token)?;
        // OK because it was added with the token.
        self.weight -= known.weight.0;
        Some(known)
    }
}
