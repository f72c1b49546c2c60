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
    settings: Settings,
    builder: Builder,
    deadline: Duration,
    on_failure: Option<OnFailure>,
}

/// Where the servers are, and how they are used.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) deployment: Deployment,
    pub(super) prefix: String,
}

impl Settings {
    fn of(url: &str) -> Result<Settings, Error> {
        Ok(Settings { deployment: Deployment::of(url)?, prefix: "tollgate:".to_owned() })
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
    /// On Redis or Valkey, at one of these:
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, or `redis+unix:///path/of/a.sock`: one server
    /// - `redis+cluster://[user[:password]@]host[:port],host[:port],…`: a cluster; some of its nodes, which
    ///   are asked for the others
    /// - `redis+sentinel://[user[:password]@]host[:port],…/name[/database]`: the primary of that name, as
    ///   these sentinels know it; `?sentinel_user=…&sentinel_password=…` is for themselves
    /// - `redis+shards://[user[:password]@]host[:port],…[/database]`: servers that know nothing of each
    ///   other; each key is on one of them, which depends on their addresses, not on their order
    ///
    /// With `rediss` instead of `redis`, over TLS (feature `tls`). Redis must be version 6 or newer; a
    /// proxy that does not know its `HELLO` needs `?protocol=resp2`.
    ///
    /// Limits then hold for all processes that use the same servers and prefix. Nothing is connected
    /// yet; that happens with the first check, and again when a connection breaks.
    ///
    /// Several limits of one check are one script, all or none, where their keys are on one server and,
    /// in a cluster, in one slot: all limits of one id are. Otherwise they are charged one place after
    /// the other, and given back if one refuses: no limit admits too much, but while such a check is on its
    /// way others miss what it may give back.
    ///
    /// TLS trusts what the system trusts, or the certificates in the file that `SSL_CERT_FILE` names.
    /// `?ca=/path/to/ca.pem` trusts those in that file instead, and `?cert=/path&key=/path` shows a
    /// certificate to a server that asks for one; the files are read now.
    ///
    /// TLS needs a provider of cryptography for the whole process: rustls's default, AWS-LC, is
    /// installed here unless the application has installed another before.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = tollgate::Redis::at("redis://127.0.0.1:6379")?.build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(url: &str) -> Result<Redis, Error> {
        let (settings, builder) = (Settings::of(url)?, Limiter::builder());
        Ok(Redis { settings, builder, deadline: DEADLINE, on_failure: None })
    }

    /// Sets the most bytes that [local](OnFailure::Local) decisions may take while the servers fail, as
    /// [`Builder::max_bytes`] does for a limiter in memory.
    pub fn max_bytes(self, max_bytes: usize) -> Redis {
        Redis { builder: self.builder.max_bytes(max_bytes), ..self }
    }

    /// Decides at this clock's time instead of the server's: for tests, and to replay what happened.
    pub fn clock(self, clock: impl Into<Clock>) -> Redis {
        Redis { builder: self.builder.clock(clock), ..self }
    }

    /// What every key on the server begins with; `tollgate:` unless said. At most 64 bytes, without
    /// braces and spaces.
    pub fn prefix(mut self, prefix: &str) -> Result<Redis, Error> {
        self.settings.set_prefix(prefix)?;
        Ok(self)
    }

    /// How long a request may take, waiting for others included; 10 ms unless said. At least 1 ms, at
    /// most an hour. Opening a connection may take longer: the requests that come meanwhile fail in
    /// time.
    ///
    /// A scope may have [its own](tollgate_limiter::Scope::deadline). Servers are judged by this one: to miss a shorter one
    /// is no failure of theirs.
    pub fn deadline(mut self, deadline: Duration) -> Redis {
        self.deadline = deadline.clamp(Duration::from_millis(1), Duration::from_secs(3_600));
        self
    }

    /// Sets what a check comes to when the servers fail. Without this, checks are [open](OnFailure::Open), and
    /// [acquires](tollgate_limiter::Acquire) wait for their turn in this process. A scope may have
    /// [its own](tollgate_limiter::Scope::on_failure). The memory for [`OnFailure::Local`], one for all scopes, is what
    /// [`Builder::max_bytes`] says.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Redis {
        self.on_failure = Some(on_failure);
        self
    }

    /// The most that may wait in [`Scope::acquire`](tollgate_limiter::Scope::acquire), as with [`Builder::max_waiting`].
    pub fn max_waiting(self, max_waiting: usize) -> Redis {
        Redis { builder: self.builder.max_waiting(max_waiting), ..self }
    }

    /// Trusts servers whose certificates these have signed, instead of what the system trusts: PEM, as
    /// in the file that a URL names with `?ca=`. The URL must ask for TLS.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Result<Redis, Error> {
        self.settings.set_root_certificate(pem.into())?;
        Ok(self)
    }

    /// Shows this certificate to a server that asks for one: PEM, as in the files that a URL names with
    /// `?cert=` and `?key=`. The URL must ask for TLS, and the key must not be encrypted.
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
