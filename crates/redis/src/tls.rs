//! TLS for `rediss://`: the certificates, and the process's provider of cryptography.

// The feature `tls` brings a TLS library; without the feature, a URL with `rediss` is an error.
#[cfg(feature = "tls")]
pub(super) use with::Certificates;
#[cfg(not(feature = "tls"))]
pub(super) use without::NoCertificates as Certificates;

#[cfg(feature = "tls")]
mod with {
    use std::fs;

    use redis::{Client, ClientTlsConfig, ConnectionInfo, RedisResult, TlsCertificates};
    use rustls::crypto::{CryptoProvider, aws_lc_rs};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    /// The certificates that are trusted instead of the system's, and the one that is shown to servers that ask for one.
    #[derive(Clone)]
    pub(crate) struct Certificates(TlsCertificates);

    impl Certificates {
        /// Reads the files that a URL names with `ca`, `cert` and `key`. `path_of` returns the value of such a parameter.
        pub(crate) fn read(
            path_of: impl Fn(&str) -> Result<Option<String>, String>,
        ) -> Result<Self, String> {
            install_provider();
            let file = |name: &str| path_of(name)?.map(|path| file(name, &path)).transpose();
            let mut all = Certificates(TlsCertificates { client_tls: None, root_cert: None });
            if let Some(pem) = file("ca")? {
                all.set_root(pem).map_err(|problem| format!("`ca`: {problem}"))?;
            }
            match (file("cert")?, file("key")?) {
                (Some(certificate), Some(key)) => all
                    .set_client(certificate, key)
                    .map_err(|problem| format!("`cert` and `key`: {problem}"))?,
                (None, None) => {}
                (Some(_), None) => return Err("`cert` needs a `key`; give both".to_owned()),
                (None, Some(_)) => return Err("`key` needs a `cert`; give both".to_owned()),
            }
            Ok(all)
        }

        /// Trusts what these certificates signed, and nothing else.
        pub(crate) fn set_root(&mut self, pem: Vec<u8>) -> Result<(), String> {
            let mut trusted = RootCertStore::empty();
            for certificate in chain(&pem)? {
                trusted.add(certificate).map_err(|_| NO_CERTIFICATE)?;
            }
            self.0.root_cert = Some(pem);
            Ok(())
        }

        /// Shows this certificate, and proves with the key that it belongs to this process.
        pub(crate) fn set_client(
            &mut self,
            certificate_pem: Vec<u8>,
            key_pem: Vec<u8>,
        ) -> Result<(), String> {
            let chain = chain(&certificate_pem)?;
            // The error does not give the reason, which may quote the key.
            let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| {
                "no private key as PEM, unencrypted; one begins with -----BEGIN PRIVATE KEY-----"
            })?;
            ClientConfig::builder()
                .with_root_certificates(RootCertStore::empty())
                .with_client_auth_cert(chain, key)
                .map_err(
                    |_| "they do not match, or one is malformed; give a key and its certificate",
                )?;
            self.0.client_tls =
                Some(ClientTlsConfig { client_cert: certificate_pem, client_key: key_pem });
            Ok(())
        }

        pub(crate) fn client(&self, connection: ConnectionInfo) -> RedisResult<Client> {
            Client::build_with_tls(connection, self.0.clone())
        }
    }

    const NO_CERTIFICATE: &str =
        "no certificate as PEM; one begins with -----BEGIN CERTIFICATE-----";

    /// Reads a chain of at least one certificate.
    fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            _ => Err(NO_CERTIFICATE.to_owned()),
        }
    }

    /// Reads the file that the parameter `name` names. The error does not quote the path, because a user may have put the
    /// key itself there, which is a secret.
    fn file(name: &str, path: &str) -> Result<Vec<u8>, String> {
        fs::read(path).map_err(|error| {
            format!(
                "`{name}` names a file that cannot be read ({error}); give the path of a PEM file"
            )
        })
    }

    /// Installs a provider of cryptography for the process, unless the application has installed one. The rustls in
    /// redis-rs panics if none is installed and several are built in.
    fn install_provider() {
        if CryptoProvider::get_default().is_none() {
            // It fails if another thread was faster: then a provider is installed as well.
            let _ = aws_lc_rs::default_provider().install_default();
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::convert::Infallible;

    use redis::{Client, ConnectionInfo, RedisResult};

    /// A type without values: a build without TLS has no certificates.
    #[derive(Clone)]
    pub(crate) struct NoCertificates(Infallible);

    impl NoCertificates {
        pub(crate) fn read(
            _: impl Fn(&str) -> Result<Option<String>, String>,
        ) -> Result<Self, String> {
            Err("rediss:// needs TLS, which is not built in; enable the feature `tls` of the crate \
                 `tollgate`, or use redis:// where the network is safe"
                .to_owned())
        }

        pub(crate) fn client(&self, _: ConnectionInfo) -> RedisResult<Client> {
            match self.0 {}
        }
    }
}
