//! Who reads the segment: it is offered while nobody does, and at exit the annotations that nobody collected are reported.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::state::{FAILED, STARTING, STATE, control_words, is_ready, mode, words};
use crate::clock::coarse_seconds;
use crate::control::UnreadReason;
use crate::kept::{CONTROL, SEGMENT};
use crate::layout::{self, RingMode, control, header, slot};
use crate::offer;
use crate::ring::Head;
use crate::say::OnceLine;
use crate::settings;

/// Offers the segment while nobody is attached, at most once a second; to a consumer that refuses it, every ten seconds.
#[cold]
pub(super) fn offer_if_due() {
    if is_attached() {
        return;
    }
    let now = coarse_seconds().max(1);
    let due = STATE.next_offer_seconds.load(Relaxed);
    if now < due {
        return;
    }
    let unread = unread();
    let pause = if unread.is_some() { 10 } else { 1 };
    if STATE.next_offer_seconds.compare_exchange(due, now + pause, Relaxed, Relaxed).is_err() {
        return;
    }
    if let Some(unread) = unread {
        say_unread(unread);
    }
    let _ = offer_now();
}

/// How long nothing is read before the attached consumer is taken for gone, and the pause between offers from then on:
/// the consumer may be alive, and have no room for more of this program.
const GONE_AFTER_SECONDS: u64 = 2;
const GONE_PAUSE_SECONDS: u64 = 10;

/// As [`offer_if_due`], when a record found no room, or a flight recorder goes on. A consumer that was killed has left its mark
/// in the control page; the next one, where it may not look for programs (`scan = false`), would wait for this program's end.
#[cold]
pub(super) fn offer_if_unread() {
    if !is_attached() {
        return offer_if_due();
    }
    let beat = control_words().get(control::BEAT).map_or(0, |beat| beat.load(Relaxed));
    if beat == 0 && mode() == RingMode::Overwrite {
        // The consumer does not show whether it is alive.
        return;
    }
    let now = coarse_seconds().max(1);
    let due = STATE.next_look_seconds.load(Relaxed);
    if now < due {
        return;
    }
    let read = (0..STATE.slots.load(Relaxed)).map(|slot| line_word(slot, control::TAIL_RECORDS));
    let read = read.fold(beat, u64::wrapping_add);
    let is_unread = due != 0 && STATE.read_at_look.load(Relaxed) == read;
    let pause = if is_unread { GONE_PAUSE_SECONDS } else { GONE_AFTER_SECONDS };
    if STATE.next_look_seconds.compare_exchange(due, now + pause, Relaxed, Relaxed).is_err() {
        return;
    }
    STATE.read_at_look.store(read, Relaxed);
    if is_unread {
        let _ = offer_now();
    }
}

/// Why the consumer to which the segment was last offered does not read it.
fn unread() -> Option<UnreadReason> {
    control_words().get(control::UNREAD).and_then(|word| UnreadReason::from_word(word.load(Relaxed)))
}

/// Reports, while the program runs, that it runs untraced.
fn say_unread(unread: UnreadReason) {
    static UNREAD: OnceLine = OnceLine::new();
    with_socket(|socket| {
        UNREAD
            .say(format_args!("consumerd at {socket} {}; this program runs untraced", refusal_text(unread)));
    });
}

/// What a message says about a consumer that refuses, after its name.
fn refusal_text(unread: UnreadReason) -> &'static str {
    match unread {
        UnreadReason::Version => "cannot read what this version of the library writes (run `blkin doctor`)",
        UnreadReason::NoRoom => "has no room for another program (run `blkin doctor`)",
    }
}

fn offer_now() -> Result<(), Errno> {
    let segment = SEGMENT.still_open().ok_or(Errno::BADF)?;
    let control = CONTROL.still_open().ok_or(Errno::BADF)?;
    settings::with_socket(|path| offer::send(path, segment, control))?;
    STATE.is_offered.store(true, Relaxed);
    Ok(())
}

fn is_attached() -> bool {
    is_set(control::ATTACHED)
}

/// Whether a consumer has set this word of the control page.
fn is_set(word: usize) -> bool {
    control_words().get(word).is_some_and(|word| word.load(Acquire) != 0)
}

/// Run at exit by the dynamic linker (or by libc's exit in a static program): a program that nobody reads offers itself once
/// more, and reports the annotations that nobody will ever read. If a consumer reads it, nothing happens.
extern "C" fn tell_at_exit() {
    static NOT_COLLECTED: OnceLine = OnceLine::new();
    match STATE.hot.phase.load(Acquire) {
        FAILED => return report_without_segment("there was no shared memory"),
        // The start was left by a signal handler's `siglongjmp`, or ended with its thread; or it is under way.
        STARTING => return report_without_segment("its first call was never completed"),
        phase if !is_ready(phase) => return,
        _ => {}
    }
    let unread = if is_attached() { None } else { unread() };
    // A consumer that cannot read this version will not do so now; one that had no room may have some.
    let nobody = match unread {
        None if is_held() => return,
        None => match offer_now() {
            Ok(()) => return,
            Err(error) => offer_failure_text(error),
        },
        Some(_) => ["", ""],
    };
    let may_be_taken = match unread {
        None => is_unanswered(),
        Some(unread) => unread == UnreadReason::NoRoom && offer_now().is_ok(),
    };
    let unless = if may_be_taken { ", unless consumerd collects them now" } else { "" };
    // A consumer that left in order has shipped what it took, or reported itself what it could not; one that was killed has not.
    let records =
        records_behind(if is_attached() { control::SETTLED_RECORDS } else { control::TAIL_RECORDS });
    // A consumer that has read the rings has reported these too.
    let refused = if is_attached() || !is_untouched() { 0 } else { refused() };
    let all = records.wrapping_add(refused);
    if all == 0 {
        return;
    }
    let (noun, were) = words_for(all);
    with_socket(|socket| match unread {
        None => NOT_COLLECTED.say(format_args!(
            "{all} {noun} of this program {were} not collected{unless}: {}{socket}{} (run `blkin doctor`)",
            nobody[0], nobody[1],
        )),
        Some(unread) => NOT_COLLECTED.say(format_args!(
            "{all} {noun} of this program {were} not collected{unless}: consumerd at {socket} {}",
            refusal_text(unread),
        )),
    });
}

/// Reports that there never was a segment, and why: nobody else can know of these annotations.
fn report_without_segment(why: &str) {
    static NOT_RECORDED: OnceLine = OnceLine::new();
    let all = STATE.attempted.load(Relaxed);
    let (noun, were) = words_for(all);
    if all != 0 {
        NOT_RECORDED.say(format_args!("{all} {noun} of this program {were} not recorded: {why}"));
    }
}

fn words_for(annotations: u64) -> (&'static str, &'static str) {
    if annotations == 1 { ("annotation", "was") } else { ("annotations", "were") }
}

/// Why an offer fails with this error, in words before and after the path of the socket.
fn offer_failure_text(error: Errno) -> [&'static str; 2] {
    match error {
        Errno::ACCESS => ["consumerd's socket ", " is closed to this user"],
        // From a filter of system calls, or a unit that forbids such sockets.
        Errno::PERM | Errno::AFNOSUPPORT | Errno::NOSYS => ["this program may not open a socket to ", ""],
        // Closed together with all others, as daemons do; consumerd finds the memory itself, where it may look for programs.
        Errno::BADF => ["this program has closed the descriptors that it would offer to ", ""],
        Errno::MFILE | Errno::NFILE => ["this program had no descriptor left to reach ", ""],
        // For example `control.sock` beside consumerd's own socket.
        Errno::PROTOTYPE => ["", " is not the socket for programs: set BLKIN_SOCKET"],
        _ => ["no consumerd answers at ", ""],
    }
}

/// Calls `call` with the path of the socket, as text for a message.
fn with_socket(call: impl FnOnce(&str)) {
    settings::with_socket(|path| call(std::str::from_utf8(path).unwrap_or("BLKIN_SOCKET")));
}

/// Whether a consumer reads the rings, or is about to. One that was killed has left its mark in the control page, but not
/// its lock. One that has just taken the program holds the lock, but has neither left its mark nor read anything. One that
/// came and went while the rings were empty has read nothing either, and keeps the lock until it has shipped what it has
/// of other programs.
fn is_held() -> bool {
    match CONTROL.still_open().and_then(is_locked) {
        Some(true) => is_attached() || is_untouched() && !is_set(control::LEFT),
        Some(false) => false,
        None => is_attached(),
    }
}

/// Whether an offer was sent that no consumer has answered: it waits at the socket, even if this program can no longer
/// reach that, for example from a chroot.
fn is_unanswered() -> bool {
    STATE.is_offered.load(Relaxed) && !is_attached() && !is_set(control::LEFT)
}

/// Whether somebody holds the lock by which consumers keep others from a program; `None` if that cannot be asked. A consumer
/// that wants the lock just while this looks tries again.
fn is_locked(control: BorrowedFd<'_>) -> Option<bool> {
    match flock(control, FlockOperation::NonBlockingLockShared) {
        Ok(()) => flock(control, FlockOperation::Unlock).ok().map(|()| false),
        Err(Errno::WOULDBLOCK) => Some(true),
        Err(_) => None,
    }
}

/// Whether no consumer has read anything yet.
fn is_untouched() -> bool {
    (0..STATE.slots.load(Relaxed)).all(|slot| line_word(slot, control::TAIL_RECORDS) == 0)
}

/// Records of all rings after those that the given word of each line counts.
fn records_behind(word: usize) -> u64 {
    let behind = |slot: usize| {
        let head = Head(words()[layout::slot_header(slot) + slot::HEAD].load(Relaxed));
        head.records_since(Head::of(0, line_word(slot, word)))
    };
    (0..STATE.slots.load(Relaxed)).map(behind).sum()
}

/// Annotations that found no place in a ring.
fn refused() -> u64 {
    let count = |index: usize| words()[index].load(Relaxed);
    let outside = [header::STARTING, header::NO_SEGMENT];
    let within = |number: usize| {
        let first = layout::slot_header(number);
        [slot::FULL, slot::STALLED, slot::TOO_LARGE].map(|index| first + index)
    };
    let places = outside.into_iter().chain((0..STATE.slots.load(Relaxed)).flat_map(within));
    places.map(count).fold(0, u64::wrapping_add)
}

/// A word of a slot's line in the control page.
fn line_word(slot: usize, word: usize) -> u64 {
    control_words()[control::slot_line(slot) + word].load(Relaxed)
}

#[used]
// SAFETY: the section holds pointers to functions without arguments that the linker calls once, at exit (invariant 14).
#[unsafe(link_section = ".fini_array")]
static TELL_AT_EXIT: extern "C" fn() = tell_at_exit;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_for_not_reaching_the_socket_has_its_own_message() {
        let message = |error: Errno| offer_failure_text(error).join("/s");
        assert_eq!(message(Errno::ACCESS), "consumerd's socket /s is closed to this user");
        for filtered in [Errno::PERM, Errno::AFNOSUPPORT] {
            assert_eq!(message(filtered), "this program may not open a socket to /s");
        }
        assert_eq!(message(Errno::BADF), "this program has closed the descriptors that it would offer to /s");
        assert_eq!(message(Errno::MFILE), "this program had no descriptor left to reach /s");
        assert_eq!(message(Errno::PROTOTYPE), "/s is not the socket for programs: set BLKIN_SOCKET");
        for nobody in [Errno::NOENT, Errno::CONNREFUSED] {
            assert_eq!(message(nobody), "no consumerd answers at /s");
        }
    }
}
