//! Replies in an unexpected format: another program listens at the address, or a proxy has damaged the replies.

use std::fmt::Debug;
use std::time::Duration;

use tollgate::{Error, Limiter, Scope, StoreError};

use crate::fake::Parrot;
use crate::setup::{LIMITS, PATIENCE, named, refusal, within};

/// The deadline for replies that are never complete.
const DEADLINE: Duration = Duration::from_millis(300);

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn array(parts: &[&[u8]]) -> Vec<u8> {
    let bulks: Vec<u8> = parts.iter().flat_map(|part| bulk(part)).collect();
    [format!("*{}\r\n", parts.len()).as_bytes(), &bulks].concat()
}

/// A packed answer to one charge: the server's time, a status, and five numbers.
fn packed(status: u8, number: u64) -> Vec<u8> {
    let number = &number.to_le_bytes()[..7];
    [number, &[status], &number.repeat(5)].concat()
}

fn answers() -> Vec<Vec<u8>> {
    let whole = packed(1, 1);
    let mut answers: Vec<Vec<u8>> = [
        &b"+OK\r\n"[..],
        b"+\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n*0\r\n",
        b"*2\r\n$0\r\n\r\n:1\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"~1\r\n:1\r\n",
        b",1.5\r\n",
        b"#t\r\n",
        b"_\r\n",
        b"(123456789012345678901234567890\r\n",
        b"-\r\n",
        b"-ERR\r\n",
        b"-ERR something is wrong\r\n",
        b"-NOSCRIPT No matching script\r\n",
        b"-MOVED 1 127.0.0.1:1\r\n",
        b"-MOVED\r\n",
        b"-\xff\xfe\r\n",
        b"-ERR \x1b[31mred\x07\r\n",
        b"!5\r\nERR x\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\r\n\r\n",
        b"\0\0\0\0\r\n",
        b"$abc\r\n",
        b"*1\r\n$3\r\nabcdef\r\n",
        b"$-5\r\n",
        b"*-7\r\n",
    ]
    .map(<[u8]>::to_vec)
    .into();
    // Nested 1,000 deep.
    answers.push(b"*1\r\n".repeat(1_000));
    answers.push([b"-ERR ", &[b'x'; 100_000][..], b"\r\n"].concat());
    for length in (0..whole.len()).chain([whole.len() + 1, 10_000]) {
        answers.push(array(&[&whole.iter().copied().cycle().take(length).collect::<Vec<u8>>()]));
    }
    for status in [0, 1, 2, 3, 4, 5, 6, 255] {
        for number in [0, 1, 2, 1 << 53, (1 << 56) - 1] {
            let packed = packed(status, number);
            answers.push(array(&[&packed]));
            answers.push(array(&[&packed, b""]));
            answers.push(array(&[&packed, b"CORRUPT\n\xff"]));
            answers.push(array(&[&packed, &[0xff; 28]]));
            answers.push(array(&[&packed, &[1; 7 * 40]]));
        }
    }
    answers
}

/// Replies that are never complete.
const ENDLESS: [&[u8]; 9] = [
    b">2\r\n+message\r\n+x\r\n",
    b"",
    b"$9223372036854775807\r\n",
    b"$1000000000\r\nabc",
    b"*9223372036854775807\r\n",
    b"*1000000000\r\n:1\r\n",
    b"%9223372036854775807\r\n",
    b"*2\r\n$3\r\nabc\r\n",
    b"+OK",
];

fn assert_sane<T: Debug>(answer: &[u8], outcome: Result<T, Error>) {
    if let Err(error) = outcome {
        assert!(matches!(error, Error::Store(_)), "{answer:?}: {error:?}");
        let text = error.to_string();
        assert!(text.len() < 1_000, "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

/// Makes two acquires at once. The second reads the key's state to forecast its wait. Some answers admit both in
/// 285 years, hence the timeout.
async fn acquire_twice(answer: &[u8], scope: &Scope) {
    let acquire = || {
        tokio::time::timeout(
            DEADLINE / 10,
            scope.acquire("c").max_wait(Duration::ZERO).into_future(),
        )
    };
    let (front, behind) = tokio::join!(acquire(), acquire());
    for acquired in [front, behind].into_iter().flatten() {
        assert_sane(answer, acquired);
    }
}

/// Makes every operation on a server that answers all scripts with `answer`. Returns the results.
async fn run_every_operation(answer: &[u8], deadline: Duration) -> Vec<Result<(), Error>> {
    let parrot = Parrot::start(answer);
    let limiter = within(&parrot.url(), deadline);
    let mut outcomes = Vec::new();
    for (index, text) in LIMITS.into_iter().enumerate() {
        let scope = named(&limiter, text, text);
        let memory = named(&Limiter::memory(), text, text);
        let charged = memory.check("a").now().unwrap().into_receipt().unwrap();
        let receipt = scope.receipt("a", charged.cost(), charged.place()).unwrap();
        let (peeked, checked) = (scope.peek("a").await, scope.check("a").await);
        let refunded = scope.refund("a", receipt).await;
        let (reset, entries) = (scope.reset("a").await, scope.entries("a").await);
        let together = limiter.check_all(&[scope.check("a"), scope.check("b").shadow()]).await;
        if index < 2 {
            acquire_twice(answer, &scope).await;
        }
        outcomes.push(peeked.map(drop));
        outcomes.push(checked.map(drop));
        outcomes.push(refunded.map(drop));
        outcomes.push(reset);
        outcomes.push(entries.map(drop));
        outcomes.push(together.map(drop));
        if index == 0 && deadline == DEADLINE {
            break;
        }
    }
    for outcome in &outcomes {
        assert_sane(answer, outcome.clone());
    }
    outcomes
}

#[tokio::test]
async fn unexpected_reply_is_an_error() {
    for answer in answers() {
        let outcomes = run_every_operation(&answer, PATIENCE).await;
        // Only a long enough array can be one of our replies.
        let may_be_ours = answer.starts_with(b"*") && answer.len() > 2 * 7;
        assert!(may_be_ours || outcomes.iter().all(Result::is_err), "{answer:?}: {outcomes:?}");
    }
}

#[tokio::test]
async fn unfinished_reply_fails_by_the_deadline() {
    for answer in ENDLESS {
        for outcome in run_every_operation(answer, DEADLINE).await {
            let error = outcome.unwrap_err();
            let is_expected = matches!(
                error,
                Error::Store(
                    StoreError::Timeout { .. }
                        | StoreError::Unreachable { .. }
                        | StoreError::BreakerOpen { .. }
                )
            );
            assert!(is_expected, "{}: {error:?}", String::from_utf8_lossy(answer));
        }
    }
}

/// The plain script may put a request off to the script with the twin of holds, and to the one that carries states over.
/// The last one must decide it.
#[tokio::test]
async fn request_put_off_by_every_script_is_an_error() {
    for put_off_for in [0, 1] {
        let parrot = Parrot::start(&bulk(&packed(6, put_off_for)[..7 + 22]));
        let limiter = within(&parrot.url(), PATIENCE);
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let problem = refusal(scope.check("a").await);
            assert!(problem.contains("did not decide a request"), "{text}: {problem}");
        }
    }
}
