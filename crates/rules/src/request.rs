//! A request's attributes by number, limited to the attributes that rules use.

use ipnet::IpNet;

use super::attributes::{Attributes, TrustLevel};
use super::names::{AttributeId, AttributeNames};
use super::networks::known_of;

/// The value in keys that all unknown methods share.
const OTHER_METHOD: &str = "other";

/// A request's attributes by number, without the attributes that no rule uses.
#[derive(Debug, Default)]
pub(super) struct NumberedRequest<'r> {
    /// Sorted by number, each number once.
    each: Vec<NumberedAttribute<'r>>,
    /// The attributes that rules compare with networks, as addresses, as far as they are known.
    addresses: Vec<(AttributeId, IpNet)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NumberedAttribute<'r> {
    pub(super) id: AttributeId,
    pub(super) value: &'r str,
    pub(super) trust: TrustLevel,
    /// Its index among the request's attributes, at most `u16::MAX`.
    at: u16,
}

impl<'r> NumberedRequest<'r> {
    /// Reads the attributes. An API key that is in the file's table becomes known, and adds its tier.
    pub(super) fn new(
        attributes: &'r Attributes<'_>,
        names: &'r AttributeNames,
    ) -> NumberedRequest<'r> {
        let seen = |(at, attribute): (usize, &'r super::attributes::Attribute<'_>)| {
            let id = names.id(&attribute.name)?;
            let at = u16::try_from(at).unwrap_or(u16::MAX);
            Some(NumberedAttribute { id, value: &attribute.value, trust: attribute.trust, at })
        };
        let mut each: Vec<NumberedAttribute<'r>> =
            attributes.iter().enumerate().filter_map(seen).collect();
        // A stable sort, so that of two attributes with the same trust the later one is last, and counts.
        each.sort_by_key(|seen| (seen.id, seen.trust));
        each.dedup_by(|later, earlier| {
            let is_same = later.id == earlier.id;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        let mut request = NumberedRequest { each, addresses: Vec::new() };
        if names.has_api_keys() {
            request.verify_api_key(names);
        }
        // Read last, after the tier of an API key has replaced a tier that the client says.
        if !names.addresses().is_empty() {
            request.read_addresses(attributes, names.addresses());
        }
        request
    }

    /// Reads each of these attributes as an address; the whole address, if that is known.
    fn read_addresses(&mut self, attributes: &Attributes<'_>, ids: &[AttributeId]) {
        let known = |&id: &AttributeId| {
            let seen = self.attribute(id)?;
            let whole = attributes.address_at(seen.at.into());
            Some((id, whole.or_else(|| known_of(seen.value))?))
        };
        self.addresses = ids.iter().filter_map(known).collect();
    }

    /// Returns an attribute's address, as far as it is known, if rules compare the attribute with networks.
    pub(super) fn address(&self, id: AttributeId) -> Option<&IpNet> {
        self.addresses.iter().find(|(own, _)| *own == id).map(|(_, known)| known)
    }

    fn verify_api_key(&mut self, names: &'r AttributeNames) {
        let Some(at) = self.position(AttributeId::API_KEY) else { return };
        let Some(tier) = names.tier(self.each[at].value) else { return };
        self.each[at].trust = TrustLevel::Known;
        let tier = NumberedAttribute {
            id: AttributeId::TIER,
            value: tier,
            trust: TrustLevel::Known,
            at: u16::MAX,
        };
        match self.each.binary_search_by_key(&tier.id, |seen| seen.id) {
            // The program knows the tier, which has precedence.
            Ok(at) if self.each[at].trust == TrustLevel::Known => {}
            Ok(at) => self.each[at] = tier,
            Err(at) => self.each.insert(at, tier),
        }
    }

    fn position(&self, id: AttributeId) -> Option<usize> {
        self.each.binary_search_by_key(&id, |seen| seen.id).ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NumberedAttribute<'r>> {
        self.each.iter().copied()
    }

    pub(super) fn attribute(&self, id: AttributeId) -> Option<NumberedAttribute<'r>> {
        self.position(id).map(|at| self.each[at])
    }

    /// Returns the value of an attribute, unless it is only claimed.
    pub(super) fn value(&self, id: AttributeId) -> Option<&'r str> {
        self.attribute(id).filter(|seen| seen.trust > TrustLevel::Claimed).map(|seen| seen.value)
    }

    /// Returns the value of an attribute if it is known. A method that is only said becomes `other`: if it were
    /// missing, a client could escape the rules that have it in their key by inventing a method.
    pub(super) fn known(&self, id: AttributeId) -> Option<&'r str> {
        let seen = self.attribute(id)?;
        match seen.trust {
            TrustLevel::Known => Some(seen.value),
            TrustLevel::Said if id == AttributeId::METHOD => Some(OTHER_METHOD),
            TrustLevel::Said | TrustLevel::Claimed => None,
        }
    }
}
