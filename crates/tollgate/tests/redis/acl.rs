//! The minimal rights of a user on the server.

use redis::Connection;
use tollgate::{Error, Limiter, Scope};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::setup::{LIMITS, PATIENCE, admin, builder, keys, launch, named, refusal};

/// The rights that Tollgate needs: its own keys, the commands that run a script, and the commands that the
/// script runs. `~` is followed by the limiter's prefix. A database other than 0 also needs `+select`.
///
/// The documentation quotes this line.
const RULES: &str = "~tollgate:* resetchannels -@all +evalsha +eval +time +get +set +getrange \
                     +setrange +strlen +expire +del";

const COMMANDS: [&str; 10] =
    ["evalsha", "eval", "time", "get", "set", "getrange", "setrange", "strlen", "expire", "del"];

#[test]
fn documentation_quotes_the_acl_rules() {
    let user = format!("user tollgate on >PASSWORD {RULES}\n");
    assert!(include_str!("../../../../docs/operate/redis.md").contains(&user));
    assert!(include_str!("../../../../docs/guide/library.md").contains(RULES));
}

fn start_with(flavour: Flavour, rules: &str) -> Server {
    let user = format!("tollgate on >secret {rules}");
    launch(&Launch::new(flavour).config("user", &user))
}

fn open_as(server: &Server, prefix: &str, database: u8) -> Limiter {
    let url = format!("redis://tollgate:secret@{}/{database}", server.addr());
    let builder = builder(&url).prefix(prefix).unwrap();
    builder.deadline(PATIENCE).build().unwrap()
}

/// Makes every operation under every algorithm, and on short and long logs.
async fn run_every_operation(limiter: &Limiter) -> Result<(), Error> {
    for text in LIMITS {
        let scope = named(limiter, text, text);
        let receipt = scope.check("a").cost(5).await?.into_receipt().unwrap();
        scope.peek("a").await?;
        scope.check("a").cost(1_000).await?;
        scope.refund("a", receipt).await?;
        scope.entries("a").await?;
        let several = ["a", "b", "c"].map(|key| scope.check(key));
        limiter.check_all(&several).await?;
        for answer in limiter.batch(&[&several[..1], &several[1..]]).await? {
            answer?;
        }
        assert!(scope.acquire("d").await?.is_admitted());
        scope.reset("a").await?;
        // On a clock that has stepped back by a day.
        let later_us = 1_000_000_020_000_000;
        scope.check("e").at_us(later_us).await?;
        scope.check("e").at_us(later_us - 86_400_000_000).await?;
    }
    use_logs(&named(limiter, "logs", "sliding-window-log limit=1000 window=366d")).await
}

async fn use_logs(scope: &Scope) -> Result<(), Error> {
    for entries in [1, 16, 17, 40, 300] {
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
        scope.entries(&key).await?;
        let middle = receipts.len() / 2;
        for receipt in receipts.drain(middle..).take(2) {
            scope.refund(&key, receipt).await?;
        }
        scope.reset(&key).await?;
    }
    Ok(())
}

/// The entries of `ACL LOG`: what the server refused to users.
fn denied(admin: &mut Connection) -> Vec<String> {
    let log: redis::Value = redis::cmd("ACL").arg("LOG").query(admin).unwrap();
    match log {
        redis::Value::Array(entries) => entries.iter().map(|entry| format!("{entry:?}")).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_operation_works_with_the_minimal_rights() {
    for flavour in Flavour::ALL {
        let server = start_with(flavour, RULES);
        let mut admin = admin(&server);
        redis::cmd("SET").arg("foreign").arg("value").exec(&mut admin).unwrap();
        run_every_operation(&open_as(&server, "tollgate:", 0)).await.unwrap();
        // `CLIENT SETINFO`, which names the client library, may be refused.
        let refused: Vec<String> = denied(&mut admin)
            .into_iter()
            .filter(|entry| !entry.contains("client|setinfo"))
            .collect();
        assert_eq!(refused, [""; 0], "{flavour}");
        let ours = |key: &Vec<u8>| key.starts_with(b"tollgate:");
        let foreign: Vec<_> = keys(&mut admin).into_iter().filter(|key| !ours(key)).collect();
        assert_eq!(foreign, [b"foreign"]);
    }
}

#[tokio::test]
async fn database_other_than_0_also_needs_the_select_right() {
    for flavour in Flavour::ALL {
        let server = start_with(flavour, RULES);
        let scope = named(&open_as(&server, "tollgate:", 3), "scope", LIMITS[0]);
        let problem = refusal(scope.check("a").await);
        assert!(problem.contains("permission"), "{problem}");
        let server = start_with(flavour, &format!("{RULES} +select"));
        run_every_operation(&open_as(&server, "tollgate:", 3)).await.unwrap();
        let mut admin = admin(&server);
        assert_eq!(keys(&mut admin), [b""; 0]);
    }
}

#[tokio::test]
async fn forbidden_keys_are_an_error_and_not_a_denial() {
    for flavour in Flavour::ALL {
        let server = start_with(flavour, RULES);
        for text in LIMITS {
            let limiter = open_as(&server, "other:", 0);
            let scope = named(&limiter, text, text);
            for answer in [scope.check("a").await, scope.peek("a").await] {
                let problem = refusal(answer);
                assert!(problem.contains("NOPERM"), "{flavour}, {text}: {problem}");
            }
            let problem = refusal(scope.reset("a").await);
            assert!(problem.contains("NOPERM"), "{flavour}, {text}: {problem}");
        }
    }
}

#[tokio::test]
async fn every_right_of_the_minimal_user_is_needed() {
    let listed: Vec<&str> = RULES.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
    assert_eq!(listed, COMMANDS);
    for flavour in Flavour::ALL {
        for dropped in COMMANDS {
            let rules = format!("{RULES} -{dropped}");
            let server = start_with(flavour, &rules);
            let outcome = run_every_operation(&open_as(&server, "tollgate:", 0)).await;
            let problem = refusal(outcome);
            let is_named =
                problem.contains("ermission") || problem.contains("can't run this command");
            assert!(is_named, "{flavour}, without {dropped}: {problem}");
        }
    }
}
