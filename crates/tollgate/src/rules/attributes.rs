//! A request as rules see it.

use std::borrow::Cow;
use std::fmt;

/// A request as rules see it: attributes by name.
///
/// `method`, `path`, `ip`, `api_key`, `header.x-…` and `jwt.…` are those of an HTTP request; any other
/// name will do, if rules know it.
///
/// What is known is one thing, what a client says of itself another: [`claimed`](Self::claimed) is for
/// the latter. Rules look at both to see whether they apply. But nobody is given a key or a tier for a
/// claim: those are made of what is known, so that inventing names does not buy fresh quota. An API key
/// in the file's table is known once it is found there.
///
/// ```
/// # use tollgate::rules::Attributes;
/// let request = Attributes::new()
///     .with("method", "POST")
///     .with("path", "/login")
///     .with("ip", "203.0.113.9")
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

/// Whether an attribute can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Whoever asks vouches for it.
    Known,
    /// The client says so.
    Claimed,
}

impl<'a> Attributes<'a> {
    /// A request of which nothing is known.
    pub fn new() -> Attributes<'a> {
        Attributes::default()
    }

    /// Something that is known of it. Of two with one name the later counts.
    #[must_use]
    pub fn with(
        self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Attributes<'a> {
        self.and(name.into(), value.into(), Standing::Known)
    }

    /// Something that the client says of itself.
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
