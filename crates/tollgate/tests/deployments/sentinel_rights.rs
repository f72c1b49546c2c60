//! The least that the users on a primary and on its sentinels must be allowed.

use redis::cmd;
use tollgate::{Error, Limiter};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::asking::store_error;
use crate::setup::{LIMITS, at, named};
use crate::watched::NAME;

/// What Tollgate needs of its user on the primary: what it needs of any server, and `+role`. The
/// others are tested where there is one server only.
const RULES: &str = "~tollgate:* resetchannels -@all +evalsha +eval +time +get +set +getrange \
                     +setrange +strlen +expire +del +role";

/// What it needs of its user on the sentinels.
const SENTINEL_RULES: &str = "resetchannels -@all +sentinel|master";

#[test]
fn the_documentation_has_these_rules() {
    for rules in [RULES, SENTINEL_RULES] {
        let user = format!("user tollgate on >PASSWORD {rules}\n");
        assert!(include_str!("../../../../docs/operate/redis.md").contains(&user), "{user}");
    }
}

/// Of the user `tollgate`, from now on.
fn allow(server: &Server, password: &str, rules: &str) {
    let mut allow = cmd("ACL");
    allow.arg("SETUSER").arg("tollgate").arg("reset").arg("on").arg(format!(">{password}"));
    rules.split_whitespace().for_each(|rule| {
        allow.arg(rule);
    });
    server.ask::<()>(&allow).unwrap();
}

async fn use_all(limiter: &Limiter) -> Result<(), Error> {
    for text in LIMITS {
        let scope = named(limiter, text, text);
        let receipt = scope.check("a").cost(5).await?.into_receipt().unwrap();
        scope.peek("a").await?;
        scope.refund("a", receipt).await?;
        limiter.check_all(&["a", "b"].map(|key| scope.check(key))).await?;
        scope.reset("a").await?;
        assert!(scope.check("a").await?.is_allowed());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_on_the_sentinels_and_one_more_on_the_primary_are_enough_and_needed() {
    for flavour in Flavour::ALL {
        let primary = Launch::new(flavour).start().unwrap();
        // Sentinels that nobody else may ask anything: the launcher has a user of its own.
        let launch = Launch::new(flavour)
            .config("user", "default off")
            .config("user", "admin on >root ~* &* +@all")
            .config("sentinel", "sentinel-user admin")
            .config("sentinel", "sentinel-pass root")
            .admin("admin", "root");
        let sentinels = launch.sentinels(NAME, &primary).count(1).start().unwrap();
        let [sentinel] = sentinels.servers() else { panic!("one") };
        let url = |login: &str, sentinel_password: &str| {
            let login_there =
                format!("sentinel_user=tollgate&sentinel_password={sentinel_password}");
            format!("redis+sentinel://{login}@{}/{NAME}?{login_there}", sentinel.addr())
        };
        let right = url("tollgate:secret", "watch%3Aword");
        allow(&primary, "secret", RULES);
        allow(sentinel, "watch:word", SENTINEL_RULES);
        use_all(&at(&right)).await.unwrap();
        for (wrong, server) in [
            (url("tollgate:mistake", "watch%3Aword"), primary.addr()),
            (url("tollgate:secret", "mistake"), sentinel.addr()),
        ] {
            let told = store_error(use_all(&at(&wrong)).await).to_string();
            // Sentinels are asked in RESP2, of which redis-rs keeps to itself what the server said.
            let is_told = told.contains("WRONGPASS") || told.contains("authentication failed");
            let is_clear = is_told && told.contains(&server.to_string());
            assert!(is_clear && !told.contains("mistake"), "{flavour}: {told}");
        }
        allow(&primary, "secret", &format!("{RULES} -role"));
        let told = store_error(use_all(&at(&right)).await).to_string();
        assert!(told.contains("permission"), "{flavour}, without role: {told}");
        allow(&primary, "secret", RULES);
        allow(sentinel, "watch:word", "resetchannels -@all");
        let told = store_error(use_all(&at(&right)).await).to_string();
        assert!(told.contains("permission"), "{flavour}, without sentinel|master: {told}");
    }
}
