//! Moves a slot from node to node, in steps, so that a test can act between them.

use redis::cmd;

use super::{Cluster, ClusterNode};
use crate::LaunchError;

/// How long one call that moves keys may take.
const MOVE_TIMEOUT_MS: u32 = 4_000;

/// How many keys are moved at once.
const KEYS_AT_ONCE: u32 = 100;

impl Cluster {
    /// Moves a slot with all its keys.
    pub fn migrate_slot(&self, slot: u16, to: ClusterNode) -> Result<(), LaunchError> {
        self.begin_migration(slot, to)?;
        while self.move_keys(slot, to, KEYS_AT_ONCE)? > 0 {}
        self.end_migration(slot, to)
    }

    /// Begins a migration: from now on the owner redirects requests for keys that it no longer has to `to`,
    /// with ASK.
    pub fn begin_migration(&self, slot: u16, to: ClusterNode) -> Result<(), LaunchError> {
        let from = self.owner_of(slot)?;
        self.set_slot(to, slot, "IMPORTING", from)?;
        self.set_slot(from, slot, "MIGRATING", to)
    }

    /// Moves up to `count` keys of the slot; returns how many were moved.
    pub fn move_keys(&self, slot: u16, to: ClusterNode, count: u32) -> Result<u32, LaunchError> {
        let from = &self[self.owner_of(slot)?];
        let keys: Vec<Vec<u8>> =
            from.ask(cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(count))?;
        if keys.is_empty() {
            return Ok(0);
        }
        let addr = self[to].addr();
        let mut migrate = cmd("MIGRATE");
        migrate.arg(addr.ip().to_string()).arg(addr.port()).arg("").arg(0).arg(MOVE_TIMEOUT_MS);
        if let Some(admin) = &self[to].admin {
            migrate.arg("AUTH2").arg(&admin.user).arg(&admin.password);
        }
        from.ask::<()>(migrate.arg("KEYS").arg(&keys))?;
        // OK because there are at most `count`.
        Ok(keys.len() as u32)
    }

    /// Makes `to` the owner, informs the other primaries, and waits until all live nodes agree.
    pub fn end_migration(&self, slot: u16, to: ClusterNode) -> Result<(), LaunchError> {
        let from = self.owner_of(slot)?;
        self.set_slot(to, slot, "NODE", to)?;
        self.set_slot(from, slot, "NODE", to)?;
        for other in self.primaries()? {
            if other != to && other != from {
                self.set_slot(other, slot, "NODE", to)?;
            }
        }
        self.wait_until_settled()
    }

    fn set_slot(
        &self,
        at: ClusterNode,
        slot: u16,
        what: &str,
        node: ClusterNode,
    ) -> Result<(), LaunchError> {
        let id = &self.ids[node.0];
        self[at].ask(cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(id))
    }
}
