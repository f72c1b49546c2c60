//! The minimal rights of the users on a primary and on its sentinels.

use redis::cmd;
use tollgate::{Error, Limiter};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::polling::store_error;
use crate::setup::{LIMITS, at, named};
use crate::watched::NAME;

/// The rights that Tollgate needs on the primary: the rights for one server, which `tests/redis/acl.rs` tests, and
/// `+role`.
const RULES: &str = "~tollgate:* resetchannels -@all +evalsha +eval +time +get +set +getrange \
                     +setrange +strlen +expire +del +role";

/// The rights that it needs on the sentinels.
const SENTINEL_RULES: &str = "resetchannels -@all +sentinel|master";

#[test]
fn documentation_quotes_the_acl_rules() {
    for rules in [RULES, SENTINEL_RULES] {
        let user = format!("user tollgate on >PASSWORD {rules}\n");
        assert!(include_str!("../../../../docs/operate/redis.md").contains(&user), "{user}");
    }
}

/// Sets the rights of the user `tollgate`.
fn allow(server: &Server, password: &str, rules: &str) {
    let mut allow = cmd("ACL");
    allow.arg("SETUSER").arg("tollgate").arg("reset").arg("on").arg(format!(">{password}"));
    rules.split_whitespace().for_each(|rule| {
        allow.arg(rule);
    });
    server.ask::<()>(&allow).unwrap();
}

async fn run_operations(limiter: &Limiter) -> Result<(), Error> {
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
async fn minimal_rights_on_sentinels_and_primary_are_enough_and_needed() {
    for flavour in Flavour::ALL {
        let primary = Launch::new(flavour).start().unwrap();
        // Only the users `tollgate` and `admin`, which the launcher uses, have rights on the sentinels.
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
        run_operations(&at(&right)).await.unwrap();
        for (wrong, server) in [
            (url("tollgate:mistake", "watch%3Aword"), primary.addr()),
            (url("tollgate:secret", "mistake"), sentinel.addr()),
        ] {
            let error = store_error(run_operations(&at(&wrong)).await).to_string();
            // Sentinels are queried in RESP2, for which redis-rs does not show the server's text.
            let is_named = error.contains("WRONGPASS") || error.contains("authentication failed");
            let is_clear = is_named && error.contains(&server.to_string());
            assert!(is_clear && !error.contains("mistake"), "{flavour}: {error}");
        }
        allow(&primary, "secret", &format!("{RULES} -role"));
        let error = store_error(run_operations(&at(&right)).await).to_string();
        assert!(error.contains("permission"), "{flavour}, without role: {error}");
        allow(&primary, "secret", RULES);
        allow(sentinel, "watch:word", "resetchannels -@all");
        let error = store_error(run_operations(&at(&right)).await).to_string();
        assert!(error.contains("permission"), "{flavour}, without sentinel|master: {error}");
    }
}
