//! Batches: several requests at once, each decided separately.

use tollgate_limiter::Error;

use crate::store::{LIMITS, Make, named, open, scope};

pub async fn requests_of_a_batch_are_decided_in_order_and_separately(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (one, two) = (named(&limiter, "one", text), named(&limiter, "two", text));
        let answers = limiter
            .batch(&[
                &[one.check("a").cost(6)],
                &[one.check("a").cost(5), two.check("a").cost(5)],
                &[one.check("b").cost(5), two.check("a").cost(5)],
                &[one.check("a").cost(4)],
                &[],
            ])
            .await
            .unwrap();
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let allowed: Vec<bool> =
            answers.iter().map(tollgate_limiter::JointDecision::is_allowed).collect();
        assert_eq!(allowed, [true, false, true, true, true], "{text}");
        assert_eq!(answers[1].refused_by(), Some(0), "{text}");
        assert_eq!(
            answers[1].each()[1].remaining(),
            10,
            "{text}: the refused request charged nothing"
        );
        assert_eq!(answers[2].each()[1].remaining(), 5, "{text}");
        assert_eq!(one.peek("a").await.unwrap().remaining(), 0, "{text}");
    }
}

pub async fn invalid_request_of_a_batch_fails_alone(make: Make) {
    let ((_, limiter), (_, stranger)) = (open(make), open(make));
    let (own, foreign) = (scope(&limiter, LIMITS[0]), scope(&stranger, LIMITS[0]));
    let answers = limiter
        .batch(&[
            &[own.check("a").cost(0)],
            &[own.check("a").cost(3)],
            &[own.check("a"), foreign.check("a")],
            &[own.check("a").cost(3)],
        ])
        .await
        .unwrap();
    assert!(matches!(answers[0], Err(Error::Cost(_))));
    assert!(matches!(answers[2], Err(Error::DifferentLimiters)));
    for (index, left) in [(1, 7), (3, 4)] {
        assert_eq!(answers[index].as_ref().unwrap().each()[0].remaining(), left);
    }
}

pub async fn empty_batch_has_no_answers(make: Make) {
    let (_, limiter) = open(make);
    assert!(limiter.batch(&[]).await.unwrap().is_empty());
}
