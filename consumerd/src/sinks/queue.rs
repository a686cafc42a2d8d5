//! A bounded queue between the worker and a sink's thread.
//!
//! A program may hold no more of a queue than is still free (dynamic thresholds, Choudhury and Hahne 1998): one that
//! floods loses its own annotations only, and a program that comes later still finds room. What would be lost is better left
//! where it is: see `worker::engine::room`.
//!
//! A batch of which nobody knows whether it arrived comes back and leaves in smaller ones: the other side may not take large
//! calls.
//!
//! What an earlier worker had staged is much more than a queue may hold. It comes as there is room that nobody else needs: see
//! `worker::unread`.

mod entry;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkin_scribe::Doorbell;

use super::life::Life;
use crate::hash::Map;
pub use entry::{Entry, Refs};
use waiting::Waiting;

/// Batches that come back become no smaller than this, but for their entries.
const MIN_BATCH_BYTES: usize = 4 << 10;

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

/// Annotations by what became of them, in the order of [`Outcome::ALL`].
pub type ByOutcome = [u64; Outcome::ALL.len()];

impl Outcome {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Acked, Self::QueueFull, Self::SpoolEvicted, Self::Rejected];
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Bytes that wait or are under way.
    pub bytes: usize,
    /// Most bytes.
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
    waiting: Waiting,
    /// Most bytes of a batch: fewer than configured after calls that broke off.
    batch_bytes: usize,
    /// Batches under way, by number; taken away from their thread when staging needs the room.
    under_way: BTreeMap<u64, Arc<Vec<Entry>>>,
    bytes: usize,
    by_program: Map<u64, usize>,
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
    /// That thread's.
    life: Arc<Life>,
}

impl Queue {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let state = State { batch_bytes: limits.batch_bytes, ..State::default() };
        Ok(Self { limits, state: Mutex::new(state), bell: Doorbell::new()?, life: Arc::default() })
    }

    /// What the sink's thread listens to while there is nothing to do.
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// Where the sink's thread says that it gets on.
    pub fn life(&self) -> &Arc<Life> {
        &self.life
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

    fn push_one(&self, state: &mut State, mut entry: Entry) {
        if !state.charge(&entry, self.limits.bytes) {
            state.settled(&entry, Outcome::QueueFull);
            return;
        }
        // Beyond half of the room others may be refused: what is kept must not keep the memory that it shares with them.
        if state.bytes > self.limits.bytes / 2 {
            entry.take_own_memory();
        }
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
            bytes: state.bytes,
            limit_bytes: self.limits.bytes,
            // What it adds is no longer free.
            room_bytes: self.limits.bytes.saturating_sub(state.bytes + largest) / 2,
        }
    }

    /// Bytes that find room which nobody else needs: three quarters of the queue are left to those who come meanwhile.
    pub fn room(&self) -> usize {
        (self.limits.bytes / 4).saturating_sub(self.lock().bytes)
    }

    /// Whether entries find such room. Entries that never would find it are to be tried when nothing else is there.
    pub fn has_room_for<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> bool {
        let state = self.lock();
        let cost: usize = entries.into_iter().map(Entry::cost_bytes).sum();
        state.bytes == 0 || state.bytes + cost <= self.limits.bytes / 4
    }

    /// Whether what a program records is shipped as it comes: next to nothing of it waits, a sixteenth of the queue.
    pub fn keeps_up_with(&self, program: u64) -> bool {
        let share = self.lock().by_program.get(&program).copied().unwrap_or(0);
        share <= self.limits.bytes / 16
    }

    /// Gives up entries that wait for room outside.
    pub fn evict(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.lock();
        entries.into_iter().for_each(|entry| state.settled(&entry, Outcome::SpoolEvicted));
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

    /// Gives up every entry with an annotation of a frame up to `frame`, also those under way. What is under way with one leaves
    /// anew.
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

    /// Waits for a batch; `None` once the queue has ended and nothing waits.
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

    /// The entry that waits longest, if there is one, as a batch of its own, whatever the limits of batches.
    pub fn next_single(&self) -> Option<Batch> {
        let mut state = self.lock();
        let entry = state.waiting.pop_front()?;
        Some(state.send(vec![entry]))
    }

    /// Makes a batch of each entry of one; none, if staging has taken it away.
    pub fn split(&self, batch: Batch) -> Vec<Batch> {
        let mut state = self.lock();
        let Some(entries) = state.under_way.remove(&batch.number) else { return Vec::new() };
        drop(batch);
        Arc::unwrap_or_clone(entries).into_iter().map(|entry| state.send(vec![entry])).collect()
    }

    /// Whether the batch still is this thread's to ship: staging may have taken it away.
    pub fn holds(&self, batch: &Batch) -> bool {
        self.lock().under_way.contains_key(&batch.number)
    }

    /// Has the entries of batches, which are given in their order, shipped anew before all others, and in smaller batches
    /// until some of those are settled.
    pub fn give_back(&self, batches: impl DoubleEndedIterator<Item = Batch>) {
        let mut state = self.lock();
        state.batch_bytes = (state.batch_bytes / 2).max(MIN_BATCH_BYTES);
        for batch in batches.rev() {
            let Some(entries) = state.under_way.remove(&batch.number) else { continue };
            drop(batch);
            state.put_back(Arc::unwrap_or_clone(entries));
        }
    }

    /// Settles a batch of which all entries had the same fate; the next ones may be larger.
    pub fn settle(&self, batch: &Batch, outcome: Outcome) {
        let mut state = self.lock();
        state.batch_bytes = (2 * state.batch_bytes).min(self.limits.batch_bytes);
        state.settle_batch(batch, outcome);
    }

    /// Settles what was called by itself, which says nothing of larger batches.
    pub fn settle_single(&self, batch: &Batch, outcome: Outcome) {
        self.lock().settle_batch(batch, outcome);
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
            self.rest(Some(due))?;
        }
        Ok(())
    }

    fn rest(&self, due: Option<Instant>) -> io::Result<()> {
        self.life.rests();
        let waited = self.bell.wait(due);
        self.life.works();
        waited
    }

    fn stage(&self) -> Stage {
        self.lock().stage
    }
}

impl State {
    /// A new batch, under way.
    fn send(&mut self, entries: Vec<Entry>) -> Batch {
        self.batches += 1;
        let (number, entries) = (self.batches, Arc::new(entries));
        self.under_way.insert(number, entries.clone());
        Batch { number, entries }
    }

    /// Has entries that were under way wait again, before all others.
    fn put_back(&mut self, entries: Vec<Entry>) {
        entries.into_iter().rev().for_each(|entry| self.waiting.push_front(entry));
    }

    /// Nothing, if staging has taken the batch away.
    fn settle_batch(&mut self, batch: &Batch, outcome: Outcome) {
        let Some(entries) = self.under_way.remove(&batch.number) else { return };
        entries.iter().for_each(|entry| self.settle(entry, outcome));
    }

    /// Takes room for an entry; false if there is none.
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

    /// Gives the room of an entry back.
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
mod tests;
