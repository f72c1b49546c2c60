//! Certificates for servers that speak TLS.

// Making certificates needs the feature `tls`.
#[cfg(feature = "tls")]
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

#[cfg(feature = "tls")]
use crate::LaunchError;

/// A server's certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The certificate of the one who signed it: servers check each other by it.
    pub authority: String,
}

/// One who signs certificates, known to nobody who was not given its own.
#[cfg(feature = "tls")]
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

#[cfg(feature = "tls")]
impl Authority {
    /// A new one of this name.
    pub fn new(name: &str) -> Result<Authority, LaunchError> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { pem, issuer: Issuer::new(params, key) })
    }

    /// Its own certificate as PEM, for those who are to trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for the server of this name or address.
    pub fn certify(&self, name: &str) -> Result<Certified, LaunchError> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new([name.to_owned()])?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Certified { certificate, key: key.serialize_pem(), authority: self.pem.clone() })
    }
}
