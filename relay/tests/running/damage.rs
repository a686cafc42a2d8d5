//! What the log says about a spool from which something was removed while no relay ran.

use std::path::Path;

use crate::keys::sum;
use crate::process::{Relay, program};
use crate::upstream::Sender;

/// A relay that starts on what another one left, after `takes` has removed something.
fn start_without(folder: &Path, takes: impl Fn(&Path)) -> Relay {
    // A segment has room for two or three entries.
    let smallest = "max_message_mib = 1\nmax_reading_mib = 2\nspool_bytes = 4194304";
    let start = || Relay::start(program(), folder, "127.0.0.1:1", smallest);
    let relay = start();
    let mut sender = Sender::of(&relay);
    (0..6).for_each(|_| sender.send("zipkin", vec![b'A'; 100 << 10]));
    // Only what the positions know of can be known to be missing.
    while std::fs::read(folder.join("positions")).unwrap().iter().all(|byte| *byte == 0) {
        std::thread::yield_now();
    }
    relay.end();
    takes(folder);
    start()
}

#[test]
fn removed_segment_is_logged_with_the_upstream_that_lost_it() {
    let folder = tempfile::tempdir().unwrap();
    let relay = start_without(folder.path(), |spool| {
        std::fs::remove_file(spool.join("0000000000000001.spool")).unwrap();
    });
    let told = relay.tells("an upstream does not get what was damaged in the spool, or removed from it");
    let lost = sum(&relay, "blkin_relay_entries_upstream_lost_total{");
    assert!(lost > 0 && told.contains("127.0.0.1:1"), "{told}");
    assert!(told.ends_with(&format!(" entries={lost}")), "{lost}: {told}");
}

#[test]
fn start_without_positions_logs_that_entries_are_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let relay = start_without(folder.path(), |spool| std::fs::remove_file(spool.join("positions")).unwrap());
    let words = "without its positions, every upstream is sent again what the spool holds";
    assert!(relay.start.iter().any(|line| line.contains(words)), "{:?}", relay.start);
    assert_eq!(sum(&relay, "blkin_relay_entries_upstream_in_flight{"), 6);
}
