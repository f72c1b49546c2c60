//! A request as rules see it.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;

use tollgate_limiter::ClientAddress;

/// A request as rules see it: attributes by name.
///
/// An HTTP request has `method`, `path`, `ip`, `api_key`, `header.x-…` and `jwt.…`. A program may use any other name
/// that its rules use.
///
/// An attribute is trusted to one of three degrees:
///
/// - [Known](Self::with): the program has verified it. Keys and tiers use only known attributes, so that a client that
///   invents values gets no new quota and no larger one, and no rule is skipped.
/// - [Said](Self::said): the client says it about the request, for example in a header. Rules use it only to find out
///   whether they apply.
/// - [Claimed](Self::claimed): the client says it about itself, and nothing has confirmed it. Rules treat it as missing.
///
/// An API key becomes known if it is in the file's table.
///
/// ```
/// # use tollgate::rules::Attributes;
/// let request = Attributes::new()
///     .with("method", "POST")
///     .with("path", "/login")
///     .with("ip", "203.0.113.9")
///     .said("header.user-agent", "curl/8")
///     .claimed("api_key", "k_123");
/// ```
#[derive(Clone, Default)]
pub struct Attributes<'a> {
    each: Vec<Attribute<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct Attribute<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) value: Cow<'a, str>,
    pub(super) trust: TrustLevel,
    /// The whole address of `ip`, because the text may show only the group that the address belongs to. Stored here
    /// and not in [`Attributes`], which are moved each time an attribute is added.
    pub(super) address: Option<IpNet>,
}

/// How far an attribute is trusted, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrustLevel {
    /// The client says it about itself, and nothing has confirmed it.
    Claimed,
    /// The client says it about the request. Conditions use it; keys and tiers do not.
    Said,
    /// The program has verified it.
    Known,
}

impl<'a> Attributes<'a> {
    /// Returns a request without attributes.
    pub fn new() -> Attributes<'a> {
        Attributes::default()
    }

    /// Adds a known attribute. If a name occurs twice, the attribute that is trusted more counts; of two with the same
    /// trust, the later one.
    #[must_use]
    pub fn with(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), TrustLevel::Known)
    }

    /// Adds an attribute that the client says about the request, usually a header.
    #[must_use]
    pub fn said(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), TrustLevel::Said)
    }

    /// Adds an attribute that the client says about itself: an API key that was not looked up, or a token that was not
    /// verified.
    #[must_use]
    pub fn claimed(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), TrustLevel::Claimed)
    }

    /// Adds the client's address as the attribute `ip`. Keys contain only the group that an IPv6 address belongs to;
    /// networks are compared with the whole address.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # use tollgate::rules::{Attributes, Config, Rules};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{ name: one, domain: api, when: { ip: 2001:db8::1 }, key: [], limit: block }]";
    /// let rules = Rules::new(&Limiter::memory(), &Config::parse("rules.yaml", rules)?)?;
    /// for (ip, is_allowed) in [("2001:db8::1", false), ("2001:db8::2", true)] {
    ///     let address = rules.client_address(ip.parse()?); // 2001:db8::/56
    ///     let request = Attributes::new().with_address(address);
    ///     assert_eq!(rules.check("api", &request).now()?.is_allowed(), is_allowed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_address(self, address: impl Into<Cow<'a, ClientAddress>>) -> Attributes<'a> {
        let address = address.into();
        let known = address.ip().into();
        self.with_known_address(address, known)
    }

    /// Adds the client's network, if its address is not known. The attribute `ip` is the network's first address,
    /// and matches the networks that contain the client's whole network. An example is Envoy's
    /// `masked_remote_address`.
    #[must_use]
    pub fn with_masked_address(
        self,
        first: impl Into<Cow<'a, ClientAddress>>,
        bits: u8,
    ) -> Attributes<'a> {
        let first = first.into();
        let whole = IpNet::from(first.ip());
        let known = IpNet::new(first.ip(), bits).map_or(whole, |network| network.trunc());
        self.with_known_address(first, known)
    }

    fn with_known_address(self, address: Cow<'a, ClientAddress>, known: IpNet) -> Attributes<'a> {
        let mut request = match address {
            Cow::Borrowed(address) => self.with("ip", address.as_str()),
            Cow::Owned(address) => self.with("ip", address.to_string()),
        };
        if let Some(ip) = request.each.last_mut() {
            ip.address = Some(known);
        }
        request
    }

    /// Returns the address of the attribute at this index, as far as it is known, if its text does not show it.
    pub(super) fn address_at(&self, at: usize) -> Option<IpNet> {
        self.each.get(at)?.address
    }

    fn and(mut self, name: Cow<'a, str>, value: Cow<'a, str>, trust: TrustLevel) -> Self {
        self.each.push(Attribute { name, value, trust, address: None });
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attribute<'a>> {
        self.each.iter()
    }
}

impl<'a, N: Into<Cow<'a, str>>, V: Into<Cow<'a, str>>> FromIterator<(N, V)> for Attributes<'a> {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(each: I) -> Attributes<'a> {
        each.into_iter().fold(Attributes::new(), |request, (name, value)| request.with(name, value))
    }
}

/// Prints names only: values may be secrets.
impl fmt::Debug for Attributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.each.iter().map(|attribute| &attribute.name)).finish()
    }
}
