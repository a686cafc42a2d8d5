//! Accepts connections. Once the limit on connections is reached, a silent connection makes room for a new one; while none is
//! silent, the new one is turned away, and tries again.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use blkin_daemon::places::Place;
use blkin_daemon::{Notices, Places};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Pause after an error of accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A new connection waits this long for another one to make room: longer than a connection has to be silent for that.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(2);

/// Accepts connections, up to a limit.
pub(super) struct Door {
    listener: TcpListener,
    places: Places,
    max_connections: usize,
    /// Since when a client has waited for a place.
    waited_since: Option<tokio::time::Instant>,
    refusals: Notices,
    failures: Notices,
}

impl Door {
    pub(super) fn new(listener: TcpListener, max_connections: usize) -> Self {
        let places = Places::new(max_connections);
        let (refusals, failures) = Default::default();
        Door { listener, places, max_connections, waited_since: None, refusals, failures }
    }

    /// The next connection; none if it was turned away, or could not be accepted. Cancel safe: dropping the future loses no
    /// connection.
    pub(super) async fn next(&mut self) -> Option<(TcpStream, SocketAddr, Seat)> {
        loop {
            if let Some(reserved) = self.places.take() {
                self.waited_since = None;
                let (stream, peer) = self.accept().await?;
                return Some((stream, peer, Seat::new(reserved.assign_to(peer.ip()))));
            }
            if self.is_patience_over() {
                self.waited_since = None;
                self.turn_away().await;
                return None;
            }
            self.places.wait().await;
        }
    }

    /// Has a silent connection make room, if a client waits. Returns whether the client has waited too long.
    fn is_patience_over(&mut self) -> bool {
        if !self.places.make_room_at(&self.listener) {
            self.waited_since = None;
            return false;
        }
        let since = self.waited_since.get_or_insert_with(tokio::time::Instant::now);
        since.elapsed() >= WAIT_FOR_ROOM
    }

    /// Accepts the next connection and closes it at once: its client notices, and tries again.
    async fn turn_away(&mut self) {
        let Some((_closed, peer)) = self.accept().await else { return };
        if let Some(held_back) = self.refusals.admit(Instant::now()) {
            let open = self.max_connections;
            tracing::warn!(
                %peer,
                open,
                held_back,
                "refused a Scribe connection: the limit on connections is reached, and none of them is silent; raise \
                 scribe_max_connections, or the limit on open files if that is what limits them"
            );
        }
    }

    async fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        match self.listener.accept().await {
            Ok(accepted) => Some(accepted),
            Err(error) => {
                if let Some(held_back) = self.failures.admit(Instant::now()) {
                    tracing::warn!(held_back, "failed to accept a Scribe connection: {error}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }

    /// Logs how many refusals were held back.
    pub(super) fn log_rest(&mut self) {
        if let Some(held_back) = self.refusals.rest(Instant::now()) {
            tracing::warn!(held_back, "refused more Scribe connections");
        }
    }
}

/// While this lives, the peer of a connection waits for something other than its answer.
struct PeerWaitsGuard<'p>(&'p Place);

impl<'p> PeerWaitsGuard<'p> {
    fn new(place: &'p Place) -> Self {
        place.asked();
        PeerWaitsGuard(place)
    }
}

impl Drop for PeerWaitsGuard<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// The place of a connection on which calls are under way.
pub(super) struct Seat {
    place: Place,
}

impl Seat {
    pub(super) fn new(place: Place) -> Self {
        Seat { place }
    }

    /// Waits until the connection has lost its place.
    pub(super) async fn lost(&self) {
        self.place.eviction_token().cancelled().await;
    }

    /// Notes that a call has arrived completely; until it is answered, the server does not wait for the peer.
    pub(super) fn asked(&self) {
        self.place.asked();
    }

    /// Waits for something on behalf of the peer, such as memory; meanwhile the peer does not count as silent.
    pub(super) async fn hold<T>(&self, waited_for: impl Future<Output = T>) -> T {
        let _guard = PeerWaitsGuard::new(&self.place);
        let done = waited_for.await;
        self.place.progress();
        done
    }

    /// Writes an answer; until the peer reads it, the server waits for the peer.
    pub(super) async fn answer<T>(&self, writing: impl Future<Output = T>) -> T {
        self.place.progress();
        self.place.set_blocked(true);
        let written = writing.await;
        self.place.set_blocked(false);
        self.place.progress();
        self.place.answered();
        written
    }

    /// A reader that notes all that is read as progress.
    pub(super) fn watch<R>(&self, reader: R) -> Watched<'_, R> {
        Watched { reader, place: &self.place }
    }
}

/// The reading side of a connection; all that is read counts as progress.
pub(super) struct Watched<'a, R> {
    reader: R,
    place: &'a Place,
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<'_, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.reader).poll_read(context, buffer);
        if read.is_ready() {
            self.place.progress();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::pending;

    use tokio::io::AsyncReadExt;
    use tokio::time::{sleep, timeout};

    /// Longer than a connection has to be silent for to make room.
    const SILENCE: Duration = Duration::from_millis(1100);

    async fn door(max_connections: usize) -> (Door, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Door::new(listener, max_connections), address)
    }

    /// A client whose connection is accepted.
    async fn let_in(door: &mut Door, address: SocketAddr) -> (TcpStream, Seat) {
        let client = TcpStream::connect(address).await.unwrap();
        let (_, _, seat) = door.next().await.expect("the connection is turned away");
        (client, seat)
    }

    fn is_lost(seat: &Seat) -> bool {
        seat.place.eviction_token().is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_makes_room_for_a_new_one() {
        let (mut door, address) = door(1).await;
        let (_client, seat) = let_in(&mut door, address).await;
        sleep(SILENCE).await;
        let _waiting = TcpStream::connect(address).await.unwrap();
        tokio::select! {
            _ = door.next() => panic!("accepted although there is no room"),
            () = seat.lost() => {}
        }
        drop(seat);
        assert!(door.next().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_is_closed_while_all_others_are_served() {
        let (mut door, address) = door(2).await;
        let (_asking, asked) = let_in(&mut door, address).await;
        let (_sending, sent) = let_in(&mut door, address).await;
        asked.asked();
        let held = sent.hold(pending::<()>());
        tokio::pin!(held);
        assert!(timeout(SILENCE, &mut held).await.is_err());
        let mut waiting = TcpStream::connect(address).await.unwrap();
        let began = tokio::time::Instant::now();
        // Dropping the future, as the server does for its other work, does not restart the wait.
        while timeout(Duration::from_millis(500), door.next()).await.is_err() {}
        assert!(began.elapsed() >= WAIT_FOR_ROOM && began.elapsed() < WAIT_FOR_ROOM * 2);
        assert_eq!(waiting.read(&mut [0]).await.unwrap(), 0);
        assert!(!is_lost(&asked) && !is_lost(&sent));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_counts_as_silent_once_its_calls_are_answered() {
        let (mut door, address) = door(1).await;
        let (_client, seat) = let_in(&mut door, address).await;
        let _waiting = TcpStream::connect(address).await.unwrap();
        seat.asked();
        seat.asked();
        for calls in [1, 0] {
            seat.answer(async {}).await;
            sleep(SILENCE).await;
            door.places.make_room_at(&door.listener);
            assert_eq!(is_lost(&seat), calls == 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn non_reading_client_makes_room_but_sending_one_does_not() {
        let (mut door, address) = door(2).await;
        let (_sending, sent) = let_in(&mut door, address).await;
        let (_deaf, deaf) = let_in(&mut door, address).await;
        let _waiting = TcpStream::connect(address).await.unwrap();
        deaf.asked();
        assert!(timeout(SILENCE, deaf.answer(pending::<()>())).await.is_err());
        sent.watch(&b"a byte"[..]).read_u8().await.unwrap();
        door.places.make_room_at(&door.listener);
        assert!(is_lost(&deaf) && !is_lost(&sent));
    }

    #[tokio::test(start_paused = true)]
    async fn each_new_connection_waits_the_full_time_for_room() {
        let (mut door, address) = door(1).await;
        let (_first, served) = let_in(&mut door, address).await;
        served.asked();
        let _second = TcpStream::connect(address).await.unwrap();
        assert!(timeout(WAIT_FOR_ROOM * 3 / 4, door.next()).await.is_err());
        drop(served);
        let (_, _, served) = door.next().await.expect("turned away although there is room");
        served.asked();
        let _waiting =
            [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        for _ in 0..2 {
            let began = tokio::time::Instant::now();
            assert!(door.next().await.is_none());
            assert!(began.elapsed() >= WAIT_FOR_ROOM, "after {:?}", began.elapsed());
        }
    }

    /// Checks that a connection that was silent before `step` makes no room right after it, but does once it is silent again.
    async fn check_is_heard(step: impl AsyncFnOnce(&Seat)) {
        let (mut door, address) = door(1).await;
        let (_client, seat) = let_in(&mut door, address).await;
        let _waiting = TcpStream::connect(address).await.unwrap();
        sleep(SILENCE).await;
        step(&seat).await;
        door.places.make_room_at(&door.listener);
        assert!(!is_lost(&seat));
        sleep(SILENCE).await;
        door.places.make_room_at(&door.listener);
        assert!(is_lost(&seat));
    }

    #[tokio::test(start_paused = true)]
    async fn activity_or_being_kept_waiting_restarts_the_silence_time() {
        check_is_heard(async |seat| drop(seat.watch(&b"a byte"[..]).read_u8().await)).await;
        check_is_heard(async |seat| seat.hold(sleep(SILENCE)).await).await;
        check_is_heard(async |seat| {
            seat.asked();
            seat.answer(sleep(SILENCE)).await;
        })
        .await;
        // An answer that was late has only just begun to be written.
        check_is_heard(async |seat| {
            seat.asked();
            assert!(timeout(Duration::ZERO, seat.answer(pending::<()>())).await.is_err());
        })
        .await;
    }
}
