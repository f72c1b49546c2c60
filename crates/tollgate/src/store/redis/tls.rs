//! TLS: what `rediss://` needs of a build and of the process.

use crate::error::Error;

/// Makes sure that a URL which asks for TLS can have it.
pub(super) fn prepare_for(url: &str) -> Result<(), Error> {
    let scheme = url.split(':').next().unwrap_or_default().trim();
    let is_tls = ["rediss", "valkeys"].iter().any(|tls| scheme.eq_ignore_ascii_case(tls));
    if is_tls { prepare() } else { Ok(()) }
}

/// The rustls in redis-rs takes the process's provider of cryptography, and panics where there is
/// none and several are built in. So there is one from here on; an application's own stays.
#[cfg(feature = "tls")]
fn prepare() -> Result<(), Error> {
    use rustls::crypto::{CryptoProvider, aws_lc_rs};

    if CryptoProvider::get_default().is_none() {
        // It fails if another thread was faster: then there is one as well.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn prepare() -> Result<(), Error> {
    let problem = "rediss:// needs TLS, which is not built in; enable the feature `tls` of the \
                   crate `tollgate`, or use redis:// where the network is safe";
    Err(Error::Setting { setting: "redis", problem: problem.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_refused_by_a_build_without_it_and_by_no_other() {
        for url in ["rediss://h", "valkeys://h", "REDISS://h", " rediss://h"] {
            let prepared = prepare_for(url);
            if cfg!(feature = "tls") {
                assert_eq!(prepared, Ok(()), "{url}");
            } else {
                assert!(prepared.is_err_and(|error| error.to_string().contains("feature `tls`")));
            }
        }
        for url in ["redis://rediss:rediss@h", "redis+unix:///rediss", ""] {
            assert_eq!(prepare_for(url), Ok(()), "{url}");
        }
    }
}
