//! A limited number of places for connections. Once none is free, a silent connection makes room for a new one: of the peer that
//! has the most connections, the one that has been silent longest. Otherwise half-sent requests of one peer, or connections that
//! it keeps for later, could keep all others out, even a request for the health, for as long as a connection may be idle.

mod turns;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) use turns::{Turn, Turns};

/// A connection that has been silent for less than this keeps its place: it may be new, or about to send the next request.
pub(crate) const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// While all places are taken, pause between two checks whether a client waits and which connection can make room.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The places for connections. Clones share them.
#[derive(Debug, Clone)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Arc<Semaphore>,
    occupied: Mutex<OccupiedSeats>,
    begun: Instant,
}

#[derive(Debug, Default)]
struct OccupiedSeats {
    seats: HashMap<u64, Arc<Seat>>,
    next: u64,
}

/// A place that was reserved, and is not yet given to a connection.
#[derive(Debug)]
pub struct ReservedPlace {
    permit: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

/// The place of a connection. It is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    seat: Arc<Seat>,
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

/// The state of a connection that has a place.
#[derive(Debug)]
struct Seat {
    peer: IpAddr,
    /// When the peer last sent or read something, counted from the creation of the places.
    progress_ms: AtomicU64,
    /// For how many of its requests it is the server's turn. If for none, the server waits for the peer.
    served: AtomicUsize,
    /// How many requests are neither answered nor given up.
    under_way: AtomicUsize,
    /// Whether the peer does not read what it is sent.
    is_blocked: AtomicBool,
    eviction: CancellationToken,
}

impl Places {
    /// `most` places, all of them free.
    pub fn new(most: usize) -> Self {
        let free = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Places(Arc::new(Shared { free, occupied: Mutex::default(), begun: Instant::now() }))
    }

    /// Whether a new connection would have to wait.
    pub(crate) fn are_taken(&self) -> bool {
        self.0.free.available_permits() == 0
    }

    /// Waits for a free place. While there is none and a client waits at the listener, silent connections have to make room.
    pub(crate) async fn wait_for_place(&self, listener: &impl AsFd) -> ReservedPlace {
        loop {
            if let Some(reserved) = self.take() {
                return reserved;
            }
            self.make_room_at(listener);
            self.wait().await;
        }
    }

    /// A free place, if there is one.
    pub fn take(&self) -> Option<ReservedPlace> {
        let permit = self.0.free.clone().try_acquire_owned().ok()?;
        Some(ReservedPlace { permit, shared: self.0.clone() })
    }

    /// If a client waits at the listener, has a silent connection make room. Returns whether a client waits.
    pub fn make_room_at(&self, listener: &impl AsFd) -> bool {
        let is_waited_for = somebody_waits(listener);
        if is_waited_for {
            self.0.make_room();
        }
        is_waited_for
    }

    /// From now on, ends every connection whose peer does not read what it is sent and, after a time in which it could have ended
    /// by itself, every silent connection without a request under way.
    pub(crate) async fn give_up_silent(&self) -> Infallible {
        let since_ms = self.0.now_ms();
        loop {
            self.0.give_up_silent(since_ms);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until there may be a free place, or it is time to check again whether a client waits.
    pub async fn wait(&self) {
        tokio::select! {
            // The semaphore is never closed.
            _ = self.0.free.acquire() => {}
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

fn somebody_waits(listener: &impl AsFd) -> bool {
    let mut listener = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut listener, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

impl ReservedPlace {
    /// Gives the place to a connection of `peer`.
    pub fn assign_to(self, peer: IpAddr) -> Place {
        let seat = Arc::new(Seat {
            peer: peer.to_canonical(),
            progress_ms: AtomicU64::new(self.shared.now_ms()),
            served: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            is_blocked: AtomicBool::new(false),
            eviction: CancellationToken::new(),
        });
        let mut occupied = self.shared.occupied();
        let number = occupied.next;
        occupied.next += 1;
        occupied.seats.insert(number, seat.clone());
        drop(occupied);
        Place { number, seat, shared: self.shared, _permit: self.permit }
    }
}

impl Shared {
    fn occupied(&self) -> MutexGuard<'_, OccupiedSeats> {
        self.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A connection counts as silent if its last progress was before this time; none if the places are newer than
    /// [`LEAST_SILENCE`].
    fn silent_since_ms(&self) -> Option<u64> {
        self.now_ms().checked_sub(LEAST_SILENCE.as_millis() as u64)
    }

    fn give_up_silent(&self, since_ms: u64) {
        let before_ms = self.silent_since_ms();
        let is_stuck = |seat: &&Arc<Seat>| {
            let is_left = Some(since_ms) <= before_ms && seat.under_way.load(Ordering::Relaxed) == 0;
            (is_left || seat.is_blocked.load(Ordering::Relaxed)) && Some(seat.progress_ms()) <= before_ms
        };
        self.occupied().seats.values().filter(is_stuck).for_each(|seat| seat.eviction.cancel());
    }

    /// Ends one connection. A peer with a single connection keeps it while others have several.
    fn make_room(&self) {
        let occupied = self.occupied();
        let mut counts = HashMap::<IpAddr, usize>::new();
        for seat in occupied.seats.values() {
            *counts.entry(seat.peer).or_default() += 1;
        }
        let least = counts.values().copied().max().unwrap_or(0).min(2);
        let before_ms = self.silent_since_ms();
        let silent = occupied
            .seats
            .values()
            .filter(|seat| seat.is_waited_for() && Some(seat.progress_ms()) <= before_ms)
            .map(|seat| (counts[&seat.peer], seat))
            .filter(|(count, _)| *count >= least)
            .max_by_key(|(count, seat)| (*count, std::cmp::Reverse(seat.progress_ms())));
        if let Some((_, seat)) = silent {
            seat.eviction.cancel();
        }
    }
}

impl Seat {
    fn progress_ms(&self) -> u64 {
        self.progress_ms.load(Ordering::Relaxed)
    }

    fn begin_serving(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    fn end_serving(&self) {
        self.served.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_waited_for(&self) -> bool {
        !self.eviction.is_cancelled()
            && (self.served.load(Ordering::Relaxed) == 0 || self.is_blocked.load(Ordering::Relaxed))
    }
}

impl Place {
    /// Notes that the peer sent or read something.
    pub fn progress(&self) {
        self.seat.progress_ms.store(self.shared.now_ms(), Ordering::Relaxed);
    }

    /// Sets whether the peer does not read what it is sent.
    pub fn set_blocked(&self, is_blocked: bool) {
        self.seat.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Notes that the peer waits for one more thing: until that is [`answered`](Self::answered), the connection does not count as
    /// silent.
    pub fn asked(&self) {
        self.seat.begin_serving();
    }

    /// Notes that the peer has received one thing that it waited for, or that nothing came of it.
    pub fn answered(&self) {
        self.seat.end_serving();
    }

    /// Cancelled once the connection has lost its place and has to end.
    pub fn eviction_token(&self) -> CancellationToken {
        self.seat.eviction.clone()
    }

    /// For the code that answers the requests of the connection.
    pub(crate) fn turns(&self) -> Turns {
        Turns::of(self.seat.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.occupied().seats.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use axum::body::{Body, Bytes, HttpBody};
    use axum::extract::Request;
    use axum::response::Response;
    use http_body::Frame;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::answer_parts::{Wait, in_time};

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    /// A body that never yields anything.
    struct Nothing;

    impl HttpBody for Nothing {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    /// All places, taken one second after another, and a client that waits.
    async fn crowd(peers: &[[u8; 4]]) -> (Places, Vec<Place>, TcpListener, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let places = Places::new(peers.len());
        let mut taken = Vec::new();
        for peer in peers {
            taken.push(places.wait_for_place(&listener).await.assign_to((*peer).into()));
            sleep(LEAST_SILENCE).await;
        }
        let waiting = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (places, taken, listener, waiting)
    }

    /// Which of them made room while a client waited for a moment.
    async fn made_room(places: &Places, taken: &[Place], listener: &TcpListener) -> Vec<usize> {
        let moment = LOOK_EVERY / 2;
        assert!(
            tokio::time::timeout(moment, places.wait_for_place(listener)).await.is_err(),
            "a place is free although no connection has ended"
        );
        evicted(taken)
    }

    fn evicted(taken: &[Place]) -> Vec<usize> {
        (0..taken.len()).filter(|place| taken[*place].eviction_token().is_cancelled()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn peer_with_most_connections_loses_its_longest_silent_one() {
        let (places, mut taken, listener, _waiting) = crowd(&[A, B, A, A, B, A]).await;
        // A connection that has ended cannot make room.
        taken.remove(0);
        taken.push(places.wait_for_place(&listener).await.assign_to(A.into()));
        taken[1].progress();
        assert_eq!(made_room(&places, &taken, &listener).await, [2]);
        assert!(places.are_taken());
        taken.remove(2);
        assert!(!places.are_taken());
        let _free = places.wait_for_place(&listener).await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_connection_makes_room_unless_a_client_waits() {
        let (places, taken, listener, waiting) = crowd(&[A, A]).await;
        drop((listener.accept().await.unwrap(), waiting));
        assert!(made_room(&places, &taken, &listener).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn served_and_recently_active_connections_keep_their_place() {
        let (places, taken, listener, _waiting) = crowd(&[A, A, A]).await;
        let _asked = taken[0].turns().begin(Request::new(()));
        taken[1].progress();
        let [(_, answered), (_, given_up)] = [(); 2].map(|()| taken[2].turns().begin(Request::new(())));
        let streamed = answered.end(Response::new(Body::new(Nothing)));
        drop(given_up);
        assert!(made_room(&places, &taken, &listener).await.is_empty());
        drop(streamed);
        assert_eq!(made_room(&places, &taken, &listener).await, [2], "the answer of the third is complete");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_holds_up_its_own_request_makes_room() {
        let (places, taken, listener, _waiting) = crowd(&[A, A]).await;
        let (mut asked, _turn) = taken[0].turns().begin(Request::new(Nothing));
        let _answered = taken[1].turns().begin(Request::new(()));
        let body = Pin::new(asked.body_mut());
        assert!(body.poll_frame(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(
            made_room(&places, &taken, &listener).await,
            [0],
            "the request body of the first does not arrive"
        );
        taken[1].set_blocked(true);
        assert_eq!(
            made_room(&places, &taken, &listener).await,
            [0, 1],
            "the second does not read its answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_leaves_an_answer_part_unread_makes_room() {
        let (places, taken, listener, _waiting) = crowd(&[A, A]).await;
        let [(_, answered), (_, _worked_on)] =
            [0, 1].map(|place| taken[place].turns().begin(Request::new(())));
        let mut answer = answered.end(Response::new(Body::from("a part")));
        assert!(made_room(&places, &taken, &listener).await.is_empty());
        let part = Pin::new(answer.body_mut()).poll_frame(&mut Context::from_waker(Waker::noop()));
        assert!(part.is_ready());
        assert_eq!(made_room(&places, &taken, &listener).await, [0]);
    }

    /// By HTTP/2, where a part that was handed out is not written yet.
    #[tokio::test(start_paused = true)]
    async fn connection_that_leaves_the_answers_end_unread_makes_room() {
        let (places, taken, listener, _waiting) = crowd(&[A, A]).await;
        let [(_, answered), (_, _worked_on)] =
            [0, 1].map(|place| taken[place].turns().begin(Request::new(())));
        let mut answer = answered.end(Response::new(Body::from("all of it")));
        let sending = async {
            let mut next = || Pin::new(answer.body_mut()).poll_frame(&mut Context::from_waker(Waker::noop()));
            let (all, end) = (next(), next());
            assert!(all.is_ready() && end.is_pending());
            assert_eq!(made_room(&places, &taken, &listener).await, [0]);
        };
        let most = Duration::from_secs(3600);
        assert!(in_time(sending, Wait { most, stop: CancellationToken::new(), most_at_stop: most }).await);
    }

    #[tokio::test(start_paused = true)]
    async fn sole_connection_is_kept_while_other_peers_have_several() {
        let (places, taken, listener, _waiting) = crowd(&[A, A, B]).await;
        let _asked = [0, 1].map(|place| taken[place].turns().begin(Request::new(())));
        assert!(made_room(&places, &taken, &listener).await.is_empty());
        let (places, taken, listener, _waiting) = crowd(&[A, B]).await;
        assert_eq!(made_room(&places, &taken, &listener).await, [0], "no peer has several connections");
        let (places, taken, listener, _waiting) = crowd(&[A, A, A, B, B]).await;
        let _asked = [0, 1, 2].map(|place| taken[place].turns().begin(Request::new(())));
        assert_eq!(made_room(&places, &taken, &listener).await, [3], "the peer keeps another connection");
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_gives_up_only_connections_that_read_nothing() {
        let (places, taken, _listener, _waiting) = crowd(&[A, A, A]).await;
        [0, 1].iter().for_each(|place| taken[*place].set_blocked(true));
        taken[1].progress();
        for expected in [&[0][..], &[0, 1]] {
            assert!(tokio::time::timeout(LOOK_EVERY / 2, places.give_up_silent()).await.is_err());
            assert_eq!(evicted(&taken), expected);
            sleep(LEAST_SILENCE).await;
        }
    }
}
