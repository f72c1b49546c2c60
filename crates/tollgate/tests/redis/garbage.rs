//! Any bytes may be stored under a key. They fail the requests of that key alone, or are decided like some
//! valid state. A value that cannot be read stays unchanged until it is reset.

use std::cell::RefCell;
use std::fmt::Debug;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::Connection;
use tokio::runtime::Runtime;
use tollgate::{Decision, Error, HoldId, HoldReference, Limiter, Receipt, Scope, StoreError};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{Kept, LIMITS, PATIENCE, admin, kept, key_with, named, open, remaining, start};

const DAY_S: u64 = 86_400;

/// The length of a log's tag.
const LOG_TAG_BYTES: usize = 11;

/// More limits, with the largest numbers.
const WIDE_LIMITS: [&str; 6] = [
    "fixed-window limit=9007199254740990 window=366d",
    "sliding-window-log limit=65536 window=366d",
    "sliding-window-counter limit=9007199254740990 window=366d",
    "token-bucket capacity=1000000 refill=999983/d",
    "token-bucket capacity=9007199254740990 refill=9007199254740881/366d",
    "leaky-bucket capacity=9007199254740990 leak=9007199254740881/366d mode=shaping",
];

/// The longest possible wait. The stored value may name another limit: at worst the slowest bucket, which takes 2^52 us
/// to refill, longer than two windows. Or it has a hold that expires at the end of time, 2^53 us.
const LONGEST_WAIT: Duration = Duration::from_micros(1 << 53);

/// Limits of every algorithm that are not spent.
const NEIGHBOURS: [&str; 4] = [
    "fixed-window limit=1000000 window=366d",
    "sliding-window-log limit=65536 window=100ms",
    "sliding-window-counter limit=1000000 window=366d",
    "token-bucket capacity=1000000 refill=1000000/d",
];

/// A key under which a test stores anything, and other scopes whose checks share its batches.
struct TestKey {
    limiter: Limiter,
    scope: Scope,
    /// The key on the server.
    key: String,
    /// The tag, with which all states of the limit begin.
    tag: Vec<u8>,
    /// The receipt of a charge to the key.
    receipt: Receipt,
    neighbours: Vec<Scope>,
}

/// The result of each operation on the key.
#[derive(Debug)]
struct Outcomes {
    peeked: Result<Decision, Error>,
    entries: Result<usize, Error>,
    together: Result<bool, Error>,
    checked: Result<Decision, Error>,
    refunded: Result<u64, Error>,
    /// The operations on holds: whether a reservation of too many units was admitted, and whether a made-up hold was
    /// settled and extended. Nothing for a limit that cannot have holds.
    on_holds: [Option<Result<bool, Error>>; 3],
}

impl TestKey {
    async fn new(server: &Server, admin: &mut Connection, text: &str) -> TestKey {
        redis::cmd("FLUSHALL").exec(admin).unwrap();
        let limiter = open(server);
        let scope = named(&limiter, "scope", text);
        let receipt = scope.check("bad").await.unwrap().into_receipt().unwrap();
        let key = key_with(admin, "{bad}");
        let state: Vec<u8> = redis::cmd("GET").arg(&key).query(admin).unwrap();
        let tag_bytes = numbers(text).map_or(LOG_TAG_BYTES, |numbers| state.len() - 7 * numbers);
        let tag = state[..tag_bytes].to_vec();
        let neighbours = NEIGHBOURS.map(|text| named(&limiter, text, text)).into();
        TestKey { limiter, scope, key, tag, receipt, neighbours }
    }

    /// Makes every operation on the key, among checks of the neighbours, in one batch.
    async fn run_every_operation(&self) -> Outcomes {
        let TestKey { limiter, scope, neighbours, .. } = self;
        let healthy = || neighbours.iter().map(|near| near.check("good").into_future());
        let mut healthy_answers: Vec<_> = healthy().collect();
        let peeked = scope.peek("bad").into_future();
        let entries = scope.entries("bad");
        // A cost above every limit, so that nothing is charged.
        let too_much = (1 << 53) - 1;
        let refused = [neighbours[0].check("good"), scope.check("bad").cost(too_much)];
        let together = limiter.check_all(&refused);
        healthy_answers.extend(healthy());
        let checked = scope.check("bad").into_future();
        let copy = scope.receipt("bad", self.receipt.cost(), self.receipt.place()).unwrap();
        let refunded = scope.refund("bad", copy);
        healthy_answers.extend(healthy());
        let can_hold = scope.limit().can_hold().is_ok();
        let reserved = can_hold.then(|| scope.reserve("bad").cost(too_much).into_future());
        // It may match a hold in the stored bytes.
        let reference = HoldReference { id: HoldId(1), expires_us: now_us() + 3_600_000_000 };
        let made_up = scope.hold("bad", reference).unwrap();
        let settled = can_hold.then(|| made_up.settle_part(1));
        let extended = can_hold.then(|| made_up.extend(1, Duration::from_secs(60)));
        for answer in healthy_answers {
            let decision = answer.await.unwrap();
            assert!(decision.is_allowed(), "a neighbour was refused: {decision:?}");
        }
        Outcomes {
            peeked: peeked.await,
            entries: entries.await.map(|entries| entries.len()),
            together: together.await.map(|together| together.is_allowed()),
            checked: checked.await,
            refunded: refunded.await,
            on_holds: [
                match reserved {
                    Some(reserved) => Some(reserved.await.map(|it| it.is_allowed())),
                    None => None,
                },
                match settled {
                    Some(settled) => Some(settled.await.map(|it| it.ended().is_none())),
                    None => None,
                },
                match extended {
                    Some(extended) => Some(extended.await.map(|it| it.is_granted())),
                    None => None,
                },
            ],
        }
    }

    /// Makes two acquires at once. The second reads the key's state to forecast its wait.
    async fn acquire_twice(&self) -> [Result<bool, Error>; 2] {
        let acquire = || async {
            let acquired = self.scope.acquire("bad").max_wait(Duration::ZERO).await;
            acquired.map(|acquired| acquired.is_admitted())
        };
        let both = async { tokio::join!(acquire(), acquire()) };
        tokio::time::timeout(PATIENCE, both).await.unwrap().into()
    }

    fn corrupt(&self) -> Error {
        StoreError::Corrupt { key: self.key.clone() }.into()
    }

    async fn assert_reset_works(&self) {
        let size = self.scope.limit().size();
        self.scope.reset("bad").await.unwrap();
        let healed = self.scope.check("bad").await.unwrap();
        assert_eq!((healed.is_allowed(), healed.remaining()), (true, size - 1), "{}", self.key);
    }
}

impl Outcomes {
    /// Whether every operation that may change the key has failed.
    fn has_changed_nothing(&self) -> bool {
        let have_failed = self.on_holds.iter().flatten().all(Result::is_err);
        self.checked.is_err() && self.refunded.is_err() && have_failed
    }
}

fn assert_corrupt<T: Debug>(target: &TestKey, answer: Result<T, Error>, what: &str) {
    assert_eq!(answer.unwrap_err(), target.corrupt(), "{what}");
}

#[tokio::test]
async fn value_of_a_foreign_type_fails_its_own_key_and_is_not_changed() {
    let foreign: [&[&str]; 5] = [
        &["HSET", "KEY", "field", "value"],
        &["RPUSH", "KEY", "a", "b", "c"],
        &["ZADD", "KEY", "1", "a", "2", "b"],
        &["SADD", "KEY", "a", "b"],
        &["XADD", "KEY", "*", "field", "value"],
    ];
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let target = TestKey::new(&server, &mut admin, text).await;
            for words in foreign {
                let what = format!("{flavour}, {text}, {}", words[0]);
                let before = put_foreign(&mut admin, &target.key, words);
                let outcomes = target.run_every_operation().await;
                assert_corrupt(&target, outcomes.peeked, &what);
                assert_corrupt(&target, outcomes.entries, &what);
                assert_corrupt(&target, outcomes.together, &what);
                assert_corrupt(&target, outcomes.checked, &what);
                assert_corrupt(&target, outcomes.refunded, &what);
                for outcome in outcomes.on_holds.into_iter().flatten() {
                    assert_corrupt(&target, outcome, &what);
                }
                for acquired in target.acquire_twice().await {
                    assert_corrupt(&target, acquired, &what);
                }
                assert_eq!(kept(&mut admin, target.key.as_bytes()), before, "{what}");
                target.assert_reset_works().await;
            }
        }
    }
}

fn put_foreign(admin: &mut Connection, key: &str, words: &[&str]) -> Kept {
    redis::cmd("DEL").arg(key).exec(admin).unwrap();
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|&word| _ = command.arg(if word == "KEY" { key } else { word }));
    command.exec(admin).unwrap();
    redis::cmd("PEXPIRE").arg(key).arg(777_777).exec(admin).unwrap();
    kept(admin, key.as_bytes())
}

fn put(admin: &mut Connection, key: &str, bytes: &[u8]) -> Kept {
    redis::cmd("SET").arg(key).arg(bytes).arg("PX").arg(777_777).exec(admin).unwrap();
    kept(admin, key.as_bytes())
}

/// The requests behind the reset find a new key.
#[tokio::test]
async fn reset_of_a_foreign_key_takes_effect_within_its_batch() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let target = TestKey::new(&server, &mut admin, text).await;
            put_foreign(&mut admin, &target.key, &["SADD", "KEY", "a"]);
            let before = target.scope.check("bad").into_future();
            let reset = target.scope.reset("bad");
            let after = target.scope.check("bad").cost(3).into_future();
            assert_corrupt(&target, before.await, text);
            reset.await.unwrap();
            assert_eq!(after.await.unwrap().remaining(), 97, "{flavour}, {text}");
            assert_eq!(remaining(&target.scope, "bad").await, 97, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn string_of_a_wrong_length_is_corrupt_and_is_not_changed() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let target = TestKey::new(&server, &mut admin, text).await;
            for length in [1, 2, 7, 13, 15, 20, 22, 27, 29, 1_000_000] {
                // No algorithm has the number of the letter x.
                let before = put(&mut admin, &target.key, &vec![b'x'; length]);
                let what = format!("{flavour}, {text}, {length} bytes");
                let outcomes = target.run_every_operation().await;
                assert_corrupt(&target, outcomes.peeked, &what);
                assert_corrupt(&target, outcomes.entries, &what);
                assert_corrupt(&target, outcomes.together, &what);
                assert_corrupt(&target, outcomes.checked, &what);
                assert_corrupt(&target, outcomes.refunded, &what);
                for outcome in outcomes.on_holds.into_iter().flatten() {
                    assert_corrupt(&target, outcome, &what);
                }
                assert_eq!(kept(&mut admin, target.key.as_bytes()), before, "{what}");
            }
            target.assert_reset_works().await;
        }
    }
}

/// Tags of limits that cannot be made, followed by valid numbers.
#[tokio::test]
async fn tag_of_no_valid_limit_is_corrupt_and_is_not_changed() {
    let corrupt: [&[u8]; 16] = [
        &[],
        &[0, 1, 1],
        &[8, 1, 1, 1],
        // A concurrency limit of 1,025; and marked tags: of no limit, and of a shaping bucket, which cannot have holds.
        &[7, 0x81, 8, 1],
        &[128, 1, 1, 1],
        &[134, 1, 1, 1],
        &[1, 0, 1],
        &[1, 1, 0],
        &[4, 1, 1, 0],
        &[4, 1, 0, 1],
        // A number without an end; 2^53; a window of a year and a half; a log of 2^21 - 1.
        &[0xFF; 30],
        &[1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1],
        &[1, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0B],
        &[3, 0xFF, 0xFF, 0x7F, 1],
        // Buckets that take 2^55 us to fill, and 2^105.
        &[4, 0x80, 0x80, 0x80, 0x80, 0x20, 1, 0x80, 0x80, 0x80, 0x04],
        &[
            6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
            0xFF, 0xFF, 0x0F,
        ],
    ];
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let target = TestKey::new(&server, &mut admin, text).await;
            for tag in corrupt {
                for numbers in [2, 3, 4] {
                    let what = format!("{flavour}, {text}, {tag:?} and {numbers} numbers");
                    let bytes = [tag, &[0; 28][..7 * numbers]].concat();
                    let before = put(&mut admin, &target.key, &bytes);
                    let outcomes = target.run_every_operation().await;
                    assert_corrupt(&target, outcomes.peeked, &what);
                    assert_corrupt(&target, outcomes.entries, &what);
                    assert_corrupt(&target, outcomes.together, &what);
                    assert_corrupt(&target, outcomes.checked, &what);
                    assert_corrupt(&target, outcomes.refunded, &what);
                    for outcome in outcomes.on_holds.into_iter().flatten() {
                        assert_corrupt(&target, outcome, &what);
                    }
                    assert_eq!(kept(&mut admin, target.key.as_bytes()), before, "{what}");
                }
            }
            target.assert_reset_works().await;
        }
    }
}

#[test]
fn random_bytes_under_a_key_fail_no_other_key_on_redis() {
    assert_random_bytes_fail_no_other_key(Flavour::Redis);
}

#[test]
fn random_bytes_under_a_key_fail_no_other_key_on_valkey() {
    assert_random_bytes_fail_no_other_key(Flavour::Valkey);
}

fn assert_random_bytes_fail_no_other_key(flavour: Flavour) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = start(flavour);
    let admin = RefCell::new(admin(&server));
    for text in LIMITS.into_iter().chain(WIDE_LIMITS) {
        let target = runtime.block_on(TestKey::new(&server, &mut admin.borrow_mut(), text));
        let config = Config::default();
        let cases = config.cases / 4;
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..config });
        let tested = runner.run(&anything(text, &target.tag), |bytes| {
            let admin = &mut *admin.borrow_mut();
            // Stored again for the acquires, because the first operations may have changed the value.
            let first = put(admin, &target.key, &bytes);
            let decided = holds(&runtime, admin, &target, &first);
            put(admin, &target.key, &bytes);
            let [front, behind] = runtime.block_on(target.acquire_twice());
            is_known_or_corrupt(&target, &front)?;
            is_known_or_corrupt(&target, &behind)?;
            runtime.block_on(target.assert_reset_works());
            decided
        });
        tested.unwrap_or_else(|error| panic!("{flavour}, {text}: {error}"));
    }
}

fn holds(
    runtime: &Runtime,
    admin: &mut Connection,
    target: &TestKey,
    before: &Kept,
) -> Result<(), TestCaseError> {
    let outcomes = runtime.block_on(target.run_every_operation());
    is_sane(target, &outcomes.peeked)?;
    is_sane(target, &outcomes.checked)?;
    is_known_or_corrupt(target, &outcomes.entries)?;
    is_known_or_corrupt(target, &outcomes.refunded)?;
    is_known_or_corrupt(target, &outcomes.together)?;
    prop_assert_ne!(&outcomes.together, &Ok(true));
    for outcome in outcomes.on_holds.iter().flatten() {
        is_known_or_corrupt(target, outcome)?;
    }
    prop_assert_ne!(&outcomes.on_holds[0], &Some(Ok(true)));
    let after = kept(admin, target.key.as_bytes());
    if outcomes.has_changed_nothing() {
        prop_assert_eq!(&after, before);
    }
    prop_assert!(after.ends_ms > 0, "the key never expires: {:?}", outcomes);
    Ok(())
}

/// Asserts that the answer is a possible decision, or the error for a corrupt key.
fn is_sane(target: &TestKey, answer: &Result<Decision, Error>) -> Result<(), TestCaseError> {
    is_known_or_corrupt(target, answer)?;
    let Ok(decision) = answer else { return Ok(()) };
    prop_assert!(decision.remaining() <= decision.limit(), "{:?}", decision);
    prop_assert!(decision.reset_after() <= LONGEST_WAIT, "{:?}", decision);
    prop_assert!(decision.retry_after().unwrap_or_default() <= LONGEST_WAIT, "{:?}", decision);
    prop_assert!(decision.delay() <= LONGEST_WAIT, "{:?}", decision);
    Ok(())
}

fn is_known_or_corrupt<T: Debug>(
    target: &TestKey,
    answer: &Result<T, Error>,
) -> Result<(), TestCaseError> {
    if let Err(error) = answer {
        prop_assert_eq!(error, &target.corrupt());
    }
    Ok(())
}

/// The numbers that a state has after its tag; `None` for a log.
fn numbers(text: &str) -> Option<usize> {
    match text {
        _ if text.starts_with("fixed") => Some(2),
        _ if text.starts_with("sliding-window-counter") => Some(3),
        _ if text.starts_with("sliding-window-log") => None,
        _ => Some(4),
    }
}

/// Bytes that resemble a state, mostly of this limit, or random bytes.
fn anything(text: &str, tag: &[u8]) -> BoxedStrategy<Vec<u8>> {
    let own = match numbers(text) {
        None => damaged(ring(tag.to_vec())).boxed(),
        Some(numbers) => state(tag.to_vec(), numbers).boxed(),
    };
    let length = tag.len() + 7 * numbers(text).unwrap_or(0);
    let noise = vec(any::<u8>(), length - 1..length + 2);
    let beside_holds = match numbers(text) {
        None => (slots(tag.to_vec()), prop::option::of(trailer())).boxed(),
        Some(numbers) => (state(tag.to_vec(), numbers), Just(None)).boxed(),
    };
    let beside_holds = marked(beside_holds, numbers(text).is_none());
    prop_oneof![
        8 => own,
        8 => beside_holds,
        4 => state_of_another_limit(),
        1 => noise,
        1 => vec(any::<u8>(), 0..300),
    ]
    .boxed()
}

/// The parts of a state: the bytes up to its holds, and the trailer of a log.
type StateParts = (Vec<u8>, Option<Vec<u8>>);

/// States with holds, some of them damaged. `kept_holds.lua` has the layout.
fn marked(
    state: impl Strategy<Value = StateParts>,
    is_log: bool,
) -> impl Strategy<Value = Vec<u8>> {
    let units = prop_oneof![4 => 0..60_u64, 1 => number()];
    let later_us = prop_oneof![6 => 0..100_000_000_u64, 1 => number()];
    let hold = (0..4_u64, prop_oneof![4 => 0..60_u64, 1 => number()], units, later_us);
    let states = (state, vec(hold, 0..6), any::<bool>(), prop_oneof![4 => Just(0), 1 => 0..9_u32]);
    let states = states.prop_map(move |((mut bytes, trailer), mut holds, is_sorted, more)| {
        bytes[0] += if trailer.is_some() { 192 } else { 128 };
        bytes.extend(trailer.unwrap_or_default());
        if is_log {
            bytes.extend_from_slice(&(holds.len() as u32 + more).to_le_bytes()[..3]);
        }
        if is_sorted {
            holds.sort_by_key(|hold| hold.3);
        }
        bytes.extend(holds.iter().flat_map(|hold| hold.0.to_be_bytes()));
        let mut column = |number: fn(&(u64, u64, u64, u64)) -> u64| {
            holds.iter().for_each(|hold| bytes.extend(&number(hold).to_le_bytes()[..7]));
        };
        column(|hold| hold.1);
        column(|hold| hold.2);
        column(|hold| now_us() + hold.3);
        bytes
    });
    damaged(states)
}

fn state(tag: Vec<u8>, numbers: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(number(), numbers).prop_map(move |numbers| {
        let numbers = numbers.into_iter();
        let bytes = numbers.flat_map(|number| number.to_le_bytes().into_iter().take(7));
        tag.iter().copied().chain(bytes).collect()
    })
}

/// States with a tag of random numbers, which may be that of a valid limit.
fn state_of_another_limit() -> impl Strategy<Value = Vec<u8>> {
    let numbers = vec(prop_oneof![0..200_u64, 0..1_u64 << 30, 0..1_u64 << 54], 3);
    (0..8_u8, numbers).prop_flat_map(|(kind, numbers)| {
        let mut tag = vec![kind];
        for mut number in numbers.into_iter().take(if kind < 4 { 2 } else { 3 }) {
            while number >= 128 {
                tag.push(number as u8 | 128);
                number >>= 7;
            }
            tag.push(number as u8);
        }
        match kind {
            3 => {
                tag.resize(LOG_TAG_BYTES, 0);
                damaged(ring(tag)).boxed()
            }
            _ => state(tag, usize::from(kind + 1).min(4)).boxed(),
        }
    })
}

/// Numbers near the boundaries: small ones, times near now, and numbers near 2^52, 2^53 and 2^56.
fn number() -> impl Strategy<Value = u64> {
    let now_us = now_us();
    prop_oneof![
        3 => 0..200_u64,
        3 => (now_us - 100_000_000)..(now_us + 100_000_000),
        2 => (now_us - 800 * DAY_S * 1_000_000)..(now_us + 800 * DAY_S * 1_000_000),
        2 => ((1_u64 << 53) - 3)..((1 << 53) + 3),
        1 => ((1_u64 << 52) - 3)..((1 << 52) + 3),
        1 => Just((1_u64 << 56) - 1),
        1 => 0..(1_u64 << 53),
        1 => 0..(1_u64 << 56),
    ]
}

/// A log in its format on the server, with or without a trailer. `ring.lua` and `holes.lua` have the layout.
fn ring(tag: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    (slots(tag), prop::option::of(trailer())).prop_map(|(mut bytes, trailer)| {
        bytes.extend(trailer.unwrap_or_default());
        bytes
    })
}

fn trailer() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![4 => 0..40_u64, 1 => 0..1_u64 << 24];
    let hole = (small(), prop_oneof![4 => 0..40_u64, 1 => number()]);
    let sums =
        (prop_oneof![4 => 0..3_u64, 1 => number()], prop_oneof![4 => 0..3_u64, 1 => number()]);
    (sums, [small(), small(), small()], vec(hole, 0..40)).prop_map(|(sums, gap, holes)| {
        let mut bytes = Vec::new();
        for number in [sums.0, sums.1] {
            bytes.extend_from_slice(&number.to_le_bytes()[..7]);
        }
        for (number, length) in gap.into_iter().zip([3, 3, 4]) {
            bytes.extend_from_slice(&number.to_le_bytes()[..length]);
        }
        bytes.extend_from_slice(&holes.len().to_le_bytes()[..3]);
        for (slot, offset) in holes {
            bytes.extend_from_slice(&slot.to_le_bytes()[..3]);
            bytes.extend_from_slice(&offset.to_le_bytes()[..7]);
        }
        bytes.resize(27 + 512 * 10, 0);
        bytes
    })
}

fn slots(tag: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let count = select(vec![0_u32, 1, 2, 5, 15, 16, 17, 18, 33, 100, 1_000]);
    let start = select(vec![1_000_000_u64, now_us() - 60_000_000, now_us() + 60_000_000]);
    (count, 0..20_u32, any::<Index>(), start, 0..5_000_u64, 0..3_u64).prop_map(
        move |(count, room, head, start_us, gap_us, base)| {
            let capacity = count + room;
            let head = if capacity == 0 { 0 } else { head.index(capacity as usize) as u32 };
            let mut slots = vec![0_u8; capacity as usize * 14];
            for index in 0..count {
                let slot = ((head + index) % capacity) as usize * 14;
                let (at_us, through) =
                    (start_us + u64::from(index) * gap_us, base + u64::from(index) + 1);
                slots[slot..slot + 7].copy_from_slice(&at_us.to_le_bytes()[..7]);
                slots[slot + 7..slot + 14].copy_from_slice(&through.to_le_bytes()[..7]);
            }
            let charged_us = start_us + u64::from(count) * gap_us;
            let mut bytes = tag.clone();
            bytes.extend_from_slice(&charged_us.to_le_bytes()[..7]);
            bytes.extend_from_slice(&base.to_le_bytes()[..7]);
            for number in [head, count, capacity] {
                bytes.extend_from_slice(&number.to_le_bytes()[..3]);
            }
            bytes.extend(slots);
            bytes
        },
    )
}

#[derive(Clone, Debug)]
enum Damage {
    Truncated(Index),
    Flipped(Index, u8),
    Number(Index, u64),
    Header(usize, u32),
    Appended(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<Index>().prop_map(Damage::Truncated),
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Damage::Flipped(at, bit)),
        (any::<Index>(), number()).prop_map(|(at, number)| Damage::Number(at, number)),
        (0..3_usize, prop_oneof![0..40_u32, 0..1_u32 << 24])
            .prop_map(|(which, number)| Damage::Header(which, number)),
        vec(any::<u8>(), 1..40).prop_map(Damage::Appended),
    ]
}

fn damaged(ring: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (ring, vec(damage(), 0..4)).prop_map(|(mut bytes, damages)| {
        for damage in damages {
            match damage {
                Damage::Truncated(at) => bytes.truncate(at.index(bytes.len() + 1)),
                Damage::Flipped(at, bit) if !bytes.is_empty() => {
                    let at = at.index(bytes.len());
                    bytes[at] ^= 1 << bit;
                }
                Damage::Number(at, number) if bytes.len() >= LOG_TAG_BYTES + 14 => {
                    // The first two numbers are in the header.
                    let at = LOG_TAG_BYTES + 7 * at.index(bytes.len() / 7);
                    let at = if at >= LOG_TAG_BYTES + 14 { at + 9 } else { at };
                    if at + 7 <= bytes.len() {
                        bytes[at..at + 7].copy_from_slice(&number.to_le_bytes()[..7]);
                    }
                }
                Damage::Header(which, number) if bytes.len() >= LOG_TAG_BYTES + 23 => {
                    let at = LOG_TAG_BYTES + 14 + 3 * which;
                    bytes[at..at + 3].copy_from_slice(&number.to_le_bytes()[..3]);
                }
                Damage::Appended(more) => bytes.extend(more),
                _ => {}
            }
        }
        bytes
    })
}

fn now_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}
