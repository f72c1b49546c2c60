//! A request's attributes by number, as far as rules know them.

use ipnet::IpNet;

use super::attributes::{Attributes, Standing};
use super::names::{AttributeId, Names};
use super::networks::known_of;

/// What methods that nobody knows are in keys, together.
const OTHER_METHOD: &str = "other";

/// A request's attributes by number, those that no rule knows left out.
#[derive(Debug, Default)]
pub(super) struct Request<'r> {
    /// In the order of their numbers, each once.
    each: Vec<Seen<'r>>,
    /// The addresses among the attributes that rules compare with networks, as far as they are known.
    addresses: Vec<(AttributeId, IpNet)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'r> {
    pub(super) id: AttributeId,
    pub(super) value: &'r str,
    pub(super) standing: Standing,
    /// Its place among the request's attributes, at most `u16::MAX`.
    at: u16,
}

impl<'r> Request<'r> {
    /// With the tier of an API key that is in the table: found there, it is more than a claim.
    pub(super) fn new(attributes: &'r Attributes<'_>, names: &'r Names) -> Request<'r> {
        let seen = |(at, attribute): (usize, &'r super::attributes::Attribute<'_>)| {
            let id = names.id(&attribute.name)?;
            let at = u16::try_from(at).unwrap_or(u16::MAX);
            Some(Seen { id, value: &attribute.value, standing: attribute.standing, at })
        };
        let mut each: Vec<Seen<'r>> = attributes.iter().enumerate().filter_map(seen).collect();
        // Stable, so that of two that are alike the later is the last, and counts.
        each.sort_by_key(|seen| (seen.id, seen.standing));
        each.dedup_by(|later, earlier| {
            let is_same = later.id == earlier.id;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        let mut request = Request { each, addresses: Vec::new() };
        if names.has_api_keys() {
            request.vouch_for_api_key(names);
        }
        // After the tier of an API key has replaced the one that a client says.
        if !names.addresses().is_empty() {
            request.read_addresses(attributes, names.addresses());
        }
        request
    }

    /// Reads each of these attributes as an address, whole if that is known.
    fn read_addresses(&mut self, attributes: &Attributes<'_>, ids: &[AttributeId]) {
        let known = |&id: &AttributeId| {
            let seen = self.seen(id)?;
            let whole = attributes.address_at(seen.at.into());
            Some((id, whole.or_else(|| known_of(seen.value))?))
        };
        self.addresses = ids.iter().filter_map(known).collect();
    }

    /// Returns the address that an attribute is, as far as it is known, if rules compare it with networks.
    pub(super) fn address(&self, id: AttributeId) -> Option<&IpNet> {
        self.addresses.iter().find(|(own, _)| *own == id).map(|(_, known)| known)
    }

    fn vouch_for_api_key(&mut self, names: &'r Names) {
        let Some(at) = self.position(AttributeId::API_KEY) else { return };
        let Some(tier) = names.tier(self.each[at].value) else { return };
        self.each[at].standing = Standing::Known;
        let tier =
            Seen { id: AttributeId::TIER, value: tier, standing: Standing::Known, at: u16::MAX };
        match self.each.binary_search_by_key(&tier.id, |seen| seen.id) {
            // Whoever asks may know better.
            Ok(at) if self.each[at].standing == Standing::Known => {}
            Ok(at) => self.each[at] = tier,
            Err(at) => self.each.insert(at, tier),
        }
    }

    fn position(&self, id: AttributeId) -> Option<usize> {
        self.each.binary_search_by_key(&id, |seen| seen.id).ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Seen<'r>> {
        self.each.iter().copied()
    }

    pub(super) fn seen(&self, id: AttributeId) -> Option<Seen<'r>> {
        self.position(id).map(|at| self.each[at])
    }

    /// What it is, if that is more than a claim of who one is.
    pub(super) fn value(&self, id: AttributeId) -> Option<&'r str> {
        self.seen(id).filter(|seen| seen.standing > Standing::Claimed).map(|seen| seen.value)
    }

    /// What it is, if somebody vouches for it. A method that is only said is `other`: without one, whoever
    /// invents a method would be rid of the rules whose key has it.
    pub(super) fn known(&self, id: AttributeId) -> Option<&'r str> {
        let seen = self.seen(id)?;
        match seen.standing {
            Standing::Known => Some(seen.value),
            Standing::Said if id == AttributeId::METHOD => Some(OTHER_METHOD),
            Standing::Said | Standing::Claimed => None,
        }
    }
}
