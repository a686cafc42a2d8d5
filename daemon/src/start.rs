//! How a daemon starts: the same messages and the same runtime for all of them.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZero;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::Mode;
use rustix::process::umask;
use serde::Serialize;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;

use crate::descriptors::{raise_limit, suffice};
use crate::{Failure, threads};

/// Clients that may wait to be accepted: after a restart all clients connect at once. The system turns further ones away,
/// and they try again after a second.
const WAITING_CLIENTS: u32 = 4096;

/// The end of every daemon's help; its environment variables begin with `prefix`.
pub fn after_help(prefix: &str) -> String {
    format!(
        "Every key of the configuration file, even one without a flag, has an environment variable: {prefix} followed by \
         the key in capitals. A variable overrides the file, and a flag overrides both. BLKIN_LOG and BLKIN_LOG_FORMAT apply \
         to all daemons, and override {prefix}LOG and {prefix}LOG_FORMAT.\n\nExit codes: 0 stopped as asked, 1 failed while \
         running, 2 wrong usage, 78 bad configuration (in the file, a variable or a flag)."
    )
}

/// What `--check-config` prints for a configuration that can be used.
///
/// # Errors
/// Never; the result is that of a daemon's main function.
pub fn say_configuration_is_good() -> Result<(), Failure> {
    // stdout may be closed; the exit code says the same.
    let _unsaid = writeln!(io::stdout(), "the configuration is good");
    Ok(())
}

/// Runs a server on one thread per CPU, until it ends by itself. Other users cannot read the files that it creates.
///
/// # Errors
/// The error of the server, or that of the system if it gives no threads or too few files.
pub fn run_server(server: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failure> {
    keep_files_from_others();
    suffice(raise_limit())?;
    let runtime = runtime().context("failed to start the async runtime")?;
    let served = runtime.block_on(server);
    // The process must not wait for connections that did not end in time, nor for blocking work of a server that failed.
    runtime.shutdown_background();
    Ok(served?)
}

/// A runtime that keeps every thread that it has started: when it needs one again, the system might give none.
fn runtime() -> io::Result<Runtime> {
    let of_cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    threads::check(of_cpus)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(of_cpus)
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()?;
    threads::start_spare(&runtime);
    Ok(runtime)
}

/// Stores and spools hold what was traced: names of objects, addresses. systemd's units set the same (`UMask=`); this covers
/// every other supervisor. Called before there are threads that create files.
fn keep_files_from_others() {
    let before = umask(Mode::RWXG | Mode::RWXO);
    umask(before | Mode::WGRP | Mode::RWXO);
}

/// Where a server listens, as written to the ready file.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Addresses {
    /// Where Scribe is served.
    pub scribe: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
}

/// The listening sockets of a server.
#[derive(Debug)]
pub struct Listeners {
    /// For Scribe.
    pub scribe: TcpListener,
    /// For HTTP.
    pub http: TcpListener,
    /// Their actual addresses: in place of port 0, the port that the system chose.
    pub addresses: Addresses,
}

impl Listeners {
    /// Listens on both addresses.
    ///
    /// # Errors
    /// When it cannot listen on one of them: the error says which, and how to choose another.
    pub async fn open(scribe: SocketAddr, http: SocketAddr) -> anyhow::Result<Self> {
        let scribe = listen(scribe, "Scribe", "--scribe-listen").await?;
        let http = listen(http, "HTTP", "--http-listen").await?;
        let addresses = Addresses { scribe: scribe.local_addr()?, http: http.local_addr()? };
        Ok(Listeners { scribe, http, addresses })
    }
}

/// Listens for `what` on an address, which `flag` sets.
///
/// # Errors
/// When it cannot listen there: the error says for what, where, and how to choose another address.
async fn listen(address: SocketAddr, what: &str, flag: &str) -> anyhow::Result<TcpListener> {
    listen_on(address).map_err(|error| {
        let who = who_has(address, &error);
        let failed = format!("failed to listen for {what} on {address}; choose another with {flag}{who}");
        anyhow::Error::new(error).context(failed)
    })
}

/// How to find the program that uses the address, to append to a message; empty for any other error than a used address.
pub fn who_has(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(", or stop the program that uses it: `ss -ltnp 'sport = :{}'`", address.port())
        }
        _ => String::new(),
    }
}

/// As [`TcpListener::bind`], with room for more waiting clients.
fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING_CLIENTS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn server_files_are_not_accessible_to_other_users() {
        umask(Mode::empty());
        let told = run_server(async {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("spans");
            std::fs::write(&file, "")?;
            let mode = file.metadata()?.permissions().mode();
            assert_eq!(mode & 0o027, 0, "{mode:o}");
            Ok(())
        });
        told.unwrap();
    }

    #[test]
    fn failed_server_returns_despite_a_blocked_thread() {
        let (_never, stuck) = std::sync::mpsc::channel::<()>();
        let told = run_server(async {
            tokio::task::spawn_blocking(move || stuck.recv());
            anyhow::bail!("it did not end in time")
        });
        assert!(told.unwrap_err().to_string().contains("it did not end in time"));
    }

    #[test]
    fn address_in_use_error_names_the_address_and_its_flag() {
        let told = run_server(async {
            let first = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "Scribe", "--scribe-listen").await?;
            let taken = first.local_addr()?;
            let error = format!("{:#}", listen(taken, "HTTP", "--http-listen").await.unwrap_err());
            let begin = format!(
                "failed to listen for HTTP on {taken}; choose another with --http-listen, or stop the program that uses it: \
                 `ss -ltnp 'sport = :{}'`: ",
                taken.port()
            );
            assert!(error.starts_with(&begin), "{error}");
            let elsewhere = listen(SocketAddr::from(([192, 0, 2, 1], 0)), "HTTP", "--http-listen").await;
            assert!(
                !format!("{:#}", elsewhere.unwrap_err()).contains("ss -"),
                "no other program uses the address"
            );
            Ok(())
        });
        told.unwrap();
    }

    #[test]
    fn listen_backlog_holds_a_burst_of_clients() {
        let told = run_server(async {
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "Scribe", "--scribe-listen").await?;
            let address = listener.local_addr()?;
            let patience = Duration::from_secs(60);
            let connect = || std::net::TcpStream::connect_timeout(&address, patience);
            let clients = (0..512).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
            assert_eq!(clients.len(), 512, "no client has been accepted yet");
            Ok(())
        });
        told.unwrap();
    }
}
