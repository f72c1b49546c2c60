//! P7: several limits of one check whose keys are on different servers.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Check, JointDecision, Limiter, Scope};
use tollgate_launcher::{Cluster, Flavour, Launch, Server};

use crate::polling::{Random, ids_on, remaining, until_remaining};
use crate::setup::{LIMITS, at, named};
use crate::shards;

/// Three servers that share the keys.
pub(crate) enum Deployment {
    Shards(Vec<Server>),
    Cluster(Box<Cluster>),
}

impl Deployment {
    pub(crate) fn all(flavour: Flavour) -> [Deployment; 2] {
        let shards = shards::start(&Launch::new(flavour), 3);
        [
            Deployment::Shards(shards),
            Deployment::Cluster(Box::new(Cluster::start(flavour, 3, 0).unwrap())),
        ]
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Deployment::Shards(servers) => shards::url("", servers),
            Deployment::Cluster(cluster) => cluster.url(),
        }
    }

    pub(crate) fn servers(&self) -> &[Server] {
        match self {
            Deployment::Shards(servers) => servers,
            Deployment::Cluster(cluster) => cluster.servers(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_check_charges_all_limits_or_none() {
    for deployment in Deployment::all(Flavour::Redis) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
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
                    // When the answer comes, the charges on the other servers are refunded.
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
async fn each_receipt_refunds_its_own_limit() {
    for deployment in Deployment::all(Flavour::Valkey) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            // A shaping limit does not refund the first charge, because it leaves at once.
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

/// A charge to a shaping limit often cannot be refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shaping_limit_is_charged_after_all_others_admit() {
    for deployment in Deployment::all(Flavour::Redis) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
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

/// So the shaping limit, which often cannot be refunded, is not charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_refuses_before_anything_is_charged() {
    for deployment in Deployment::all(Flavour::Redis) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
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

/// Both when all limits admit, and when the charges are refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_is_neither_charged_nor_refunded() {
    for deployment in Deployment::all(Flavour::Valkey) {
        let limiter = at(&deployment.url());
        let ids = ids_on(&limiter, deployment.servers()).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let seen = named(&limiter, &format!("seen {text}"), text);
            assert!(seen.check(&ids[0]).cost(40).await.unwrap().is_allowed(), "{text}");
            // A peek on a server where another scope is charged, one on a server without charges, and one of a
            // scope and key that is also charged.
            let several = |cost| {
                let peeks = [seen.peek(&ids[0]).cost(60), seen.peek(&ids[1]), scope.peek(&ids[2])];
                let charges = [scope.check(&ids[0]).cost(2), scope.check(&ids[2]).cost(cost)];
                peeks.into_iter().chain(charges).collect::<Vec<_>>()
            };
            let left = vec![60, 100, 97, 98, 97];
            for cost in [3, 98] {
                let answer = limiter.check_all(&several(cost)).await.unwrap();
                let each: Vec<u64> = answer.each().iter().map(|each| each.remaining()).collect();
                assert_eq!((answer.is_allowed(), &each), (cost == 3, &left), "{text}");
                let receipts = answer.into_each().into_iter().map(|each| each.into_receipt());
                let has_receipt: Vec<bool> = receipts.map(|receipt| receipt.is_some()).collect();
                assert_eq!(has_receipt, [false, false, false, cost == 3, cost == 3], "{text}");
                assert_eq!(remaining(&seen, &ids[0]).await, 60, "{text}");
                assert_eq!(remaining(&seen, &ids[1]).await, 100, "{text}");
            }
        }
    }
}

/// Limits that are often spent, and refill while the clock advances.
const BUSY: [&str; 6] = [
    "fixed-window limit=20 window=10s",
    "sliding-window-log limit=20 window=10s",
    "sliding-window-counter limit=20 window=10s",
    "token-bucket capacity=20 refill=3/s",
    "leaky-bucket capacity=20 leak=3/s mode=policing",
    "leaky-bucket capacity=20 leak=3/s mode=shaping",
];

/// One part of a check that is made on two stores.
struct Part {
    scope: usize,
    id: usize,
    cost: u64,
    max_wait_ms: Option<u64>,
    is_shadow: bool,
    is_peek: bool,
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
            is_peek: random.one_in(5),
        }
    }

    fn check<'a>(&self, scopes: &'a [Scope], ids: &'a [String], at_us: u64) -> Check<'a> {
        let (scope, id) = (&scopes[self.scope], &ids[self.id]);
        let check = if self.is_peek { scope.peek(id) } else { scope.check(id) };
        let mut check = check.cost(self.cost).at_us(at_us);
        if let Some(wait_ms) = self.max_wait_ms {
            check = check.max_wait(Duration::from_millis(wait_ms));
        }
        if self.is_shadow { check.shadow() } else { check }
    }
}

/// Every field of an answer.
fn fields(answer: &JointDecision) -> impl PartialEq + std::fmt::Debug {
    let each: Vec<_> = answer.each().iter().map(|each| *each.decided()).collect();
    let tightest = [answer.limit(), answer.remaining(), answer.requests_remaining()];
    let facts = (answer.verdict(), answer.refused_by(), tightest, answer.reset_after());
    (facts, answer.is_degraded(), each)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_decisions_equal_the_memory_stores() {
    for deployment in Deployment::all(Flavour::Valkey) {
        let (limiter, memory) = (at(&deployment.url()), Limiter::memory());
        let scopes = [&limiter, &memory].map(|on| BUSY.map(|text| named(on, text, text)));
        let ids: Vec<String> = (0..8).map(|id| format!("id-{id}")).collect();
        let (mut random, mut at_us) = (Random(0x70_11_6A_7E), 1_800_000_000_000_000);
        let (mut allowed, mut refused) = (0, 0);
        for round in 0..600 {
            at_us += random.below(300_000);
            // A single request, or a batch, which is decided in order.
            let requests: Vec<Vec<Part>> = (0..1 + random.below(4))
                .map(|_| (0..1 + random.below(4)).map(|_| Part::any(&mut random)).collect())
                .collect();
            let checks_on = scopes.each_ref().map(|scopes| {
                let checks = |parts: &Vec<Part>| -> Vec<Check<'_>> {
                    parts.iter().map(|part| part.check(scopes, &ids, at_us)).collect()
                };
                requests.iter().map(checks).collect::<Vec<_>>()
            });
            let wanted = checks_on[1].iter().map(|checks| memory.check_all_now(checks).unwrap());
            let wanted: Vec<JointDecision> = wanted.collect();
            let answers: Vec<JointDecision> = match &checks_on[0][..] {
                [checks] => vec![limiter.check_all(checks).await.unwrap()],
                many => {
                    let many: Vec<&[Check<'_>]> = many.iter().map(Vec::as_slice).collect();
                    let answers = limiter.batch(&many).await.unwrap();
                    answers.into_iter().map(Result::unwrap).collect()
                }
            };
            assert_eq!(answers.len(), wanted.len());
            for (at, (answer, wanted)) in answers.iter().zip(&wanted).enumerate() {
                assert_eq!(fields(answer), fields(wanted), "round {round}, {:?}", checks_on[0][at]);
                *if wanted.is_allowed() { &mut allowed } else { &mut refused } += 1;
            }
        }
        assert!(allowed > 300 && refused > 300, "{allowed} allowed, {refused} refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_joint_checks_keep_every_limit_and_refund_refused_ones() {
    for deployment in Deployment::all(Flavour::Redis) {
        let limiter = at(&deployment.url());
        let ids = Arc::new(ids_on(&limiter, deployment.servers()).await);
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
                            // Two or three limits, beginning with any.
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
                    // A refund to a bucket gives less if more was charged since than the bucket holds.
                    true => assert!(remaining(scope, id).await <= size - spent, "{text}"),
                }
            }
            assert!(spent[0] > 0, "{text}");
        }
    }
}
