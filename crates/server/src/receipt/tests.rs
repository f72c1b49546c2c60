//! Receipts as text.

mod holds;
mod lifetimes;
mod on_redis;
mod refunds;

use std::collections::HashSet;

use proptest::prelude::*;
use tollgate::rules::{Attributes, Config, Rules};
use tollgate::{Limiter, ManualClock};
use tollgate_core::{ChargePlace, Cost, MAX_UNITS};

use super::*;

/// Well within a window of any size.
const NOON_US: u64 = 1_800_000_000_000_000;

/// Every algorithm, each with a burst of 10.
const LIMITS: [&str; 6] = [
    "fixed-window limit=10 window=60s",
    "sliding-window-log limit=10 window=60s",
    "sliding-window-counter limit=10 window=60s",
    "token-bucket capacity=10 refill=10/60s",
    "leaky-bucket capacity=10 leak=10/60s mode=policing",
    "leaky-bucket capacity=10 leak=10/60s mode=shaping",
];

fn secret(text: &str) -> Secret {
    text.parse().unwrap()
}

fn signed_with(text: &str) -> Receipts {
    Receipts { signer: signer(&secret(text)), ..Receipts::default() }
}

fn config(text: &str) -> Config {
    Config::parse("rules.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A server with the memory store: its rules, receipts and clock.
struct Fixture {
    rules: Rules,
    receipts: Receipts,
    clock: ManualClock,
}

impl Fixture {
    fn new(text: &str) -> Fixture {
        Fixture::within(text, 64 << 20)
    }

    fn within(text: &str, max_bytes: usize) -> Fixture {
        let clock = ManualClock::at_us(NOON_US);
        let limiter = Limiter::builder().clock(&clock).max_bytes(max_bytes).build();
        let rules = Rules::new(&limiter, &config(text)).unwrap();
        Fixture { rules, receipts: Receipts::default(), clock }
    }

    /// Returns a server with one limit, `it`.
    fn with_limit(limit: &str) -> Fixture {
        Fixture::new(&format!("limits: {{ it: {limit} }}"))
    }

    fn check(&self, key: &str, cost: u64) -> Option<String> {
        let scope = self.rules.limit("it").unwrap();
        let decision = scope.check(key).cost(cost).now().unwrap();
        self.receipts.of_limit(&scope, key.as_bytes(), &decision)
    }

    fn check_rules(&self, request: &[(&str, &str)]) -> Option<String> {
        let request: Attributes<'_> = request.iter().copied().collect();
        self.receipts.of_ruling(&self.rules.check("api", &request).now().unwrap())
    }

    fn remaining(&self, scope: &str, key: &str) -> u64 {
        self.rules.scope(scope).unwrap().peek(key).now().unwrap().remaining()
    }
}

fn any_place() -> impl Strategy<Value = ChargePlace> {
    prop_oneof![
        any::<(u64, u64)>()
            .prop_map(|(start_us, window_us)| ChargePlace::Window { start_us, window_us }),
        any::<u64>().prop_map(|at_us| ChargePlace::Entry { at_us }),
        any::<(u64, u64)>().prop_map(|(charged, over_us)| ChargePlace::Bucket { charged, over_us }),
        any::<(u64, u32, u64)>().prop_map(|(lease, settlement, until_us)| ChargePlace::Lease {
            lease,
            settlement,
            until_us
        }),
    ]
}

/// The fields of a [`ReceiptPart`].
type PartFields = (String, Vec<u8>, u64, ChargePlace, u64);

fn any_parts() -> impl Strategy<Value = Vec<PartFields>> {
    let key = prop::collection::vec(any::<u8>(), 0..40);
    let part = (".{0,20}", key, 1..=MAX_UNITS, any_place(), any::<u64>());
    prop::collection::vec(part, 1..8)
}

fn parts(owned: &[PartFields]) -> Vec<ReceiptPart<'_>> {
    owned
        .iter()
        .map(|(scope, key, units, place, lasts_us)| ReceiptPart {
            scope,
            key,
            cost: Cost::new(*units).unwrap(),
            place: *place,
            lasts_us: *lasts_us,
        })
        .collect()
}

proptest! {
    #[test]
    fn parts_are_read_as_they_were_written(owned in any_parts()) {
        let receipts = Receipts::default();
        let text = receipts.sign(parts(&owned)).unwrap();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        let signed = receipts.read(&text).unwrap();
        prop_assert_eq!(signed.content().unwrap().parts, parts(&owned));
    }

    #[test]
    fn changed_receipts_are_refused(owned in any_parts(), at in any::<prop::sample::Index>()) {
        let receipts = Receipts::default();
        let text = receipts.sign(parts(&owned)).unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        let bit = at.index(bytes.len() * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(receipts.read(&URL_SAFE_NO_PAD.encode(flipped)).is_none());
        let cut = at.index(bytes.len());
        prop_assert!(receipts.read(&URL_SAFE_NO_PAD.encode(&bytes[..cut])).is_none());
        prop_assert!(receipts.read(&URL_SAFE_NO_PAD.encode(&bytes[cut..][1..])).is_none());
        let mut longer = bytes;
        longer.insert(cut, 0);
        prop_assert!(receipts.read(&URL_SAFE_NO_PAD.encode(longer)).is_none());
        prop_assert!(receipts.read(&text[..at.index(text.len())]).is_none());
        for more in ["A", "="] {
            let longer = text.clone() + more;
            prop_assert!(receipts.read(&longer).is_none());
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused(input in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&input);
        let mut like_one = vec![VERSION];
        like_one.extend([0; ID_BYTES + 1]);
        like_one.extend(input);
        fuzz(&like_one);
    }
}

#[test]
fn a_receipt_with_another_character_is_refused() {
    let fixture = Fixture::with_limit(LIMITS[0]);
    // Keys of three lengths, for each way in which base64 can end.
    for key in ["a", "ab", "abc"] {
        let text = fixture.check(key, 1).unwrap();
        for at in 0..text.len() {
            for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".chars()
            {
                let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
                assert_eq!(fixture.receipts.read(&changed).is_some(), changed == text, "{changed}");
            }
        }
    }
}

#[test]
fn receipts_are_unique() {
    let fixture = Fixture::with_limit("token-bucket capacity=1000 refill=1/s");
    let all: HashSet<_> = (0..1_000).map(|_| fixture.check("a", 1).unwrap()).collect();
    assert_eq!(all.len(), 1_000);
    let one = signed_with("the same for both");
    let other = signed_with("the same for both");
    assert_ne!(one.process, other.process);
}

#[test]
fn a_receipt_is_read_only_with_its_secret() {
    let owned = [("it".to_owned(), b"a".to_vec(), 1, ChargePlace::Entry { at_us: 1 }, 1)];
    let receipts = signed_with("known to these two");
    let text = receipts.sign(parts(&owned)).unwrap();
    assert!(receipts.read(&text).is_some());
    assert!(signed_with("known to these two").read(&text).is_some());
    assert!(signed_with("known to this one").read(&text).is_none());
    assert!(Receipts::default().read(&text).is_none());
    assert!(Receipts::default().read(&Receipts::default().sign(parts(&owned)).unwrap()).is_none());
}

#[test]
fn debug_output_hides_the_secret() {
    let receipts = signed_with("known to these two");
    let shown = format!("{receipts:?}");
    assert_eq!(shown, "Receipts { written: 0, .. }");
}

#[test]
fn a_receipt_that_would_be_too_long_is_not_given() {
    let fixture = Fixture::with_limit("token-bucket capacity=1000000 refill=1/s");
    let lengths: Vec<_> =
        (2_900..3_100).map(|length| fixture.check(&"k".repeat(length), 1)).collect();
    let given = lengths.iter().take_while(|text| text.is_some()).count();
    assert!(lengths[given..].iter().all(Option::is_none));
    assert_eq!(lengths[given - 1].as_ref().unwrap().len(), MAX_CHARS);
    assert!(fixture.check(&"k".repeat(100_000), 1).is_none());
    // A longer receipt is not read either, even with a right signature.
    for (bytes, is_read) in [(MAX_BYTES, true), (MAX_BYTES + 1, false)] {
        let mut bytes = vec![VERSION; bytes - SIGNATURE_BYTES];
        let signature = fixture.receipts.signer.hash(&bytes).as_bytes();
        bytes.extend_from_slice(&signature);
        assert_eq!(fixture.receipts.read(&URL_SAFE_NO_PAD.encode(bytes)).is_some(), is_read);
    }
}

#[test]
fn a_request_that_charges_nothing_has_no_receipt() {
    let fixture = Fixture::new(
        "limits: { it: fixed-window limit=1 window=60s }\n\
         rules: [{ name: one, domain: api, key: [ip], limit: it }]\n",
    );
    assert!(fixture.check("a", 2).is_none());
    assert!(fixture.check("a", 1).is_some());
    assert!(fixture.check("a", 1).is_none());
    assert!(fixture.check_rules(&[("path", "/")]).is_none(), "no rule applies");
    assert!(fixture.check_rules(&[("ip", "a")]).is_some());
    assert!(fixture.check_rules(&[("ip", "a")]).is_none());
}

#[test]
fn an_unknown_version_is_refused() {
    let fixture = Fixture::with_limit(LIMITS[0]);
    let text = fixture.check("a", 1).unwrap();
    let mut bytes = fixture.receipts.read(&text).unwrap().bytes;
    bytes[0] = VERSION + 1;
    let signature = fixture.receipts.signer.hash(&bytes).as_bytes();
    bytes.extend_from_slice(&signature);
    let signed = fixture.receipts.read(&URL_SAFE_NO_PAD.encode(bytes)).unwrap();
    assert!(signed.content().is_none());
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let part = |number: &[u8]| {
        let mut bytes = vec![0, 0];
        bytes.extend_from_slice(number);
        bytes.extend_from_slice(&[1, 1, 7, 0]);
        ReceiptPart::read(&mut &bytes[..]).map(|part| part.cost.units())
    };
    assert_eq!(part(&[0xac, 0x02]), Some(300));
    assert_eq!(part(&[0xff; 9]), None);
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(part(&most), Some(MAX_UNITS));
    let mut large = vec![0xff; 9];
    for (last, want) in [(0x01, Some(u64::MAX)), (0x02, None), (0x7f, None), (0x81, None)] {
        large.push(last);
        let mut bytes = vec![0, 0, 1];
        bytes.extend_from_slice(&large);
        bytes.extend_from_slice(&[1, 7, 0]);
        assert_eq!(ReceiptPart::read(&mut &bytes[..]).map(|part| part.lasts_us), want);
        large.pop();
    }
}
