//! Compares `muldiv` in Lua with `muldiv` in Rust.

use std::num::NonZeroU64;

use proptest::prelude::*;
use tollgate_core::MAX_UNITS;
use tollgate_core::store::muldiv;

use crate::servers::{Servers, prove};

type Numbers = (u64, u64, u64);

/// The result in Rust; `None` if the quotient is beyond the range of the twin.
fn expected((a, b, divisor): Numbers) -> Option<String> {
    let (quotient, remainder) = muldiv(a, b, NonZeroU64::new(divisor).unwrap());
    (quotient <= MAX_UNITS).then(|| format!("{quotient} {remainder}"))
}

fn agree(servers: &Servers, numbers: &[Numbers]) -> Result<(), TestCaseError> {
    let cases: Vec<_> = numbers.iter().filter_map(|&it| Some((it, expected(it)?))).collect();
    let texts: Vec<_> = cases.iter().map(|((a, b, d), _)| format!("{a} {b} {d}")).collect();
    for (flavour, answers) in servers.eval(include_str!("muldiv.lua"), &texts) {
        prop_assert_eq!(answers.len(), cases.len());
        for (answer, (numbers, wanted)) in answers.iter().zip(&cases) {
            prop_assert_eq!(answer, wanted, "{} of {:?}", flavour, numbers);
        }
    }
    Ok(())
}

/// A number with a random count of bits, all counts equally likely.
fn number() -> impl Strategy<Value = u64> {
    (0..=53_u32, 0..=MAX_UNITS).prop_map(|(bits, number)| number & ((1 << bits) - 1))
}

/// Numbers whose quotient is below 2^53 and as near to a whole number as possible.
fn numbers() -> impl Strategy<Value = Numbers> {
    let any = (number(), number(), number());
    let top = MAX_UNITS - 1_000..=MAX_UNITS;
    let near_the_top = (top.clone(), top.clone(), top);
    let near_whole =
        (number(), number(), 0..=2_u64).prop_map(|(a, b, off)| (a, b, a.saturating_sub(off)));
    prop_oneof![any, near_the_top, near_whole].prop_map(|(a, b, divisor)| (a, b, divisor.max(1)))
}

#[test]
fn twins_agree_below_2_to_the_53() {
    prove(prop::collection::vec(numbers(), 1..200), |servers, numbers| agree(servers, &numbers));
}

#[test]
fn twins_agree_around_powers_of_two() {
    let mut edges = vec![0, 1, 2, 3, 10, 999_983, 86_400_000_000, MAX_UNITS - 2, MAX_UNITS - 1];
    for power in [26, 27, 28, 31, 32, 33, 51, 52] {
        edges.extend([(1 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    edges.push(MAX_UNITS);
    let servers = Servers::connect();
    for &a in &edges {
        let pairs = edges.iter().flat_map(|&b| edges.iter().map(move |&divisor| (b, divisor)));
        let numbers: Vec<_> =
            pairs.filter(|&(_, divisor)| divisor > 0).map(|(b, divisor)| (a, b, divisor)).collect();
        agree(&servers, &numbers).unwrap();
    }
}
