//! The attributes that rules use, by number, and the API keys.

use std::collections::HashMap;
use std::fmt;

use ahash::RandomState;

/// The number of an attribute that a rule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AttributeId(u32);

impl AttributeId {
    pub(super) const API_KEY: AttributeId = AttributeId(0);
    pub(super) const TIER: AttributeId = AttributeId(1);
    pub(super) const METHOD: AttributeId = AttributeId(2);
    pub(super) const PATH: AttributeId = AttributeId(3);
}

/// The attributes that rules use, and the tier of every API key in the file.
pub(super) struct AttributeNames {
    ids: HashMap<Box<str>, AttributeId, RandomState>,
    api_keys: HashMap<Box<str>, Box<str>, RandomState>,
    /// The attributes that rules compare with networks.
    addresses: Vec<AttributeId>,
}

/// The headers and claims that rules use, which are read from an HTTP request only if needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedAttributes {
    /// `header.x-tenant`, and `x-tenant`.
    headers: Vec<(Box<str>, Box<str>)>,
    /// `jwt.sub`, and `sub`.
    claims: Vec<(Box<str>, Box<str>)>,
}

impl WantedAttributes {
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(attribute, name)| (&**attribute, &**name))
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = (&str, &str)> {
        self.claims.iter().map(|(attribute, path)| (&**attribute, &**path))
    }
}

/// Prints counts only: API keys are secrets.
impl fmt::Debug for AttributeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ids, api_keys) = (self.ids.len(), self.api_keys.len());
        f.debug_struct("AttributeNames")
            .field("attributes", &ids)
            .field("api_keys", &api_keys)
            .finish()
    }
}

impl AttributeNames {
    pub(super) fn new<'a>(api_keys: impl Iterator<Item = (&'a str, &'a str)>) -> AttributeNames {
        let api_keys = api_keys.map(|(key, tier)| (key.into(), tier.into())).collect();
        let mut names = AttributeNames { ids: HashMap::default(), api_keys, addresses: Vec::new() };
        for name in ["api_key", "tier", "method", "path"] {
            names.add(name);
        }
        names
    }

    /// Returns the number of an attribute, and assigns the next one if the attribute is new.
    pub(super) fn add(&mut self, name: &str) -> AttributeId {
        if let Some(id) = self.id(name) {
            return id;
        }
        // OK because no file is long enough for 2^32 names.
        let id = AttributeId(self.ids.len() as u32);
        self.ids.insert(name.into(), id);
        id
    }

    /// Notes that rules compare an attribute with networks.
    pub(super) fn add_address(&mut self, id: AttributeId) {
        if !self.addresses.contains(&id) {
            self.addresses.push(id);
        }
    }

    /// Returns the attributes that rules compare with networks.
    pub(super) fn addresses(&self) -> &[AttributeId] {
        &self.addresses
    }

    pub(super) fn id(&self, name: &str) -> Option<AttributeId> {
        self.ids.get(name).copied()
    }

    /// Returns the name of the attribute with this number, which [`add`](Self::add) has assigned.
    pub(super) fn name(&self, id: AttributeId) -> &str {
        self.ids.iter().find(|(_, own)| **own == id).map_or("", |(name, _)| name)
    }

    /// Returns the attributes that are headers or claims of tokens.
    pub(super) fn wanted_attributes(&self) -> WantedAttributes {
        let with = |prefix: &str| {
            let names = self.ids.keys().map(|name| &**name);
            names
                .filter_map(|name| Some((name.into(), name.strip_prefix(prefix)?.into())))
                .collect()
        };
        WantedAttributes { headers: with("header."), claims: with("jwt.") }
    }

    pub(super) fn has_api_keys(&self) -> bool {
        !self.api_keys.is_empty()
    }

    pub(super) fn tier(&self, api_key: &str) -> Option<&str> {
        self.api_keys.get(api_key).map(|tier| &**tier)
    }
}
