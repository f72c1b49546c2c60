//! A limit whose size changes keeps what was spent: processes with the old and the new one share it.

use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, named, open, remaining, start};

#[tokio::test]
async fn what_was_spent_stays_spent_when_the_limit_is_lowered_and_raised() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let with_size = |size: u64| {
                let sized = text.replace("=100 ", &format!("={size} "));
                assert_eq!(sized.parse::<tollgate::Limit>().unwrap().size(), size);
                named(&open(&server), text, &sized)
            };
            let (old, lower, higher) = (with_size(100), with_size(40), with_size(150));
            old.check("a").cost(30).await.unwrap();
            assert_eq!(remaining(&lower, "a").await, 10, "{flavour}, {text}");
            assert!(lower.check("a").cost(10).await.unwrap().is_allowed(), "{flavour}, {text}");
            assert!(!lower.check("a").await.unwrap().is_allowed(), "{flavour}, {text}");
            assert_eq!(remaining(&old, "a").await, 60, "{flavour}, {text}");
            assert_eq!(remaining(&higher, "a").await, 110, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn more_spent_than_the_lowered_limit_holds_leaves_nothing() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let lowered = text.replace("=100 ", "=40 ");
            let (old, lower) =
                (named(&open(&server), text, text), named(&open(&server), text, &lowered));
            for _ in 0..20 {
                old.check("a").cost(4).await.unwrap();
            }
            let seen = lower.peek("a").await.unwrap();
            assert_eq!((seen.is_allowed(), seen.remaining()), (false, 0), "{flavour}, {text}");
            // Looking changes nothing.
            assert_eq!(remaining(&old, "a").await, 20, "{flavour}, {text}");
            assert!(!lower.check("a").await.unwrap().is_allowed(), "{flavour}, {text}");
            // A full bucket drains as one of its capacity would: nobody waits for more than that.
            if text.contains("bucket") {
                let to_full_s = 40 * 366 * 86_400 / 100;
                assert!(seen.reset_after().as_secs() <= to_full_s, "{flavour}, {text}: {seen:?}");
            }
            assert_eq!(remaining(&old, "a").await, 20, "{flavour}, {text}");
        }
    }
}
