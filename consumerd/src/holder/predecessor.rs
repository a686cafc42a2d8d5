//! Addresses that an earlier daemon still has.
//!
//! A daemon that ends keeps the control socket and the HTTP address for as long as its worker ships what it had drained,
//! and so does the worker of a holder that was killed. The kernel needs a moment to take a killed process apart. Whoever
//! starts the daemon anew meanwhile means one daemon, not two. An address of TCP may be any program's, and the sockets
//! stay with the worker as long: who finds them free has no earlier daemon to wait for.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use blkin_daemon::CancellationToken;

/// How much longer an address is waited for than a worker ships at its end.
pub(super) const MARGIN: Duration = Duration::from_secs(5);
/// How long the address of a daemon that is gone otherwise is waited for: far longer than the kernel takes a process apart.
const MOMENT: Duration = Duration::from_secs(1);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// An earlier daemon, if there is one: its sockets tell.
pub(super) struct Predecessor<'a> {
    due: Instant,
    stop: &'a CancellationToken,
    was_met: bool,
}

impl<'a> Predecessor<'a> {
    /// It is waited for until `due`, or until the daemon is to `stop`.
    pub(super) fn new(due: Instant, stop: &'a CancellationToken) -> Self {
        Self { due, stop, was_met: false }
    }

    /// Listens on a socket at `path`, as soon as no earlier daemon does.
    ///
    /// # Errors
    /// Those of `listen`.
    pub(super) async fn socket<T>(
        &mut self,
        path: &str,
        listen: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut was_met = false;
        let taken = || {
            was_met = true;
            self.tell(path);
        };
        let listening = self.when_free(self.due, taken, listen).await;
        self.was_met |= was_met;
        listening
    }

    /// Listens at an `address`. One that is taken is an earlier daemon's if a socket was, and a stranger's otherwise, for whom
    /// nobody need wait.
    ///
    /// # Errors
    /// Those of `listen`.
    pub(super) async fn port<T>(&self, address: &str, listen: impl Fn() -> io::Result<T>) -> io::Result<T> {
        if self.was_met {
            return self.when_free(self.due, || self.tell(address), listen).await;
        }
        self.when_free(Instant::now() + MOMENT, || (), listen).await
    }

    fn tell(&self, what: &str) {
        let seconds = self.due.saturating_duration_since(Instant::now()).as_secs();
        tracing::warn!("another daemon listens on {what}; waiting for it to end, {seconds} s at most");
    }

    /// Tries until it is free, and once more after `due`. Says once that it is `taken`.
    async fn when_free<T>(
        &self,
        due: Instant,
        taken: impl FnOnce(),
        listen: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut taken = Some(taken);
        loop {
            let is_last = self.stop.is_cancelled() || Instant::now() >= due;
            let listening = listen();
            let is_taken = matches!(&listening, Err(e) if e.kind() == ErrorKind::AddrInUse);
            if !is_taken || is_last {
                return listening;
            }
            if let Some(tell) = taken.take() {
                tell();
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const LONG: Duration = Duration::from_secs(600);

    fn taken() -> io::Result<()> {
        Err(ErrorKind::AddrInUse.into())
    }

    /// Is free from the fourth try on.
    fn late(tries: &Cell<u32>) -> io::Result<()> {
        tries.set(tries.get() + 1);
        if tries.get() < 4 { taken() } else { Ok(()) }
    }

    fn run<T>(listening: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(listening)
    }

    #[test]
    fn an_address_is_had_as_soon_as_it_is_free() {
        let (tries, stop) = (Cell::new(0), CancellationToken::new());
        let mut predecessor = Predecessor::new(Instant::now() + LONG, &stop);
        run(predecessor.socket("x", || late(&tries))).unwrap();
        assert_eq!(tries.replace(0), 4);
        run(predecessor.port("1", || late(&tries))).unwrap();
        assert_eq!(tries.get(), 4);
    }

    #[test]
    fn the_port_of_a_stranger_is_an_error_soon() {
        let stop = CancellationToken::new();
        let mut predecessor = Predecessor::new(Instant::now() + LONG, &stop);
        run(predecessor.socket("x", || Ok(()))).unwrap();
        let tries = Cell::new(0);
        let stranger = || {
            tries.set(tries.get() + 1);
            taken()
        };
        assert!(run(predecessor.port("1", stranger)).is_err());
        assert!(Instant::now() < predecessor.due && tries.get() > 1, "it was tried again after a moment");
    }

    #[test]
    fn one_that_stays_taken_is_an_error_when_patience_ends_or_the_daemon() {
        let stop = CancellationToken::new();
        assert!(run(Predecessor::new(Instant::now(), &stop).socket("x", taken)).is_err());
        stop.cancel();
        assert!(run(Predecessor::new(Instant::now() + LONG, &stop).socket("x", taken)).is_err());
    }

    #[test]
    fn no_other_error_is_waited_out() {
        let (tries, stop) = (Cell::new(0), CancellationToken::new());
        let listen = || -> io::Result<()> {
            tries.set(tries.get() + 1);
            Err(ErrorKind::PermissionDenied.into())
        };
        assert!(run(Predecessor::new(Instant::now() + LONG, &stop).socket("x", listen)).is_err());
        assert_eq!(tries.get(), 1);
    }
}
