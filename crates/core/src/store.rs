//! What an author of a store needs. Not needed to use limits.
//!
//! with an [`Algorithm`](crate::Algorithm). That alone makes a correct store. What is here makes one that is fast,
//! small, or inside Redis:
//!
//! | to | use |
//! |---|---|
//! | decide the most frequent case in fewer steps | [`FastPath`], for logs also [`LogFastPath`] |
//! | keep logs in few bytes, and within a budget | [`LogStorage`], [`FewLog`], [`BriefLog`] |
//! | decide inside Redis | [`twins`] |
//! | multiply and divide exactly as the algorithms do | [`muldiv`] |

pub mod twins;

pub use crate::algorithm::{BriefLog, FastPath, FewLog, LogFastPath, LogStamp, LogStorage};
pub use crate::muldiv::muldiv;
