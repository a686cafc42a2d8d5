//! The sums of all retired frames, so that the ledger balances again after a restart.

/// Figures of one program, of its retired frames only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramState {
    /// The holder's number of the program.
    pub program: u64,
    /// Its figures are part of the departed programs' sums already: it only remains to be released.
    pub folded: bool,
    /// Records that an earlier daemon had drained and settled before this daemon attached.
    pub drained_before: u64,
    /// Records that an earlier daemon had drained, which ended before it had settled them.
    pub unsettled: u64,
    /// Records drained.
    pub drained: u64,
    /// Records that passed validation.
    pub valid: u64,
    /// Records that failed validation.
    pub invalid: u64,
    /// Records lost as torn.
    pub torn: u64,
    /// How far each ring is drained, for rings that were drained at all.
    pub slots: Vec<SlotState>,
}

/// How far one ring is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    /// The ring.
    pub slot: u32,
    /// Grain up to which it is drained.
    pub grain: u64,
    /// Records before that grain.
    pub records: u64,
}

/// Figures of one sink, of retired frames only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkState {
    /// Name of the sink, as in the metrics.
    pub name: String,
    /// Annotations that the other side has acknowledged.
    pub acked: u64,
    /// Lost because the queue was full.
    pub queue_full: u64,
    /// Lost because staging needed the room.
    pub spool_evicted: u64,
    /// Lost because the other side refused them for good.
    pub rejected: u64,
    /// Lost because there was no sink.
    pub no_sink: u64,
}

/// Number of figures in [`DepartedTotals`].
pub const DEPARTED_FIGURES: usize = 17;

/// Sums over every program that has ended, in a fixed order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepartedTotals(pub [u64; DEPARTED_FIGURES]);

/// All the state that a new worker cannot read from the frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of the first frame that is not retired.
    pub next_frame: u64,
    /// Spans that left before they were complete.
    pub spans_split: u64,
    /// How many programs have ended.
    pub programs_departed: u64,
    /// The largest number of an attached program. A program up to this number without a state below was released.
    pub last_program: u64,
    /// Sums over the programs that have ended.
    pub departed: DepartedTotals,
    /// Figures of each sink.
    pub sinks: Vec<SinkState>,
    /// Figures of each program.
    pub programs: Vec<ProgramState>,
}

/// Bytes of a program's state, without its rings.
pub const PROGRAM_BYTES: usize = 9 * 8;
/// Bytes of each of its rings.
pub const RING_BYTES: usize = 3 * 8;

/// Most sinks that a checkpoint can credibly hold.
const MAX_SINKS: u64 = 64;
/// Most programs that a checkpoint can credibly hold.
const MAX_PROGRAMS: u64 = 1 << 20;
/// Most rings that a program in a checkpoint can credibly have.
const MAX_SLOTS: u64 = 1 << 16;

impl Checkpoint {
    /// Encodes a checkpoint as little-endian words; a name is its length and its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.programs.len() * 128);
        put(&mut out, &[self.next_frame, self.spans_split, self.programs_departed, self.last_program]);
        put(&mut out, &self.departed.0);
        put(&mut out, &[self.sinks.len() as u64]);
        for sink in &self.sinks {
            put(&mut out, &[sink.acked, sink.queue_full, sink.spool_evicted, sink.rejected, sink.no_sink]);
            put(&mut out, &[sink.name.len() as u64]);
            out.extend_from_slice(sink.name.as_bytes());
        }
        put(&mut out, &[self.programs.len() as u64]);
        for p in &self.programs {
            put(
                &mut out,
                &[
                    p.program,
                    u64::from(p.folded),
                    p.drained_before,
                    p.unsettled,
                    p.drained,
                    p.valid,
                    p.invalid,
                    p.torn,
                ],
            );
            put(&mut out, &[p.slots.len() as u64]);
            for slot in &p.slots {
                put(&mut out, &[u64::from(slot.slot), slot.grain, slot.records]);
            }
        }
        out
    }

    /// Decodes a checkpoint; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let next_frame = take(&mut rest)?;
        let spans_split = take(&mut rest)?;
        let programs_departed = take(&mut rest)?;
        let last_program = take(&mut rest)?;
        let mut departed = DepartedTotals::default();
        for figure in &mut departed.0 {
            *figure = take(&mut rest)?;
        }
        let sinks = take_list(&mut rest, MAX_SINKS, take_sink)?;
        let programs = take_list(&mut rest, MAX_PROGRAMS, take_program)?;
        rest.is_empty().then_some(Self {
            next_frame,
            spans_split,
            programs_departed,
            last_program,
            departed,
            sinks,
            programs,
        })
    }
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let (first, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some(u64::from_le_bytes(*first))
}

fn take_list<T>(rest: &mut &[u8], most: u64, one: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let count = take(rest)?;
    if count > most {
        return None;
    }
    // No memory is allocated for `count` in advance: the count may be wrong, so each entry has to be there first.
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(one(rest)?);
    }
    Some(list)
}

fn take_sink(rest: &mut &[u8]) -> Option<SinkState> {
    let (acked, queue_full, spool_evicted) = (take(rest)?, take(rest)?, take(rest)?);
    let (rejected, no_sink) = (take(rest)?, take(rest)?);
    let length = usize::try_from(take(rest)?).ok()?;
    let (name, after) = rest.split_at_checked(length)?;
    *rest = after;
    let name = String::from_utf8(name.to_vec()).ok()?;
    Some(SinkState { name, acked, queue_full, spool_evicted, rejected, no_sink })
}

fn take_program(rest: &mut &[u8]) -> Option<ProgramState> {
    Some(ProgramState {
        program: take(rest)?,
        folded: take(rest)? != 0,
        drained_before: take(rest)?,
        unsettled: take(rest)?,
        drained: take(rest)?,
        valid: take(rest)?,
        invalid: take(rest)?,
        torn: take(rest)?,
        slots: take_list(rest, MAX_SLOTS, |rest| {
            Some(SlotState {
                slot: u32::try_from(take(rest)?).ok()?,
                grain: take(rest)?,
                records: take(rest)?,
            })
        })?,
    })
}
