//! Requests for leases as a store gets them, for the conformance suite.

use tollgate_core::{Cost, LeaseAnswer, LeaseRequest, UnitRequest};

use crate::answer::Answer;
use crate::error::Error;
use crate::joint::Demand;
use crate::key::Key;
use crate::scope::{Scope, ScopeBackend, bounded};
use crate::store::{Call, KeyLeaseRequest};

impl Scope {
    /// Sends one request for a lease to the store, so that the tests of a store can make any of them. An error in memory,
    /// and on a store without leases.
    #[doc(hidden)]
    pub fn lease_on_store<'k>(
        &self,
        key: impl Into<Key<'k>>,
        lease: LeaseRequest,
    ) -> Answer<LeaseAnswer> {
        let key = key.into();
        let (scope, key) = match (self.backend(), bounded(key.as_bytes())) {
            (ScopeBackend::Remote(scope), Ok(key)) => (scope, key),
            (_, Err(error)) => return Answer::ready(Err(error)),
            (ScopeBackend::Memory { .. }, _) => {
                return Answer::ready(Err(Error::HoldsUnsupported));
            }
        };
        let request = UnitRequest::new(lease.need.unwrap_or(Cost::ONE));
        let call: Call = scope.call();
        let charge = scope.charge(key, Demand::of(request));
        scope.remote.store.lease(KeyLeaseRequest { charge, lease, call })
    }
}
