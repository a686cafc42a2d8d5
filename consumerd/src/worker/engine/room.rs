//! Makes room for new annotations by sending spans early or giving up old entries, and leaves records in the rings while there
//! is no room.

use std::time::Duration;

use super::{Engine, FrameNote};
use crate::config::Config;
use crate::hash::Map;
use crate::sinks::queue::Outcome;
use crate::worker::feed::Feeder;
use crate::worker::program::Program;
use crate::worker::snapshot::keep_within_bounds;

/// The staging memory is divided into this many parts for the two limits below.
const PARTS: u64 = 16;
/// Parts in use beyond which open spans are sent early: far enough below the next limit that they can still be shipped, and that
/// spans which are never closed do not raise the alert for coming losses, which begins at four fifths of that limit.
const SPLIT_AT: u64 = 5;
/// Parts in use beyond which the oldest entries are given up.
const GIVE_UP_AT: u64 = 7;
/// A quota is divided into this many parts for the two limits below.
const QUOTA_PARTS: usize = 8;
/// Parts of a quota in use beyond which ended programs no longer wait for open spans.
const CROWDED_AT: usize = 6;
/// Parts of a quota in use beyond which what the oldest ended programs wait for is given up.
const FULL_AT: usize = 7;
/// How long an ended program waits before the first of these happens to it, and as long again before the second: by then, entries
/// that were only in flight have arrived.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
const _: () = assert!(5 * SPLIT_AT < 4 * GIVE_UP_AT && 2 * GIVE_UP_AT < PARTS);

/// What a user's programs take of the quotas.
#[derive(Debug, Default)]
struct Share {
    programs: usize,
    bytes: u64,
    /// Bytes of programs that have not ended, and stay.
    live_bytes: u64,
    /// Bytes of the largest program that has ended.
    largest_ended: u64,
}

impl Share {
    fn add(&mut self, bytes: u64, has_ended: bool) {
        self.programs += 1;
        self.bytes += bytes;
        if has_ended {
            self.largest_ended = self.largest_ended.max(bytes);
        } else {
            self.live_bytes += bytes;
        }
    }

    fn remove(&mut self, bytes: u64) {
        self.programs -= 1;
        self.bytes -= bytes;
    }

    /// Whether more than `parts` of a quota are used. For the quota of memory, only what live programs leave of it is divided into
    /// parts, and there must also be room for another program as large as the largest that has ended.
    fn uses_more_than(&self, parts: usize, config: &Config) -> bool {
        let quota = config.max_shared_bytes_per_uid;
        let left = quota.saturating_sub(self.live_bytes);
        let to_be_free = (left / QUOTA_PARTS as u64 * (QUOTA_PARTS - parts) as u64).max(self.largest_ended);
        self.programs > config.max_programs_per_uid * parts / QUOTA_PARTS
            || quota.saturating_sub(self.bytes) < to_be_free
    }
}

/// The ended programs that are to be released, by their last frames.
#[derive(Debug, Default)]
struct Leaving {
    /// The last frame to retire for the quota of all users together.
    for_all: Option<u64>,
    /// The last frame to retire for the quotas of single users.
    for_users: Option<u64>,
    /// The users whose quotas these are.
    users: Vec<u32>,
}

impl Leaving {
    fn is_nobody(&self) -> bool {
        self.for_all.max(self.for_users).is_none()
    }
}

/// Room in the staging memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// There is no room for another round of a program.
    is_short: bool,
    /// Bytes that are free below the limit of what may be in use.
    free: u64,
}

impl Room {
    /// Whether a program's records are to stay in its rings. They are if the program already holds as much of the memory as is
    /// still free (see `sinks::queue`), and no sink ships its records as they come: drained records would take the memory that
    /// other programs need while an upstream is away, and be lost all the same. A program without writers is always drained,
    /// because its records come to an end.
    pub(super) fn holds_back(&self, program: &Program, feeder: &Feeder) -> bool {
        let has_its_share = program.staged_bytes > self.free;
        self.is_short
            || (has_its_share
                && !program.has_no_writer()
                && program.attachment.pending() > 0
                && feeder.none_keeps_up_with(program.identity.number))
    }
}

impl Engine {
    /// Most bytes of the staging memory that may stay in use.
    pub(super) fn staging_limit_bytes(&self) -> u64 {
        GIVE_UP_AT * (self.staging.capacity_bytes() / PARTS)
    }

    /// What the staging memory has room for.
    pub(super) fn room(&self) -> Room {
        let in_use = self.staging.end() - self.retired_end;
        Room {
            is_short: self.staging.capacity_bytes() - self.staging.used_bytes() < self.config.round_bytes(),
            free: self.staging_limit_bytes().saturating_sub(in_use),
        }
    }

    /// How many programs are held back.
    pub(super) fn held_back(&self) -> usize {
        self.programs.values().filter(|program| program.is_held_back && !program.ended).count()
    }

    /// Keeps the staging memory less than half full, so that an absent upstream does not stop the draining: first, open spans
    /// that hold old frames are sent; then, queued entries that hold old frames are given up, oldest first.
    pub(super) fn make_room(&mut self) {
        let used = self.staging.end() - self.retired_end;
        let split_at = SPLIT_AT * (self.staging.capacity_bytes() / PARTS);
        if let Some(frame) = self.frame_after(used.saturating_sub(split_at)) {
            self.split_up_to_frame(frame);
        }
        if let Some(frame) = self.frame_after(used.saturating_sub(self.staging_limit_bytes())) {
            self.evict_up_to_frame(frame);
        }
    }

    fn split_up_to_frame(&mut self, frame: u64) {
        let mut out = Vec::new();
        self.join.split_up_to_frame(frame, &mut out);
        self.ship(out);
    }

    fn evict_up_to_frame(&mut self, frame: u64) {
        let unread = self.feeder.evict_up_to_frame(frame);
        self.settle();
        for (sink, frames) in unread {
            frames.for_each(|frame| self.ledger.settle(sink, frame, u32::MAX, Outcome::SpoolEvicted));
        }
    }

    /// Sends the open spans that hold up ended programs, when many programs have ended or a quota is nearly used up. An ended
    /// program is held, and counts in the quotas, until its frames and all older frames are retired, and a single open span can
    /// keep all of them.
    pub(super) fn hurry_ended(&mut self, now: Duration) {
        let most = self.config.max_programs.min(self.config.max_programs_per_uid) / 4;
        let ended = self.programs.values().filter(|program| program.ended);
        let (count, frame) = ended.fold((0, 0), |(n, last), program| (n + 1, program.last_frame.max(last)));
        let is_crowded = count > 0 && !self.too_many_ended(CROWDED_AT, now, PATIENCE).is_nobody();
        self.crowded_since = is_crowded.then(|| self.crowded_since.unwrap_or(now));
        // The join may not have read all of these frames yet.
        let frame = self.feeder.unread_by_join().map_or(frame, |next| frame.min(next.saturating_sub(1)));
        if (count > most || is_crowded) && frame > self.hurried_to {
            self.hurried_to = frame;
            self.split_up_to_frame(frame);
        }
    }

    /// Gives up the oldest waiting annotations before ended programs fill a quota. While an upstream is away, no ended program can
    /// be released, so they would leave ever less of the quotas to live programs. Where the quota is one user's, nothing of other
    /// users is given up.
    pub(super) fn give_up_ended(&mut self, now: Duration) {
        if self.crowded_since.is_none_or(|since| now.saturating_sub(since) < PATIENCE) {
            return;
        }
        let leaving = self.too_many_ended(FULL_AT, now, 2 * PATIENCE);
        let of_users = leaving.for_users.and_then(|last| self.last_before_others(last, &leaving.users));
        if let Some(frame) = leaving.for_all.max(of_users) {
            self.evict_up_to_frame(frame);
        }
    }

    /// The last frame, up to `last`, that can be retired without giving up anything of users other than these.
    fn last_before_others(&self, last: u64, users: &[u32]) -> Option<u64> {
        let is_of_others = |number: u64| {
            let program = self.programs.get(&number);
            program.is_some_and(|program| !users.contains(&program.identity.uid))
        };
        let end = self.ledger.first_in_flight(is_of_others).map_or(last + 1, |first| first.min(last + 1));
        (end > self.ledger.first_frame()).then(|| end - 1)
    }

    /// The ended programs that must be released so that no more than `parts` of each quota are used, considering only those that
    /// ended at least `waited` ago. Programs whose last frame is oldest come first.
    fn too_many_ended(&self, parts: usize, now: Duration, waited: Duration) -> Leaving {
        let waits = |program: &Program| program.ended && now.saturating_sub(program.ended_since) >= waited;
        let mut waiting: Vec<_> = self.programs.values().filter(|program| waits(program)).collect();
        waiting.sort_unstable_by_key(|program| program.last_frame);
        let (mut all, mut by_uid) = (self.programs.len(), Map::<u32, Share>::default());
        for program in self.programs.values() {
            by_uid.entry(program.identity.uid).or_default().add(program.shared_bytes(), program.ended);
        }
        let most = self.config.max_programs * parts / QUOTA_PARTS;
        let mut leaving = Leaving::default();
        for program in waiting {
            let uid = program.identity.uid;
            let of_user = by_uid.entry(uid).or_default();
            if all > most {
                leaving.for_all = Some(program.last_frame);
            } else if of_user.uses_more_than(parts, &self.config) {
                leaving.for_users = Some(program.last_frame);
                leaving.users.push(uid);
            } else {
                continue;
            }
            all -= 1;
            of_user.remove(program.shared_bytes());
        }
        leaving
    }

    /// The last of the oldest frames that together take `bytes`. Frames adjoin in the log, so a binary search finds it.
    fn frame_after(&self, bytes: u64) -> Option<u64> {
        let is_needed = |note: &FrameNote| note.end - note.bytes - self.retired_end < bytes;
        let needed = self.notes.partition_point(is_needed) as u64;
        needed.checked_sub(1).map(|index| self.ledger.first_frame() + index)
    }

    pub(super) fn end_programs(&mut self, now: Duration) {
        self.recorders_evicted +=
            keep_within_bounds(&mut self.programs, &self.config, now, &mut self.program_log);
        // Sorted by number, like `programs`.
        let mut ended = Vec::new();
        for (number, program) in &mut self.programs {
            if program.has_ended(now) {
                self.settings.depart(*number);
                tracing::debug!(process = program.label, "the program has ended and is drained");
                ended.push(*number);
            }
        }
        // Only for programs that have ended just now: earlier ones may have many spans that wait for room.
        if !ended.is_empty() {
            self.join.programs_ended(|number| ended.binary_search(&number).is_ok());
        }
    }

    /// Lets spans wait no longer for programs that have ended, also for those that ended before all of their frames were read.
    pub(super) fn close_parts_of_the_ended(&mut self) {
        let programs = &self.programs;
        self.join.programs_ended(|number| programs.get(&number).is_none_or(|program| program.ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_programs_may_use_what_live_ones_leave() {
        let config = Config { max_shared_bytes_per_uid: 1000, ..Config::default() };
        let is_full = |live: u64, ended: &[u64]| {
            let mut share = Share::default();
            share.add(live, false);
            ended.iter().for_each(|bytes| share.add(*bytes, true));
            share.uses_more_than(FULL_AT, &config)
        };
        assert!(!is_full(900, &[]), "live programs never leave");
        assert!(!is_full(900, &[20; 4]), "another program finds room");
        assert!(is_full(900, &[20; 5]));
        assert!(!is_full(200, &[100; 7]) && is_full(200, &[100; 8]));
        assert!(!is_full(200, &[10; 70]) && is_full(200, &[10; 71]), "an eighth of 800 is free");
        assert!(is_full(100, &[600]), "another program of this size finds no room");
    }
}
