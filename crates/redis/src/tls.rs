//! TLS: what `rediss://` needs of a build and of the process, and certificates other than usual.

#[cfg(feature = "tls")]
pub(super) use with::Certificates;
#[cfg(not(feature = "tls"))]
pub(super) use without::Certificates;

#[cfg(feature = "tls")]
mod with {
    use std::fs;

    use redis::{Client, ClientTlsConfig, ConnectionInfo, RedisResult, TlsCertificates};
    use rustls::crypto::{CryptoProvider, aws_lc_rs};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    use crate::address::Parameters;

    /// What is trusted instead of what the system trusts, and what is shown to servers that ask.
    #[derive(Clone)]
    pub(crate) struct Certificates(TlsCertificates);

    impl Certificates {
        /// Those in the files that a URL names.
        pub(crate) fn of(parameters: &Parameters<'_>) -> Result<Self, String> {
            install_provider();
            let mut all = Certificates(TlsCertificates { client_tls: None, root_cert: None });
            if let Some(pem) = file(parameters, "ca")? {
                all.set_root(pem).map_err(|problem| format!("`ca`: {problem}"))?;
            }
            match (file(parameters, "cert")?, file(parameters, "key")?) {
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

        /// Shows this certificate, and proves by the key that it is ours.
        pub(crate) fn set_client(
            &mut self,
            certificate_pem: Vec<u8>,
            key_pem: Vec<u8>,
        ) -> Result<(), String> {
            let chain = chain(&certificate_pem)?;
            // The reason is not told: it may quote the key.
            let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| {
                "no private key as PEM, unencrypted; one begins with -----BEGIN PRIVATE KEY-----"
            })?;
            ClientConfig::builder()
                .with_root_certificates(RootCertStore::empty())
                .with_client_auth_cert(chain, key)
                .map_err(
                    |_| "they do not belong together, or one is malformed; give those made together",
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

    /// At least one.
    fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
            Ok(chain) if !chain.is_empty() => Ok(chain),
            _ => Err(NO_CERTIFICATE.to_owned()),
        }
    }

    /// Its path is not told: who mistakes it for the key itself has a secret there.
    fn file(parameters: &Parameters<'_>, name: &str) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = parameters.value(name)? else { return Ok(None) };
        let content = fs::read(path).map_err(|error| {
            format!(
                "`{name}` names a file that cannot be read ({error}); give the path of a PEM file"
            )
        })?;
        Ok(Some(content))
    }

    /// The rustls in redis-rs takes the process's provider of cryptography, and panics where there is
    /// none and several are built in. So there is one from here on; an application's own stays.
    fn install_provider() {
        if CryptoProvider::get_default().is_none() {
            // It fails if another thread was faster: then there is one as well.
            let _ = aws_lc_rs::default_provider().install_default();
        }
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::convert::Infallible;

    use redis::{Client, ConnectionInfo, RedisResult};

    use crate::address::Parameters;

    /// There are none.
    #[derive(Clone)]
    pub(crate) struct Certificates(Infallible);

    impl Certificates {
        pub(crate) fn of(_: &Parameters<'_>) -> Result<Self, String> {
            Err("rediss:// needs TLS, which is not built in; enable the feature `tls` of the crate \
                 `tollgate`, or use redis:// where the network is safe"
                .to_owned())
        }

        pub(crate) fn client(&self, _: ConnectionInfo) -> RedisResult<Client> {
            match self.0 {}
        }
    }
}
