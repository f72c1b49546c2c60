//! Receipts as text, so that whoever was charged can give it back later, at any server that knows the secret.
//!
//! - `part`: what one limit was charged, in bytes
//! - `refund`: gives it back, once; `mark`: remembers that it was
//! - `life`: voids it when the store has lost that
//!
//! A receipt is a version, an id that no other has, the life of the store, its parts, and a signature of all
//! that. It is signed, not encrypted: the key is in it, for who can read base64.

mod life;
mod mark;
mod part;
mod refund;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::SipHasher24;
use subtle::ConstantTimeEq;
use tollgate::rules::Ruling;
use tollgate::{Decision, Error, Limiter, Scope};

use crate::secret::Secret;
use life::Life;
use mark::Marks;
use part::{Part, read_number, write_number};
pub(crate) use refund::Unrefunded;

/// The longest that a receipt is, as text: a longer one is not given.
pub(crate) const MAX_CHARS: usize = 4_096;

/// The same in bytes, of which base64 makes four characters from three.
const MAX_BYTES: usize = MAX_CHARS / 4 * 3;

/// What a receipt of one limit takes, as a rule.
const USUAL_BYTES: usize = 128;

const VERSION: u8 = 1;
const ID_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 16;

/// Writes receipts, reads them, and gives back what they are for.
pub(crate) struct Receipts {
    signer: SipHasher24,
    /// An id is the process's number, and how many it wrote before.
    process: u64,
    written: AtomicU64,
    life: Life,
    marks: Marks,
}

/// A receipt that one of us has signed.
struct Signed {
    /// Without the signature.
    bytes: Vec<u8>,
}

/// What a receipt says.
struct Content<'s> {
    id: &'s [u8; ID_BYTES],
    /// Of the store, when it was charged.
    life: u64,
    parts: Vec<Part<'s>>,
}

impl Receipts {
    /// Of limits in memory: they end with the process, as the limits do, whatever else is known to others. What
    /// was refunded is remembered in memory of its own: it takes none from keys, nor they from it.
    pub(crate) fn in_memory(max_bytes: usize) -> Receipts {
        Receipts { marks: Marks::within(max_bytes), ..Receipts::default() }
    }

    /// Of limits on servers that others share: whoever knows the secret can take them back.
    pub(crate) fn on_servers(
        limiter: &Limiter,
        secret: Option<&Secret>,
    ) -> Result<Receipts, Error> {
        let mut receipts = Receipts { life: Life::of(limiter)?, ..Receipts::default() };
        if let Some(secret) = secret {
            receipts.signer = signer(secret);
        }
        Ok(receipts)
    }

    /// Asks the store what they are to be signed with: none are given before.
    pub(crate) async fn learn(&self) -> Result<(), Error> {
        self.life.learn().await.map(drop)
    }

    /// Learns it again when that changes, for ever.
    pub(crate) async fn follow(&self, is_answered: impl Fn() -> bool) {
        self.life.follow(is_answered).await;
    }

    /// What a limit was charged; `None` if nothing was, or if its key is too long.
    pub(crate) fn of_limit(
        &self,
        scope: &Scope,
        key: &[u8],
        decision: &Decision,
    ) -> Option<String> {
        self.sign([Part::of(scope, key, decision)?])
    }

    /// What rules were charged; `None` if nothing was, or if they are too many, with too long keys.
    pub(crate) fn of_ruling(&self, ruling: &Ruling) -> Option<String> {
        let parts = ruling.rules();
        self.sign(parts.filter_map(|part| Part::of(part.scope()?, part.key(), part.decision()?)))
    }

    fn sign<'p>(&self, parts: impl IntoIterator<Item = Part<'p>>) -> Option<String> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.process.to_le_bytes());
        bytes.extend_from_slice(&self.written.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        write_number(&mut bytes, self.life.name()?);
        let before = bytes.len();
        for part in parts {
            if part.key.len() > MAX_BYTES {
                return None;
            }
            part.write(&mut bytes);
            if bytes.len() > MAX_BYTES - SIGNATURE_BYTES {
                return None;
            }
        }
        if bytes.len() == before {
            return None;
        }
        let signature = self.signer.hash(&bytes).as_bytes();
        bytes.extend_from_slice(&signature);
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// `None` of what is no receipt of ours.
    fn read(&self, text: &str) -> Option<Signed> {
        if text.len() > MAX_CHARS {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>()?;
        let ours = self.signer.hash(content).as_bytes();
        if !bool::from(ours.ct_eq(signature)) {
            return None;
        }
        bytes.truncate(content.len());
        Some(Signed { bytes })
    }
}

impl Signed {
    /// `None` if it is of a version that is not known here.
    fn content(&self) -> Option<Content<'_>> {
        let (&VERSION, rest) = self.bytes.split_first()? else { return None };
        let (id, mut rest) = rest.split_first_chunk::<ID_BYTES>()?;
        let life = read_number(&mut rest)?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            parts.push(Part::read(&mut rest)?);
        }
        Some(Content { id, life, parts })
    }
}

/// Any length of a secret comes to the 16 bytes that a signer has.
fn signer(secret: &Secret) -> SipHasher24 {
    let key = SipHasher24::new_with_key(b"tollgate receipt").hash(secret.as_bytes());
    SipHasher24::new_with_key(&key.as_bytes())
}

/// Signed with what this process alone knows.
impl Default for Receipts {
    fn default() -> Receipts {
        // The standard library's hash tells nobody its random keys, however many of its values one sees.
        let random = RandomState::new();
        Receipts {
            signer: SipHasher24::new_with_keys(random.hash_one(0), random.hash_one(1)),
            process: random.hash_one(2),
            written: AtomicU64::new(0),
            life: Life::Process,
            marks: Marks::default(),
        }
    }
}

/// The signer is secret.
impl fmt::Debug for Receipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipts").field("written", &self.written).finish_non_exhaustive()
    }
}

/// Reads whatever it is; what can be read is the same when it is written and read again.
pub(crate) fn fuzz(input: &[u8]) {
    let receipts = Receipts::default();
    if let Ok(text) = str::from_utf8(input) {
        assert!(receipts.read(text).is_none(), "a forgery");
    }
    let signed = Signed { bytes: input.to_vec() };
    let Some(Content { parts, .. }) = signed.content() else { return };
    let Some(text) = receipts.sign(parts.iter().cloned()) else { return };
    let again = receipts.read(&text);
    let again = again.as_ref().and_then(Signed::content).map(|content| content.parts);
    assert_eq!(again, Some(parts));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
