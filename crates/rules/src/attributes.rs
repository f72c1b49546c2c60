//! A request as rules see it.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;

use tollgate_limiter::ClientAddress;

/// A request as rules see it: attributes by name.
///
/// `method`, `path`, `ip`, `api_key`, `header.x-…` and `jwt.…` are those of an HTTP request; any other
/// name will do, if rules know it.
///
/// What is [known](Self::with) is one thing, what the client says another. What it says of the
/// request, as in a header, is [said](Self::said): rules look at that to see whether they apply, and
/// nowhere else. Who it says it is, is [claimed](Self::claimed), and as good as not there until somebody
/// vouches for it. Keys and tiers are made of what is known, so that inventing names buys neither a
/// fresh quota nor a better one, and leaves no rule behind. An API key in the file's table is known once
/// it is found there.
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
    pub(super) standing: Standing,
    /// The address that `ip` is, where the text may show only its group. Here and not in [`Attributes`], which are
    /// moved for each attribute that is added.
    pub(super) address: Option<IpNet>,
}

/// How far an attribute can be relied on, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// The client says that it is so-and-so.
    Claimed,
    /// The client says so of the request, which is then so for as long as nothing hangs on it.
    Said,
    /// Whoever asks vouches for it.
    Known,
}

impl<'a> Attributes<'a> {
    /// A request of which nothing is known.
    pub fn new() -> Attributes<'a> {
        Attributes::default()
    }

    /// Something that is known of it. Of two with one name that counts which can be relied on more, or
    /// else the later.
    #[must_use]
    pub fn with(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), Standing::Known)
    }

    /// Something that the client says of the request: a header, as a rule.
    #[must_use]
    pub fn said(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), Standing::Said)
    }

    /// Who the client says it is: an API key that nobody has looked up, a token that nobody has verified.
    #[must_use]
    pub fn claimed(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), Standing::Claimed)
    }

    /// The client's address: the attribute `ip`, which has the group of an IPv6 client in keys, and whose
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

    /// The client's network, where its address is not known: the attribute `ip` is the network's first
    /// address, and is in those networks that hold all of the client's. Envoy's `masked_remote_address`
    /// is such.
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

    /// Returns what is known of the address that the attribute at this place is, if that is more than its
    /// text says.
    pub(super) fn address_at(&self, at: usize) -> Option<IpNet> {
        self.each.get(at)?.address
    }

    fn and(mut self, name: Cow<'a, str>, value: Cow<'a, str>, standing: Standing) -> Self {
        self.each.push(Attribute { name, value, standing, address: None });
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

/// Names alone: values may be secrets.
impl fmt::Debug for Attributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.each.iter().map(|attribute| &attribute.name)).finish()
    }
}
