//! The log of frames: appending, committing, retiring, and reading again.

use std::io;

use thiserror::Error;

use super::checkpoint::Checkpoint;
use super::layout::{
    CHECKPOINT_HEADER_BYTES, FRAME_HEADER_BYTES, FRAME_MAGIC, Geometry, HEAD_AT, HEARTBEAT_AT, MAGIC,
    MAX_FRAME_RAW_BYTES, PAD_MAGIC, VERSION, checksum, half, word,
};
use super::memory::Memory;

/// A place in a ring: a grain, and how many records came before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Grain number, counted from the ring's first lap.
    pub grain: u64,
    /// Records before it.
    pub records: u64,
}

/// One drained range of one ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Number of the frame, one more than that of the frame before; given by the log.
    pub number: u64,
    /// The holder's number of the program.
    pub program: u64,
    /// The ring of the program.
    pub slot: u32,
    /// Records in it.
    pub records: u32,
    /// Where the range begins.
    pub from: Place,
    /// Where it ends.
    pub to: Place,
    /// Records that were lost as torn in this range.
    pub torn: u64,
    /// The raw grains.
    pub raw: Vec<u8>,
}

/// Why the staging memory cannot be used.
#[derive(Debug, Error)]
pub enum StagingError {
    /// The system refused a read or write.
    #[error(
        "failed to use the staging memory: {0}; check the machine's free memory and the memory limit of the unit"
    )]
    Io(#[from] io::Error),
    /// The bytes are not a staging log of this version.
    #[error("failed to read the staging memory: {0}; the next worker continues without what cannot be read")]
    Damaged(&'static str),
    /// The log is full; drain again after frames have been retired.
    #[error("failed to stage a range: the log is full; it empties as sinks acknowledge")]
    Full,
    /// The checkpoint does not fit into its area.
    #[error("failed to write a checkpoint of {0} bytes; lower max_programs")]
    CheckpointTooLarge(usize),
}

/// What a worker finds when it starts.
#[derive(Debug)]
pub struct Recovered {
    /// The sums of all retired frames; empty in a new log.
    pub checkpoint: Checkpoint,
    /// Log position of the first frame that is not retired.
    pub tail: u64,
    /// The end of the log contradicted its beginning, so it has been [cut](Staging::cut) to nothing.
    pub is_cut: bool,
}

/// Offset of the checksum in a frame's header, at its end.
const CHECKSUM_AT: usize = FRAME_HEADER_BYTES - 8;

/// Up to this many bytes of records are copied behind their header and written with it in one call.
const MAX_COPIED_BYTES: usize = 32 << 10;

/// The log over some memory.
#[derive(Debug)]
pub struct Staging<M> {
    memory: M,
    geometry: Geometry,
    /// End of what is written, possibly not committed yet.
    written: u64,
    /// End of what is committed, and what a new worker would find.
    head: u64,
    /// Tail of the newest whole checkpoint.
    tail: u64,
    next_number: u64,
    checkpoint_sequence: u64,
    /// A reused buffer for a header and the records behind it.
    together: Vec<u8>,
}

impl<M: Memory> Staging<M> {
    /// Formats zeroed memory as an empty log.
    ///
    /// # Errors
    /// When the memory cannot be written, or the geometry is invalid.
    pub fn format(memory: &mut M, geometry: Geometry) -> Result<(), StagingError> {
        if !geometry.is_valid() {
            return Err(StagingError::Damaged("its sizes make no sense"));
        }
        let mut header = [0; 40];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&geometry.log_bytes.to_le_bytes());
        header[24..32].copy_from_slice(&geometry.checkpoint_bytes.to_le_bytes());
        header[32..].copy_from_slice(&geometry.numbers_bytes.to_le_bytes());
        Ok(memory.write(0, &header)?)
    }

    /// Whether a memory holds a log of this version and of these sizes.
    pub fn is_of(memory: &M, geometry: Geometry) -> bool {
        read_geometry(memory).is_ok_and(|found| found == geometry)
    }

    /// The newest whole checkpoint in a log of these sizes. The log is not changed.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub fn newest_checkpoint(memory: &M, geometry: Geometry) -> Result<Option<Checkpoint>, StagingError> {
        Ok(newest_checkpoint(memory, geometry)?.map(|(checkpoint, ..)| checkpoint))
    }

    /// Opens a log; an earlier worker may have left it at any instruction.
    ///
    /// # Errors
    /// When the memory cannot be read, or holds no log of this version.
    pub fn open(memory: M) -> Result<(Self, Recovered), StagingError> {
        let geometry = read_geometry(&memory)?;
        let head = read_word(&memory, HEAD_AT)?;
        let newest = newest_checkpoint(&memory, geometry)?;
        let (checkpoint, tail, sequence) = newest.unwrap_or_default();
        let next_number = checkpoint.next_frame;
        let mut staging = Self {
            memory,
            geometry,
            written: head,
            head,
            tail,
            next_number,
            checkpoint_sequence: sequence,
            together: Vec::new(),
        };
        let is_cut = tail > head || head - tail > geometry.log_bytes;
        if is_cut {
            staging.cut(tail)?;
        }
        Ok((staging, Recovered { checkpoint, tail, is_cut }))
    }

    /// Ends the log at `position`, because what is committed behind it cannot be read.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub fn cut(&mut self, position: u64) -> Result<(), StagingError> {
        let lost = self.head.min(self.tail.saturating_add(self.geometry.log_bytes));
        self.written = position;
        self.commit()?;
        self.forget(position, lost)
    }

    /// Like [`Self::read_frame`], for reading all frames in order from the tail: the frame's number has to be the next one.
    ///
    /// # Errors
    /// When the memory cannot be read, the entry is damaged, or its number is not the next one.
    pub fn read_next(&mut self, position: u64) -> Result<Option<(Frame, u64)>, StagingError> {
        let found = self.read_frame(position)?;
        if let Some((frame, _)) = &found {
            if frame.number != self.next_number {
                return Err(StagingError::Damaged("a frame is not the next one"));
            }
            self.next_number += 1;
        }
        Ok(found)
    }

    /// Reads the committed frame at `position`, and returns it with the position of the next one; `None` at the end.
    ///
    /// # Errors
    /// When the memory cannot be read or the entry is damaged.
    pub fn read_frame(&self, mut position: u64) -> Result<Option<(Frame, u64)>, StagingError> {
        while position < self.head {
            let mut start = [0; 8];
            self.memory.read(self.offset(position), &mut start)?;
            let bytes = u64::from(half(&start, 4));
            if bytes < 8 || bytes > self.head - position || bytes > self.room_to_wrap(position) {
                return Err(StagingError::Damaged("an entry has an impossible length"));
            }
            match half(&start, 0) {
                // Padding must reach the end of the area: behind shorter padding, the next entry could begin where it does not fit.
                PAD_MAGIC if bytes != self.room_to_wrap(position) => {
                    return Err(StagingError::Damaged("an entry has an impossible length"));
                }
                PAD_MAGIC => position += bytes,
                FRAME_MAGIC => {
                    return Ok(Some((self.read_body(position, bytes)?, position + bytes)));
                }
                _ => return Err(StagingError::Damaged("an entry has no magic number")),
            }
        }
        Ok(None)
    }

    fn read_body(&self, position: u64, bytes: u64) -> Result<Frame, StagingError> {
        let mut header = [0; FRAME_HEADER_BYTES];
        if bytes < FRAME_HEADER_BYTES as u64 {
            return Err(StagingError::Damaged("a frame is shorter than its header"));
        }
        self.memory.read(self.offset(position), &mut header)?;
        if word(&header, CHECKSUM_AT) != checksum(&[&header[..CHECKSUM_AT]]) {
            return Err(StagingError::Damaged("a frame's checksum is wrong"));
        }
        let raw_bytes = word(&header, 72);
        if raw_bytes > MAX_FRAME_RAW_BYTES as u64 || entry_bytes(raw_bytes as usize) != bytes {
            return Err(StagingError::Damaged("a frame has an impossible length"));
        }
        let mut raw = vec![0; raw_bytes as usize];
        self.memory.read(self.offset(position) + FRAME_HEADER_BYTES as u64, &mut raw)?;
        Ok(Frame {
            number: word(&header, 8),
            program: word(&header, 16),
            slot: half(&header, 24),
            records: half(&header, 28),
            from: Place { grain: word(&header, 32), records: word(&header, 40) },
            to: Place { grain: word(&header, 48), records: word(&header, 56) },
            torn: word(&header, 64),
            raw,
        })
    }

    /// Writes `frame` behind the log, and returns its number and end. It counts only after [`Self::commit`].
    ///
    /// # Errors
    /// [`StagingError::Full`] when there is no room until frames are retired; then nothing has changed.
    pub fn append(&mut self, frame: &Frame) -> Result<(u64, u64), StagingError> {
        let bytes = entry_bytes(frame.raw.len());
        if frame.raw.len() > MAX_FRAME_RAW_BYTES {
            return Err(StagingError::Full);
        }
        let to_wrap = self.room_to_wrap(self.written);
        let pad = if to_wrap < bytes { to_wrap } else { 0 };
        if self.written + pad + bytes - self.tail > self.geometry.log_bytes {
            return Err(StagingError::Full);
        }
        if pad > 0 {
            self.memory.write(self.offset(self.written), &entry_start(PAD_MAGIC, pad))?;
        }
        let position = self.written + pad;
        let number = self.next_number;
        self.write_frame(self.offset(position), &encode_header(frame, number, bytes), &frame.raw)?;
        self.written = position + bytes;
        self.next_number += 1;
        Ok((number, self.written))
    }

    /// Writes a header and records. A few records are copied first, because that costs less than a second system call.
    fn write_frame(&mut self, at: u64, header: &[u8], raw: &[u8]) -> Result<(), StagingError> {
        if raw.len() > MAX_COPIED_BYTES {
            self.memory.write(at, header)?;
            return Ok(self.memory.write(at + header.len() as u64, raw)?);
        }
        self.together.clear();
        self.together.extend_from_slice(header);
        self.together.extend_from_slice(raw);
        Ok(self.memory.write(at, &self.together)?)
    }

    /// Commits every appended frame, with one write of eight bytes.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub fn commit(&mut self) -> Result<(), StagingError> {
        if self.head != self.written {
            self.memory.write(HEAD_AT, &self.written.to_le_bytes())?;
            self.head = self.written;
        }
        Ok(())
    }

    /// Retires everything before `tail`, whose sums are in `checkpoint`, and frees its memory.
    ///
    /// # Errors
    /// When the memory cannot be written, or the checkpoint is too large; then the older checkpoint still counts.
    pub fn retire(&mut self, checkpoint: &Checkpoint, tail: u64) -> Result<(), StagingError> {
        let payload = checkpoint.encode();
        if (payload.len() + CHECKPOINT_HEADER_BYTES) as u64 > self.geometry.checkpoint_bytes {
            return Err(StagingError::CheckpointTooLarge(payload.len()));
        }
        let sequence = self.checkpoint_sequence + 1;
        let at = self.geometry.checkpoint_at(sequence % 2);
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        header[..8].copy_from_slice(&sequence.to_le_bytes());
        header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[16..24].copy_from_slice(&tail.to_le_bytes());
        let sum = checksum(&[&header[..24], &payload]);
        header[24..].copy_from_slice(&sum.to_le_bytes());
        self.memory.write(at + CHECKPOINT_HEADER_BYTES as u64, &payload)?;
        self.memory.write(at, &header)?;
        self.checkpoint_sequence = sequence;
        let old = std::mem::replace(&mut self.tail, tail);
        self.forget(old, tail)
    }

    /// Writes the worker's heartbeat, which shows the holder that the worker makes progress.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub fn beat(&mut self) -> Result<(), StagingError> {
        Ok(self.memory.write(HEARTBEAT_AT, &monotonic_ms().to_le_bytes())?)
    }

    /// The memory under the log, to read the holder's counters.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Bytes between the oldest frame that is not retired and the end.
    pub fn used_bytes(&self) -> u64 {
        self.written - self.tail
    }

    /// Bytes of the whole log.
    pub fn capacity_bytes(&self) -> u64 {
        self.geometry.log_bytes
    }

    /// Where the next frame will be written.
    pub fn end(&self) -> u64 {
        self.written
    }

    /// Number that the next frame will get.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    fn offset(&self, position: u64) -> u64 {
        self.geometry.log_at() + position % self.geometry.log_bytes
    }

    fn room_to_wrap(&self, position: u64) -> u64 {
        self.geometry.log_bytes - position % self.geometry.log_bytes
    }

    /// Frees the whole pages between two positions, by punching holes.
    fn forget(&mut self, from: u64, to: u64) -> Result<(), StagingError> {
        let (first, last) = (from.next_multiple_of(4096).min(to), to / 4096 * 4096);
        let mut at = first;
        while at < last {
            let length = (last - at).min(self.room_to_wrap(at));
            self.memory.forget(self.offset(at), length)?;
            at += length;
        }
        Ok(())
    }
}

/// The clock of heartbeats, the same for every process of the machine.
pub fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

fn entry_bytes(raw: usize) -> u64 {
    (FRAME_HEADER_BYTES + raw).next_multiple_of(8) as u64
}

fn entry_start(magic: u32, bytes: u64) -> [u8; 8] {
    let mut start = [0; 8];
    start[..4].copy_from_slice(&magic.to_le_bytes());
    start[4..].copy_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes());
    start
}

fn encode_header(frame: &Frame, number: u64, bytes: u64) -> [u8; FRAME_HEADER_BYTES] {
    let mut header = [0; FRAME_HEADER_BYTES];
    header[..8].copy_from_slice(&entry_start(FRAME_MAGIC, bytes));
    header[24..28].copy_from_slice(&frame.slot.to_le_bytes());
    header[28..32].copy_from_slice(&frame.records.to_le_bytes());
    let words = [
        (8, number),
        (16, frame.program),
        (32, frame.from.grain),
        (40, frame.from.records),
        (48, frame.to.grain),
        (56, frame.to.records),
        (64, frame.torn),
        (72, frame.raw.len() as u64),
    ];
    for (at, value) in words {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let sum = checksum(&[&header[..CHECKSUM_AT]]);
    header[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    header
}

fn read_word(memory: &impl Memory, at: u64) -> Result<u64, StagingError> {
    let mut raw = [0; 8];
    memory.read(at, &mut raw)?;
    Ok(u64::from_le_bytes(raw))
}

fn read_geometry(memory: &impl Memory) -> Result<Geometry, StagingError> {
    let mut header = [0; 40];
    memory.read(0, &mut header)?;
    if header[..8] != MAGIC {
        return Err(StagingError::Damaged("it is no staging log"));
    }
    if half(&header, 8) != VERSION {
        return Err(StagingError::Damaged("it has another version"));
    }
    let geometry = Geometry {
        log_bytes: word(&header, 16),
        checkpoint_bytes: word(&header, 24),
        numbers_bytes: word(&header, 32),
    };
    if !geometry.is_valid() {
        return Err(StagingError::Damaged("its sizes make no sense"));
    }
    Ok(geometry)
}

type Found = (Checkpoint, u64, u64);

fn newest_checkpoint(memory: &impl Memory, geometry: Geometry) -> Result<Option<Found>, StagingError> {
    let a = read_checkpoint(memory, geometry, 0)?;
    let b = read_checkpoint(memory, geometry, 1)?;
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(if a.2 > b.2 { a } else { b }),
        (a, b) => a.or(b),
    })
}

fn read_checkpoint(
    memory: &impl Memory,
    geometry: Geometry,
    which: u64,
) -> Result<Option<Found>, StagingError> {
    let at = geometry.checkpoint_at(which);
    let mut header = [0; CHECKPOINT_HEADER_BYTES];
    memory.read(at, &mut header)?;
    let (sequence, bytes, tail) = (word(&header, 0), word(&header, 8), word(&header, 16));
    if sequence == 0 || bytes > geometry.checkpoint_bytes - CHECKPOINT_HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut payload = vec![0; bytes as usize];
    memory.read(at + CHECKPOINT_HEADER_BYTES as u64, &mut payload)?;
    if checksum(&[&header[..24], &payload]) != word(&header, 24) {
        return Ok(None);
    }
    Ok(Checkpoint::decode(&payload).map(|checkpoint| (checkpoint, tail, sequence)))
}
