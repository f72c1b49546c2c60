//! 64 streams at the same time that cost something else than was estimated, on a budget for half of them.
//!
//! `cargo test -p tollgate --all-features --test middleware 64_streams -- --nocapture` prints the table that
//! docs/guide/middleware.md shows.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Request;
use http_body_util::BodyExt;
use tollgate::State;
use tollgate::tower::{ActualCost, Admission, RequestHold};

use super::*;

const STREAMS: usize = 64;

/// A stream as its client requests it.
#[derive(Clone, Copy, Debug)]
struct RandomStream {
    estimate: u64,
    /// The tokens that the model will use.
    tokens: u64,
    /// The number of parts in which it sends them.
    chunks: u64,
}

/// Returns random streams of 500 to 4,000 tokens, which are estimated at half to one and a half of that. They have as
/// many chunks each, so that all reach their ends at the same time, or different numbers of them.
fn random_streams(seed: u64, chunks: std::ops::Range<u64>) -> Vec<RandomStream> {
    let mut state = seed;
    let mut below = |end: u64| {
        // Knuth's generator; its high bits are the random ones.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut stream = || {
        let (tokens, percent) = (500 + below(3_501), 50 + below(101));
        let chunks = chunks.start + below(chunks.end - chunks.start);
        RandomStream { estimate: tokens * percent / 100, tokens, chunks }
    };
    (0..STREAMS).map(|_| stream()).collect()
}

/// How a gateway limits streams.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strategy {
    /// As gateways without holds do: a stream is admitted while the budget is not used up, and charged when it has ended.
    ChargeAtEnd,
    /// The estimate is reserved, and the actual cost settled.
    Reserve,
    /// The handler extends the hold when it needs more, and ends the stream when that is refused.
    Extend,
}

/// The outcomes of all streams together.
#[derive(Debug, PartialEq)]
struct Outcomes {
    budget: u64,
    admitted: u64,
    cut_short: u64,
    tokens: u64,
    /// The most tokens beyond the budget that were used or set aside at one moment.
    most_beyond: u64,
    /// The tokens that admitted streams used beyond their holds.
    under_estimated: u64,
}

/// How far a stream is. The test and the stream share it.
#[derive(Debug, Default)]
struct StreamProgress {
    held: AtomicU64,
    used: AtomicU64,
    is_cut: AtomicU64,
}

impl StreamProgress {
    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// The body of a stream. Its last chunk is what it has used: `used 1200`.
struct ModelBody {
    strategy: Strategy,
    stream: RandomStream,
    progress: Arc<StreamProgress>,
    hold: RequestHold,
    sent: u64,
}

impl ModelBody {
    /// Returns the next chunk, unless the stream has ended.
    fn chunk(&mut self) -> Option<String> {
        let RandomStream { tokens, chunks, .. } = self.stream;
        self.sent += 1;
        if self.sent > chunks {
            return (self.sent == chunks + 1).then(|| format!("used {}", self.progress.used()));
        }
        let mut used = tokens * self.sent / chunks;
        let held = self.progress.held();
        if self.strategy == Strategy::Extend && used > held {
            let mut extended = pin!(self.hold.extend(used - held));
            let Poll::Ready(Ok(Some(extended))) = poll_once(extended.as_mut()) else { panic!() };
            if extended.is_granted() {
                self.progress.held.store(used, Ordering::Relaxed);
            } else {
                (used, self.sent) = (held, chunks);
                self.progress.is_cut.store(1, Ordering::Relaxed);
            }
        }
        self.progress.used.store(used, Ordering::Relaxed);
        Some("words ".to_owned())
    }
}

impl hyper::body::Body for ModelBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.chunk().map(|text| Ok(Frame::data(text.into()))))
    }
}

fn used_by(tail: &[u8]) -> Option<u64> {
    str::from_utf8(tail).ok()?.rsplit_once("used ")?.1.parse().ok()
}

/// An application that streams as the extensions of a request say.
fn gateway(scope: &Scope, strategy: Strategy) -> Router {
    let layer = RateLimitLayer::new(scope.clone())
        .reserve(move |request| match strategy {
            Strategy::ChargeAtEnd => 1,
            _ => request.extensions().get::<RandomStream>().unwrap().estimate,
        })
        .settle(|_| ActualCost::from_tail(32, used_by))
        .with_decision();
    let answer = move |admission: Admission, request: Request| async move {
        let stream = *request.extensions().get::<RandomStream>().unwrap();
        let progress = Arc::clone(request.extensions().get::<Arc<StreamProgress>>().unwrap());
        let hold = admission.hold().unwrap();
        progress.held.store(hold.units(), Ordering::Relaxed);
        Body::new(ModelBody { strategy, stream, progress, hold, sent: 0 })
    };
    Router::new().fallback(any(answer).layer(layer))
}

/// Starts all streams at once, and reads a chunk of each in turn. The budget is the sum of the first half of the
/// estimates.
async fn run(streams: &[RandomStream], strategy: Strategy) -> Outcomes {
    let budget = streams[..STREAMS / 2].iter().map(|stream| stream.estimate).sum();
    let (_, limiter) = at_midnight();
    let limit = format!("fixed-window limit={budget} window=366d");
    let scope = scope(&limiter, "tokens", &limit);
    let app = gateway(&scope, strategy);
    let mut running = Vec::new();
    for stream in streams {
        let progress = Arc::new(StreamProgress::default());
        let mut request = get("/");
        request.extensions_mut().insert(*stream);
        request.extensions_mut().insert(Arc::clone(&progress));
        let response = send(&app, request).await;
        if response.status() == StatusCode::OK {
            running.push((Some(response.into_body()), progress));
        }
    }
    let mut most_beyond = 0;
    while running.iter().any(|(body, _)| body.is_some()) {
        let committed: u64 = running
            .iter()
            .map(|(body, progress)| match body {
                Some(_) => progress.held().max(progress.used()),
                None => progress.used(),
            })
            .sum();
        most_beyond = most_beyond.max(committed.saturating_sub(budget));
        for (body, _) in &mut running {
            if let Some(streaming) = body
                && streaming.frame().await.is_none()
            {
                *body = None;
            }
        }
    }
    let sum = |of: &dyn Fn(&StreamProgress) -> u64| running.iter().map(|(_, it)| of(it)).sum();
    let tokens = sum(&StreamProgress::used);
    // The limiter has charged what was used, also beyond the budget, and holds nothing.
    let state = scope.state("ip=203.0.113.9").await.unwrap();
    let State::Window(window) = state.state else { panic!("{:?}", state.state) };
    assert_eq!((window.spent, state.holds.len()), (tokens, 0), "{strategy:?}");
    Outcomes {
        budget,
        admitted: running.len() as u64,
        cut_short: sum(&|it| it.is_cut.load(Ordering::Relaxed)),
        tokens,
        most_beyond,
        under_estimated: sum(&|it| it.used().saturating_sub(it.held())),
    }
}

#[tokio::test]
async fn budget_of_64_streams_is_exceeded_by_their_under_estimates_exactly() {
    for seed in 0..20 {
        let streams = random_streams(seed, 16..17);
        let at_end = run(&streams, Strategy::ChargeAtEnd).await;
        assert_eq!(at_end.admitted, 64, "seed {seed}: {at_end:?}");
        assert_eq!(at_end.most_beyond, at_end.tokens - at_end.budget, "seed {seed}");
        let reserved = run(&streams, Strategy::Reserve).await;
        assert_eq!((reserved.admitted, reserved.cut_short), (32, 0), "seed {seed}: {reserved:?}");
        assert_eq!(reserved.most_beyond, reserved.under_estimated, "seed {seed}");
        let extended = run(&streams, Strategy::Extend).await;
        assert_eq!((extended.most_beyond, extended.under_estimated), (0, 0), "seed {seed}");
        assert!(extended.cut_short > 0 && extended.tokens <= extended.budget, "seed {seed}");
    }
}

/// Streams that end early make room for the extensions of others.
#[tokio::test]
async fn budget_of_64_streams_is_never_exceeded_when_the_handler_extends() {
    for seed in 0..20 {
        let streams = random_streams(seed, 4..32);
        let reserved = run(&streams, Strategy::Reserve).await;
        assert!(reserved.most_beyond <= reserved.under_estimated, "seed {seed}: {reserved:?}");
        let extended = run(&streams, Strategy::Extend).await;
        assert_eq!((extended.most_beyond, extended.under_estimated), (0, 0), "seed {seed}");
        let at_once = run(&random_streams(seed, 16..17), Strategy::Extend).await;
        assert!(extended.cut_short < at_once.cut_short, "seed {seed}: {extended:?} {at_once:?}");
    }
}

#[tokio::test]
async fn guide_shows_the_table_of_64_streams() {
    let streams = random_streams(1, 16..17);
    let mut lines = Vec::new();
    for (name, strategy) in [
        ("charged at the end", Strategy::ChargeAtEnd),
        ("reserved and settled", Strategy::Reserve),
        ("reserved, extended and settled", Strategy::Extend),
    ] {
        let Outcomes { budget, admitted, cut_short, tokens, most_beyond, .. } =
            run(&streams, strategy).await;
        let [budget, tokens, most_beyond] = [budget, tokens, most_beyond].map(grouped);
        lines.push(format!(
            "| {name} | {admitted} | {cut_short} | {tokens} of {budget} | {most_beyond} |"
        ));
    }
    println!("{}", lines.join("\n"));
    let guide = include_str!("../../../../../docs/guide/middleware.md");
    for line in lines {
        assert!(guide.contains(&line), "docs/guide/middleware.md has not the line:\n{line}");
    }
}

/// Returns a number below a million with a comma: `1,234`.
fn grouped(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}
