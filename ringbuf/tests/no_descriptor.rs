//! A program that has no descriptor left at its first record is traced from the first `init` that finds some, and what it lost
//! before that is counted.

mod own;

use blkin_record::names_word;
use blkin_ringbuf::process::{Short, Status, declare, init, record_short};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn record() {
    let names = names_word(declare(b"name"), declare(b"endpoint"));
    record_short(&[7, 8, 9], names, declare(b"key"), Short::Integer(1), 4);
}

#[test]
fn only_init_retries_a_failed_start_and_losses_are_counted() {
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).expect("the limit can be lowered");
    record();
    assert_eq!(init(), Status::Without);
    setrlimit(Resource::Nofile, before).expect("the former limit can be restored");
    record();
    assert_eq!(init(), Status::Tracing);
    record();
    let counters = own::attach().counters();
    assert_eq!((counters.attempted, counters.no_segment, counters.committed), (3, 2, 1));
}
