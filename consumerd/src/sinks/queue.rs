//! A bounded queue between the worker and a sink's thread.
//!
//! A program may hold no more of a queue than is still free (dynamic thresholds, Choudhury and Hahne 1998): a program that
//! floods loses only its own annotations, and a program that comes later still finds room. Records that would be lost here are
//! better left in the rings: see `worker::engine::room`.
//!
//! A batch that may or may not have arrived is given back, and sent again in smaller batches, because the other side may not
//! accept large calls.
//!
//! What an earlier worker had staged may be much more than a queue can hold. It is pushed as there is spare room: see
//! `worker::unread`.

mod entry;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkin_scribe::Doorbell;

use super::thread_progress::ThreadProgress;
use crate::hash::Map;
pub use entry::{Entry, Refs};
use waiting::Waiting;

/// Least limit to which batches shrink when they are given back.
const MIN_BATCH_BYTES: usize = 4 << 10;

/// How much a queue may hold, and when a batch leaves.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes, including those under way.
    pub bytes: usize,
    /// Most bytes of a batch; a single larger entry is a batch of its own.
    pub batch_bytes: usize,
    /// Most messages of a batch.
    pub batch_entries: usize,
    /// How long a batch that is not full waits for more, if more may come by then.
    pub linger: Duration,
}

/// What became of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other side has acknowledged them.
    Acked,
    /// The queue was full.
    QueueFull,
    /// Staging needed the room.
    SpoolEvicted,
    /// The other side refuses them for good.
    Rejected,
}

/// Numbers of annotations by outcome, in the order of [`Outcome::ALL`].
pub type ByOutcome = [u64; Outcome::ALL.len()];

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Acked, Self::QueueFull, Self::SpoolEvicted, Self::Rejected];
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Bytes that wait or are under way.
    pub bytes: usize,
    /// Most bytes that the queue may hold.
    pub limit_bytes: usize,
    /// Bytes that the program with the most in the queue may add before it loses annotations.
    pub room_bytes: usize,
}

/// Annotations of one frame, and what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The frame.
    pub frame: u64,
    /// How many annotations.
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

/// How near the end of the queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The end is not in sight.
    #[default]
    Open,
    /// The last entries are coming: batches do not linger, and a pause is cut short.
    Hurrying,
    /// The last entries have come.
    Ending,
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    /// Most bytes of a batch: fewer than configured after calls that broke off.
    batch_bytes: usize,
    /// Batches under way, by number; removed without the thread's doing when staging needs the room.
    under_way: BTreeMap<u64, Arc<Vec<Entry>>>,
    bytes: usize,
    by_program: Map<u64, usize>,
    outcomes: Vec<Settled>,
    batches: u64,
    /// When a batch leaves although it is not full.
    due: Option<Instant>,
    /// The thread was called for what waits, and has not looked yet.
    is_called: bool,
    stage: Stage,
}

/// What there is to do for the sink's thread.
#[derive(Debug)]
pub enum Next {
    /// A batch to ship.
    Batch(Batch),
    /// Nothing until the bell rings, or until this time if one is given.
    Wait(Option<Instant>),
    /// The queue has ended, and nothing waits.
    Ended,
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    state: Mutex<State>,
    /// Rung to wake the sink's thread.
    bell: Doorbell,
    /// The progress of the sink's thread.
    progress: Arc<ThreadProgress>,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let state = State { batch_bytes: limits.batch_bytes, ..State::default() };
        Ok(Self { limits, state: Mutex::new(state), bell: Doorbell::new()?, progress: Arc::default() })
    }

    /// The bell on which the sink's thread waits while there is nothing to do.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// Where the sink's thread notes its progress.
    pub fn progress(&self) -> &Arc<ThreadProgress> {
        &self.progress
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds entries; for an entry without room, records the outcome [`Outcome::QueueFull`]. The sink's thread is called if a batch
    /// is full or the end is near. Otherwise the caller has to [`call`](Self::call) it in time, so it never wakes up just to wait.
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

    /// Calls the sink's thread for a batch that is not full, if it is due before `next`, when this may be called again.
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

    fn push_one(&self, state: &mut State, mut entry: Entry) {
        if !state.charge(&entry, self.limits.bytes) {
            state.settled(&entry, Outcome::QueueFull);
            return;
        }
        // Above half of the limit, later entries may be refused: an entry must not hold on to memory that it shares with those.
        if state.bytes > self.limits.bytes / 2 {
            entry.take_own_memory();
        }
        state.waiting.push_back(entry);
    }

    /// Everything that was settled since the last call.
    pub fn take_outcomes(&self) -> Vec<Settled> {
        std::mem::take(&mut self.lock().outcomes)
    }

    /// Whether nothing waits, and nothing is under way.
    pub fn is_empty(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.under_way.is_empty()
    }

    /// Whether the queue has ended, and all that was in it is settled.
    pub fn is_through(&self) -> bool {
        self.stage() == Stage::Ending && self.is_empty()
    }

    /// How full the queue is.
    pub fn fill(&self) -> Fill {
        let state = self.lock();
        let largest = state.by_program.values().max().copied().unwrap_or(0);
        Fill {
            bytes: state.bytes,
            limit_bytes: self.limits.bytes,
            // Halved, because each byte that it adds also makes the free room smaller.
            room_bytes: self.limits.bytes.saturating_sub(state.bytes + largest) / 2,
        }
    }

    /// Spare room in bytes: three quarters of the queue are left to annotations that come meanwhile.
    pub fn room(&self) -> usize {
        (self.limits.bytes / 4).saturating_sub(self.lock().bytes)
    }

    /// Whether entries fit into the spare room. An empty queue takes any entries, even those that would never fit.
    pub fn has_room_for<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> bool {
        let state = self.lock();
        let cost: usize = entries.into_iter().map(Entry::cost_bytes).sum();
        state.bytes == 0 || state.bytes + cost <= self.limits.bytes / 4
    }

    /// Whether a program's annotations are shipped as they come: they fill no more than a sixteenth of the queue.
    pub fn keeps_up_with(&self, program: u64) -> bool {
        let share = self.lock().by_program.get(&program).copied().unwrap_or(0);
        share <= self.limits.bytes / 16
    }

    /// Gives up entries that are not in the queue, but wait for room in it.
    pub fn evict(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.lock();
        entries.into_iter().for_each(|entry| state.settled(&entry, Outcome::SpoolEvicted));
    }

    /// Tells the thread that the end is near: it ships without lingering, and cuts a pause short.
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

    /// Gives up every entry with an annotation of a frame up to `frame`, also those under way. The other entries of a batch under
    /// way are sent again.
    pub fn evict_up_to_frame(&self, frame: u64) {
        let mut state = self.lock();
        for entry in state.waiting.take_up_to_frame(frame) {
            state.settle(&entry, Outcome::SpoolEvicted);
        }
        let old = |entry: &Entry| entry.first_frame() <= frame;
        let is_old = |_: &u64, entries: &mut Arc<Vec<Entry>>| entries.iter().any(old);
        let taken: Vec<_> = state.under_way.extract_if(.., is_old).collect();
        for (_, entries) in taken.into_iter().rev() {
            let (gone, kept): (Vec<_>, Vec<_>) = Arc::unwrap_or_clone(entries).into_iter().partition(old);
            gone.iter().for_each(|entry| state.settle(entry, Outcome::SpoolEvicted));
            state.put_back(kept);
        }
    }

    /// Waits for a batch; `None` once the queue has ended, and nothing waits.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn next_batch(&self) -> io::Result<Option<Batch>> {
        loop {
            match self.next(Instant::now()) {
                Next::Batch(batch) => return Ok(Some(batch)),
                Next::Wait(due) => self.rest(due)?,
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
        state.waiting.messages() >= self.limits.batch_entries || state.waiting.bytes() >= state.batch_bytes
    }

    fn take_batch(&self, state: &mut State) -> Batch {
        let most = self.limits.batch_entries.min(state.waiting.len());
        let (mut entries, mut bytes, mut messages) = (Vec::with_capacity(most), 0, 0);
        while let Some(entry) = state.waiting.front() {
            bytes += entry.lines.len();
            messages += entry.messages;
            let too_much = bytes > state.batch_bytes || messages > self.limits.batch_entries;
            if too_much && !entries.is_empty() {
                break;
            }
            entries.extend(state.waiting.pop_front());
        }
        state.send(entries)
    }

    /// The first waiting entry, if there is one, as a batch of its own, whatever the limits of batches.
    pub fn next_single(&self) -> Option<Batch> {
        let mut state = self.lock();
        let entry = state.waiting.pop_front()?;
        Some(state.send(vec![entry]))
    }

    /// Splits a batch into batches of one entry each; none if the batch was taken away because staging needed the room.
    pub fn split(&self, batch: Batch) -> Vec<Batch> {
        let mut state = self.lock();
        let Some(entries) = state.under_way.remove(&batch.number) else { return Vec::new() };
        drop(batch);
        Arc::unwrap_or_clone(entries).into_iter().map(|entry| state.send(vec![entry])).collect()
    }

    /// Whether the thread may still ship the batch: it may have been taken away because staging needed the room.
    pub fn holds(&self, batch: &Batch) -> bool {
        self.lock().under_way.contains_key(&batch.number)
    }

    /// Takes back batches, given in their order. Their entries are shipped again before all others, in smaller batches until
    /// some of those are settled.
    pub fn give_back(&self, batches: impl DoubleEndedIterator<Item = Batch>) {
        let mut state = self.lock();
        state.batch_bytes = (state.batch_bytes / 2).max(MIN_BATCH_BYTES);
        for batch in batches.rev() {
            let Some(entries) = state.under_way.remove(&batch.number) else { continue };
            drop(batch);
            state.put_back(Arc::unwrap_or_clone(entries));
        }
    }

    /// Settles a batch whose entries all have the same outcome; the next batches may be larger.
    pub fn settle(&self, batch: &Batch, outcome: Outcome) {
        let mut state = self.lock();
        state.batch_bytes = (2 * state.batch_bytes).min(self.limits.batch_bytes);
        state.settle_batch(batch, outcome);
    }

    /// Settles a batch of one entry that was sent by itself, which tells nothing about larger batches.
    pub fn settle_single(&self, batch: &Batch, outcome: Outcome) {
        self.lock().settle_batch(batch, outcome);
    }

    /// Sleeps for `pause`, or less if the end comes nearer meanwhile, so that a last try comes soon.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn pause(&self, pause: Duration) -> io::Result<()> {
        self.pause_since(self.stage(), pause)
    }

    fn pause_since(&self, stage: Stage, pause: Duration) -> io::Result<()> {
        let due = Instant::now() + pause;
        while Instant::now() < due && self.stage() == stage {
            self.rest(Some(due))?;
        }
        Ok(())
    }

    fn rest(&self, due: Option<Instant>) -> io::Result<()> {
        self.progress.note_rest();
        let waited = self.bell.wait(due);
        self.progress.note_progress();
        waited
    }

    fn stage(&self) -> Stage {
        self.lock().stage
    }
}

impl State {
    /// Makes a new batch, which is now under way.
    fn send(&mut self, entries: Vec<Entry>) -> Batch {
        self.batches += 1;
        let (number, entries) = (self.batches, Arc::new(entries));
        self.under_way.insert(number, entries.clone());
        Batch { number, entries }
    }

    /// Puts entries that were under way back, before all others.
    fn put_back(&mut self, entries: Vec<Entry>) {
        entries.into_iter().rev().for_each(|entry| self.waiting.push_front(entry));
    }

    /// Settles the entries of a batch; does nothing if the batch was taken away.
    fn settle_batch(&mut self, batch: &Batch, outcome: Outcome) {
        let Some(entries) = self.under_way.remove(&batch.number) else { return };
        entries.iter().for_each(|entry| self.settle(entry, outcome));
    }

    /// Reserves room for an entry; false if there is none.
    fn charge(&mut self, entry: &Entry, most: usize) -> bool {
        let cost = entry.cost_bytes();
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

    /// Releases the room of an entry.
    fn discharge(&mut self, entry: &Entry) {
        let cost = entry.cost_bytes();
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

    /// Records the outcome of an entry; neighbours with the same frame and outcome are recorded together.
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
mod tests;
