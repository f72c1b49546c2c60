//! The promises of every limit, over random limits and traces, and on worked examples.

#![allow(clippy::unwrap_used)]

mod agreement;
mod bounds;
mod carry_over;
mod clocks;
mod common_limits;
mod holds;
mod leases;
mod logs;
mod made_up_receipts;
mod more;
mod muldiv;
mod one;
mod promises;
mod quota;
mod refunds;
mod tables;
mod text;
mod together;
mod worked_examples;
