//! Certificates for servers with TLS.

// Making certificates needs the feature `tls`.
#[cfg(feature = "tls")]
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

#[cfg(feature = "tls")]
use crate::LaunchError;

/// A server's certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The certificate of the authority that signed it: servers verify each other with it.
    pub authority: String,
}

/// An authority that signs certificates. Only programs that are given its own certificate trust it.
#[cfg(feature = "tls")]
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

#[cfg(feature = "tls")]
impl Authority {
    /// Returns a new authority with this name.
    pub fn new(name: &str) -> Result<Authority, LaunchError> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { pem, issuer: Issuer::new(params, key) })
    }

    /// Returns its own certificate as PEM, for programs that should trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns a certificate for the server with this name or address.
    pub fn certify(&self, name: &str) -> Result<ServerCertificate, LaunchError> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new([name.to_owned()])?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(ServerCertificate { certificate, key: key.serialize_pem(), authority: self.pem.clone() })
    }
}
