//! The view that one node has of its cluster.

use std::ops::RangeInclusive;

use redis::cmd;

use crate::{LaunchError, Server};

/// The lines of `CLUSTER NODES`.
pub(super) struct ClusterView(Vec<NodeView>);

/// One node, as another node or itself sees it.
pub(super) struct NodeView {
    pub(super) id: String,
    /// The id of its primary, if it is a replica.
    pub(super) primary: Option<String>,
    /// The higher the epoch, the later the node got its slots.
    pub(super) epoch: u64,
    flags: Vec<String>,
    linked: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl ClusterView {
    pub(super) fn of(server: &Server) -> Result<ClusterView, LaunchError> {
        let text: String = server.ask(cmd("CLUSTER").arg("NODES"))?;
        Ok(ClusterView::parse(&text))
    }

    fn parse(text: &str) -> ClusterView {
        ClusterView(text.lines().filter_map(NodeView::parse).collect())
    }

    /// Returns the entry of the node itself.
    pub(super) fn myself(&self) -> Option<&NodeView> {
        self.0.iter().find(|known| known.has("myself"))
    }

    pub(super) fn owner_of(&self, slot: u16) -> Option<&NodeView> {
        self.0.iter().find(|known| known.slots.iter().any(|range| range.contains(&slot)))
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.0.iter().any(|known| known.id == id && !known.has("handshake"))
    }

    /// Whether the node's view of another equals that node's view of itself, and the two are connected.
    pub(super) fn sees(&self, other: &NodeView) -> bool {
        self.0.iter().find(|known| known.id == other.id).is_some_and(|known| {
            known.linked
                && !["handshake", "noaddr", "fail", "fail?"].iter().any(|flag| known.has(flag))
                && known.primary == other.primary
                && known.slots == other.slots
        })
    }
}

impl NodeView {
    /// `id address flags primary ping pong epoch link slot slot-slot [slot->-id]`
    fn parse(line: &str) -> Option<NodeView> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, _, flags, primary, _, _, epoch, link, slots @ ..] = words.as_slice() else {
            return None;
        };
        Some(NodeView {
            id: (*id).to_owned(),
            primary: (*primary != "-").then(|| (*primary).to_owned()),
            epoch: epoch.parse().ok()?,
            flags: flags.split(',').map(str::to_owned).collect(),
            linked: *link == "connected",
            slots: slots.iter().filter_map(|slots| parse_slots(slots)).collect(),
        })
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// Parses a slot or a range of slots; slots in migration, which are in brackets, are skipped.
fn parse_slots(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_parses_roles_and_slots() {
        let view = ClusterView::parse(
            "aa 127.0.0.1:1@2,, myself,master - 0 0 3 connected 0-5 9 [10->-bb]\n\
             bb 127.0.0.1:3@4 slave,fail? aa 0 0 3 disconnected\n",
        );
        let myself = view.myself().unwrap();
        assert_eq!((myself.id.as_str(), myself.epoch, &myself.primary), ("aa", 3, &None));
        assert_eq!(view.owner_of(9).map(|known| known.id.as_str()), Some("aa"));
        assert!(view.owner_of(10).is_none());
        assert_eq!(view.0[1].primary.as_deref(), Some("aa"));
        assert!(view.sees(myself) && !view.sees(&view.0[1]));
    }
}
