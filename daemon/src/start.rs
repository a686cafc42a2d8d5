//! How a daemon starts: each in the same words, on the same runtime.

use std::future::Future;
use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::Failure;

/// What `--check-config` says of a configuration that can be used.
///
/// # Errors
/// Never; it is the end of a daemon that only checks.
#[allow(clippy::print_stdout)]
pub fn say_configuration_is_good() -> Result<(), Failure> {
    println!("the configuration is good");
    Ok(())
}

/// Runs a server on a thread for each CPU, until it ends by itself.
///
/// # Errors
/// What the server fails with, or the system when it gives no threads.
pub fn run_server(server: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    runtime.block_on(server)?;
    // Connections that did not end in time must not hold up the end.
    runtime.shutdown_background();
    Ok(())
}

/// Listens for `what` on an address, which `flag` sets.
///
/// # Errors
/// When the address cannot be had: it says what, where, and how to choose another.
pub async fn listen(address: SocketAddr, what: &str, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen for {what} on {address}; choose another with {flag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_is_named_with_the_flag_that_sets_it() {
        let told = run_server(async {
            let first = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "Scribe", "--scribe-listen").await?;
            let taken = first.local_addr()?;
            let error = format!("{:#}", listen(taken, "HTTP", "--http-listen").await.unwrap_err());
            let begin = format!("failed to listen for HTTP on {taken}; choose another with --http-listen: ");
            assert!(error.starts_with(&begin), "{error}");
            Ok(())
        });
        told.unwrap();
    }
}
