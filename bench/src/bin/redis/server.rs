//! The Redis on which all contenders are measured, and its statistics.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::cpu::Cpu;

/// How long an answer may take. Our client has the same deadline.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// The memory is settled when it has not changed for this time.
const SETTLED_FOR: Duration = Duration::from_millis(200);
/// The number of times that the memory is read until it has settled.
const SETTLING_TRIES: usize = 50;

/// A database of the server. The same ids are keys of buckets in one and of counters in the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Database {
    Buckets = 0,
    Counters = 1,
}

/// The Redis that this program starts. Dropping this stops it.
pub(crate) struct MeasuredRedis {
    server: Server,
    /// The connection for statistics and scripts.
    connection: MultiplexedConnection,
}

impl MeasuredRedis {
    pub(crate) async fn start() -> Result<MeasuredRedis> {
        let launch = || -> Result<Server> {
            Cpu::Redis.use_for_this_thread()?;
            Ok(Launch::new(Flavour::Redis).start()?)
        };
        // On its own thread, because a thread passes its CPU on to the processes that it starts.
        let server = thread::spawn(launch).join().ok().context("the launcher panicked")??;
        let connection = connect(&server, Database::Buckets).await?;
        Ok(MeasuredRedis { server, connection })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Returns a new connection, which several callers can share.
    pub(crate) async fn connect(&self, database: Database) -> Result<MultiplexedConnection> {
        connect(&self.server, database).await
    }

    /// Loads a script, and returns the hash that calls it.
    pub(crate) async fn load(&self, script: &str) -> Result<String> {
        let mut connection = self.connection.clone();
        Ok(cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await?)
    }

    /// Returns the version, such as 7.0.15.
    pub(crate) async fn version(&self) -> Result<String> {
        let info = self.info("server").await?;
        field(&info, "redis_version").map(str::to_owned).context("INFO has no version")
    }

    /// Returns the CPU time that all threads of the server have used.
    pub(crate) async fn cpu_us(&self) -> Result<f64> {
        let info = self.info("cpu").await?;
        Ok((number(&info, "used_cpu_user")? + number(&info, "used_cpu_sys")?) * 1e6)
    }

    /// Returns the memory that the server uses, after its tables have been resized.
    pub(crate) async fn settled_bytes(&self) -> Result<f64> {
        let mut before = f64::INFINITY;
        for _ in 0..SETTLING_TRIES {
            let bytes = number(&self.info("memory").await?, "used_memory")?;
            // The server's own buffers change the number by a few hundred bytes.
            if (bytes - before).abs() < 1024.0 {
                return Ok(bytes);
            }
            before = bytes;
            tokio::time::sleep(SETTLED_FOR).await;
        }
        anyhow::bail!("the memory of the server did not settle")
    }

    /// Removes all keys, and keeps the scripts.
    pub(crate) async fn clear(&self) -> Result<()> {
        let mut connection = self.connection.clone();
        Ok(cmd("FLUSHALL").arg("SYNC").query_async(&mut connection).await?)
    }

    /// Fails if the number of keys is not `want`.
    pub(crate) async fn expect_keys(&self, want: usize) -> Result<()> {
        let keys: usize = cmd("DBSIZE").query_async(&mut self.connection.clone()).await?;
        ensure!(keys == want, "the server holds {keys} keys, not {want}");
        Ok(())
    }

    /// Returns the memory of all keys, each measured exactly.
    pub(crate) async fn bytes_of_all_keys(&self) -> Result<f64> {
        let mut connection = self.connection.clone();
        let keys: Vec<Vec<u8>> = cmd("KEYS").arg("*").query_async(&mut connection).await?;
        let mut sum = 0;
        for key in keys {
            let mut usage = cmd("MEMORY");
            usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            sum += usage.query_async::<usize>(&mut connection).await?;
        }
        Ok(sum as f64)
    }

    async fn info(&self, section: &str) -> Result<String> {
        Ok(cmd("INFO").arg(section).query_async(&mut self.connection.clone()).await?)
    }
}

async fn connect(server: &Server, database: Database) -> Result<MultiplexedConnection> {
    // Without TCP_NODELAY, which is the default of redis-rs. With TCP_NODELAY, a shared connection transfers a fifth
    // fewer checks, and a single caller waits equally long.
    let client = Client::open(format!("{}/{}", server.url(), database as u8))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn number(info: &str, name: &str) -> Result<f64> {
    let text = field(info, name).with_context(|| format!("INFO has no `{name}`"))?;
    text.parse().with_context(|| format!("INFO has `{name}:{text}`"))
}

/// Returns the text after a name in a reply to INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_found_by_its_whole_name() {
        let info = "# CPU\r\nused_cpu_sys_children:7.0\r\nused_cpu_sys:1.5\r\n";
        assert_eq!(number(info, "used_cpu_sys").unwrap(), 1.5);
        assert!(number(info, "used_cpu").is_err());
    }
}
