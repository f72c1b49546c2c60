//! The Redis on which all contenders are measured, and its statistics.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::cpu::Cpu;

/// How long an answer may take; ours has the same.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// How long the memory must stay the same to be settled, and how often that is tried.
const SETTLED_FOR: Duration = Duration::from_millis(200);
const SETTLING_TRIES: usize = 50;

/// A database of the server: the same ids are buckets in one and counters in the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Database {
    Buckets = 0,
    Counters = 1,
}

/// A server of our own; it stops when this is dropped.
pub(crate) struct Redis {
    server: Server,
    /// For questions about the server itself.
    connection: MultiplexedConnection,
}

impl Redis {
    pub(crate) async fn start() -> Result<Redis> {
        let launch = || -> Result<Server> {
            Cpu::OfRedis.take()?;
            Ok(Launch::new(Flavour::Redis).start()?)
        };
        // On a thread of its own: only the processes that this thread starts stay on its CPU.
        let server = thread::spawn(launch).join().ok().context("the launcher panicked")??;
        let connection = connect(&server, Database::Buckets).await?;
        Ok(Redis { server, connection })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// A new connection, which many may share.
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

    /// The CPU time it has used, all its threads together.
    pub(crate) async fn cpu_us(&self) -> Result<f64> {
        let info = self.info("cpu").await?;
        Ok((number(&info, "used_cpu_user")? + number(&info, "used_cpu_sys")?) * 1e6)
    }

    /// The memory it uses, once its tables have moved to their new size.
    pub(crate) async fn settled_bytes(&self) -> Result<f64> {
        let mut before = f64::INFINITY;
        for _ in 0..SETTLING_TRIES {
            let bytes = number(&self.info("memory").await?, "used_memory")?;
            // Its own buffers come and go by a few hundred bytes.
            if (bytes - before).abs() < 1024.0 {
                return Ok(bytes);
            }
            before = bytes;
            tokio::time::sleep(SETTLED_FOR).await;
        }
        anyhow::bail!("the memory of the server does not settle")
    }

    /// Forgets all keys; scripts stay.
    pub(crate) async fn clear(&self) -> Result<()> {
        let mut connection = self.connection.clone();
        Ok(cmd("FLUSHALL").arg("SYNC").query_async(&mut connection).await?)
    }

    pub(crate) async fn expect_keys(&self, want: usize) -> Result<()> {
        let keys: usize = cmd("DBSIZE").query_async(&mut self.connection.clone()).await?;
        ensure!(keys == want, "the server holds {keys} keys, not {want}");
        Ok(())
    }

    /// Returns the memory of all its keys, each measured exactly.
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
    // Without TCP_NODELAY, as redis-rs has it: with it, a shared connection carries a fifth fewer
    // checks, and a lone caller waits as long.
    let client = Client::open(format!("{}/{}", server.url(), database as u8))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

fn number(info: &str, name: &str) -> Result<f64> {
    let text = field(info, name).with_context(|| format!("INFO has no `{name}`"))?;
    text.parse().with_context(|| format!("INFO has `{name}:{text}`"))
}

/// The text after a name, in what INFO answers.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "# CPU\r\nused_cpu_sys_children:7.0\r\nused_cpu_sys:1.5\r\n";
        assert_eq!(number(info, "used_cpu_sys").unwrap(), 1.5);
        assert!(number(info, "used_cpu").is_err());
    }
}
