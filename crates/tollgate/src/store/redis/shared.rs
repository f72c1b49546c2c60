//! What all servers of one limiter share.

use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};
use tollgate_core::{Checked, Decision, Limit, Role, State, Together, check_all};

use super::denials::Denials;
use super::waiting::Timer;
use super::wire::{Charge, Reply, Request};
use crate::clock::Clock;
use crate::decision::Source;
use crate::error::StoreError;
use crate::failure::{OnFailure, share_of};
use crate::store::memory::{self, Memory};

/// What all servers of one limiter share.
pub(super) struct Shared {
    pub(super) deadline: Duration,
    pub(super) runtime: Handle,
    /// By which refusals are remembered, and decisions made without a server.
    pub(super) clock: Clock,
    pub(super) denials: Denials,
    policy: Policy,
    /// How many requests no server decided, and why the last.
    failed: Mutex<(u64, Option<StoreError>)>,
}

/// What is decided without a server.
enum Policy {
    Open,
    Closed,
    Local { memory: Memory, processes: u32 },
}

/// For limiters that are made outside a runtime of several threads: one thread for all of them.
static BACKGROUND: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("tollgate-redis")
        .enable_all()
        .build()
});

impl Shared {
    /// On the runtime that it is made in, or a thread of its own.
    pub(super) fn new(
        deadline: Duration,
        on_failure: OnFailure,
        max_bytes: Option<usize>,
    ) -> std::io::Result<Shared> {
        let policy = match on_failure {
            OnFailure::Open => Policy::Open,
            OnFailure::Closed => Policy::Closed,
            OnFailure::Local { processes } => {
                Policy::Local { memory: Memory::new(max_bytes), processes }
            }
        };
        Ok(Shared {
            deadline,
            runtime: runtime()?,
            clock: Clock::system(),
            denials: Denials::new(),
            policy,
            failed: Mutex::default(),
        })
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// A task that is over when it is done, or when its timer is dropped.
    pub(super) fn timer(&self, task: impl Future<Output = ()> + Send + 'static) -> Timer {
        Timer(self.runtime.spawn(task).abort_handle())
    }

    /// A refusal that is remembered, for a check that asks at the server's time.
    pub(super) fn recall(&self, charge: &Charge) -> Option<Decision> {
        self.denials.recall(&charge.key, charge.ask.cost.units(), self.clock.now_us())
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.policy, Policy::Closed)
    }

    /// What a request that a server failed to decide comes to.
    pub(super) fn instead(
        &self,
        request: &Request,
        error: StoreError,
    ) -> Result<Reply, StoreError> {
        {
            let mut failed = self.failed.lock();
            *failed = (failed.0 + 1, Some(error.clone()));
        }
        self.decide(request).ok_or(error)
    }

    /// How many requests no server decided, and why the last.
    pub(super) fn failed(&self) -> (u64, Option<StoreError>) {
        self.failed.lock().clone()
    }

    fn decide(&self, request: &Request) -> Option<Reply> {
        let now_us = request.at_us().unwrap_or_else(|| self.clock.now_us());
        match (request, &self.policy) {
            (_, Policy::Closed) => None,
            (Request::Check { charge, .. }, Policy::Open) => {
                Some(Reply::Checked(unspent(charge, now_us), Source::Degraded))
            }
            (Request::Peek { charge, .. }, Policy::Open) => {
                let decision = charge.limit.peek(&charge.limit.fresh(), now_us, charge.ask);
                Some(Reply::Checked(Checked { decision, receipt: None }, Source::Degraded))
            }
            (Request::Check { charge, .. }, Policy::Local { memory, processes }) => {
                let (_, each) = decide_here(memory, *processes, &[charge], now_us)?;
                let decision = each.first()?.decision;
                Some(Reply::Checked(Checked { decision, receipt: None }, Source::Degraded))
            }
            (Request::Peek { charge, .. }, Policy::Local { memory, processes }) => {
                let scope = scope_of(memory, *processes, &charge.limit)?;
                let decision = memory.peek(&scope, &charge.key, now_us, charge.ask);
                Some(Reply::Checked(Checked { decision, receipt: None }, Source::Degraded))
            }
            (Request::Together { charges, charge_of, .. }, policy) => {
                let (mut together, each) = match policy {
                    Policy::Local { memory, processes } => {
                        let charges: Vec<&Charge> = charges.iter().collect();
                        decide_here(memory, *processes, &charges, now_us)?
                    }
                    _ => unspent_together(charges, now_us),
                };
                let first_of = |charge| charge_of.iter().position(|&of| of == charge);
                together.refused_by = together.refused_by.and_then(first_of);
                let own = |&charge: &usize| {
                    let decision = each.get(charge)?.decision;
                    Some((Checked { decision, receipt: None }, Source::Degraded))
                };
                let each = charge_of.iter().map(own).collect::<Option<_>>()?;
                Some(Reply::Together(together, each))
            }
            (Request::Refund { .. } | Request::Reset { .. } | Request::State { .. }, _) => None,
        }
    }
}

/// What a key that has spent nothing would be told: one that costs too much never fits.
pub(super) fn unspent(charge: &Charge, now_us: u64) -> Checked {
    let mut state = charge.limit.fresh();
    let Checked { decision, .. } = charge.limit.check(&mut state, now_us, charge.ask);
    Checked { decision, receipt: None }
}

fn unspent_together(charges: &[Charge], now_us: u64) -> (Together, Vec<Checked>) {
    let mut states: Vec<State> = charges.iter().map(|charge| charge.limit.fresh()).collect();
    let together = |(charge, state)| {
        let Charge { limit, ask, role, .. }: &Charge = charge;
        match role {
            Role::Enforced => tollgate_core::Charge::enforced(limit, state, *ask),
            Role::Shadow => tollgate_core::Charge::shadow(limit, state, *ask),
        }
    };
    let mut parts: Vec<_> = charges.iter().zip(&mut states).map(together).collect();
    let together = check_all(&mut parts, now_us);
    let decisions = parts.iter().filter_map(|part| part.decision().copied());
    (together, decisions.map(|decision| Checked { decision, receipt: None }).collect())
}

/// Decides on this process's share. The Redis key says everything but the limit.
fn decide_here(
    memory: &Memory,
    processes: u32,
    charges: &[&Charge],
    now_us: u64,
) -> Option<(Together, Vec<Checked>)> {
    let scopes = charges
        .iter()
        .map(|charge| scope_of(memory, processes, &charge.limit))
        .collect::<Option<Vec<_>>>()?;
    let parts: Vec<memory::Part<'_>> = charges
        .iter()
        .zip(&scopes)
        .map(|(charge, scope)| {
            let Charge { key, ask, role, .. } = charge;
            memory::Part { scope, key, ask: *ask, role: *role }
        })
        .collect();
    Some(memory.together(&parts, now_us))
}

/// `None` if there are more limits than a memory store takes: then there is no share of one.
fn scope_of(
    memory: &Memory,
    processes: u32,
    limit: &Limit,
) -> Option<std::sync::Arc<memory::Scope>> {
    let share = share_of(limit, processes);
    memory.scope(&share.to_string(), share).ok()
}

/// The current one, unless it is of a single thread: that may stand still while others wait.
fn runtime() -> std::io::Result<Handle> {
    match Handle::try_current() {
        Ok(current) if current.runtime_flavor() != RuntimeFlavor::CurrentThread => Ok(current),
        _ => match &*BACKGROUND {
            Ok(background) => Ok(background.handle().clone()),
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
        },
    }
}
