//! Lets sinks that are behind read staged frames, as their queues have room.

use super::{Engine, FrameNote, Progress};
use crate::sinks::Feed;
use crate::staging::StagingError;
use crate::worker::feed::Lines;
use crate::worker::unread::Unread;

/// About how many bytes of the staging memory a sink reads in one round, before the rings are drained again.
const MOST_BYTES: u64 = 1 << 20;

impl Engine {
    /// Lets every sink that is behind read on.
    pub(super) fn refill(&mut self, progress: &mut Progress) -> Result<(), StagingError> {
        self.feeder.forget_old(self.ledger.first_frame());
        for sink in 0..self.feeder.sinks() {
            progress.drained |= self.feeder.let_in(sink);
            self.read_on(sink, progress)?;
        }
        Ok(())
    }

    fn read_on(&mut self, sink: usize, progress: &mut Progress) -> Result<(), StagingError> {
        let mut bytes = 0;
        while let Some(mut unread) = self.feeder.take_unread(sink) {
            // Frames for which no sink waits may have been retired.
            let number = unread.next.max(self.ledger.first_frame());
            if number >= self.ledger.next_frame() {
                self.catch_up(sink);
                break;
            }
            if bytes >= MOST_BYTES {
                self.feeder.put_unread(sink, unread);
                progress.has_more = true;
                break;
            }
            bytes += self.read_again(sink, number, &mut unread)?;
            unread.next = number + 1;
            self.feeder.put_unread(sink, unread);
            self.leave_spans(self.now());
            progress.drained = true;
        }
        Ok(())
    }

    /// Has a sink read a frame that is counted already. Returns how many bytes the frame takes.
    fn read_again(&mut self, sink: usize, number: u64, unread: &mut Unread) -> Result<u64, StagingError> {
        let index = (number - self.ledger.first_frame()) as usize;
        let note = self.notes.get(index).copied();
        let found = note.map_or(Ok(None), |note| self.staging.read_frame(note.end - note.bytes))?;
        let (Some(FrameNote { bytes, .. }), Some((frame, _))) = (note, found) else {
            // A counted frame is always staged. If it were not, it would never be settled, and nothing would be retired any more.
            self.ledger.note_read_again(sink, number, 0);
            return Ok(0);
        };
        let is_of_spans = self.feeder.feed(sink) == Some(Feed::Spans);
        let mut lines = Lines::new(!is_of_spans, frame.program, number);
        let time = unread.time_of(frame.program, frame.slot);
        let figures = self.read(&frame, number, Some(time), is_of_spans, &mut lines);
        self.ledger.note_read_again(sink, number, figures.valid);
        self.feeder.push_lines_to(sink, lines);
        Ok(bytes)
    }

    /// Notes that a sink has read everything. Nothing more can come from programs that have ended meanwhile.
    fn catch_up(&mut self, sink: usize) {
        self.feeder.caught_up(sink, self.ledger.next_frame());
        if self.feeder.feed(sink) == Some(Feed::Spans) {
            self.close_parts_of_the_ended();
        }
    }
}
