//! A start on segments that belong to another user.

use std::os::unix::fs::PermissionsExt;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::*;

/// While this lives, file permissions apply to this thread even if it is root.
struct Unprivileged(CapabilitySets);

impl Unprivileged {
    fn new() -> Self {
        let before = capabilities(None).unwrap();
        let stronger = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let effective = before.effective - stronger;
        set_capabilities(None, CapabilitySets { effective, ..before }).unwrap();
        Unprivileged(before)
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        set_capabilities(None, self.0).unwrap();
    }
}

fn set_mode(fixture: &Fixture, number: u64, mode: u32) {
    let path = segment::path(fixture.folder.path(), number);
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Two segments with 60 entries and 40.
fn with_two_segments() -> Fixture {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..10).for_each(|_| fixture.append(10).unwrap());
    assert_eq!(fixture.spool().lock().segments[1].before.entries, 60);
    fixture.spool().sweep().unwrap();
    fixture
}

#[test]
fn read_only_segment_is_sent_but_not_appended_to() {
    let _unprivileged = Unprivileged::new();
    for (number, segments) in [(1, 2), (2, 3)] {
        let mut fixture = with_two_segments();
        set_mode(&fixture, number, 0o400);
        for entries in [1, 2] {
            fixture.open();
            fixture.append(entries).unwrap();
            assert_eq!(fixture.spool().figures().segments, segments, "a second start adds no segment");
        }
        assert_eq!((fixture.drain(0), fixture.damaged(0)), (Vec::from_iter(0..103), 0));
        fixture.spool().sweep().unwrap();
        assert_eq!(segment::numbers(fixture.folder.path()).unwrap(), [segments as u64]);
        fixture.check();
    }
}

#[test]
fn torn_tail_of_a_read_only_segment_is_skipped() {
    let _unprivileged = Unprivileged::new();
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(3).unwrap();
    fixture.spool().sweep().unwrap();
    fixture.append(1).unwrap();
    let segment = fixture.first_segment();
    segment.set_len(segment.metadata().unwrap().len() - 1).unwrap();
    set_mode(&fixture, 1, 0o400);
    fixture.open();
    fixture.next = 3;
    fixture.append(1).unwrap();
    fixture.open();
    assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![0, 1, 2, 3], 0));
    fixture.check();
}

#[test]
fn unopenable_segment_is_set_aside_and_its_entries_are_counted() {
    let _unprivileged = Unprivileged::new();
    // The last two cases: the positions know all that the newest segment held, or not all.
    for (number, unknown, lost) in [(1, 0, 0..60), (2, 0, 60..100), (2, 5, 60..101)] {
        let mut fixture = with_two_segments();
        if unknown > 0 {
            fixture.append(unknown).unwrap();
        }
        let path = segment::path(fixture.folder.path(), number);
        let content = fs::read(&path).unwrap();
        set_mode(&fixture, number, 0);
        fixture.open();
        assert_eq!(fixture.spool().figures().damaged_regions, 1);
        let next = fixture.next;
        fixture.append(1).unwrap();
        let got = (0..100).filter(|entry| !lost.contains(entry)).chain([next]);
        assert_eq!(fixture.drain(0), Vec::from_iter(got));
        assert_eq!(fixture.damaged(0), lost.end - lost.start);
        let damaged = segment::path(&fixture.folder.path().join("damaged"), number);
        fs::set_permissions(&damaged, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!path.exists() && fs::read(damaged).unwrap() == content);
        fixture.check();
    }
}

/// After mending the permissions, a user can have the segment that was set aside sent this way.
#[test]
fn set_aside_segment_can_be_sent_from_a_folder_of_its_own() {
    let mut fixture = with_two_segments();
    fixture.spool = None;
    let folder = TempDir::new().unwrap();
    let of = |folder: &Path| segment::path(folder, 2);
    fs::rename(of(fixture.folder.path()), of(folder.path())).unwrap();
    fixture.folder = folder;
    fixture.open();
    assert_eq!((fixture.drain(0), fixture.damaged(0)), (Vec::from_iter(60..100), 0));
    fixture.check();
}
