//! The minimal rights of a user on a cluster.

use redis::cmd;
use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::{Cluster, Flavour, Launch};

use super::load::until;
use super::slots::{ids_of, slot_of};
use crate::setup::{LIMITS, builder, named};

/// The rights that Tollgate needs on every node of a cluster: the rights for one server, `CLUSTER SLOTS`, and
/// `ASKING`, which it sends before a request for a key in a slot that is being moved.
///
/// The documentation quotes this line.
const RULES: &str = "~tollgate:* resetchannels -@all +evalsha +eval +time +get +set +getrange \
                     +setrange +strlen +expire +del +cluster|slots +asking";

/// The commands, except `cluster|slots`, which has its own test.
const COMMANDS: [&str; 11] = [
    "evalsha", "eval", "time", "get", "set", "getrange", "setrange", "strlen", "expire", "del",
    "asking",
];

#[test]
fn documentation_quotes_the_acl_rules() {
    let user = format!("user tollgate on >PASSWORD {RULES}\n");
    assert!(include_str!("../../../../../docs/operate/redis.md").contains(&user));
}

fn start(flavour: Flavour) -> Cluster {
    let user = format!("tollgate on >secret {RULES}");
    Launch::new(flavour).config("user", &user).cluster().start().unwrap()
}

fn set_user(cluster: &Cluster, rule: &str) {
    for server in cluster.servers() {
        server.ask::<()>(cmd("ACL").arg("SETUSER").arg("tollgate").arg(rule)).unwrap();
    }
}

/// Opens a limiter as that user, with one seed.
fn open(cluster: &Cluster) -> Limiter {
    let url = format!("redis+cluster://tollgate:secret@{}", cluster.servers()[0].addr());
    builder(&url).build().unwrap()
}

/// Makes every operation under every algorithm, on keys on every node and in a slot that is being moved.
async fn run_every_operation(cluster: &Cluster, limiter: &Limiter) -> Result<(), Error> {
    let ids: Vec<String> =
        cluster.nodes().into_iter().flat_map(|node| ids_of(cluster, node, 2)).collect();
    for text in LIMITS {
        let scope = named(limiter, text, text);
        for id in &ids {
            use_id(&scope, id).await?;
        }
        use_several(limiter, &scope, &ids).await?;
        // On a clock that has stepped back by a day.
        let later_us = 1_000_000_020_000_000;
        scope.check("e").at_us(later_us).await?;
        scope.check("e").at_us(later_us - 86_400_000_000).await?;
        scope.reset("e").await?;
    }
    let logs = named(limiter, "logs", "sliding-window-log limit=1000 window=366d");
    for entries in [17, 40, 300] {
        use_log(&logs, entries).await?;
    }
    use_moving(cluster, limiter).await
}

async fn use_id(scope: &Scope, id: &str) -> Result<(), Error> {
    let decision = scope.check(id).cost(5).await?;
    assert_eq!(decision.remaining(), 95);
    let receipt = decision.into_receipt().unwrap();
    assert_eq!(scope.peek(id).await?.remaining(), 95);
    assert!(!scope.check(id).cost(1_000).await?.is_allowed());
    let is_log = scope.name().contains("log");
    assert_eq!(scope.entries(id).await?.len(), usize::from(is_log));
    let back = scope.refund(id, receipt).await?;
    assert_eq!(scope.peek(id).await?.remaining(), 95 + back, "{}", scope.name());
    // A shaping limit does not refund the first charge, because it leaves at once.
    let is_shaped = scope.name().contains("shaping");
    assert_eq!(back, if is_shaped { 0 } else { 5 }, "{}", scope.name());
    scope.reset(id).await?;
    assert!(scope.acquire(id).await?.is_admitted());
    scope.reset(id).await?;
    assert_eq!(scope.peek(id).await?.remaining(), 100);
    Ok(())
}

/// Makes checks of several limits of one id, of several ids, and a batch of 300 requests of both kinds.
async fn use_several(limiter: &Limiter, scope: &Scope, ids: &[String]) -> Result<(), Error> {
    let other = named(limiter, "other", "fixed-window limit=100 window=366d");
    let several: Vec<_> = ids.iter().map(|id| scope.check(id)).collect();
    assert!(limiter.check_all(&several).await?.is_allowed());
    let of_one = [scope.check(&ids[0]), other.check(&ids[0])];
    assert!(limiter.check_all(&of_one).await?.is_allowed());
    // Refused by the last, so the other charges are refunded.
    let refused: Vec<_> = ids
        .iter()
        .zip([1, 1, 1, 1, 1, 1_000])
        .map(|(id, cost)| scope.check(id).cost(cost))
        .collect();
    assert!(!limiter.check_all(&refused).await?.is_allowed());
    let requests: Vec<&[_]> =
        [&several[..1], &of_one[..], &several[4..]].into_iter().cycle().take(30).collect();
    let singles: Vec<String> = (0..270).map(|number| format!("single-{number}")).collect();
    let checks: Vec<_> = singles.iter().map(|id| [other.check(id)]).collect();
    let singles = checks.iter().map(|check| &check[..]);
    for answer in limiter.batch(&requests.into_iter().chain(singles).collect::<Vec<_>>()).await? {
        assert!(answer?.is_allowed());
    }
    assert_eq!(scope.peek(&ids[0]).await?.remaining(), 100 - 1 - 1 - 20);
    assert_eq!(scope.peek(&ids[4]).await?.remaining(), 100 - 1 - 10);
    for id in ids {
        scope.reset(id).await?;
        other.reset(id).await?;
    }
    Ok(())
}

async fn use_log(scope: &Scope, entries: usize) -> Result<(), Error> {
    let key = format!("of-{entries}");
    let answers: Vec<_> = (0..entries).map(|_| scope.check(&key).into_future()).collect();
    let mut receipts = Vec::new();
    for answer in answers {
        receipts.extend(answer.await?.into_receipt());
    }
    for _ in 0..3 {
        receipts.extend(scope.check(&key).await?.into_receipt());
    }
    scope.peek(&key).cost(900).await?;
    assert_eq!(scope.entries(&key).await?.len(), entries + 3);
    let middle = receipts.len() / 2;
    for receipt in receipts.drain(middle..).take(2) {
        scope.refund(&key, receipt).await?;
    }
    scope.reset(&key).await
}

/// Makes a check of a new key in a slot that is being moved.
async fn use_moving(cluster: &Cluster, limiter: &Limiter) -> Result<(), Error> {
    let [from, to, ..] = cluster.nodes()[..] else { panic!() };
    let id = ids_of(cluster, from, 1).remove(0);
    let slot = slot_of(&id);
    cluster.begin_migration(slot, to).unwrap();
    let scope = named(limiter, "moving", LIMITS[0]);
    let answer = scope.check(&id).await;
    let is_there: u32 = cluster[to].ask(cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(slot)).unwrap();
    let gone = scope.reset(&id).await;
    for node in [from, to] {
        let mut stable = cmd("CLUSTER");
        cluster[node].ask::<()>(stable.arg("SETSLOT").arg(slot).arg("STABLE")).unwrap();
    }
    assert!(answer?.is_allowed());
    assert_eq!(is_there, 1);
    gone
}

/// The entries of `ACL LOG` on all nodes: what was refused to the user.
fn denied(cluster: &Cluster) -> Vec<String> {
    let log = |server: &tollgate_launcher::Server| -> Vec<redis::Value> {
        server.ask(cmd("ACL").arg("LOG")).unwrap()
    };
    cluster.servers().iter().flat_map(log).map(|entry| format!("{entry:?}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_on_a_cluster_with_the_minimal_rights() {
    for flavour in Flavour::ALL {
        let cluster = start(flavour);
        run_every_operation(&cluster, &open(&cluster)).await.unwrap();
        // `CLIENT SETINFO`, which names the client library, may be refused.
        let refused: Vec<String> = denied(&cluster)
            .into_iter()
            .filter(|entry| !entry.contains("client|setinfo"))
            .collect();
        assert_eq!(refused, [""; 0], "{flavour}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_right_of_the_minimal_user_of_a_cluster_is_needed() {
    let listed: Vec<&str> = RULES.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
    assert_eq!(listed.len(), COMMANDS.len() + 1);
    for flavour in Flavour::ALL {
        let cluster = start(flavour);
        for dropped in COMMANDS {
            assert!(listed.contains(&dropped));
            set_user(&cluster, &format!("-{dropped}"));
            let problem = match run_every_operation(&cluster, &open(&cluster)).await {
                Err(Error::Store(StoreError::Refused { problem })) => problem,
                other => panic!("{flavour}, without {dropped}: {other:?}"),
            };
            let is_named =
                problem.contains("ermission") || problem.contains("can't run this command");
            assert!(is_named, "{flavour}, without {dropped}: {problem}");
            set_user(&cluster, &format!("+{dropped}"));
            for server in cluster.servers() {
                server.ask::<()>(&cmd("FLUSHALL")).unwrap();
            }
        }
    }
}

/// Without `CLUSTER SLOTS` a limiter learns of other servers only by redirects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiter_without_the_slots_right_knows_no_other_servers() {
    for flavour in Flavour::ALL {
        let cluster = start(flavour);
        let own = ids_of(&cluster, cluster.nodes()[0], 1).remove(0);
        set_user(&cluster, "-cluster|slots");
        let limiter = open(&cluster);
        assert!(named(&limiter, "scope", LIMITS[0]).check(&own).await.unwrap().is_allowed());
        until("the query was refused", || {
            denied(&cluster).iter().any(|entry| entry.contains("cluster|slots"))
        })
        .await;
        assert_eq!(limiter.health().unwrap().servers.len(), 1, "{flavour}");

        set_user(&cluster, "+cluster|slots");
        let limiter = open(&cluster);
        assert!(named(&limiter, "scope", LIMITS[0]).check(&own).await.unwrap().is_allowed());
        until("all servers are known", || limiter.health().unwrap().servers.len() == 3).await;
    }
}
