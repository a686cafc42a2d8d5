//! A bounded queue between the worker and a sink's thread.
//!
//! A program may hold no more of a queue than is still free (dynamic thresholds, Choudhury and Hahne 1998): one that
//! floods loses its own annotations only, and a program that comes later still finds room.
//!
//! What an earlier worker had staged comes all at once, much of it for the second time. It is let in whatever the bounds,
//! and takes no room from others: staging bounds it, which holds it already.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkin_scribe::Doorbell;

use bytes::Bytes;

use crate::hash::Map;

/// How much it holds, and when a batch leaves.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes, those under way included.
    pub bytes: usize,
    /// Most bytes of a batch; a single larger entry is a batch of its own.
    pub batch_bytes: usize,
    /// Most messages of a batch.
    pub batch_entries: usize,
    /// How long a batch that is not full waits for more, if more may come by then.
    pub linger: Duration,
}

/// How many annotations of which staged frames an entry carries. Nearly all come from one frame: that takes no memory
/// of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refs {
    /// All of one.
    One((u64, u32)),
    /// Of several, or of none.
    Many(Box<[(u64, u32)]>),
}

impl Refs {
    /// Each frame and its number of annotations.
    pub fn as_slice(&self) -> &[(u64, u32)] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl Default for Refs {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl From<Vec<(u64, u32)>> for Refs {
    fn from(refs: Vec<(u64, u32)>) -> Self {
        match refs[..] {
            [one] => Self::One(one),
            _ => Self::Many(refs.into()),
        }
    }
}

/// Messages that stand or fall together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The messages, each ended by a line feed; none contains one.
    pub lines: Bytes,
    /// How many there are.
    pub messages: usize,
    /// Which frames its annotations came from.
    pub refs: Refs,
    /// Program that its room is charged to.
    pub program: u64,
}

impl Entry {
    /// Room it takes in a queue.
    pub fn cost_bytes(&self) -> usize {
        self.lines.len() + self.refs.as_slice().len() * 16 + 96
    }
}

/// What became of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other side has them.
    Acked,
    /// The queue was full.
    QueueFull,
    /// Staging needed the room.
    SpoolEvicted,
    /// The other side refuses them for good.
    Rejected,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Bytes that wait or are under way.
    pub bytes: usize,
    /// Most bytes, but for what an earlier worker had staged.
    pub limit_bytes: usize,
    /// What the program that holds most of it may add before it loses annotations.
    pub room_bytes: usize,
}

/// Annotations of one frame, and what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The frame.
    pub frame: u64,
    /// How many.
    pub annotations: u32,
    /// What became of them.
    pub outcome: Outcome,
}

/// Entries on their way out.
#[derive(Debug)]
pub struct Batch {
    number: u64,
    /// The entries.
    pub entries: Arc<Vec<Entry>>,
}

/// How near the end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Not in sight.
    #[default]
    Open,
    /// The last entries are coming: nothing lingers, and a pause is cut short.
    Hurrying,
    /// They are in.
    Ending,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Entry>,
    waiting_messages: usize,
    waiting_bytes: usize,
    /// Batches under way, by number; taken away from their thread when staging needs the room.
    under_way: BTreeMap<u64, Arc<Vec<Entry>>>,
    bytes: usize,
    by_program: Map<u64, usize>,
    /// Frames before this one an earlier worker had staged.
    staged_before: u64,
    /// Bytes of entries with annotations of such frames, which are not in `bytes`.
    staged_bytes: usize,
    outcomes: Vec<Settled>,
    batches: u64,
    /// When the batch leaves that is not full.
    due: Option<Instant>,
    /// The thread was called for what waits and has not looked yet.
    is_called: bool,
    stage: Stage,
}

/// What there is to do for the sink's thread.
#[derive(Debug)]
pub enum Next {
    /// A batch to ship.
    Batch(Batch),
    /// Nothing before this time, if there is one, or before the bell rings.
    Wait(Option<Instant>),
    /// The queue has ended and nothing waits.
    Ended,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    state: Mutex<State>,
    /// Rung for the sink's thread.
    bell: Doorbell,
}

impl Queue {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new(limits: Limits) -> io::Result<Self> {
        Ok(Self { limits, state: Mutex::default(), bell: Doorbell::new()? })
    }

    /// What the sink's thread listens to while there is nothing to do.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes entries in, or tells by an outcome that one found no room. The sink's thread is called if nothing is to be
    /// waited for; else whoever pushes has to [`call`](Self::call) it in time, so that it does not wake up just to wait.
    pub fn push(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.lock();
        entries.into_iter().for_each(|entry| self.push_one(&mut state, entry));
        if state.waiting.is_empty() {
            return;
        }
        state.due.get_or_insert_with(|| Instant::now() + self.limits.linger);
        if state.stage != Stage::Open || self.is_full_batch(&state) {
            self.call_thread(state);
        }
    }

    /// Has a batch leave that is not full, if its time comes before `next`, when whoever calls may call again.
    pub fn call(&self, next: Instant) {
        let mut state = self.lock();
        if state.due.is_some_and(|due| due <= next) {
            state.due = Some(Instant::now());
            self.call_thread(state);
        }
    }

    fn call_thread(&self, mut state: MutexGuard<'_, State>) {
        if !std::mem::replace(&mut state.is_called, true) {
            drop(state);
            self.bell.ring();
        }
    }

    /// Lets everything in that has annotations of a frame before this one.
    pub fn let_in_before(&self, frame: u64) {
        self.lock().staged_before = frame;
    }

    fn push_one(&self, state: &mut State, entry: Entry) {
        if !state.charge(&entry, self.limits.bytes) {
            state.settled(&entry, Outcome::QueueFull);
            return;
        }
        state.waiting_messages += entry.messages;
        state.waiting_bytes += entry.lines.len();
        state.waiting.push_back(entry);
    }

    /// Everything that was settled since the last call.
    pub fn take_outcomes(&self) -> Vec<Settled> {
        std::mem::take(&mut self.lock().outcomes)
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_empty(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.under_way.is_empty()
    }

    /// Whether it has ended, and all that was in it is settled.
    pub fn is_through(&self) -> bool {
        self.stage() == Stage::Ending && self.is_empty()
    }

    /// How full it is.
    pub fn fill(&self) -> Fill {
        let state = self.lock();
        let largest = state.by_program.values().max().copied().unwrap_or(0);
        Fill {
            bytes: state.bytes + state.staged_bytes,
            limit_bytes: self.limits.bytes,
            // What it adds is no longer free.
            room_bytes: self.limits.bytes.saturating_sub(state.bytes + largest) / 2,
        }
    }

    /// Whether entries find room that nobody else needs: half of the queue is left to those who come meanwhile. Entries
    /// that never would find it are to be tried when nothing else is there.
    pub fn has_room_for<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> bool {
        let state = self.lock();
        let charged = entries.into_iter().filter(|entry| !state.was_staged(entry));
        let cost: usize = charged.map(Entry::cost_bytes).sum();
        state.bytes == 0 || state.bytes + cost <= self.limits.bytes / 2
    }

    /// Tells the thread that the end is near: it ships without lingering, and tries again soon if it pauses.
    pub fn hurry(&self) {
        self.enter(Stage::Hurrying);
    }

    /// Asks the thread to ship what is left without lingering, and then to end.
    pub fn end(&self) {
        self.enter(Stage::Ending);
    }

    fn enter(&self, stage: Stage) {
        if std::mem::replace(&mut self.lock().stage, stage) != stage {
            self.bell.ring();
        }
    }

    /// Gives up every entry with an annotation of a frame up to `frame`, also those under way.
    pub fn evict_up_to_frame(&self, frame: u64) {
        let mut state = self.lock();
        let old = |entry: &Entry| entry.refs.as_slice().iter().any(|(of, _)| *of <= frame);
        let (gone, kept): (Vec<_>, Vec<_>) = state.waiting.drain(..).partition(|entry| old(entry));
        state.waiting = kept.into();
        for entry in gone {
            state.waiting_messages -= entry.messages;
            state.waiting_bytes -= entry.lines.len();
            state.settle(&entry, Outcome::SpoolEvicted);
        }
        let is_old = |_: &u64, entries: &mut Arc<Vec<Entry>>| entries.iter().any(old);
        let taken: Vec<_> = state.under_way.extract_if(.., is_old).collect();
        for entry in taken.iter().flat_map(|(_, entries)| entries.iter()) {
            state.settle(entry, Outcome::SpoolEvicted);
        }
    }

    /// Waits for a batch; `None` once the queue has ended and nothing waits.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn next_batch(&self) -> io::Result<Option<Batch>> {
        loop {
            match self.next(Instant::now()) {
                Next::Batch(batch) => return Ok(Some(batch)),
                Next::Wait(due) => self.bell.wait(due)?,
                Next::Ended => return Ok(None),
            }
        }
    }

    /// What there is to do at this moment.
    pub fn next(&self, now: Instant) -> Next {
        let mut state = self.lock();
        state.is_called = false;
        if state.waiting.is_empty() {
            state.due = None;
            return if state.stage == Stage::Ending { Next::Ended } else { Next::Wait(None) };
        }
        let due = *state.due.get_or_insert(now + self.limits.linger);
        if now < due && state.stage == Stage::Open && !self.is_full_batch(&state) {
            return Next::Wait(Some(due));
        }
        state.due = None;
        Next::Batch(self.take_batch(&mut state))
    }

    fn is_full_batch(&self, state: &State) -> bool {
        state.waiting_messages >= self.limits.batch_entries || state.waiting_bytes >= self.limits.batch_bytes
    }

    fn take_batch(&self, state: &mut State) -> Batch {
        let most = self.limits.batch_entries.min(state.waiting.len());
        let (mut entries, mut bytes, mut messages) = (Vec::with_capacity(most), 0, 0);
        while let Some(entry) = state.waiting.front() {
            bytes += entry.lines.len();
            messages += entry.messages;
            let too_much = bytes > self.limits.batch_bytes || messages > self.limits.batch_entries;
            if too_much && !entries.is_empty() {
                break;
            }
            if let Some(entry) = state.waiting.pop_front() {
                state.waiting_bytes -= entry.lines.len();
                state.waiting_messages -= entry.messages;
                entries.push(entry);
            }
        }
        state.batches += 1;
        let entries = Arc::new(entries);
        let number = state.batches;
        state.under_way.insert(number, entries.clone());
        Batch { number, entries }
    }

    /// Whether the batch still is this thread's to ship: staging may have taken it away.
    pub fn holds(&self, batch: &Batch) -> bool {
        self.lock().under_way.contains_key(&batch.number)
    }

    /// Settles the batch, entry by entry.
    pub fn settle(&self, batch: &Batch, outcomes: &[Outcome]) {
        let mut state = self.lock();
        let Some(entries) = state.under_way.remove(&batch.number) else { return };
        for (entry, outcome) in entries.iter().zip(outcomes) {
            state.settle(entry, *outcome);
        }
    }

    /// Sleeps; when the end comes nearer meanwhile, not to the end, so that a last try comes soon.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn pause(&self, pause: Duration) -> io::Result<()> {
        self.pause_since(self.stage(), pause)
    }

    fn pause_since(&self, stage: Stage, pause: Duration) -> io::Result<()> {
        let due = Instant::now() + pause;
        while Instant::now() < due && self.stage() == stage {
            self.bell.wait(Some(due))?;
        }
        Ok(())
    }

    fn stage(&self) -> Stage {
        self.lock().stage
    }
}

impl State {
    fn was_staged(&self, entry: &Entry) -> bool {
        entry.refs.as_slice().iter().any(|(frame, _)| *frame < self.staged_before)
    }

    /// Takes room for an entry; false if there is none.
    fn charge(&mut self, entry: &Entry, most: usize) -> bool {
        let cost = entry.cost_bytes();
        if self.was_staged(entry) {
            self.staged_bytes += cost;
            return true;
        }
        let free = most.saturating_sub(self.bytes);
        let share = self.by_program.entry(entry.program).or_insert(0);
        let has_room = *share + cost <= free;
        if has_room {
            *share += cost;
            self.bytes += cost;
        } else if *share == 0 {
            self.by_program.remove(&entry.program);
        }
        has_room
    }

    /// Gives the room of an entry back.
    fn discharge(&mut self, entry: &Entry) {
        let cost = entry.cost_bytes();
        if self.was_staged(entry) {
            self.staged_bytes -= cost;
            return;
        }
        self.bytes -= cost;
        if let Some(share) = self.by_program.get_mut(&entry.program) {
            *share -= cost;
            if *share == 0 {
                self.by_program.remove(&entry.program);
            }
        }
    }

    fn settle(&mut self, entry: &Entry, outcome: Outcome) {
        self.discharge(entry);
        self.settled(entry, outcome);
    }

    /// Says what became of an entry; neighbours of the same frame and fate are told together.
    fn settled(&mut self, entry: &Entry, outcome: Outcome) {
        for &(frame, annotations) in entry.refs.as_slice() {
            if let Some(last) = self.outcomes.last_mut()
                && (last.frame, last.outcome) == (frame, outcome)
                && let Some(sum) = last.annotations.checked_add(annotations)
            {
                last.annotations = sum;
            } else {
                self.outcomes.push(Settled { frame, annotations, outcome });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(bytes: usize) -> Queue {
        let linger = Duration::ZERO;
        Queue::new(Limits { bytes, batch_bytes: 1000, batch_entries: 10, linger }).unwrap()
    }

    fn entry(program: u64, frame: u64) -> Entry {
        Entry { lines: vec![b'x'; 100].into(), messages: 1, refs: Refs::One((frame, 1)), program }
    }

    fn count(outcomes: &[Settled], outcome: Outcome) -> u32 {
        outcomes.iter().filter(|settled| settled.outcome == outcome).map(|settled| settled.annotations).sum()
    }

    #[test]
    fn a_program_that_floods_leaves_room_for_others() {
        let queue = queue(10 * 212);
        for frame in 0..100 {
            queue.push([entry(1, frame)]);
        }
        let lost = count(&queue.take_outcomes(), Outcome::QueueFull);
        assert_eq!(lost, 95);
        queue.push([entry(2, 100)]);
        assert!(queue.take_outcomes().is_empty());
    }

    #[test]
    fn it_is_seen_how_much_the_program_may_add_that_holds_most() {
        let queue = queue(10 * 212);
        let fill = |bytes: usize, room: usize| Fill {
            bytes: bytes * 212,
            limit_bytes: 2120,
            room_bytes: room * 212,
        };
        assert_eq!(queue.fill(), fill(0, 5));
        queue.push((0..2).map(|frame| entry(1, frame)));
        queue.push((2..4).map(|frame| entry(2, frame)));
        assert_eq!(queue.fill(), fill(4, 2));
        queue.push((4..6).map(|frame| entry(1, frame)));
        assert_eq!(queue.fill(), fill(6, 0));
        assert!(queue.take_outcomes().is_empty());
        queue.push([entry(1, 6)]);
        assert_eq!(count(&queue.take_outcomes(), Outcome::QueueFull), 1);
        queue.let_in_before(u64::MAX);
        queue.push([entry(3, 7)]);
        assert_eq!(queue.fill(), fill(7, 0), "what was staged before takes no room");
    }

    #[test]
    fn what_was_staged_before_is_let_in_and_takes_no_room_from_others() {
        let queue = queue(10 * 212);
        queue.let_in_before(u64::MAX);
        queue.push((0..100).map(|frame| entry(1, frame)));
        queue.let_in_before(100);
        queue.push((100..105).map(|frame| entry(1, frame)));
        assert!(queue.take_outcomes().is_empty());
        assert_eq!(queue.fill().bytes, 105 * 212);
        queue.push([entry(1, 105)]);
        assert_eq!(count(&queue.take_outcomes(), Outcome::QueueFull), 1);
        queue.end();
        while let Some(batch) = queue.next_batch().unwrap() {
            queue.settle(&batch, &vec![Outcome::Acked; batch.entries.len()]);
        }
        assert_eq!((count(&queue.take_outcomes(), Outcome::Acked), queue.fill().bytes), (105, 0));
    }

    #[test]
    fn a_batch_is_bounded_and_settled_entry_by_entry() {
        let queue = queue(1 << 20);
        queue.push((0..12).map(|frame| entry(1, frame)));
        let batch = queue.next_batch().unwrap().unwrap();
        assert_eq!(batch.entries.len(), 10);
        assert!(queue.holds(&batch));
        let mut outcomes = vec![Outcome::Acked; 9];
        outcomes.push(Outcome::Rejected);
        queue.settle(&batch, &outcomes);
        let settled = queue.take_outcomes();
        assert_eq!((count(&settled, Outcome::Acked), count(&settled, Outcome::Rejected)), (9, 1));
        queue.end();
        let rest = queue.next_batch().unwrap().unwrap();
        queue.settle(&rest, &vec![Outcome::Acked; rest.entries.len()]);
        assert!(queue.next_batch().unwrap().is_none());
        assert_eq!((queue.fill().bytes, queue.is_empty()), (0, true));
    }

    #[test]
    fn staging_takes_old_entries_away_also_those_under_way() {
        let queue = queue(1 << 20);
        queue.push([entry(1, 1)]);
        let batch = queue.next_batch().unwrap().unwrap();
        queue.push([entry(1, 4)]);
        let younger = queue.next_batch().unwrap().unwrap();
        queue.push([entry(1, 2), entry(1, 3)]);
        queue.evict_up_to_frame(2);
        assert!(!queue.holds(&batch) && queue.holds(&younger));
        queue.settle(&batch, &[Outcome::Acked]);
        let settled = queue.take_outcomes();
        assert_eq!((settled.len(), count(&settled, Outcome::SpoolEvicted)), (2, 2));
        assert_eq!(queue.next_batch().unwrap().unwrap().entries[..], [entry(1, 3)]);
    }

    #[test]
    fn half_of_the_queue_is_room_that_nobody_needs_and_all_of_it_while_it_is_empty() {
        let queue = queue(10 * 212);
        let [one, six] = [1, 6].map(|entries| (0..entries).map(|_| entry(1, 9)).collect::<Vec<_>>());
        assert!(queue.has_room_for(&six), "what never fits is to be tried");
        queue.push((0..4).map(|frame| entry(1, frame)));
        assert!(queue.has_room_for(&one) && !queue.has_room_for(&six));
        queue.push([entry(2, 4)]);
        assert!(!queue.has_room_for(&one));
        queue.let_in_before(u64::MAX);
        assert!(queue.has_room_for(&six), "what was staged before takes no room");
    }

    #[test]
    fn the_near_end_cuts_a_pause_short_and_lets_nothing_linger() {
        let queue = lingering();
        let linger = queue.limits.linger;
        queue.push([entry(1, 1)]);
        assert!(matches!(queue.next(Instant::now()), Next::Wait(Some(_))));
        for come_nearer in [Queue::hurry, Queue::end] {
            let (begun, stage) = (Instant::now(), queue.stage());
            come_nearer(&queue);
            queue.pause_since(stage, linger).unwrap();
            assert!(begun.elapsed() < linger / 2);
            if stage == Stage::Open {
                assert!(matches!(queue.next(Instant::now()), Next::Batch(_)));
                assert!(matches!(queue.next(Instant::now()), Next::Wait(None)), "more may come");
            }
        }
        assert!(matches!(queue.next(Instant::now()), Next::Ended));
    }

    #[test]
    fn a_batch_that_is_not_full_waits_for_more_from_its_first_entry_on() {
        let queue = lingering();
        let now = Instant::now();
        assert!(matches!(queue.next(now), Next::Wait(None)));
        queue.push([entry(1, 1)]);
        let Next::Wait(Some(due)) = queue.next(now) else { panic!("it does not wait") };
        assert!(due >= now + queue.limits.linger);
        queue.push([entry(1, 2)]);
        assert!(matches!(queue.next(now), Next::Wait(Some(still)) if still == due));
        assert!(matches!(queue.next(due), Next::Batch(batch) if batch.entries.len() == 2));
        queue.push((0..10).map(|frame| entry(1, frame)));
        assert!(matches!(queue.next(now), Next::Batch(_)), "a full one does not wait");
        queue.push([entry(1, 3)]);
        queue.end();
        assert!(matches!(queue.next(now), Next::Batch(_)), "nor does the last");
        assert!(matches!(queue.next(now), Next::Ended));
    }

    /// Each call wakes a thread; one that was woken to wait for more would wake up twice for each batch.
    #[test]
    fn the_thread_is_called_once_for_a_batch_and_only_when_that_is_to_leave() {
        let queue = lingering();
        let is_called = || queue.lock().is_called;
        let now = Instant::now();
        queue.push([entry(1, 1)]);
        queue.call(now + queue.limits.linger / 2);
        assert!(!is_called(), "there is another time to call it");
        queue.call(now + 2 * queue.limits.linger);
        assert!(is_called());
        assert!(matches!(queue.next(Instant::now()), Next::Batch(_)), "now, and not when its time comes");
        assert!(matches!(queue.next(Instant::now()), Next::Wait(None)));
        queue.call(now + 2 * queue.limits.linger);
        assert!(!is_called(), "nothing waits");
        queue.push((0..9).map(|frame| entry(1, frame)));
        assert!(!is_called());
        queue.push([entry(1, 9)]);
        assert!(is_called(), "it is full");
        queue.next(now);
        queue.hurry();
        queue.push([entry(1, 1)]);
        assert!(is_called(), "nothing lingers any more");
    }

    fn lingering() -> Queue {
        let linger = Duration::from_secs(60);
        Queue::new(Limits { bytes: 1 << 20, batch_bytes: 1000, batch_entries: 10, linger }).unwrap()
    }
}
