//! The operations that are measured.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tollgate::{Hold, Limiter, Scope};

/// The bucket is so large that it admits everything.
const LIMIT: &str = "token-bucket capacity=1000000000 refill=1000000/s";

/// Longer than a run: no hold expires.
const HOUR: Duration = Duration::from_secs(3_600);

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOperation {
    Check,
    TwoChecks,
    ReserveAndSettle,
    CheckBesideHold,
}

impl HoldOperation {
    pub(crate) const ALL: [HoldOperation; 4] = [
        HoldOperation::Check,
        HoldOperation::TwoChecks,
        HoldOperation::ReserveAndSettle,
        HoldOperation::CheckBesideHold,
    ];

    /// The index of the operation with which the others are compared.
    pub(crate) const BASE: usize = 1;

    pub(crate) const fn name(self) -> &'static str {
        match self {
            HoldOperation::Check => "a check, key without holds",
            HoldOperation::TwoChecks => "two checks",
            HoldOperation::ReserveAndSettle => "a reservation and its settlement",
            HoldOperation::CheckBesideHold => "a check, key with a hold",
        }
    }
}

/// A caller with keys of its own: one without holds, and one with a hold.
pub(crate) struct HoldCaller {
    scope: Scope,
    plain: String,
    held: String,
    _open: Hold,
}

impl HoldCaller {
    pub(crate) async fn new(limiter: &Limiter, nth: usize) -> Result<HoldCaller> {
        let scope = limiter.scope("api", LIMIT)?;
        let (plain, held) = (format!("plain-{nth:05}"), format!("held-{nth:05}"));
        let open = scope.reserve(&held).hold_for(HOUR).await?.into_hold();
        let open = open.context("the bucket is too small")?;
        Ok(HoldCaller { scope, plain, held, _open: open })
    }

    /// Does one operation.
    pub(crate) async fn run(&self, operation: HoldOperation) -> Result<()> {
        match operation {
            HoldOperation::Check => self.check(&self.plain).await,
            HoldOperation::TwoChecks => {
                self.check(&self.plain).await?;
                self.check(&self.plain).await
            }
            HoldOperation::CheckBesideHold => self.check(&self.held).await,
            HoldOperation::ReserveAndSettle => {
                let reserved = self.scope.reserve(&self.plain).cost(10).hold_for(HOUR).await?;
                let hold = reserved.into_hold().context("the bucket is too small")?;
                ensure!(hold.settle(1).await?.charged_units() == 1, "nothing was charged");
                Ok(())
            }
        }
    }

    async fn check(&self, key: &str) -> Result<()> {
        ensure!(self.scope.check(key).await?.is_allowed(), "the bucket is too small");
        Ok(())
    }

    /// Does one operation in memory.
    pub(crate) fn run_now(&self, operation: HoldOperation) -> Result<()> {
        match operation {
            HoldOperation::Check => self.check_now(&self.plain),
            HoldOperation::TwoChecks => {
                self.check_now(&self.plain)?;
                self.check_now(&self.plain)
            }
            HoldOperation::CheckBesideHold => self.check_now(&self.held),
            HoldOperation::ReserveAndSettle => {
                let reserved = self.scope.reserve(&self.plain).cost(10).hold_for(HOUR).now()?;
                let hold = reserved.into_hold().context("the bucket is too small")?;
                ensure!(hold.settle_now(1)?.charged_units() == 1, "nothing was charged");
                Ok(())
            }
        }
    }

    fn check_now(&self, key: &str) -> Result<()> {
        ensure!(self.scope.check(key).now()?.is_allowed(), "the bucket is too small");
        Ok(())
    }
}
