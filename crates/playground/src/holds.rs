//! Reserves units for sessions, and settles their holds.

use std::time::{Duration, Instant};

use tollgate::{Decision, Scope};

use super::algorithm::{HOLD_TIMES, PlaygroundAlgorithm, SIZES};
use super::bodies::{
    PlaygroundReservationJson, PlaygroundReserveBody, PlaygroundSettleBody,
    PlaygroundSettlementJson,
};
use super::error::PlaygroundError;
use super::fields::WholeNumber;
use super::play::Playground;
use super::session::Session;
use super::session_holds::{MAX_HOLDS, SessionHold};

/// How long units are held by default.
const DEFAULT_HOLD: Duration = Duration::from_secs(10);

/// The decision on a reservation of a session.
#[derive(Debug)]
pub struct PlaygroundReservation {
    scope: Scope,
    decision: Decision,
    units: u64,
    hold: Option<(u64, f64)>,
}

impl PlaygroundReservation {
    /// Returns the answer to the client.
    pub fn answer(&self) -> PlaygroundReservationJson {
        PlaygroundReservationJson::new(&self.decision, self.hold)
    }

    /// Returns the limit, its decision, and the units.
    pub fn decided(&self) -> (&Scope, &Decision, u64) {
        (&self.scope, &self.decision, self.units)
    }
}

impl Playground {
    /// Sets units aside, until the session settles them or they expire.
    pub async fn reserve(
        &self,
        algorithm: PlaygroundAlgorithm,
        body: PlaygroundReserveBody,
        session: &Session,
    ) -> Result<PlaygroundReservation, PlaygroundError> {
        let scope = self.scope(algorithm, &body.config.unwrap_or_default())?;
        scope.limit().can_hold().map_err(tollgate::Error::from)?;
        if !self.has_holds() {
            return Err(tollgate::Error::HoldsUnsupported.into());
        }
        let units = units("units", body.units, 1)?;
        let own = scope.limit().hold_for().map(|own| Duration::from_micros(own.as_us()));
        let hold_for = match body.seconds {
            Some(seconds) => hold_time(seconds)?,
            None => own.unwrap_or(DEFAULT_HOLD),
        };
        self.charge_shared_limit(1)?;
        let active = self.enter(session).await?;
        let pending = active.begin_hold().map_err(|spent| PlaygroundError::TooManyHolds {
            most: MAX_HOLDS,
            retry_after: spent.retry_after,
        })?;
        let reserved = scope.reserve(session.key()).cost(units).hold_for(hold_for).await?;
        let (decision, hold) = reserved.into_parts();
        let hold = hold.map(|hold| {
            let until = Instant::now() + hold_for;
            (pending.keep(SessionHold { algorithm, hold, until }), hold_for.as_secs_f64())
        });
        Ok(PlaygroundReservation { scope, decision, units, hold })
    }

    /// Ends a hold of the session: charges the units that were used, and frees the rest.
    pub async fn settle(
        &self,
        algorithm: PlaygroundAlgorithm,
        body: PlaygroundSettleBody,
        session: &Session,
    ) -> Result<PlaygroundSettlementJson, PlaygroundError> {
        if !self.has_holds() {
            return Err(tollgate::Error::HoldsUnsupported.into());
        }
        let Some(WholeNumber(number)) = body.hold else {
            let detail =
                "hold: missing; send the number of a hold, from the answer to its reservation";
            return Err(PlaygroundError::Invalid(detail.to_owned()));
        };
        let used = units("used", body.used, 0)?;
        self.charge_shared_limit(1)?;
        let active = self.enter(session).await?;
        match active.take_hold(number, algorithm) {
            Some(own) => Ok(PlaygroundSettlementJson::new(&own.hold.settle(used).await?)),
            None => Ok(PlaygroundSettlementJson::UNKNOWN),
        }
    }
}

/// Returns the given units, or the default, which is also the least.
fn units(name: &str, given: Option<WholeNumber>, least: u64) -> Result<u64, PlaygroundError> {
    let most = SIZES.1;
    match given.map_or(least, |WholeNumber(units)| units) {
        units if units < least || units as f64 > most => Err(PlaygroundError::Invalid(format!(
            "{name}: {units} is out of range; use {least} to {most}"
        ))),
        units => Ok(units),
    }
}

fn hold_time(seconds: f64) -> Result<Duration, PlaygroundError> {
    let (least, most) = HOLD_TIMES;
    if !(least..=most).contains(&seconds) {
        let detail = format!("seconds: {seconds} is out of range; use {least} to {most}");
        return Err(PlaygroundError::Invalid(detail));
    }
    // OK because `seconds` is in range.
    Ok(Duration::from_micros((seconds * 1e6).round() as u64))
}
