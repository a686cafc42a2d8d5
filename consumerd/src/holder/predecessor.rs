//! Addresses that an earlier daemon still has.
//!
//! The worker of a holder that was killed keeps the control socket and the HTTP address for as long as it ships what it
//! had drained, and the kernel needs a moment to take a killed process apart. Whoever starts the daemon anew meanwhile
//! means one daemon, not two.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use blkin_daemon::CancellationToken;

/// How much longer an address is waited for than a worker ships at its end.
pub(super) const MARGIN: Duration = Duration::from_secs(5);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Listens at `what`; waits while somebody else does, but not beyond `due`, nor when the daemon is to end.
///
/// # Errors
/// Those of `listen`.
pub(super) async fn listen_when_free<T>(
    what: &str,
    due: Instant,
    stop: &CancellationToken,
    listen: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let mut is_said = false;
    loop {
        let listening = listen();
        let is_taken = matches!(&listening, Err(e) if e.kind() == ErrorKind::AddrInUse);
        if !is_taken || stop.is_cancelled() || Instant::now() >= due {
            return listening;
        }
        if !is_said {
            tracing::warn!("another daemon listens on {what}; waiting for it to end");
            is_said = true;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn taken() -> io::Result<()> {
        Err(ErrorKind::AddrInUse.into())
    }

    fn run<T>(listening: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(listening)
    }

    #[test]
    fn an_address_is_had_as_soon_as_it_is_free() {
        let tries = Cell::new(0);
        let listen = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { taken() } else { Ok(()) }
        };
        let due = Instant::now() + Duration::from_secs(60);
        run(listen_when_free("x", due, &CancellationToken::new(), listen)).unwrap();
        assert_eq!(tries.get(), 4);
    }

    #[test]
    fn one_that_stays_taken_is_an_error_when_patience_ends_or_the_daemon() {
        let stop = CancellationToken::new();
        assert!(run(listen_when_free("x", Instant::now(), &stop, taken)).is_err());
        stop.cancel();
        let due = Instant::now() + Duration::from_secs(60);
        assert!(run(listen_when_free("x", due, &stop, taken)).is_err());
    }

    #[test]
    fn no_other_error_is_waited_out() {
        let tries = Cell::new(0);
        let listen = || -> io::Result<()> {
            tries.set(tries.get() + 1);
            Err(ErrorKind::PermissionDenied.into())
        };
        let due = Instant::now() + Duration::from_secs(60);
        assert!(run(listen_when_free("x", due, &CancellationToken::new(), listen)).is_err());
        assert_eq!(tries.get(), 1);
    }
}
