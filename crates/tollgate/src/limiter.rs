//! The limiter: a store, a clock, and limits by name.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

use tollgate_core::Limit;

use crate::acquire::Lines;
use crate::answer::Answer;
use crate::check::Check;
use crate::clock::Clock;
use crate::error::Error;
#[cfg(feature = "redis")]
use crate::failure::OnFailure;
#[cfg(feature = "redis")]
use crate::health::Health;
use crate::scope::{MAX_NAME_BYTES, Scope};
use crate::store::Store;
use crate::store::memory::{CeilingCounts, Memory, Usage};
#[cfg(feature = "redis")]
use crate::store::redis::{Redis, Settings};
use crate::together::{self, Together};

/// Decides requests against limits, and keeps what every key has spent. Cheap to clone; clones
/// share everything.
///
/// ```
/// use tollgate::Limiter;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::memory();
/// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
/// assert!(logins.check("203.0.113.9").now()?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) memory: Memory,
    #[cfg(feature = "redis")]
    redis: Option<Redis>,
    pub(crate) clock: Clock,
    pub(crate) lines: Lines,
}

/// Settings of a [`Limiter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    clock: Option<Clock>,
    /// `None` keeps every key.
    max_bytes: Option<usize>,
    room_for: usize,
    max_waiting: usize,
}

impl Builder {
    /// Where the time comes from; the machine, unless a test says otherwise.
    pub fn clock(self, clock: impl Into<Clock>) -> Builder {
        Builder { clock: Some(clock.into()), ..self }
    }

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
    /// let limiter = tollgate::Limiter::builder().redis("redis://127.0.0.1:6379")?.build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn redis(self, url: &str) -> Result<RedisBuilder, Error> {
        Ok(RedisBuilder { settings: Settings::of(url)?, builder: self })
    }

    /// The most bytes that keys' state may take: 64 MiB unless said, enough for 1.3 million keys.
    ///
    /// At the ceiling nobody's state is dropped; new keys then share one state for each name. What
    /// the allocator takes is counted: with glibc, after 10 million invented keys, a process had
    /// grown by no more than its ceiling. Only logs that come and go in ever other sizes leave holes
    /// that it cannot use: 15% above the ceiling in a test made for that. An empty limiter takes 2 KiB
    /// for each MiB of its ceiling: 128 KiB of 64 MiB. When it is dropped, the memory of its keys stays with the process, for
    /// the limiters that come after it.
    pub fn max_bytes(self, max_bytes: usize) -> Builder {
        Builder { max_bytes: Some(max_bytes), ..self }
    }

    /// Keeps every key for ever, without a ceiling: to replay a trace, whose time may go back to
    /// when a key had something spent.
    pub fn keep_every_key(self) -> Builder {
        Builder { max_bytes: None, ..self }
    }

    /// Has [`build`](Self::build) ask the system for the memory of so many keys, as far as it is under the ceiling,
    /// rather than each check that brings some in.
    ///
    /// Those then seldom wait: keys are spread by chance, so that of a million about a thousandth still have to make
    /// room, 20 to 40 us each. And where Linux has huge pages for who asks (`madvise` or `always` in
    /// `/sys/kernel/mm/transparent_hugepage/enabled`) the memory is of those: with a million keys a check took 0.7 to
    /// 1.0 times as long, the less the busier the machine. Logs of more than three entries take theirs when they need
    /// it, of what is left under the ceiling. On Redis this is ignored.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().room_for(100_000).build();
    /// assert!(limiter.usage().bytes > 4 << 20);
    /// ```
    pub fn room_for(self, keys: usize) -> Builder {
        Builder { room_for: keys, ..self }
    }

    /// The most that may wait in [`Scope::acquire`] at a time, for all keys together: 65,536 unless
    /// said. Behind the first of one key, 4,096 may.
    pub fn max_waiting(self, max_waiting: usize) -> Builder {
        Builder { max_waiting, ..self }
    }

    /// The limiter.
    pub fn build(self) -> Limiter {
        let Builder { clock, max_bytes, room_for, max_waiting } = self;
        let memory = Memory::new(max_bytes);
        memory.make_room_for(room_for);
        Limiter {
            inner: Arc::new(Inner {
                memory,
                #[cfg(feature = "redis")]
                redis: None,
                clock: clock.unwrap_or_default(),
                lines: Lines::new(max_waiting),
            }),
        }
    }
}

/// Settings of a [`Limiter`] on Redis.
#[cfg(feature = "redis")]
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RedisBuilder {
    settings: Settings,
    builder: Builder,
}

#[cfg(feature = "redis")]
impl RedisBuilder {
    /// Decides at this clock's time instead of the server's: for tests, and to replay what happened.
    pub fn clock(self, clock: impl Into<Clock>) -> RedisBuilder {
        RedisBuilder { builder: self.builder.clock(clock), ..self }
    }

    /// What every key on the server begins with; `tollgate:` unless said. At most 64 bytes, without
    /// braces and spaces.
    pub fn prefix(mut self, prefix: &str) -> Result<RedisBuilder, Error> {
        self.settings.set_prefix(prefix)?;
        Ok(self)
    }

    /// How long a request may take, waiting for others included; 10 ms unless said. At least 1 ms, at
    /// most an hour. Opening a connection may take longer: the requests that come meanwhile fail in
    /// time.
    ///
    /// A scope may have [its own](Scope::deadline). Servers are judged by this one: to miss a shorter one
    /// is no failure of theirs.
    pub fn deadline(mut self, deadline: Duration) -> RedisBuilder {
        self.settings.terms.set_deadline(deadline);
        self
    }

    /// Sets what a check comes to when the servers fail. Without this, checks are [open](OnFailure::Open), and
    /// [acquires](crate::Acquire) wait for their turn in this process. A scope may have
    /// [its own](Scope::on_failure). The memory for [`OnFailure::Local`], one for all scopes, is what
    /// [`Builder::max_bytes`] says.
    pub fn on_failure(mut self, on_failure: OnFailure) -> RedisBuilder {
        self.settings.terms.on_failure = Some(on_failure);
        self
    }

    /// The most that may wait in [`Scope::acquire`], as with [`Builder::max_waiting`].
    pub fn max_waiting(self, max_waiting: usize) -> RedisBuilder {
        RedisBuilder { builder: self.builder.max_waiting(max_waiting), ..self }
    }

    /// Trusts servers whose certificates these have signed, instead of what the system trusts: PEM, as
    /// in the file that a URL names with `?ca=`. The URL must ask for TLS.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Result<RedisBuilder, Error> {
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
    ) -> Result<RedisBuilder, Error> {
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
        let Builder { clock, max_waiting, max_bytes, room_for: _ } = self.builder;
        let redis = Redis::new(self.settings, clock.clone(), max_bytes)?;
        Ok(Limiter {
            inner: Arc::new(Inner {
                // Only names are kept in it.
                memory: Memory::new(Some(0)),
                redis: Some(redis),
                clock: clock.unwrap_or_default(),
                lines: Lines::new(max_waiting),
            }),
        })
    }
}

impl Limiter {
    /// A limiter in this process's memory, on the machine's clock.
    pub fn memory() -> Limiter {
        Limiter::builder().build()
    }

    /// A limiter on the Redis or Valkey at this address; [`Builder::redis`] says more.
    #[cfg(feature = "redis")]
    pub fn redis(url: &str) -> Result<Limiter, Error> {
        Limiter::builder().redis(url)?.build()
    }

    /// A limiter with other settings.
    pub fn builder() -> Builder {
        Builder { clock: None, max_bytes: Some(64 << 20), room_for: 0, max_waiting: 65_536 }
    }

    /// Returns a limit under a name. The name is the limit's, such as `logins`, not a user's: one scope
    /// serves all users, and the user is the key of each check.
    ///
    /// The limit is a [`Limit`], one of the algorithms, or text; text that is not a limit is
    /// [`Error::Limit`]. Make a scope once and keep it: making one looks its name up.
    ///
    /// ```
    /// # use tollgate::{Limit, Limiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
    /// assert_eq!(logins.check("user:42").now()?.remaining(), 4);
    /// assert_eq!(logins.check("user:7").now()?.remaining(), 4);
    ///
    /// let api = limiter.scope("api", Limit::per_second(10).burst(60))?;
    /// assert_eq!(api.check("user:42").now()?.remaining(), 59);
    ///
    /// let mistake = limiter.scope("logins", "sliding-window-log limit=5").unwrap_err();
    /// assert!(mistake.to_string().contains("window"), "{mistake}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// State belongs to the name and the key: two names with the same numbers do not share it, the
    /// same name twice does.
    ///
    /// The same name may come with other numbers, or another algorithm: a limit can change while it is
    /// in use, and each customer can have its own. A check carries what its key has spent over to the
    /// limit of its scope, and there it stays spent. A key that has spent more than the new limit allows stays
    /// under the old limit, at the new size, until enough of it has come back.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let api = limiter.scope("api", "fixed-window limit=1000 window=1h")?;
    /// assert_eq!(api.check("user:42").cost(600).now()?.remaining(), 400);
    ///
    /// // The configuration is read again.
    /// let api = limiter.scope("api", "fixed-window limit=1500 window=1h")?;
    /// assert_eq!(api.peek("user:42").now()?.remaining(), 900);
    ///
    /// // One customer pays for more, from now on.
    /// let more = limiter.scope("api", "token-bucket capacity=9000 refill=9000/h")?;
    /// assert_eq!(more.check("user:42").now()?.remaining(), 8399);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// There can be 32,768 limits at a time; dropped limits make room for others. A name has at most
    /// 4 KiB.
    pub fn scope<L>(&self, name: &str, limit: L) -> Result<Scope, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong { bytes: name.len(), most: MAX_NAME_BYTES });
        }
        let limit = limit.try_into()?;
        let Inner { memory, clock, .. } = &*self.inner;
        let kept = memory.scope_as_of(name, limit, || clock.now_us())?;
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.inner.redis {
            let store = Store::Redis(Arc::new(redis.scope(name, limit)));
            return Ok(Scope::new(self.clone(), kept, store));
        }
        Ok(Scope::new(self.clone(), kept, Store::Memory))
    }

    /// Decides one request on several limits: all of them are charged, or none. A
    /// [peek](Scope::peek) among them can refuse, and is never charged.
    ///
    /// The same name and key twice is one charge with the costs added, under the limit of the first that
    /// is no shadow. A peek beside a charge adds nothing to it, and is told the same; two peeks are one
    /// with the costs added. What can refuse comes first: beside a peek that is no shadow, a shadow is not charged.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let user = limiter.scope("user", "token-bucket capacity=60 refill=1/s")?;
    /// let all = limiter.scope("all", "fixed-window limit=1000 window=1s")?;
    /// let together = limiter.check_all_now(&[user.check("user:42").cost(5), all.check("all")])?;
    /// assert_eq!((together.limit(), together.remaining()), (Some(60), Some(55))); // `user`, the tightest
    /// assert_eq!(together.requests_remaining(), Some(11)); // eleven more requests like this one fit
    ///
    /// // Who has failed to log in three times is not let in; only failures are charged.
    /// let failed = limiter.scope("failed", "sliding-window-log limit=3 window=1h")?;
    /// assert!(failed.check("user:42").cost(3).now()?.is_allowed());
    /// let refused = limiter.check_all_now(&[user.check("user:42"), failed.peek("user:42")])?;
    /// assert_eq!(refused.refused_by(), Some(1));
    /// assert_eq!(user.peek("user:42").now()?.remaining(), 55); // it cost nothing
    ///
    /// let both = [failed.peek("user:7").cost(2), failed.check("user:7")];
    /// let told = limiter.check_all_now(&both)?; // the charge alone, told to both
    /// assert_eq!(told.each()[0].remaining(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_all_now(&self, checks: &[Check<'_>]) -> Result<Together, Error> {
        together::now(self, checks)
    }

    /// [`check_all_now`](Self::check_all_now), for any store.
    pub fn check_all(&self, checks: &[Check<'_>]) -> Answer<Together> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.inner.redis {
            let request = together::request(self, redis, checks);
            return redis.together(request, Check::least_time(checks));
        }
        Answer::ready(self.check_all_now(checks))
    }

    /// Decides many requests, independent of each other, each on one or more limits.
    ///
    /// On Redis they go in their order, 64 charges at a time, each time within the limiter's deadline, or
    /// the scopes' own; with [`Check::within`] on any of them, all within that.
    pub fn batch(&self, requests: &[&[Check<'_>]]) -> Answer<Vec<Result<Together, Error>>> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.inner.redis {
            let request = |checks: &&[Check<'_>]| together::request(self, redis, checks);
            let within = requests.iter().filter_map(|checks| Check::least_time(checks)).min();
            return redis.batch(requests.iter().map(request).collect(), within);
        }
        Answer::ready(Ok(requests.iter().map(|checks| self.check_all_now(checks)).collect()))
    }

    /// How many stand in line in [`Scope::acquire`], for all keys together.
    pub fn waiting(&self) -> usize {
        self.inner.lines.waiting()
    }

    /// Whether its state is in this process, so that nothing has to be waited for.
    #[cfg(feature = "tower")]
    pub(crate) fn is_local(&self) -> bool {
        #[cfg(feature = "redis")]
        let is_local = self.inner.redis.is_none();
        #[cfg(not(feature = "redis"))]
        let is_local = true;
        is_local
    }

    /// How the servers are; `None` of a limiter in memory.
    #[cfg(feature = "redis")]
    pub fn health(&self) -> Option<Health> {
        self.inner.redis.as_ref().map(Redis::health)
    }

    /// What the memory store holds; nothing, of a limiter on Redis.
    pub fn usage(&self) -> Usage {
        self.inner.memory.usage()
    }

    /// Returns how often the memory store had no room, since it was made. Unlike [`usage`](Self::usage) this takes no
    /// lock, so a program can call it often.
    pub fn ceiling_counts(&self) -> CeilingCounts {
        self.inner.memory.ceiling_counts()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
