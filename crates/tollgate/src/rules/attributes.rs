//! A request as rules see it.

use std::borrow::Cow;
use std::fmt;

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

    fn and(mut self, name: Cow<'a, str>, value: Cow<'a, str>, standing: Standing) -> Self {
        self.each.push(Attribute { name, value, standing });
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
