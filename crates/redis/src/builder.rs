//! The settings of a limiter on Redis.

use std::time::Duration;

use tollgate_limiter::{Builder, Clock, DEADLINE, Error, Limiter, OnFailure};

use super::address::Deployment;
use super::{RedisStore, key};

/// Settings of a [`Limiter`] on Redis or Valkey.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = tollgate::Redis::at("redis://127.0.0.1:6379")?.build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct Redis {
    settings: RedisSettings,
    builder: Builder,
    deadline: Duration,
    on_failure: Option<OnFailure>,
}

/// The servers, and the settings for their use.
#[derive(Clone, Debug)]
pub(super) struct RedisSettings {
    pub(super) deployment: Deployment,
    pub(super) prefix: String,
}

impl RedisSettings {
    fn of(url: &str) -> Result<RedisSettings, Error> {
        Ok(RedisSettings { deployment: Deployment::of(url)?, prefix: "tollgate:".to_owned() })
    }

    // Certificates need the feature `tls`, which brings a TLS library.
    #[cfg(feature = "tls")]
    fn set_root_certificate(&mut self, pem: Vec<u8>) -> Result<(), Error> {
        self.deployment.certify("root_certificate", |certificates| certificates.set_root(pem))
    }

    #[cfg(feature = "tls")]
    fn set_client_certificate(
        &mut self,
        certificate_pem: Vec<u8>,
        key_pem: Vec<u8>,
    ) -> Result<(), Error> {
        self.deployment.certify("client_certificate", |certificates| {
            certificates.set_client(certificate_pem, key_pem)
        })
    }

    fn set_prefix(&mut self, prefix: &str) -> Result<(), Error> {
        key::check_prefix(prefix).map_err(|problem| {
            let problem = format!("`{}` {problem}", prefix.escape_debug());
            Error::Setting { setting: "prefix", problem }
        })?;
        self.prefix = prefix.to_owned();
        Ok(())
    }
}

impl Redis {
    /// Returns the settings of a limiter on Redis or Valkey, at one of these addresses:
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, or `redis+unix:///path/of/a.sock`: one server
    /// - `redis+cluster://[user[:password]@]host[:port],host[:port],…`: a cluster, given by some of its nodes; they name
    ///   the others
    /// - `redis+sentinel://[user[:password]@]host[:port],…/name[/database]`: the primary of that name, as
    ///   these sentinels know it; `?sentinel_user=…&sentinel_password=…` is the login at the sentinels
    /// - `redis+shards://[user[:password]@]host[:port],…[/database]`: servers that do not know of each other; which of them
    ///   has a key depends on their addresses, not on their order
    ///
    /// `rediss` instead of `redis` means TLS (feature `tls`). Redis must be version 6 or newer; a
    /// proxy that does not know the command `HELLO` needs `?protocol=resp2`.
    ///
    /// Limits hold for all processes that use the same servers and prefix. This call does not connect. The first check
    /// connects, and after a broken connection the next check connects again.
    ///
    /// One script decides several limits of one check, all or none, if their states are on one server and, in a cluster,
    /// in one slot. The states of one key always are. Otherwise the servers or slots are charged one after the other, and
    /// the charges are given back if one of them refuses. No limit admits too much, but while such a check is under way,
    /// other requests cannot spend the units that it may give back.
    ///
    /// TLS trusts the certificates that the system trusts, or the ones in the file that `SSL_CERT_FILE` names.
    /// `?ca=/path/to/ca.pem` trusts the certificates in that file instead, and `?cert=/path&key=/path` shows a
    /// certificate to a server that asks for one. The files are read by this call.
    ///
    /// TLS needs a provider of cryptography for the whole process. This call installs rustls's default, AWS-LC,
    /// unless the application has installed another provider before.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = tollgate::Redis::at("redis://127.0.0.1:6379")?.build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(url: &str) -> Result<Redis, Error> {
        let (settings, builder) = (RedisSettings::of(url)?, Limiter::builder());
        Ok(Redis { settings, builder, deadline: DEADLINE, on_failure: None })
    }

    /// Sets the most bytes that [local](OnFailure::Local) decisions may take while the servers fail, as
    /// [`Builder::max_bytes`] does for a limiter in memory.
    pub fn max_bytes(self, max_bytes: usize) -> Redis {
        Redis { builder: self.builder.max_bytes(max_bytes), ..self }
    }

    /// Uses this clock's time instead of the server's for decisions: for tests, and to replay recorded requests.
    pub fn clock(self, clock: impl Into<Clock>) -> Redis {
        Redis { builder: self.builder.clock(clock), ..self }
    }

    /// Sets the prefix of every key on the server; the default is `tollgate:`. At most 64 bytes, without
    /// braces and spaces.
    pub fn prefix(mut self, prefix: &str) -> Result<Redis, Error> {
        self.settings.set_prefix(prefix)?;
        Ok(self)
    }

    /// Sets how long a request may take, with its time in the queue; the default is 10 ms. At least 1 ms, at
    /// most an hour. Opening a connection may take longer: the requests that arrive meanwhile still fail at their
    /// deadlines.
    ///
    /// A scope may have [its own](tollgate_limiter::Scope::deadline). Whether a server fails is judged by this deadline: a
    /// reply that only misses a scope's shorter deadline is not a failure of the server.
    pub fn deadline(mut self, deadline: Duration) -> Redis {
        self.deadline = deadline.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// Sets how checks are decided when the servers fail. The default is [`OnFailure::Local`] with the number of limiters
    /// on the same servers and prefix, which the servers count. A scope may have
    /// [its own](tollgate_limiter::Scope::on_failure). All scopes share the memory for [`OnFailure::Local`], which
    /// [`Redis::max_bytes`] bounds.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Redis {
        self.on_failure = Some(on_failure);
        self
    }

    /// Sets how many callers may wait in [`Scope::acquire`](tollgate_limiter::Scope::acquire), as
    /// [`Builder::max_waiting`] does.
    pub fn max_waiting(self, max_waiting: usize) -> Redis {
        Redis { builder: self.builder.max_waiting(max_waiting), ..self }
    }

    /// Trusts servers whose certificates are signed by these certificates, instead of by the certificates that the system
    /// trusts. PEM, as in the file that a URL names with `?ca=`. The URL must use TLS.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Result<Redis, Error> {
        self.settings.set_root_certificate(pem.into())?;
        Ok(self)
    }

    /// Shows this certificate to a server that asks for one. PEM, as in the files that a URL names with
    /// `?cert=` and `?key=`. The URL must use TLS, and the key must not be encrypted.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Result<Redis, Error> {
        self.settings.set_client_certificate(certificate_pem.into(), key_pem.into())?;
        Ok(self)
    }

    /// Builds the limiter, which can be used in every runtime and on every executor.
    ///
    /// Its connections run on the current tokio runtime if that has several threads, and otherwise on one
    /// thread that all limiters of the process share. When the runtime ends before the limiter, they
    /// move to that thread. Requests in flight at that moment, at most two batches of 64 charges for each
    /// server and requests that wait for a late answer, are not sent again, because they may have been
    /// charged: [`OnFailure`] decides them. A limiter that several multi-thread runtimes share, such as a `static` of
    /// tests, avoids that if it is built outside of them: `std::thread::spawn(build).join()`.
    ///
    /// Fails if the system has no thread for the connections.
    pub fn build(self) -> Result<Limiter, Error> {
        let Redis { settings, builder, deadline, on_failure } = self;
        let connect = |fallback: &_| RedisStore::new(settings, deadline, fallback);
        let mut remote = builder.store(connect)?.deadline(deadline);
        if let Some(on_failure) = on_failure {
            remote = remote.on_failure(on_failure);
        }
        Ok(remote.build())
    }
}
