//! The queue of batches that wait for the one thread that stores them. The thread is woken only when as much is there as it waits
//! for, not for each batch: a wake-up costs the sender and the thread more than the handover itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Items that may wait.
    pub(super) waiting: usize,
    /// Items that are taken together.
    pub(super) together: usize,
    /// Bytes that are taken together, apart from the first item.
    pub(super) bytes_together: usize,
}

/// Why an item was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotGiven {
    /// The queue is full.
    Full,
    /// The taker is gone.
    NobodyThere,
}

/// Why there is nothing to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitError {
    /// The time is over. Something may still come.
    TimedOut,
    /// All givers are gone.
    GiversGone,
}

/// How much the taker waits for: so many items or so many bytes, whichever is there first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

impl Wanted {
    /// Waits for so many items, however short they are.
    pub(super) fn items(items: usize) -> Wanted {
        Wanted { items, bytes: usize::MAX }
    }

    /// Waits for so many bytes, however few items they are.
    pub(super) fn bytes(bytes: usize) -> Wanted {
        Wanted { items: usize::MAX, bytes }
    }
}

/// Makes a queue. It ends when either side is dropped; waiting items can still be taken.
pub(super) fn queue<T>(bounds: Bounds) -> (Giver<T>, Taker<T>) {
    let state = State { items: VecDeque::new(), bytes: 0, wanted: None, given_up: false };
    let queue = Arc::new(Queue { bounds, state: Mutex::new(state), enough: Condvar::new() });
    (Giver(queue.clone()), Taker(queue))
}

/// The sending side of a queue.
pub(super) struct Giver<T>(Arc<Queue<T>>);

/// The receiving side of a queue.
pub(super) struct Taker<T>(Arc<Queue<T>>);

struct Queue<T> {
    bounds: Bounds,
    state: Mutex<State<T>>,
    /// Signalled when as much is there as is wanted, or nothing comes any more.
    enough: Condvar,
}

struct State<T> {
    /// The items, each with its size in bytes.
    items: VecDeque<(T, usize)>,
    bytes: usize,
    /// How much the taker waits for, if it waits.
    wanted: Option<Wanted>,
    /// Whether a side was dropped.
    given_up: bool,
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether as much is there as is wanted, or as may be.
    fn has(&self, state: &State<T>, wanted: Wanted) -> bool {
        let most = self.bounds.waiting.min(self.bounds.together);
        state.items.len() >= wanted.items.min(most)
            || state.bytes >= wanted.bytes.min(self.bounds.bytes_together)
    }
}

impl<T> Giver<T> {
    /// Adds an item of so many bytes.
    ///
    /// # Errors
    /// When the queue is full, or the taker is gone.
    pub(super) fn give(&self, item: T, bytes: usize) -> Result<(), NotGiven> {
        let mut state = self.0.state();
        if state.given_up {
            return Err(NotGiven::NobodyThere);
        }
        if state.items.len() >= self.0.bounds.waiting {
            return Err(NotGiven::Full);
        }
        state.items.push_back((item, bytes));
        state.bytes += bytes;
        if state.wanted.is_some_and(|wanted| self.0.has(&state, wanted)) {
            state.wanted = None;
            drop(state);
            self.0.enough.notify_one();
        }
        Ok(())
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        self.0.state().given_up = true;
        self.0.enough.notify_one();
    }
}

impl<T> Taker<T> {
    /// How many items wait.
    pub(super) fn count(&self) -> usize {
        self.0.state().items.len()
    }

    /// Bytes of all items that wait.
    pub(super) fn bytes(&self) -> usize {
        self.0.state().bytes
    }

    /// Waits until as much is there as is wanted, or as may be taken together, or until the time is over.
    ///
    /// # Errors
    /// When there is nothing at all then.
    pub(super) fn wait(&self, wanted: Wanted, patience: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now() + patience;
        let mut state = self.0.state();
        while !self.0.has(&state, wanted) && !state.given_up {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.wanted = Some(wanted);
            state = self.0.enough.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wanted = None;
        match (state.items.is_empty(), state.given_up) {
            (false, _) => Ok(()),
            (true, false) => Err(WaitError::TimedOut),
            (true, true) => Err(WaitError::GiversGone),
        }
    }

    /// Takes the waiting items, up to the bounds on what may be taken together.
    pub(super) fn take(&self) -> Vec<T> {
        let mut state = self.0.state();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < self.0.bounds.together
            && bytes < self.0.bounds.bytes_together
            && let Some((item, of_item)) = state.items.pop_front()
        {
            taken.push(item);
            bytes += of_item;
        }
        state.bytes -= bytes;
        taken
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.state();
            state.given_up = true;
            std::mem::take(&mut state.items)
        };
        // Dropping the items tells everybody who waits for an answer that there will be none.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const BOUNDS: Bounds = Bounds { waiting: 10, together: 4, bytes_together: 100 };
    const NO_TIME: Duration = Duration::ZERO;
    /// More than any of these tests takes.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn items_are_taken_in_order_up_to_the_bounds() {
        let (giver, taker) = queue(BOUNDS);
        assert_eq!(taker.wait(Wanted::items(1), NO_TIME), Err(WaitError::TimedOut));
        (0..10).for_each(|item| giver.give(item, if item < 8 { 0 } else { 100 }).unwrap());
        assert_eq!(giver.give(10, 0), Err(NotGiven::Full));
        assert_eq!(taker.count(), 10);
        assert_eq!(taker.take(), [0, 1, 2, 3]);
        assert_eq!(taker.take(), [4, 5, 6, 7]);
        assert_eq!(taker.take(), [8]);
        assert_eq!(taker.take(), [9]);
        assert!(taker.take().is_empty());
    }

    #[test]
    fn the_taker_wakes_at_the_wanted_number_of_items() {
        let (giver, taker) = queue(BOUNDS);
        let taking = thread::spawn(move || {
            taker.wait(Wanted::items(3), LONG).unwrap();
            taker.take()
        });
        (0..3).for_each(|item| giver.give(item, 1).unwrap());
        assert_eq!(taking.join().unwrap(), [0, 1, 2]);
    }

    #[test]
    fn the_taker_never_waits_for_more_than_fits_the_bounds() {
        let (giver, taker) = queue(Bounds { waiting: 2, ..BOUNDS });
        (0..2).for_each(|item| giver.give(item, 1).unwrap());
        taker.wait(Wanted::items(3), LONG).unwrap();
        let (giver, taker) = queue(BOUNDS);
        giver.give(0, BOUNDS.bytes_together).unwrap();
        taker.wait(Wanted::items(3), LONG).unwrap();
        let (giver, taker) = queue(BOUNDS);
        (0..4).for_each(|item| giver.give(item, 1).unwrap());
        taker.wait(Wanted::items(5), LONG).unwrap();
    }

    #[test]
    fn the_taker_wakes_at_the_wanted_number_of_bytes() {
        let (giver, taker) = queue(BOUNDS);
        let taking = thread::spawn(move || {
            taker.wait(Wanted::bytes(7), LONG).unwrap();
            (taker.bytes(), taker.take())
        });
        (0..3).for_each(|item| giver.give(item, 3).unwrap());
        assert_eq!(taking.join().unwrap(), (9, vec![0, 1, 2]));
    }

    #[test]
    fn waiting_items_are_taken_after_the_last_giver_is_gone() {
        let (giver, taker) = queue(BOUNDS);
        giver.give(1, 1).unwrap();
        drop(giver);
        assert_eq!(taker.wait(Wanted::items(2), LONG), Ok(()));
        assert_eq!(taker.take(), [1]);
        assert_eq!(taker.wait(Wanted::items(1), LONG), Err(WaitError::GiversGone));
    }

    #[test]
    fn the_taker_wakes_when_the_last_giver_goes() {
        let (giver, taker) = queue::<u8>(BOUNDS);
        let waiting = thread::spawn(move || taker.wait(Wanted::items(1), LONG));
        drop(giver);
        assert_eq!(waiting.join().unwrap(), Err(WaitError::GiversGone));
    }

    #[test]
    fn waiting_items_are_dropped_with_the_taker() {
        let (giver, taker) = queue(BOUNDS);
        let item = Arc::new(());
        giver.give(item.clone(), 1).unwrap();
        drop(taker);
        assert_eq!(Arc::strong_count(&item), 1);
        assert_eq!(giver.give(item, 1), Err(NotGiven::NobodyThere));
    }
}
