//! Receipts as text, with which a client can refund a charge later, at any server that has the same secret.
//!
//! - `part`: the charge of one limit, in bytes; `number`: numbers and texts in bytes
//! - `refund`: gives a charge back, once; `mark`: remembers refunded receipts
//! - `lifetime`: voids receipts when the store has lost its marks
//! - `hold_token`: holds as text, signed in the same way
//!
//! A receipt consists of a version, a unique id, the lifetime of the store, its parts, and a signature of all of them.
//! It is signed and not encrypted: base64 does not hide the key.

mod hold_token;
mod lifetime;
mod mark;
mod number;
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
use tollgate::{Decision, Error, HoldSettlement, Limiter, Scope};

use crate::secret::Secret;
#[cfg(test)]
use hold_token::ShareOfProcess;
pub(crate) use hold_token::{HeldBy, HoldPlace, TokenPart, max_key_bytes};
use lifetime::StoreLifetime;
use mark::Marks;
use number::{read_number, write_number};
use part::ReceiptPart;
pub(crate) use refund::{RefundError, RefundedUnits};

/// The most characters of a receipt. A decision whose receipt would be longer has none.
pub(crate) const MAX_CHARS: usize = 4_096;

/// The same in bytes: base64 encodes three bytes as four characters.
const MAX_BYTES: usize = MAX_CHARS / 4 * 3;

/// Space for most receipts of one limit.
const USUAL_BYTES: usize = 128;

/// The first byte of a receipt. A hold token begins with another one.
const VERSION: u8 = 1;
const ID_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 16;

/// Writes receipts, reads them, and refunds them.
pub(crate) struct Receipts {
    signer: SipHasher24,
    /// The first half of the ids: a random number of this process.
    process: u64,
    /// The second half of the next id: the number of receipts written so far.
    written: AtomicU64,
    lifetime: StoreLifetime,
    marks: Marks,
}

/// A receipt whose signature is right.
struct SignedReceipt {
    /// The receipt without its signature.
    bytes: Vec<u8>,
}

/// The fields of a receipt.
struct ReceiptContent<'s> {
    id: &'s [u8; ID_BYTES],
    /// The id of the store's lifetime in which the receipt was charged.
    lifetime: u64,
    parts: Vec<ReceiptPart<'s>>,
}

impl Receipts {
    /// Returns the receipts of limits in memory, which end with the process, as the limits do. Refunded receipts are
    /// remembered in memory of their own, at most `max_bytes`, so that they and the keys take no memory from each
    /// other.
    pub(crate) fn in_memory(max_bytes: usize) -> Receipts {
        Receipts { marks: Marks::within(max_bytes), ..Receipts::default() }
    }

    /// Returns the receipts of limits on Redis servers, which every process with the same secret accepts.
    pub(crate) fn on_servers(
        limiter: &Limiter,
        secret: Option<&Secret>,
    ) -> Result<Receipts, Error> {
        let lifetime = StoreLifetime::of(limiter)?;
        let mut receipts = Receipts { lifetime, ..Receipts::default() };
        if let Some(secret) = secret {
            receipts.signer = signer(secret);
        }
        Ok(receipts)
    }

    /// Reads the lifetime of the store. No receipts are given before that has succeeded once.
    pub(crate) async fn refresh_lifetime(&self) -> Result<(), Error> {
        self.lifetime.refresh().await.map(drop)
    }

    /// Follows changes of the lifetime. Does not end with a Redis store; with the memory store it returns at once.
    pub(crate) async fn follow(&self, is_store_answering: impl Fn() -> bool) {
        self.lifetime.follow(is_store_answering).await;
    }

    /// Returns the receipt of a decision; `None` if nothing was charged, or if the key is too long.
    pub(crate) fn of_limit(
        &self,
        scope: &Scope,
        key: &[u8],
        decision: &Decision,
    ) -> Option<String> {
        self.sign([ReceiptPart::of(scope, key, decision)?])
    }

    /// Returns the receipt of a ruling; `None` if nothing was charged, or if there are too many or too long keys.
    pub(crate) fn of_ruling(&self, ruling: &Ruling) -> Option<String> {
        let parts = ruling.rules();
        self.sign(
            parts.filter_map(|part| ReceiptPart::of(part.scope()?, part.key(), part.decision()?)),
        )
    }

    fn sign<'p>(&self, parts: impl IntoIterator<Item = ReceiptPart<'p>>) -> Option<String> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.process.to_le_bytes());
        bytes.extend_from_slice(&self.written.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        write_number(&mut bytes, self.lifetime.current_id()?);
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
        Some(self.seal(bytes))
    }

    /// Returns the receipt of what a settlement charged; `None` if nothing was charged, or if there are too many or too
    /// long keys.
    pub(crate) fn of_settlement<'s>(
        &self,
        parts: impl IntoIterator<Item = (&'s Scope, &'s [u8], &'s HoldSettlement)>,
    ) -> Option<String> {
        self.sign(parts.into_iter().filter_map(|(scope, key, settled)| {
            Some(ReceiptPart::new(scope, key, settled.receipt()?, settled.decided()))
        }))
    }

    /// Appends a signature, and returns all as text.
    fn seal(&self, mut bytes: Vec<u8>) -> String {
        let signature = self.signer.hash(&bytes).as_bytes();
        bytes.extend_from_slice(&signature);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a receipt; `None` unless the text is a receipt with a right signature.
    fn read(&self, text: &str) -> Option<SignedReceipt> {
        Some(SignedReceipt { bytes: self.open(text)? })
    }

    /// Returns the signed content without its signature; `None` if the signature is wrong.
    fn open(&self, text: &str) -> Option<Vec<u8>> {
        if text.len() > MAX_CHARS {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>()?;
        let expected = self.signer.hash(content).as_bytes();
        if !bool::from(expected.ct_eq(signature)) {
            return None;
        }
        let length = content.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

impl SignedReceipt {
    /// Returns the fields; `None` if this server does not know the version.
    fn content(&self) -> Option<ReceiptContent<'_>> {
        let (&VERSION, rest) = self.bytes.split_first()? else { return None };
        let (id, mut rest) = rest.split_first_chunk::<ID_BYTES>()?;
        let lifetime = read_number(&mut rest)?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            parts.push(ReceiptPart::read(&mut rest)?);
        }
        Some(ReceiptContent { id, lifetime, parts })
    }
}

/// Returns a signer with a key of 16 bytes, made from a secret of any length.
fn signer(secret: &Secret) -> SipHasher24 {
    let key = SipHasher24::new_with_key(b"tollgate receipt").hash(secret.as_bytes());
    SipHasher24::new_with_key(&key.as_bytes())
}

/// Receipts that are signed with random keys of this process.
impl Default for Receipts {
    fn default() -> Receipts {
        // OK because hashes of the standard library do not reveal its random keys.
        let random = RandomState::new();
        Receipts {
            signer: SipHasher24::new_with_keys(random.hash_one(0), random.hash_one(1)),
            process: random.hash_one(2),
            written: AtomicU64::new(0),
            lifetime: StoreLifetime::Process,
            marks: Marks::default(),
        }
    }
}

/// Without the signer, which is secret.
impl fmt::Debug for Receipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipts").field("written", &self.written).finish_non_exhaustive()
    }
}

/// Reads arbitrary bytes as the text of a receipt and as its content. Content must be the same after it is written and
/// read again.
pub(crate) fn fuzz(input: &[u8]) {
    let receipts = Receipts::default();
    if let Ok(text) = str::from_utf8(input) {
        assert!(receipts.read(text).is_none(), "unsigned text is accepted as a receipt");
    }
    let signed = SignedReceipt { bytes: input.to_vec() };
    let Some(ReceiptContent { parts, .. }) = signed.content() else { return };
    let Some(text) = receipts.sign(parts.iter().cloned()) else { return };
    let again = receipts.read(&text);
    let again = again.as_ref().and_then(SignedReceipt::content).map(|content| content.parts);
    assert_eq!(again, Some(parts));
}

/// Does the same with hold tokens.
pub(crate) fn fuzz_hold_token(input: &[u8]) {
    hold_token::fuzz(&Receipts::default(), input);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
