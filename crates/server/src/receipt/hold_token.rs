//! Holds as text, with which a client settles or extends them later, at any server that has the same secret.
//!
//! A hold token consists of a version, what the hold was reserved by, its parts, and a signature of all of them. It needs neither an id nor
//! the lifetime of the store: a hold ends once, on the store, and is lost with the rest of the state.

use std::fmt;

use tollgate::{Hold, HoldId, HoldReference};

use super::number::{read_number, read_text, write_number, write_text};
use super::{MAX_BYTES, Receipts, SIGNATURE_BYTES, USUAL_BYTES};
use crate::ruleset::{CountedExpiry, SlotWidth};

/// The first byte of a hold token. A receipt begins with another one, so that neither is taken for the other.
const HOLD_VERSION: u8 = 2;

const BY_LIMIT: u8 = 0;
const BY_RULES: u8 = 1;

const ON_STORE: u8 = 0;
const ON_SHARE: u8 = 1;
const NOWHERE: u8 = 2;

/// The most bytes of a part besides its texts: their lengths, the id, the expiry and the width of its slot, and the place
/// with a process and a number of processes.
const NUMBER_BYTES: usize = 2 * 2 + 1 + 8 + 8 + 1 + 1 + 8 + 5;

/// The target of the reservation that made a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// The name of a limit. The hold has one part.
    Limit,
    /// Rules. The hold has a part for each rule whose units are held, which may be none.
    Rules,
}

/// Where the units of a hold are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldPlace {
    Store,
    /// On a process's share of the limit: the store failed, and the failure policy is `local`.
    Share(ShareOfProcess),
    /// Nowhere: the store failed, and the failure policy is `open`.
    Nowhere,
}

/// One process's share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareOfProcess {
    /// A random number of the process.
    pub(crate) process: u64,
    /// The number of processes that share the limit.
    pub(crate) processes: u32,
}

/// The hold of one limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenPart<'p> {
    /// The name of the limit, or of the rule.
    pub(crate) scope: &'p str,
    /// The name of the limit that a rule spends; empty for a hold by the name of a limit.
    pub(crate) limit: &'p str,
    pub(crate) key: &'p [u8],
    /// With the last expiry that was granted.
    pub(crate) reference: HoldReference,
    /// The width of the slots in which the hold is counted.
    pub(crate) slot_width: SlotWidth,
    pub(crate) place: HoldPlace,
}

/// A hold token whose signature is right.
pub(crate) struct SignedHold {
    bytes: Vec<u8>,
}

impl Receipts {
    /// Returns where this process has set the units of a hold aside.
    pub(crate) fn place_of(&self, hold: &Hold) -> HoldPlace {
        match (hold.share_processes(), hold.is_degraded()) {
            (Some(processes), _) => {
                HoldPlace::Share(ShareOfProcess { process: self.process, processes })
            }
            (None, true) => HoldPlace::Nowhere,
            (None, false) => HoldPlace::Store,
        }
    }

    /// Whether a share is this process's.
    pub(crate) fn is_own(&self, share: ShareOfProcess) -> bool {
        share.process == self.process
    }

    /// Returns the token of a hold; `None` if there are too many or too long keys.
    pub(crate) fn hold_token<'p>(
        &self,
        by: HeldBy,
        parts: impl IntoIterator<Item = TokenPart<'p>>,
    ) -> Option<String> {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        bytes.push(HOLD_VERSION);
        bytes.push(match by {
            HeldBy::Limit => BY_LIMIT,
            HeldBy::Rules => BY_RULES,
        });
        for part in parts {
            if part.key.len() > MAX_BYTES {
                return None;
            }
            part.write(&mut bytes);
            if bytes.len() > MAX_BYTES - SIGNATURE_BYTES {
                return None;
            }
        }
        Some(self.seal(bytes))
    }

    /// Reads a hold token; `None` unless the text is one with a right signature.
    pub(crate) fn read_hold(&self, text: &str) -> Option<SignedHold> {
        let bytes = self.open(text)?;
        (bytes.first() == Some(&HOLD_VERSION)).then_some(SignedHold { bytes })
    }
}

/// Returns the most bytes that the key of a hold can have, so that its token is not too long.
pub(crate) fn max_key_bytes(scope: &str) -> usize {
    let others = 2 + NUMBER_BYTES + scope.len() + SIGNATURE_BYTES;
    MAX_BYTES.saturating_sub(others)
}

impl SignedHold {
    /// Returns the target of the reservation, and the parts; `None` if this server does not write such tokens.
    pub(crate) fn content(&self) -> Option<(HeldBy, Vec<TokenPart<'_>>)> {
        let mut rest = self.bytes.get(1..)?;
        let by = match *rest.split_off_first()? {
            BY_LIMIT => HeldBy::Limit,
            BY_RULES => HeldBy::Rules,
            _ => return None,
        };
        let mut parts = Vec::new();
        while !rest.is_empty() {
            parts.push(TokenPart::read(&mut rest)?);
        }
        Some((by, parts))
    }
}

impl<'p> TokenPart<'p> {
    fn write(&self, bytes: &mut Vec<u8>) {
        write_text(bytes, self.scope.as_bytes());
        write_text(bytes, self.limit.as_bytes());
        write_text(bytes, self.key);
        // Not in sevens, because an id is a random number.
        bytes.extend_from_slice(&self.reference.id.0.to_le_bytes());
        write_number(bytes, self.reference.expires_us);
        bytes.push(self.slot_width.to_byte());
        match self.place {
            HoldPlace::Store => bytes.push(ON_STORE),
            HoldPlace::Share(ShareOfProcess { process, processes }) => {
                bytes.push(ON_SHARE);
                bytes.extend_from_slice(&process.to_le_bytes());
                write_number(bytes, processes.into());
            }
            HoldPlace::Nowhere => bytes.push(NOWHERE),
        }
    }

    fn read(bytes: &mut &'p [u8]) -> Option<TokenPart<'p>> {
        let scope = str::from_utf8(read_text(bytes)?).ok()?;
        let limit = str::from_utf8(read_text(bytes)?).ok()?;
        let key = read_text(bytes)?;
        let id = HoldId(read_random(bytes)?);
        let expires_us = read_number(bytes)?;
        let slot_width = SlotWidth::read(*bytes.split_off_first()?)?;
        let place = match *bytes.split_off_first()? {
            ON_STORE => HoldPlace::Store,
            ON_SHARE => {
                let process = read_random(bytes)?;
                let processes = read_number(bytes)?.try_into().ok()?;
                HoldPlace::Share(ShareOfProcess { process, processes })
            }
            NOWHERE => HoldPlace::Nowhere,
            _ => return None,
        };
        let reference = HoldReference { id, expires_us };
        Some(TokenPart { scope, limit, key, reference, slot_width, place })
    }

    /// Returns the last expiry that was granted, as it is counted.
    pub(crate) fn expiry(&self) -> CountedExpiry {
        CountedExpiry { expires_us: self.reference.expires_us, width: self.slot_width }
    }
}

/// Reads a random number.
fn read_random(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

/// Without the key, which may be a secret.
impl fmt::Debug for TokenPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, reference) = (self.scope, self.reference);
        f.debug_struct("TokenPart")
            .field("scope", &scope)
            .field("reference", &reference)
            .finish_non_exhaustive()
    }
}

/// Reads arbitrary bytes as the text of a hold token, as its content, and as a change of a signed token. Content must be
/// the same after it is written and read again, and a changed token must be refused.
pub(super) fn fuzz(receipts: &Receipts, input: &[u8]) {
    if let Ok(text) = str::from_utf8(input) {
        assert!(receipts.read_hold(text).is_none(), "unsigned text is accepted as a hold");
    }
    let signed = SignedHold { bytes: input.to_vec() };
    let Some((by, parts)) = signed.content() else { return };
    let Some(text) = receipts.hold_token(by, parts.iter().copied()) else { return };
    let again = receipts.read_hold(&text);
    assert_eq!(again.as_ref().and_then(SignedHold::content), Some((by, parts)));
    // Changes one character. The sum of the input's bytes chooses which.
    let mut changed = text.into_bytes();
    let at = input.iter().map(|&byte| usize::from(byte)).sum::<usize>() % changed.len();
    changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap_or_default();
    assert!(receipts.read_hold(&changed).is_none(), "a changed token is accepted: {changed}");
}
