//! Patterns that values are compared with.

use super::networks::{Networks, known_of};

/// A pattern that a value may match: `POST`, `{ prefix: /v1/ }`, `/v1/**`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pattern {
    /// The value is this text.
    Exact(Box<str>),
    /// The value begins with this text.
    Prefix(Box<str>),
    /// The value matches this text with stars.
    Glob(Glob),
    /// The value is an address in one of these networks.
    In(Networks),
}

/// A text in which `*` matches any characters but `/`, and `**` matches any characters.
///
/// `/v1/*/items` matches `/v1/42/items`, not `/v1/4/2/items`; `/v1/**` matches both, and also `/v1/`, but not `/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Glob {
    text: Box<str>,
    /// The text before the first star.
    first: Box<str>,
    /// Each star, and the text between it and the next.
    rest: Vec<(Star, Box<str>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Star {
    /// `*`: within a segment.
    Segment,
    /// `**`: across segments.
    Any,
}

/// The number of tries per byte, approximately, after which an algorithm that reads each byte once takes over.
const TRIES_PER_BYTE: usize = 8;

/// A byte of a glob, or a star.
#[derive(Clone, Copy, Debug)]
enum GlobToken {
    Star(Star),
    Byte(u8),
}

/// Marks the positions after stars as reached, because a star may match the empty text.
fn skip_stars(tokens: &[GlobToken], reached: &mut [bool]) {
    for (at, token) in tokens.iter().enumerate() {
        if let GlobToken::Star(_) = token {
            reached[at + 1] |= reached[at];
        }
    }
}

impl Pattern {
    /// Reads a text of a file: a glob if there is a star in it, otherwise the exact text.
    pub(crate) fn of(text: &str) -> Pattern {
        match text.contains('*') {
            true => Pattern::Glob(Glob::new(text)),
            false => Pattern::Exact(text.into()),
        }
    }

    pub(crate) fn matches(&self, value: &str) -> bool {
        match self {
            Pattern::Exact(text) => **text == *value,
            Pattern::Prefix(text) => value.starts_with(&**text),
            Pattern::Glob(glob) => glob.matches(value),
            Pattern::In(networks) => known_of(value).is_some_and(|known| networks.hold(&known)),
        }
    }

    /// Returns the networks that an address must be in, if the pattern has networks.
    pub(crate) fn networks(&self) -> Option<&Networks> {
        match self {
            Pattern::In(networks) => Some(networks),
            Pattern::Exact(_) | Pattern::Prefix(_) | Pattern::Glob(_) => None,
        }
    }

    /// Returns whether the pattern matches every value: `**`.
    pub(crate) fn is_like_all(&self) -> bool {
        match self {
            // A prefix that was read is never empty, and not every value is an address.
            Pattern::Exact(_) | Pattern::Prefix(_) | Pattern::In(_) => false,
            Pattern::Glob(glob) => glob.first.is_empty() && glob.rest == [(Star::Any, "".into())],
        }
    }

    /// Returns the text that every matching value begins with.
    pub(crate) fn literal_prefix(&self) -> &str {
        match self {
            Pattern::Exact(text) | Pattern::Prefix(text) => text,
            Pattern::Glob(glob) => &glob.first,
            Pattern::In(_) => "",
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pattern::Exact(text) => f.write_str(text),
            Pattern::Prefix(text) => write!(f, "{text}…"),
            Pattern::Glob(glob) => f.write_str(&glob.text),
            Pattern::In(networks) => networks.fmt(f),
        }
    }
}

impl Glob {
    fn new(text: &str) -> Glob {
        let mut parts = text.split('*');
        let first = parts.next().unwrap_or_default();
        let mut rest: Vec<(Star, Box<str>)> = Vec::new();
        for part in parts {
            match rest.last_mut() {
                // No text between two stars: they are one `**`, which also matches `/`.
                Some((star, between)) if between.is_empty() => {
                    (*star, *between) = (Star::Any, part.into());
                }
                _ => rest.push((Star::Segment, part.into())),
            }
        }
        Glob { text: text.into(), first: first.into(), rest }
    }

    fn matches(&self, value: &str) -> bool {
        let Some(value) = value.strip_prefix(&*self.first) else { return false };
        self.rest_matches(value)
    }

    /// Returns whether `value` matches the stars and the texts after them.
    ///
    /// Each star matches as few bytes as possible. If the text after a star does not fit, the last star takes one byte more.
    /// A `*` that has reached a `/` cannot take more; the last `**` does instead. Earlier stars need not be tried again,
    /// because the later stars can match everything that the earlier ones would.
    ///
    /// This may try the same bytes many times. A client chooses the value, so after too many tries the function
    /// [`rest_matches_at_once`](Self::rest_matches_at_once) is used instead.
    fn rest_matches(&self, value: &str) -> bool {
        let value = value.as_bytes();
        let (mut part, mut at) = (0, 0);
        // The last star of each kind, and the position after it that was tried last.
        let (mut segment, mut any) = (None, None);
        for _ in 0..TRIES_PER_BYTE * (value.len() + 1) {
            match self.rest.get(part) {
                None if at == value.len() => return true,
                None => {}
                Some((star, text)) => {
                    match star {
                        Star::Segment => segment = Some((part, at)),
                        Star::Any => (any, segment) = (Some((part, at)), None),
                    }
                    if value[at..].starts_with(text.as_bytes()) {
                        (part, at) = (part + 1, at + text.len());
                        continue;
                    }
                }
            }
            segment =
                segment.filter(|&(_, from)| value.get(from).is_some_and(|&byte| byte != b'/'));
            any = any.filter(|&(_, from)| from < value.len());
            let Some((star, from)) = segment.or(any) else { return false };
            (part, at) = (star, from + 1);
        }
        self.rest_matches_at_once(value)
    }

    /// Returns the same result, by following all possible matches at the same time, byte by byte.
    fn rest_matches_at_once(&self, value: &[u8]) -> bool {
        let tokens = self.rest.iter().flat_map(|(star, text)| {
            [GlobToken::Star(*star)].into_iter().chain(text.bytes().map(GlobToken::Byte))
        });
        let tokens: Vec<GlobToken> = tokens.collect();
        // Whether the bytes read so far match the tokens before each position.
        let mut reached = vec![false; tokens.len() + 1];
        reached[0] = true;
        skip_stars(&tokens, &mut reached);
        for &byte in value {
            let mut next = vec![false; reached.len()];
            for (at, token) in tokens.iter().enumerate().filter(|(at, _)| reached[*at]) {
                match token {
                    GlobToken::Byte(own) => next[at + 1] |= *own == byte,
                    GlobToken::Star(Star::Segment) => next[at] |= byte != b'/',
                    GlobToken::Star(Star::Any) => next[at] = true,
                }
            }
            reached = next;
            skip_stars(&tokens, &mut reached);
        }
        reached[tokens.len()]
    }

    /// Returns the whole segments without a star, between slashes or at an end.
    pub(super) fn literal_segments(&self) -> impl Iterator<Item = &str> {
        self.text.split('/').filter(|segment| !segment.is_empty() && !segment.contains('*'))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn star_matches_within_a_segment_and_two_stars_match_across() {
        for (pattern, like, unlike) in [
            ("/login", &["/login"][..], &["/login/", "/LOGIN", ""][..]),
            ("/v1/*", &["/v1/", "/v1/a"], &["/v1", "/v1/a/b", "/v2/a"]),
            ("/v1/**", &["/v1/", "/v1/a", "/v1/a/b"], &["/v1", "/v2/a"]),
            ("/v1/*/items", &["/v1/42/items", "/v1//items"], &["/v1/4/2/items", "/v1/items"]),
            ("/v1/**/items", &["/v1/4/2/items", "/v1//items"], &["/v1/items", "/v1/4/items/x"]),
            ("**/edit", &["/edit", "/a/b/edit"], &["/a/edit/b", "edit"]),
            ("*.example.com", &["api.example.com"], &["api.example.org", "a/b.example.com"]),
            ("**", &["", "/", "a/b"], &[]),
            ("*", &["", "a"], &["/"]),
            ("/a*b**c", &["/abc", "/axbx/xc"], &["/ab", "/a/bc"]),
            ("**/a/*/b", &["/a/x/a/y/b"], &["/a/x/y/b"]),
            ("***", &["/a"], &[]),
            ("/ü*ß", &["/üß", "/üöß"], &["/üö"]),
        ] {
            let of = Pattern::of(pattern);
            like.iter().for_each(|value| assert!(of.matches(value), "{pattern} {value}"));
            unlike.iter().for_each(|value| assert!(!of.matches(value), "{pattern} {value}"));
        }
        let prefix = Pattern::Prefix("/v1".into());
        assert!(prefix.matches("/v1") && prefix.matches("/v10") && !prefix.matches("/v"));
    }

    /// A regression: a value that any client could send took ten seconds.
    #[test]
    fn long_values_match_in_linear_time() {
        let long = "a".repeat(1 << 16);
        for pattern in ["**a*b", "**a*a*b", "**a*/a*b", "*a*b", "**a**b", "**a*b**c*d"] {
            let began = std::time::Instant::now();
            assert!(!Pattern::of(pattern).matches(&long));
            assert!(!Pattern::of(pattern).matches(&"a/".repeat(1 << 15)));
            assert!(!Pattern::of(pattern).matches(&format!("{long}/{long}/")));
            assert!(began.elapsed().as_secs() < 5, "{pattern} took {:?}", began.elapsed());
        }
    }

    /// Matches by trying everything.
    fn is_like(pattern: &[u8], value: &[u8]) -> bool {
        match pattern {
            [] => value.is_empty(),
            [b'*', b'*', rest @ ..] => {
                (0..=value.len()).any(|taken| is_like(rest, &value[taken..]))
            }
            [b'*', rest @ ..] => {
                let segment = value.iter().position(|&byte| byte == b'/').unwrap_or(value.len());
                (0..=segment).any(|taken| is_like(rest, &value[taken..]))
            }
            [first, rest @ ..] => value.first() == Some(first) && is_like(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn globs_match_the_same_as_trying_everything(pattern in "[ab/*]{0,12}", value in "[ab/]{0,14}") {
            let wanted = is_like(pattern.as_bytes(), value.as_bytes());
            let pattern = Pattern::of(&pattern);
            prop_assert_eq!(pattern.matches(&value), wanted);
            if let Pattern::Glob(glob) = pattern {
                let rest = value.strip_prefix(&*glob.first);
                prop_assert_eq!(
                    rest.is_some_and(|rest| glob.rest_matches_at_once(rest.as_bytes())),
                    wanted
                );
            }
        }

        #[test]
        fn matching_values_have_the_segments_of_the_pattern(pattern in "[ab/*]{0,9}", value in "[ab/]{0,12}") {
            if let Pattern::Glob(glob) = Pattern::of(&pattern) {
                let has = |segment: &str| value.split('/').any(|own| own == segment);
                prop_assert!(!glob.matches(&value) || glob.literal_segments().all(has));
            }
        }

        #[test]
        fn matching_values_begin_with_the_prefix_of_the_pattern(pattern in "[ab/*]{0,9}", value in "[ab/]{0,12}") {
            let pattern = Pattern::of(&pattern);
            prop_assert!(!pattern.matches(&value) || value.starts_with(pattern.literal_prefix()));
        }
    }
}
