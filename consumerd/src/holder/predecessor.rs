//! Waits for sockets and addresses that an earlier daemon still has.
//!
//! A daemon that ends keeps the control socket and the HTTP address until its worker has shipped what it had drained. So does
//! the worker of a holder that was killed. The kernel needs a moment to release a killed process's sockets. Whoever restarts the
//! daemon meanwhile wants one daemon, not two, so the new daemon waits. A TCP address may belong to any program: it is an earlier
//! daemon's only if that daemon's sockets, which live as long as its worker, were found taken, too.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use blkin_daemon::CancellationToken;

/// How much longer than `stop_timeout_ms` an address is waited for.
pub(super) const MARGIN: Duration = Duration::from_secs(5);
/// How long the HTTP address is waited for when no earlier daemon was met: far longer than the kernel needs to release the
/// sockets of a killed process.
const MOMENT: Duration = Duration::from_secs(1);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// An earlier daemon, which is there if its sockets are.
pub(super) struct Predecessor<'a> {
    due: Instant,
    stop: &'a CancellationToken,
    was_met: bool,
}

impl<'a> Predecessor<'a> {
    /// Waits for an earlier daemon until `due`, or until this daemon is to `stop`.
    pub(super) fn new(due: Instant, stop: &'a CancellationToken) -> Self {
        Self { due, stop, was_met: false }
    }

    /// Listens on a socket at `path`, once no earlier daemon listens there.
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

    /// Listens at an `address`. If the address is taken, an earlier daemon has it if a socket was taken, too; otherwise another
    /// program has it, for which there is no point in waiting.
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

    /// Tries until the address is free, and once more after `due`. Calls `taken` once if it is taken.
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

    /// An address that is free from the fourth try on.
    fn late(tries: &Cell<u32>) -> io::Result<()> {
        tries.set(tries.get() + 1);
        if tries.get() < 4 { taken() } else { Ok(()) }
    }

    fn run<T>(listening: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(listening)
    }

    #[test]
    fn listening_is_retried_until_the_address_is_free() {
        let (tries, stop) = (Cell::new(0), CancellationToken::new());
        let mut predecessor = Predecessor::new(Instant::now() + LONG, &stop);
        run(predecessor.socket("x", || late(&tries))).unwrap();
        assert_eq!(tries.replace(0), 4);
        run(predecessor.port("1", || late(&tries))).unwrap();
        assert_eq!(tries.get(), 4);
    }

    #[test]
    fn a_port_taken_by_another_program_fails_after_a_moment() {
        let stop = CancellationToken::new();
        let mut predecessor = Predecessor::new(Instant::now() + LONG, &stop);
        run(predecessor.socket("x", || Ok(()))).unwrap();
        let tries = Cell::new(0);
        let stranger = || {
            tries.set(tries.get() + 1);
            taken()
        };
        assert!(run(predecessor.port("1", stranger)).is_err());
        assert!(
            Instant::now() < predecessor.due && tries.get() > 1,
            "expected several attempts, and an error before the deadline"
        );
    }

    #[test]
    fn a_taken_address_fails_at_the_deadline_or_on_stop() {
        let stop = CancellationToken::new();
        assert!(run(Predecessor::new(Instant::now(), &stop).socket("x", taken)).is_err());
        stop.cancel();
        assert!(run(Predecessor::new(Instant::now() + LONG, &stop).socket("x", taken)).is_err());
    }

    #[test]
    fn only_an_address_in_use_is_retried() {
        let (tries, stop) = (Cell::new(0), CancellationToken::new());
        let listen = || -> io::Result<()> {
            tries.set(tries.get() + 1);
            Err(ErrorKind::PermissionDenied.into())
        };
        assert!(run(Predecessor::new(Instant::now() + LONG, &stop).socket("x", listen)).is_err());
        assert_eq!(tries.get(), 1);
    }
}
