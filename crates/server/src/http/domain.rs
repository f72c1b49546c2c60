//! Finds the domain whose rules decide a request: the one that the request names, or the only one.

use tollgate::rules::Current;

use super::Problem;

/// Returns the named domain if it has rules, or without a name the only domain that has. `how` shows how to name one.
pub(super) fn find<'d>(
    named: Option<&'d str>,
    now: &'d Current<'_>,
    how: &str,
) -> Result<&'d str, Problem> {
    match named {
        Some(domain) if now.has_domain(domain) => Ok(domain),
        Some(domain) => Err(Problem::unknown_domain(domain)),
        None => now.only_domain().ok_or_else(|| {
            Problem::bad_request(format!(
                "no domain is named, which works only if all rules are of one domain; if they are of several, \
                 name one: {how}; if there are no rules, add some to the server's configuration"
            ))
        }),
    }
}
