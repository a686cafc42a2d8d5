//! What `blkin set` has said about a process holds for the children that it forks, from their first call on: many a child of a
//! daemon that forks for each connection has ended before a consumer answers it.

mod own;

use std::io::Write;

use blkin_record::names_word;
use blkin_ringbuf::ControlPage;
use blkin_ringbuf::layout::CONTROL_NAME;
use blkin_ringbuf::process::{Short, Status, declare, init, is_on, record_short, samples_root, status};

const WARNING: u8 = 4;
const ERROR: u8 = 3;
const RATE: u64 = 1000;

fn own_page() -> ControlPage {
    ControlPage::open(&own::own_memfd(CONTROL_NAME)).expect("a valid control page")
}

/// Records as callers do that ask the gate first.
fn record_if_on(level: u8) {
    let names = names_word(declare(b"name"), declare(b"endpoint"));
    if is_on(level) {
        record_short(&[7, 8, 9], names, declare(b"key"), Short::Integer(1), level);
    }
}

fn records_errors_alone() {
    record_if_on(WARNING);
    assert!(!is_on(WARNING), "the child records warnings although its parent does not");
    record_if_on(ERROR);
    let program = own::attach();
    assert_eq!((program.counters().attempted, program.counters().committed), (1, 1));
    let (roots, slots) = (20 * RATE, program.slots() as u64);
    let sampled = (0..roots).filter(|_| samples_root()).count() as u64;
    assert!(sampled.abs_diff(roots / RATE) <= slots, "{sampled}");
}

#[test]
fn a_forked_child_starts_with_its_parents_settings() {
    if !own::children_begin_anew() {
        let _ = writeln!(std::io::stderr(), "not shown: forked children have no memory of their own here");
        return;
    }
    let page = own_page();
    page.block_levels(1 << WARNING);
    page.set_rate(RATE);
    own::in_forked_child(records_errors_alone);
    own::in_forked_child(|| own::in_forked_child(records_errors_alone));
    page.block_levels(0);
    page.set_rate(0);
    own::in_forked_child(|| {
        record_if_on(WARNING);
        assert_eq!(own::attach().counters().committed, 1);
        assert!(samples_root());
    });
    // What a consumer then says to the child holds for the child alone.
    own::in_forked_child(|| {
        assert_eq!(status(), None);
        assert_eq!(init(), Status::Tracing);
        own_page().block_levels(0x7f);
        assert!(!is_on(WARNING));
        assert_eq!(status(), Some(Status::Tracing), "one level is still on");
        own_page().block_levels(0xff);
        assert_eq!(status(), Some(Status::Off));
    });
    assert!(is_on(WARNING));
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_passes_settings_to_forked_children() {
    own::run_again_by_each_way("a_forked_child_starts_with_its_parents_settings");
}
