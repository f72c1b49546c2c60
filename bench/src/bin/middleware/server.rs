//! A process that serves a variant with one thread.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio, exit};
use std::{env, fs, thread};

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tollgate_bench::cpu;

use crate::variants::Variant;

/// The CPU of the process that serves.
const SERVER_CPU: usize = 0;
/// The CPU of the process that sends the requests.
pub(crate) const CLIENT_CPU: usize = 1;

/// Serves a variant on a free port, prints the address, and exits when standard input ends.
pub(crate) fn serve(variant: Variant) -> Result<()> {
    cpu::stay_on(SERVER_CPU)?;
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?);
        io::stdout().flush()?;
        thread::spawn(exit_at_end_of_input);
        let service = variant.router()?.into_make_service_with_connect_info::<SocketAddr>();
        Ok(axum::serve(listener, service).await?)
    })
}

/// Exits when standard input ends: the process that started this one has then ended or no longer needs it.
fn exit_at_end_of_input() {
    _ = io::copy(&mut io::stdin(), &mut io::sink());
    exit(0);
}

/// Another process that serves a variant. Dropping this stops it.
pub(crate) struct VariantServer {
    process: Child,
    address: SocketAddr,
}

impl VariantServer {
    pub(crate) fn start(variant: Variant) -> Result<VariantServer> {
        let this = env::current_exe().context("cannot find this executable")?;
        let mut process = Command::new(this)
            .args(["serve", variant.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a server")?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().parse();
        let address =
            address.with_context(|| format!("the server printed `{line}` instead of its address"));
        Ok(VariantServer { process, address: address? })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Returns the CPU time of the server's main thread, the only busy one.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let text = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {path}: Linux with CONFIG_SCHED_INFO is needed")
        })?;
        let ran_ns = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
        Ok(ran_ns.with_context(|| format!("unexpected text in {path}: `{text}`"))? / 1e3)
    }
}

impl Drop for VariantServer {
    fn drop(&mut self) {
        // OK because an error means that it has ended already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
