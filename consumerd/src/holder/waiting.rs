//! Programs that may be admitted a moment later: another daemon still reads them, or a quota is full and others are about to be
//! released, as where hundreds of programs end every second.

use std::time::{Duration, Instant};

use super::held::{Identity, Refusal, identity_of};
use super::offers::Offer;

/// How long a program that another daemon reads may wait: as long as that daemon's worker may need to notice that its holder
/// is gone.
const FOR_ANOTHER_DAEMON: Duration = Duration::from_secs(10);
/// How long a program over quota may wait: longer than the worker needs to ship what is in the rings of an ended program.
const FOR_A_PLACE: Duration = Duration::from_secs(2);
/// Most programs that wait.
const MOST: usize = 1024;
/// The programs of a user that wait for a place may be this part of the user's quota: a quarter.
const PARTS_OF_QUOTA: usize = 4;

/// A program that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) offer: Offer,
    /// When it last offered itself.
    pub(super) since: Instant,
    /// Why it is not taken: [`Refusal::Elsewhere`] or [`Refusal::Quota`].
    pub(super) refusal: Refusal,
    identity: Option<Identity>,
}

impl Waiter {
    pub(super) fn new(offer: Offer, since: Instant, refusal: Refusal) -> Waiter {
        let identity = identity_of(&offer.segment);
        Waiter { offer, since, refusal, identity }
    }

    fn is_over(&self) -> bool {
        let patience = if self.refusal == Refusal::Quota { FOR_A_PLACE } else { FOR_ANOTHER_DAEMON };
        self.since.elapsed() > patience
    }
}

/// What became of a program that was to wait.
#[derive(Debug)]
pub(super) enum WaitOutcome {
    /// It waits.
    Waiting,
    /// It waited already.
    AlreadyWaiting,
    /// It has waited long enough, or too many programs wait.
    Refused(Waiter),
}

/// All waiting programs, in the order in which they came.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Vec<Waiter>,
    max_programs: usize,
    max_per_uid: usize,
    /// Whether a program was released since the last [`take`](Self::take).
    has_place: bool,
}

impl Waiting {
    /// Starts without any, given the most programs that are held, of all users and of each.
    pub(super) fn new(max_programs: usize, max_per_uid: usize) -> Waiting {
        Waiting { waiters: Vec::new(), max_programs, max_per_uid, has_place: false }
    }

    /// Lets a program wait, if there is room while `held` programs are held.
    pub(super) fn push(&mut self, waiter: Waiter, held: usize) -> WaitOutcome {
        if let Some(earlier) = self.waiters.iter_mut().find(|other| other.identity == waiter.identity) {
            earlier.since = earlier.since.max(waiter.since);
            return WaitOutcome::AlreadyWaiting;
        }
        if waiter.is_over() || !self.has_room(&waiter, held) {
            return WaitOutcome::Refused(waiter);
        }
        self.waiters.push(waiter);
        WaitOutcome::Waiting
    }

    /// Whether a further program may wait. No single user can fill the list, although a user may offer any number of programs, and
    /// lock their pages himself. Programs over quota must not take file descriptors that programs within quota may need.
    fn has_room(&self, waiter: &Waiter, held: usize) -> bool {
        let is_alike = |other: &&Waiter| {
            other.refusal == waiter.refusal && other.offer.program.uid == waiter.offer.program.uid
        };
        let of_user = self.waiters.iter().filter(is_alike).count();
        let fits = match waiter.refusal {
            Refusal::Quota => {
                of_user < self.max_per_uid.div_ceil(PARTS_OF_QUOTA)
                    && held + self.waiters.len() < self.max_programs
            }
            _ => of_user < self.max_per_uid,
        };
        fits && self.waiters.len() < MOST
    }

    /// A program was released.
    pub(super) fn place_came_free(&mut self) {
        self.has_place = true;
    }

    /// Takes the programs that are worth another try.
    pub(super) fn take(&mut self) -> Vec<Waiter> {
        let has_place = std::mem::take(&mut self.has_place);
        let is_due = |waiter: &mut Waiter| has_place || waiter.refusal != Refusal::Quota || waiter.is_over();
        self.waiters.extract_if(.., is_due).collect()
    }

    /// Takes all programs.
    pub(super) fn take_last(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.waiters)
    }

    /// Whether any waiting program's offer satisfies `is_such`.
    pub(super) fn any(&self, is_such: impl Fn(&Offer) -> bool) -> bool {
        self.waiters.iter().any(|waiter| is_such(&waiter.offer))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::held::tests::memfd;
    use crate::link::Program;

    const LONG_AGO: Duration = Duration::from_secs(3600);

    fn waiter(uid: u32, refusal: Refusal) -> Waiter {
        let program = Program { number: 0, uid, pid: 1, comm: "x".into() };
        Waiter::new(Offer { program, segment: memfd(), control: memfd() }, Instant::now(), refusal)
    }

    #[test]
    fn no_user_can_fill_the_waiting_list_alone() {
        let mut waiting = Waiting::new(100, 8);
        let mut waits = |uid, refusal| matches!(waiting.push(waiter(uid, refusal), 0), WaitOutcome::Waiting);
        let few = [waits(1, Refusal::Quota), waits(1, Refusal::Quota), waits(1, Refusal::Quota)];
        assert_eq!(few, [true, true, false]);
        assert!(waits(2, Refusal::Quota));
        assert!((0..8).all(|_| waits(1, Refusal::Elsewhere)) && !waits(1, Refusal::Elsewhere));
        assert!(waits(2, Refusal::Elsewhere));
    }

    #[test]
    fn quota_waiters_leave_descriptors_for_programs_to_come() {
        let mut waiting = Waiting::new(10, 8);
        assert!(matches!(waiting.push(waiter(1, Refusal::Quota), 9), WaitOutcome::Waiting));
        assert!(matches!(waiting.push(waiter(1, Refusal::Quota), 9), WaitOutcome::Refused(_)));
        assert!(matches!(waiting.push(waiter(1, Refusal::Elsewhere), 9), WaitOutcome::Waiting));
    }

    #[test]
    fn a_waiter_is_tried_when_a_place_frees_or_its_time_is_up() {
        let mut waiting = Waiting::new(10, 8);
        let _ = waiting.push(waiter(1, Refusal::Quota), 0);
        let _ = waiting.push(waiter(1, Refusal::Elsewhere), 0);
        assert_eq!(waiting.take().len(), 1, "a program that another daemon reads is tried each time");
        assert!(waiting.take().is_empty() && !waiting.is_empty());
        waiting.place_came_free();
        let mut tried = waiting.take();
        assert_eq!(tried.len(), 1);
        tried[0].since -= LONG_AGO;
        assert!(matches!(waiting.push(tried.remove(0), 0), WaitOutcome::Refused(_)));
        let _ = waiting.push(waiter(1, Refusal::Quota), 0);
        waiting.waiters[0].since -= LONG_AGO;
        assert_eq!(waiting.take().len(), 1);
    }

    #[test]
    fn a_repeated_offer_waits_once_from_its_latest_time() {
        let mut waiting = Waiting::new(10, 8);
        let first = waiter(1, Refusal::Quota);
        let segment = first.offer.segment.try_clone().unwrap();
        let offer = Offer { program: first.offer.program.clone(), segment, control: memfd() };
        let again = Waiter::new(offer, Instant::now(), Refusal::Quota);
        let since = again.since;
        let _ = waiting.push(Waiter { since: first.since - LONG_AGO / 3600, ..first }, 0);
        assert!(matches!(waiting.push(again, 0), WaitOutcome::AlreadyWaiting));
        assert_eq!((waiting.waiters.len(), waiting.waiters[0].since), (1, since));
    }
}
