//! Several limits of one check, on servers that share no script: P7.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Check, JointDecision, Limiter, Scope};
use tollgate_launcher::{Cluster, Flavour, Launch, Server};

use crate::asking::{Random, ids_on, remaining, until_remaining};
use crate::setup::{LIMITS, at, named};
use crate::shards;

/// Three servers.
pub(crate) enum Places {
    Shards(Vec<Server>),
    Cluster(Box<Cluster>),
}

impl Places {
    fn all(flavour: Flavour) -> [Places; 2] {
        let shards = shards::start(&Launch::new(flavour), 3);
        [Places::Shards(shards), Places::Cluster(Box::new(Cluster::start(flavour, 3, 0).unwrap()))]
    }

    fn url(&self) -> String {
        match self {
            Places::Shards(servers) => shards::url("", servers),
            Places::Cluster(cluster) => cluster.url(),
        }
    }

    fn servers(&self) -> &[Server] {
        match self {
            Places::Shards(servers) => servers,
            Places::Cluster(cluster) => cluster.servers(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_check_charges_all_limits_or_none() {
    for places in Places::all(Flavour::Redis) {
        let limiter = at(&places.url());
        let ids = ids_on(&limiter, places.servers()).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let several = || ids.iter().map(|id| scope.check(id).cost(10)).collect::<Vec<_>>();
            let allowed = limiter.check_all(&several()).await.unwrap();
            assert!(allowed.is_allowed() && !allowed.is_degraded(), "{text}: {allowed:?}");
            assert_eq!(allowed.requests_remaining(), Some(9));
            for id in &ids {
                assert_eq!(remaining(&scope, id).await, 90, "{text}");
            }
            for (full, id) in ids.iter().enumerate() {
                let filled = scope.check(id).cost(85).await.unwrap().into_receipt().unwrap();
                let refused = limiter.check_all(&several()).await.unwrap();
                assert!(!refused.is_allowed() && !refused.is_degraded(), "{text}: {refused:?}");
                assert_eq!(
                    (refused.refused_by(), refused.requests_remaining()),
                    (Some(full), Some(0))
                );
                for (at, (each, id)) in refused.into_each().into_iter().zip(&ids).enumerate() {
                    // What was taken is back by the time of the answer.
                    let left = if at == full { 5 } else { 90 };
                    assert_eq!(remaining(&scope, id).await, left, "{text}, {at} of {full}");
                    assert_eq!(each.is_allowed(), at != full, "{text}, {at} of {full}");
                    assert!(each.into_receipt().is_none(), "{text}, {at} of {full}");
                }
                assert_eq!(scope.refund(id, filled).await.unwrap(), 85);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_receipt_gives_its_own_limit_back() {
    for places in Places::all(Flavour::Valkey) {
        let limiter = at(&places.url());
        let ids = ids_on(&limiter, places.servers()).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            // At the front of a queue, a place cannot be given back: it goes at once.
            for id in &ids {
                assert!(scope.check(id).cost(10).await.unwrap().is_allowed());
            }
            let several: Vec<_> =
                ids.iter().zip(1..).map(|(id, n)| scope.check(id).cost(n)).collect();
            let allowed = limiter.check_all(&several).await.unwrap();
            for ((each, id), cost) in allowed.into_each().into_iter().zip(&ids).zip(1..) {
                let receipt = each.into_receipt().unwrap();
                assert_eq!(remaining(&scope, id).await, 90 - cost, "{text}");
                assert_eq!(scope.refund(id, receipt).await.unwrap(), cost, "{text}");
                assert_eq!(remaining(&scope, id).await, 90, "{text}");
            }
        }
    }
}

/// It could not be given back: it would go at once, or somebody might be behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shaping_limit_is_charged_after_all_others_admit() {
    for places in Places::all(Flavour::Redis) {
        let limiter = at(&places.url());
        let ids = ids_on(&limiter, places.servers()).await;
        let (full, queue) =
            (named(&limiter, "full", LIMITS[0]), named(&limiter, "queue", LIMITS[5]));
        for id in &ids[1..] {
            assert!(full.check(id).cost(100).await.unwrap().is_allowed());
            let several = [queue.check(&ids[0]), full.check(id)];
            let refused = limiter.check_all(&several).await.unwrap();
            assert_eq!((refused.refused_by(), refused.requests_remaining()), (Some(1), Some(0)));
            assert_eq!(remaining(&queue, &ids[0]).await, 100);
        }
    }
}

/// So nothing has to be given back, which of a queue nothing can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_refuses_before_anything_is_charged() {
    for places in Places::all(Flavour::Redis) {
        let limiter = at(&places.url());
        let ids = ids_on(&limiter, places.servers()).await;
        let (full, queue) =
            (named(&limiter, "full", LIMITS[5]), named(&limiter, "queue", LIMITS[5]));
        for id in &ids[1..] {
            assert!(full.check(id).cost(100).await.unwrap().is_allowed());
            let refused = limiter.check_all(&[queue.check(&ids[0]), full.peek(id)]).await.unwrap();
            assert_eq!((refused.refused_by(), refused.requests_remaining()), (Some(1), Some(0)));
            assert_eq!(remaining(&queue, &ids[0]).await, 100);
        }
    }
}

/// Neither when all admit, nor when what was charged is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_is_neither_charged_nor_refunded() {
    for places in Places::all(Flavour::Valkey) {
        let limiter = at(&places.url());
        let ids = ids_on(&limiter, places.servers()).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let seen = named(&limiter, &format!("seen {text}"), text);
            assert!(seen.check(&ids[0]).cost(40).await.unwrap().is_allowed(), "{text}");
            // One is looked at where another is charged, one in a place of its own, one that is charged.
            let several = |cost| {
                let looks = [seen.peek(&ids[0]).cost(60), seen.peek(&ids[1]), scope.peek(&ids[2])];
                let charges = [scope.check(&ids[0]).cost(2), scope.check(&ids[2]).cost(cost)];
                looks.into_iter().chain(charges).collect::<Vec<_>>()
            };
            let left = vec![60, 100, 97, 98, 97];
            for cost in [3, 98] {
                let told = limiter.check_all(&several(cost)).await.unwrap();
                let each: Vec<u64> = told.each().iter().map(|each| each.remaining()).collect();
                assert_eq!((told.is_allowed(), &each), (cost == 3, &left), "{text}");
                let receipts = told.into_each().into_iter().map(|each| each.into_receipt());
                let has_receipt: Vec<bool> = receipts.map(|receipt| receipt.is_some()).collect();
                assert_eq!(has_receipt, [false, false, false, cost == 3, cost == 3], "{text}");
                assert_eq!(remaining(&seen, &ids[0]).await, 60, "{text}");
                assert_eq!(remaining(&seen, &ids[1]).await, 100, "{text}");
            }
        }
    }
}

/// Limits that are reached again and again, and come back while time goes on.
const BUSY: [&str; 6] = [
    "fixed-window limit=20 window=10s",
    "sliding-window-log limit=20 window=10s",
    "sliding-window-counter limit=20 window=10s",
    "token-bucket capacity=20 refill=3/s",
    "leaky-bucket capacity=20 leak=3/s mode=policing",
    "leaky-bucket capacity=20 leak=3/s mode=shaping",
];

/// One part of a check that is asked of two stores.
struct Part {
    scope: usize,
    id: usize,
    cost: u64,
    max_wait_ms: Option<u64>,
    is_shadow: bool,
    is_look: bool,
}

impl Part {
    fn any(random: &mut Random) -> Part {
        let cost = if random.one_in(30) { 21 } else { 1 + random.below(7) };
        Part {
            scope: random.below(6) as usize,
            id: random.below(8) as usize,
            cost,
            max_wait_ms: random.one_in(4).then(|| random.below(5_000)),
            is_shadow: random.one_in(5),
            is_look: random.one_in(5),
        }
    }

    fn check<'a>(&self, scopes: &'a [Scope], ids: &'a [String], at_us: u64) -> Check<'a> {
        let (scope, id) = (&scopes[self.scope], &ids[self.id]);
        let check = if self.is_look { scope.peek(id) } else { scope.check(id) };
        let mut check = check.cost(self.cost).at_us(at_us);
        if let Some(wait_ms) = self.max_wait_ms {
            check = check.max_wait(Duration::from_millis(wait_ms));
        }
        if self.is_shadow { check.shadow() } else { check }
    }
}

/// All that an answer says.
fn said(answer: &JointDecision) -> impl PartialEq + std::fmt::Debug {
    let each: Vec<_> = answer.each().iter().map(|each| *each.decided()).collect();
    let tightest = [answer.limit(), answer.remaining(), answer.requests_remaining()];
    let facts = (answer.verdict(), answer.refused_by(), tightest, answer.reset_after());
    (facts, answer.is_degraded(), each)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_equal_those_of_the_memory_store() {
    for places in Places::all(Flavour::Valkey) {
        let (limiter, memory) = (at(&places.url()), Limiter::memory());
        let scopes = [&limiter, &memory].map(|on| BUSY.map(|text| named(on, text, text)));
        let ids: Vec<String> = (0..8).map(|id| format!("id-{id}")).collect();
        let (mut random, mut at_us) = (Random(0x70_11_6A_7E), 1_800_000_000_000_000);
        let (mut allowed, mut refused) = (0, 0);
        for round in 0..600 {
            at_us += random.below(300_000);
            // One after the other, or several in their order.
            let requests: Vec<Vec<Part>> = (0..1 + random.below(4))
                .map(|_| (0..1 + random.below(4)).map(|_| Part::any(&mut random)).collect())
                .collect();
            let asked = scopes.each_ref().map(|scopes| {
                let checks = |parts: &Vec<Part>| -> Vec<Check<'_>> {
                    parts.iter().map(|part| part.check(scopes, &ids, at_us)).collect()
                };
                requests.iter().map(checks).collect::<Vec<_>>()
            });
            let wanted = asked[1].iter().map(|checks| memory.check_all_now(checks).unwrap());
            let wanted: Vec<JointDecision> = wanted.collect();
            let answers: Vec<JointDecision> = match &asked[0][..] {
                [checks] => vec![limiter.check_all(checks).await.unwrap()],
                many => {
                    let many: Vec<&[Check<'_>]> = many.iter().map(Vec::as_slice).collect();
                    let answers = limiter.batch(&many).await.unwrap();
                    answers.into_iter().map(Result::unwrap).collect()
                }
            };
            assert_eq!(answers.len(), wanted.len());
            for (at, (answer, wanted)) in answers.iter().zip(&wanted).enumerate() {
                assert_eq!(said(answer), said(wanted), "round {round}, {:?}", asked[0][at]);
                *if wanted.is_allowed() { &mut allowed } else { &mut refused } += 1;
            }
        }
        assert!(allowed > 300 && refused > 300, "{allowed} allowed, {refused} refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_joint_checks_keep_every_limit_and_refund_refused_ones() {
    for places in Places::all(Flavour::Redis) {
        let limiter = at(&places.url());
        let ids = Arc::new(ids_on(&limiter, places.servers()).await);
        let sizes = [100, 130, 160];
        for text in LIMITS {
            let scopes = sizes.map(|size| {
                let text = text.replace("=100 ", &format!("={size} "));
                named(&limiter, &text, &text)
            });
            let tasks: Vec<_> = (0..64_u64)
                .map(|task| {
                    let (limiter, scopes, ids) =
                        (limiter.clone(), scopes.clone(), Arc::clone(&ids));
                    tokio::spawn(async move {
                        let mut random = Random(task + 1);
                        let mut spent = [0; 3];
                        for _ in 0..6 {
                            // Two or three of them, beginning anywhere.
                            let (first, count) = (random.below(3), 2 + random.below(2));
                            let of: Vec<usize> =
                                (first..first + count).map(|at| (at % 3) as usize).collect();
                            let checks: Vec<_> =
                                of.iter().map(|&at| scopes[at].check(&ids[at])).collect();
                            if limiter.check_all(&checks).await.unwrap().is_allowed() {
                                of.iter().for_each(|&at| spent[at] += 1);
                            }
                        }
                        spent
                    })
                })
                .collect();
            let mut spent = [0; 3];
            for task in tasks {
                let of_one = task.await.unwrap();
                spent.iter_mut().zip(of_one).for_each(|(all, one)| *all += one);
            }
            for ((scope, id), (size, spent)) in
                scopes.iter().zip(&*ids).zip(sizes.into_iter().zip(spent))
            {
                assert!(spent <= size, "{text}: {spent} of {size}");
                match text.contains("bucket") {
                    false => until_remaining(scope, id, size - spent).await,
                    // A refund that comes so late that more was charged since than the bucket holds
                    // finds nothing of its own in it any more.
                    true => assert!(remaining(scope, id).await <= size - spent, "{text}"),
                }
            }
            assert!(spent[0] > 0, "{text}");
        }
    }
}
