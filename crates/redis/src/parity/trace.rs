//! Random traces that often hit the boundaries: the moment at which a wait ends, the largest cost that fits.

use proptest::prelude::*;
use tollgate_core::MAX_TIME_US;

/// Requests that are sent to the server at once, after its clock has moved.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) time: Time,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The index of the key, modulo the number of keys. Receipts are picked in the same way.
    pub(super) key: usize,
    pub(super) act: Act,
    pub(super) price: Price,
    /// Whether the key changes to its other limit from here on.
    pub(super) is_changing: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Act {
    /// At the server's time and with any wait: the checks that the plain scripts decide.
    Check,
    /// At a caller's time, this far from the server's.
    CheckAtUs(i64),
    CheckWithinUs(u64),
    Peek,
    /// A peek, sent as a check of several limits with one charge, at the server's time or a caller's.
    Look(Option<i64>),
    /// A refund of one of the receipts held.
    Refund(usize),
    RefundAtUs(usize, i64),
    Reset,
    /// A reservation for this time.
    Reserve(u64),
    /// A settlement of one of the holds, of thousandths of the units held; the last one, or in part.
    Settle(usize, u64, bool),
    /// An extension of one of the holds by the price or by nothing, for this time.
    Extend(usize, bool, u64),
    Lease(LeaseStep),
}

/// A request to open or renew a lease.
#[derive(Clone, Debug)]
pub(super) struct LeaseStep {
    /// The lease to renew, modulo how many there have been; `None` to open another one.
    pub(super) which: Option<usize>,
    /// Whether the request is the one that opened the lease, sent again.
    pub(super) is_repeated: bool,
    /// Whether a check waits for the answer.
    pub(super) needs: bool,
    /// Thousandths of the units that the lease has.
    pub(super) used: u64,
    /// Thousandths of the limit.
    pub(super) want: u64,
    pub(super) most: u64,
    pub(super) lease_for_us: u64,
}

/// How the server's clock moves, as the first key of the batch sees it.
#[derive(Clone, Debug)]
pub(super) enum Time {
    Stay,
    ByUs(u64),
    /// Forward by thousandths of the limit's own interval.
    Part(u64),
    /// To the end of the last decision's wait, give or take a microsecond.
    Retry(i64),
    /// To the last decision's reset, give or take a microsecond.
    Reset(i64),
    BackUs(u64),
}

/// The cost of a request.
#[derive(Clone, Debug)]
pub(super) enum Price {
    Units(u64),
    /// Thousandths of the limit's size.
    Part(u64),
    /// The units that remain, give or take one.
    Remaining(i64),
    MoreThanAll,
}

pub(super) fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let time = prop_oneof![
        6 => Just(Time::Stay),
        4 => (0..20_u64).prop_map(Time::ByUs),
        1 => (0..30_000_000_u64).prop_map(Time::ByUs),
        6 => (0..2_500_u64).prop_map(Time::Part),
        4 => (-1..=1_i64).prop_map(Time::Retry),
        2 => (-1..=1_i64).prop_map(Time::Reset),
        1 => (1..50_u64).prop_map(Time::BackUs),
        2 => prop::sample::select(vec![9_999_999, 10_000_000, 10_000_001]).prop_map(Time::BackUs),
        1 => (10_000_001..20_000_000_000_u64).prop_map(Time::BackUs),
    ];
    let price = prop_oneof![
        4 => (1..4_u64).prop_map(Price::Units),
        3 => (1..=1_000_u64).prop_map(Price::Part),
        3 => (-1..=1_i64).prop_map(Price::Remaining),
        1 => Just(Price::MoreThanAll),
    ];
    let batch = (time, steps(price.boxed(), act().boxed(), 1..6));
    let batch = batch.prop_map(|(time, steps)| Batch { time, steps });
    prop::collection::vec(batch, 1..40)
}

/// Traces that fill a log and refund many charges, also in its middle.
pub(super) fn refunded_batches() -> impl Strategy<Value = Vec<Batch>> {
    let time = prop_oneof![
        12 => (0..10_u64).prop_map(Time::ByUs),
        1 => (-1..=1_i64).prop_map(Time::Retry),
        1 => (0..300_u64).prop_map(Time::Part),
        1 => (10_000_000..10_000_002_u64).prop_map(Time::BackUs),
    ];
    let price = prop_oneof![
        12 => (1..4_u64).prop_map(Price::Units),
        1 => (0..=1_i64).prop_map(Price::Remaining),
    ];
    let act = prop_oneof![
        4 => any::<usize>().prop_map(Act::Refund),
        1 => Just(Act::Check),
        1 => Just(Act::Peek),
    ];
    let batch = (time, steps(price.boxed(), act.boxed(), 1..64));
    let batch = batch.prop_map(|(time, steps)| Batch { time, steps });
    prop::collection::vec(batch, 1..80)
}

/// Traces in which units are set aside, settled and extended, beside all other requests.
pub(super) fn holding_batches() -> impl Strategy<Value = Vec<Batch>> {
    let time = prop_oneof![
        6 => Just(Time::Stay),
        4 => (0..20_u64).prop_map(Time::ByUs),
        2 => (0..30_000_000_u64).prop_map(Time::ByUs),
        4 => (0..2_500_u64).prop_map(Time::Part),
        4 => (-1..=1_i64).prop_map(Time::Retry),
        2 => (-1..=1_i64).prop_map(Time::Reset),
        1 => prop::sample::select(vec![50, 9_999_999, 10_000_001]).prop_map(Time::BackUs),
    ];
    let price = prop_oneof![
        4 => (1..4_u64).prop_map(Price::Units),
        3 => (1..=1_000_u64).prop_map(Price::Part),
        3 => (-1..=1_i64).prop_map(Price::Remaining),
        1 => Just(Price::MoreThanAll),
    ];
    let hold_for = || prop_oneof![1..50_u64, 1_000..100_000_u64, 1_000_000..100_000_000_u64];
    let on_holds = prop_oneof![
        4 => hold_for().prop_map(Act::Reserve),
        2 => (any::<usize>(), 0..1_500_u64, any::<bool>())
            .prop_map(|(which, part, is_last)| Act::Settle(which, part, is_last)),
        1 => (any::<usize>(), any::<bool>(), hold_for())
            .prop_map(|(which, has_more, hold_for_us)| Act::Extend(which, has_more, hold_for_us)),
    ];
    let act = prop_oneof![2 => on_holds, 1 => lease(), 1 => act()];
    let batch = (time, steps(price.boxed(), act.boxed(), 1..6));
    let batch = batch.prop_map(|(time, steps)| Batch { time, steps });
    prop::collection::vec(batch, 1..40)
}

fn lease() -> impl Strategy<Value = Act> {
    let which = prop::option::weighted(0.7, any::<usize>());
    let lease_for = prop_oneof![1..50_u64, 1_000..100_000_u64, 1_000_000..100_000_000_u64];
    let units = || prop_oneof![4 => 0..=600_u64, 1 => Just(u64::MAX)];
    let request = (which, prop::bool::weighted(0.2), any::<bool>(), 0..1_500_u64, units(), units());
    (request, lease_for).prop_map(
        |((which, is_repeated, needs, used, want, most), lease_for_us)| {
            Act::Lease(LeaseStep { which, is_repeated, needs, used, want, most, lease_for_us })
        },
    )
}

/// Traces of leases on keys that may stay under a limit without leases.
pub(super) fn leasing_batches() -> impl Strategy<Value = Vec<Batch>> {
    let time = prop_oneof![
        4 => Just(Time::Stay),
        4 => (0..20_u64).prop_map(Time::ByUs),
        4 => (0..1_500_u64).prop_map(Time::Part),
        1 => (-1..=1_i64).prop_map(Time::Retry),
    ];
    let price = prop_oneof![
        4 => (1..4_u64).prop_map(Price::Units),
        3 => (1..=1_000_u64).prop_map(Price::Part),
        3 => (-1..=1_i64).prop_map(Price::Remaining),
    ];
    let act = prop_oneof![4 => lease(), 2 => Just(Act::Check), 1 => Just(Act::Peek)];
    let batch = (time, steps(price.boxed(), act.boxed(), 1..6));
    let batch = batch.prop_map(|(time, mut steps)| {
        // The limits change more often than in other traces.
        steps.iter_mut().for_each(|step| step.is_changing |= step.key % 4 == 0);
        Batch { time, steps }
    });
    prop::collection::vec(batch, 1..40)
}

/// Traces that fill a log: many charges, close together.
pub(super) fn crowded_batches() -> impl Strategy<Value = Vec<Batch>> {
    let time = prop_oneof![
        12 => (0..10_u64).prop_map(Time::ByUs),
        1 => (-1..=1_i64).prop_map(Time::Retry),
        1 => (10_000_000..10_000_002_u64).prop_map(Time::BackUs),
    ];
    let price = prop_oneof![
        12 => (1..3_u64).prop_map(Price::Units),
        1 => (0..=1_i64).prop_map(Price::Remaining),
    ];
    let batch = (time, steps(price.boxed(), act().boxed(), 1..64));
    let batch = batch.prop_map(|(time, steps)| Batch { time, steps });
    prop::collection::vec(batch, 1..40)
}

/// Returns the steps of a batch. Two batches of three have only plain checks.
fn steps(
    price: BoxedStrategy<Price>,
    act: BoxedStrategy<Act>,
    count: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<Step>> {
    let step = |act: BoxedStrategy<Act>| {
        let step = (any::<usize>(), act, price.clone(), prop::bool::weighted(0.05));
        let step =
            step.prop_map(|(key, act, price, is_changing)| Step { key, act, price, is_changing });
        prop::collection::vec(step, count.clone())
    };
    prop_oneof![2 => step(Just(Act::Check).boxed()), 1 => step(act)]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Check),
        2 => off_us().prop_map(Act::CheckAtUs),
        1 => prop_oneof![0..50_u64, 0..=u64::MAX].prop_map(Act::CheckWithinUs),
        1 => Just(Act::Peek),
        1 => prop::option::of(off_us()).prop_map(Act::Look),
        2 => any::<usize>().prop_map(Act::Refund),
        1 => (any::<usize>(), off_us()).prop_map(|(which, off_us)| Act::RefundAtUs(which, off_us)),
        1 => Just(Act::Reset),
    ]
}

/// How far a caller's clock is from the server's.
fn off_us() -> impl Strategy<Value = i64> {
    const HOUR_US: i64 = 3_600_000_000;
    prop_oneof![-50..50_i64, -11_000_000..11_000_000_i64, -2 * HOUR_US..2 * HOUR_US]
}

/// When a trace begins: today, at the epoch, or near the end of time.
pub(super) fn start_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(1_700_000_000_000_000_u64),
        1 => 0..100_u64,
        2 => (0..53_u32, 0..=MAX_TIME_US)
            .prop_map(|(bits, us)| MAX_TIME_US - (us & ((1 << bits) - 1))),
    ]
}
