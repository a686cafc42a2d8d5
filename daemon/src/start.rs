//! How a daemon starts: each in the same words, on the same runtime.

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

use crate::{Failure, threads};

/// Clients that may wait to be accepted; the system turns more away, and they try again after a second. After a restart all
/// of them come at once.
const WAITING_CLIENTS: u32 = 4096;

/// What the help of every daemon ends with; `prefix` is that of its variables.
pub fn after_help(prefix: &str) -> String {
    format!(
        "Every key of the configuration file, even one without a flag, has an environment variable: {prefix} followed by \
         the key in capitals. A variable overrides the file, and a flag overrides both. BLKIN_LOG and BLKIN_LOG_FORMAT apply \
         to all daemons, and override {prefix}LOG and {prefix}LOG_FORMAT.\n\nExit codes: 0 stopped as asked, 1 failed while \
         running, 2 wrong usage, 78 bad configuration (in the file, a variable or a flag)."
    )
}

/// What `--check-config` says of a configuration that can be used.
///
/// # Errors
/// Never; it is the end of a daemon that only checks.
pub fn say_configuration_is_good() -> Result<(), Failure> {
    // Nobody may read it any more: the exit code tells it too.
    let _unsaid = writeln!(io::stdout(), "the configuration is good");
    Ok(())
}

/// Runs a server on a thread for each CPU, until it ends by itself. Files that it makes are not for other users.
///
/// # Errors
/// What the server fails with, or the system when it gives no threads.
pub fn run_server(server: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failure> {
    keep_files_from_others();
    let runtime = runtime().context("failed to start the async runtime")?;
    let served = runtime.block_on(server);
    // Connections that did not end in time must not hold up the end, nor what a failed server waited for in vain.
    runtime.shutdown_background();
    Ok(served?)
}

/// A runtime that keeps whatever threads it was given: when it needs them again, the system may give none.
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

/// Stores and spools hold what was traced: names of objects, addresses. systemd's units say the same (`UMask=`); here it holds
/// under any supervisor. Called before there are threads that make files.
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

/// What a server listens with.
#[derive(Debug)]
pub struct Listeners {
    /// For Scribe.
    pub scribe: TcpListener,
    /// For HTTP.
    pub http: TcpListener,
    /// Their own addresses: a port 0 that was asked for is the one that the system gave.
    pub addresses: Addresses,
}

impl Listeners {
    /// Listens on both addresses.
    ///
    /// # Errors
    /// When one of them cannot be had: it says which, and how to choose another.
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
/// When the address cannot be had: it says what, where, and how to choose another.
async fn listen(address: SocketAddr, what: &str, flag: &str) -> anyhow::Result<TcpListener> {
    listen_on(address).map_err(|error| {
        let who = who_has(address, &error);
        let failed = format!("failed to listen for {what} on {address}; choose another with {flag}{who}");
        anyhow::Error::new(error).context(failed)
    })
}

/// How to find out who has an address that is taken, to end a sentence with; nothing of another error.
pub fn who_has(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(", or stop the program that uses it: `ss -ltnp 'sport = :{}'`", address.port())
        }
        _ => String::new(),
    }
}

/// As [`TcpListener::bind`], but for the number of those that may wait.
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
    fn files_of_a_server_are_not_for_other_users() {
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
    fn a_server_that_fails_ends_whatever_it_has_waited_for() {
        let (_never, stuck) = std::sync::mpsc::channel::<()>();
        let told = run_server(async {
            tokio::task::spawn_blocking(move || stuck.recv());
            anyhow::bail!("it did not end in time")
        });
        assert!(told.unwrap_err().to_string().contains("it did not end in time"));
    }

    #[test]
    fn an_address_that_is_taken_is_named_with_the_flag_that_sets_it() {
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
            assert!(!format!("{:#}", elsewhere.unwrap_err()).contains("ss -"), "nobody has it");
            Ok(())
        });
        told.unwrap();
    }

    #[test]
    fn clients_that_come_all_at_once_wait_for_their_turn() {
        let told = run_server(async {
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "Scribe", "--scribe-listen").await?;
            let address = listener.local_addr()?;
            let patience = Duration::from_secs(60);
            let connect = || std::net::TcpStream::connect_timeout(&address, patience);
            let clients = (0..512).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
            assert_eq!(clients.len(), 512, "nobody was accepted yet");
            Ok(())
        });
        told.unwrap();
    }
}
