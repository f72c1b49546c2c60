//! Tools for authors of stores. Using limits does not need them.
//!
//! A store keeps a [`State`](crate::State) for each key, and decides with [`Limit::check`](crate::Limit::check) or
//! with an [`Algorithm`](crate::Algorithm). That alone makes a correct store. This module helps to make it fast or
//! small, or to run it inside Redis:
//!
//! | to | use |
//! |---|---|
//! | run code on the algorithm's own type, chosen once for a limit | [`each!`] |
//! | decide the most frequent case in fewer steps | [`FastPath`], for logs also [`LogFastPath`] |
//! | keep logs in few bytes, and within a budget | [`LogStorage`], [`ThreeUnitLog`], [`OneChargeLog`] |
//! | decide inside Redis | [`twins`] |
//! | multiply and divide exactly as the algorithms do | [`muldiv`] |

pub mod twins;

#[doc(inline)]
pub use crate::__each as each;
pub use crate::algorithm::{
    FastPath, LogFastPath, LogStamp, LogStorage, OneChargeLog, ThreeUnitLog,
};
pub use crate::muldiv::muldiv;
