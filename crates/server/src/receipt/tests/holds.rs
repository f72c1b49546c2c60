//! Holds as text.

use tollgate::{HoldId, HoldReference};

use super::super::hold_token;
use super::*;
use crate::ruleset::SlotWidth;

/// The fields of a [`TokenPart`].
type HoldFields = (String, String, Vec<u8>, u64, u64, SlotWidth, HoldPlace);

/// The fields of a part whose units are held on the store.
fn on_store(key: Vec<u8>, id: u64, expires_us: u64) -> HoldFields {
    let width = SlotWidth::read(0).unwrap();
    ("it".to_owned(), String::new(), key, id, expires_us, width, HoldPlace::Store)
}

fn any_place() -> impl Strategy<Value = HoldPlace> {
    let share = |(process, processes)| HoldPlace::Share(ShareOfProcess { process, processes });
    prop_oneof![
        Just(HoldPlace::Store),
        Just(HoldPlace::Nowhere),
        any::<(u64, u32)>().prop_map(share)
    ]
}

fn any_holds() -> impl Strategy<Value = Vec<HoldFields>> {
    let key = prop::collection::vec(any::<u8>(), 0..40);
    let width = (0..11_u8).prop_map(|byte| SlotWidth::read(byte).unwrap());
    let part = (".{0,20}", ".{0,9}", key, any::<u64>(), any::<u64>(), width, any_place());
    prop::collection::vec(part, 0..8)
}

fn hold_parts(owned: &[HoldFields]) -> Vec<TokenPart<'_>> {
    owned
        .iter()
        .map(|(scope, limit, key, id, expires_us, width, place)| TokenPart {
            scope,
            limit,
            key,
            reference: HoldReference { id: HoldId(*id), expires_us: *expires_us },
            slot_width: *width,
            place: *place,
        })
        .collect()
}

proptest! {
    #[test]
    fn hold_parts_are_read_as_they_were_written(owned in any_holds(), by_rules: bool) {
        let receipts = Receipts::default();
        let by = if by_rules { HeldBy::Rules } else { HeldBy::Limit };
        let text = receipts.hold_token(by, hold_parts(&owned)).unwrap();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        let signed = receipts.read_hold(&text).unwrap();
        prop_assert_eq!(signed.content().unwrap(), (by, hold_parts(&owned)));
    }

    #[test]
    fn changed_hold_tokens_are_refused(owned in any_holds(), at in any::<prop::sample::Index>()) {
        let receipts = Receipts::default();
        let text = receipts.hold_token(HeldBy::Rules, hold_parts(&owned)).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        let bit = at.index(bytes.len() * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(receipts.read_hold(&URL_SAFE_NO_PAD.encode(flipped)).is_none());
        let cut = at.index(bytes.len());
        prop_assert!(receipts.read_hold(&URL_SAFE_NO_PAD.encode(&bytes[..cut])).is_none());
        prop_assert!(receipts.read_hold(&text[..at.index(text.len())]).is_none());
    }

    #[test]
    fn arbitrary_bytes_are_no_hold(input in prop::collection::vec(any::<u8>(), 0..200)) {
        let receipts = Receipts::default();
        hold_token::fuzz(&receipts, &input);
        for by in [0, 1] {
            hold_token::fuzz(&receipts, &[&[2, by], &*input].concat());
        }
    }
}

#[test]
fn receipt_and_hold_token_are_not_taken_for_each_other() {
    let fixture = Fixture::with_limit(LIMITS[0]);
    let receipt = fixture.check("a", 1).unwrap();
    assert!(fixture.receipts.read_hold(&receipt).is_none());
    let owned = [on_store(b"a".to_vec(), 1, 1)];
    let token = fixture.receipts.hold_token(HeldBy::Limit, hold_parts(&owned)).unwrap();
    assert!(fixture.receipts.read(&token).unwrap().content().is_none());
}

#[test]
fn hold_token_is_read_only_with_its_secret() {
    let owned = [on_store(b"a".to_vec(), 1, 1)];
    let text = signed_with("known to these two").hold_token(HeldBy::Limit, hold_parts(&owned));
    let text = text.unwrap();
    assert!(signed_with("known to these two").read_hold(&text).is_some());
    assert!(signed_with("known to this one").read_hold(&text).is_none());
    assert!(Receipts::default().read_hold(&text).is_none());
}

#[test]
fn hold_token_that_would_be_too_long_is_not_given() {
    let token = |bytes: usize| {
        let share = ShareOfProcess { process: u64::MAX, processes: u32::MAX };
        let mut held = on_store(vec![b'k'; bytes], u64::MAX, (1 << 53) - 1);
        held.6 = HoldPlace::Share(share);
        let owned = [held];
        Receipts::default().hold_token(HeldBy::Limit, hold_parts(&owned))
    };
    let most = max_key_bytes("it");
    assert!(token(most).is_some_and(|text| text.len() <= MAX_CHARS));
    assert!(token(most + 4).is_none());
    assert!(token(100_000).is_none());
}
