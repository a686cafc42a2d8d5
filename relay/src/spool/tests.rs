//! Tests the spool's constraints: order, limits, restarts, damage. Entries are numbered, so that the ones that arrive show
//! which are missing.

mod bound;
mod damage;
mod forbidden;
mod model;
mod page_cache;
mod trial;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use tempfile::TempDir;

use super::layout::RECORD_HEADER_BYTES;
use super::segment::BadPlace;
use super::*;

/// Annotations of every numbered entry.
const ANNOTATIONS: u64 = 3;
const ENTRY_BYTES: usize = 1000;
/// Longest wait for anything, even on a slow machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

struct Fixture {
    folder: TempDir,
    spool: Option<Spool>,
    limits: Limits,
    names: Vec<String>,
    next: u64,
}

impl Fixture {
    fn new(limits: Limits, names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut fixture = Fixture { folder: TempDir::new().unwrap(), spool: None, limits, names, next: 0 };
        fixture.open();
        fixture
    }

    /// Restarts as after kill -9: nothing is written before.
    fn open(&mut self) {
        self.spool = None;
        self.spool = Some(Spool::open(self.folder.path(), self.limits, &self.names).unwrap());
    }

    /// Restarts with a place of a segment that cannot be read.
    fn open_with_bad_place(&mut self, number: u64, place: std::ops::Range<u64>) {
        segment::tests::set_bad_place_of(number, place);
        self.open();
        segment::tests::set_bad_place_of(number, 0..0);
    }

    fn spool(&self) -> &Spool {
        self.spool.as_ref().unwrap()
    }

    fn draft(numbers: std::ops::Range<u64>) -> Draft {
        let mut draft = Draft::default();
        for number in numbers {
            let mut entry = number.to_le_bytes().to_vec();
            entry.resize(ENTRY_BYTES, 7);
            draft.push(&entry, ANNOTATIONS);
        }
        draft
    }

    fn append(&mut self, entries: u64) -> Result<(), AppendError> {
        let draft = Self::draft(self.next..self.next + entries);
        let appended = self.spool().append(&[draft], &|| {});
        if appended.is_ok() {
            self.next += entries;
        }
        appended
    }

    fn batch(&self, upstream: usize) -> Option<Batch> {
        self.batch_behind(upstream, None)
    }

    fn batch_behind(&self, upstream: usize, read: Option<&Batch>) -> Option<Batch> {
        self.spool().next_batch(upstream, read.map(Batch::end), 8 << 10, u64::MAX, BadPlace::Fails).unwrap()
    }

    /// Everything that an upstream gets until it is drained.
    fn drain(&self, upstream: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(batch) = self.batch(upstream) {
            numbers.extend(numbers_in(&batch));
            self.spool().settle(upstream, &batch);
        }
        numbers
    }

    /// Everything that an upstream gets, and how often it came to a place that cannot be read.
    fn drain_over_bad_places(&self, upstream: usize) -> (Vec<u64>, usize) {
        let next = |bad_place| self.spool().next_batch(upstream, None, 8 << 10, u64::MAX, bad_place);
        let (mut numbers, mut bad_places) = (Vec::new(), 0);
        loop {
            let batch = next(BadPlace::Fails).unwrap_or_else(|error| {
                assert!(segment::is_of_bad_place(&error), "{error}");
                bad_places += 1;
                next(BadPlace::IsZeros).unwrap()
            });
            let Some(batch) = batch else { return (numbers, bad_places) };
            numbers.extend(numbers_in(&batch));
            self.spool().settle(upstream, &batch);
        }
    }

    fn delivered(&self, upstream: usize) -> Delivered {
        self.spool().figures().upstreams[upstream].1
    }

    fn lost(&self, upstream: usize, cause: Loss) -> u64 {
        let lost = self.delivered(upstream).lost[cause as usize];
        assert_eq!(lost.annotations, lost.entries * ANNOTATIONS);
        lost.entries
    }

    /// Entries lost by damage, including damage of unknown size, which counts as one entry.
    fn damaged(&self, upstream: usize) -> u64 {
        self.delivered(upstream).lost[Loss::Damaged as usize].entries
    }

    fn check(&self) {
        let figures = self.spool().figures();
        assert!(figures.upstreams.iter().all(|(_, delivered)| delivered.balances()), "{figures:?}");
        assert_eq!(figures.arrived.received, figures.arrived.accepted + figures.arrived.malformed);
        assert!(figures.bytes <= self.limits.bytes, "{figures:?}");
    }

    fn first_segment(&self) -> File {
        let number = segment::numbers(self.folder.path()).unwrap()[0];
        let path = segment::path(self.folder.path(), number);
        File::options().read(true).write(true).open(path).unwrap()
    }

    fn damaged_files(&self) -> usize {
        fs::read_dir(self.folder.path().join("damaged")).unwrap().count()
    }
}

fn numbers_in(batch: &Batch) -> Vec<u64> {
    let entries = batch.payloads().flat_map(|payload| payload.chunks_exact(ENTRY_BYTES));
    entries.map(|entry| u64::from_le_bytes(entry[..8].try_into().unwrap())).collect()
}

fn roomy() -> Limits {
    Limits { bytes: 64 << 20, segment_bytes: 64 << 10, when_full: WhenFull::DropOldest }
}

fn tight(when_full: WhenFull) -> Limits {
    Limits { bytes: 256 << 10, segment_bytes: 32 << 10, when_full }
}

#[test]
fn entries_leave_in_order_and_delivered_segments_are_removed() {
    let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
    for _ in 0..100 {
        fixture.append(10).unwrap();
    }
    assert!(fixture.spool().figures().segments > 10);
    assert_eq!(fixture.drain(0), Vec::from_iter(0..1000));
    fixture.spool().sweep().unwrap();
    assert!(fixture.spool().figures().segments > 10, "the other upstream has nothing yet");
    assert_eq!(fixture.drain(1), Vec::from_iter(0..1000));
    fixture.spool().sweep().unwrap();
    assert_eq!(fixture.spool().figures().segments, 1);
    assert_eq!(segment::numbers(fixture.folder.path()).unwrap().len(), 1);
    fixture.check();
    assert!(fixture.spool().is_drained(0) && fixture.spool().is_drained(1));
}

#[test]
fn restart_resumes_at_the_saved_positions() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    for _ in 0..4 {
        fixture.append(5).unwrap();
    }
    let first = fixture.batch(0).unwrap();
    fixture.spool().settle(0, &first);
    fixture.spool().sweep().unwrap();
    let second = fixture.batch(0).unwrap();
    fixture.spool().settle(0, &second);
    fixture.append(5).unwrap();
    fixture.spool().count_malformed();
    fixture.open();
    fixture.check();
    let again = fixture.drain(0);
    let sent = numbers_in(&first).len() as u64;
    assert_eq!(again, Vec::from_iter(sent..25), "entries settled after the last checkpoint are sent again");
    assert_eq!(fixture.delivered(0).acked.entries, 25, "each entry is counted once");
    let figures = fixture.spool().figures();
    assert_eq!(figures.arrived.received.entries, 25, "an unsaved malformed call is missing from both counts");
    fixture.check();
}

#[test]
fn restarts_add_no_segments() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    for _ in 0..5 {
        fixture.append(1).unwrap();
        fixture.open();
    }
    assert_eq!(fixture.spool().figures().segments, 1);
    assert_eq!(fixture.drain(0), [0, 1, 2, 3, 4]);
}

#[test]
fn second_relay_on_the_same_spool_is_refused() {
    let fixture = Fixture::new(roomy(), &["a:1"]);
    let is_refused = || {
        let error = Spool::open(fixture.folder.path(), roomy(), &fixture.names).unwrap_err();
        assert!(format!("{error:#}").contains("another relay"), "{error:#}");
    };
    is_refused();
    // As by a user who takes it for a leftover of a dead relay.
    fs::remove_file(fixture.folder.path().join("lock")).unwrap();
    is_refused();
}

#[test]
fn segment_of_another_relay_is_not_overwritten() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(1).unwrap();
    let folder = fixture.folder.path();
    let theirs = || fs::read(segment::path(folder, 1)).unwrap();
    let before = theirs();
    for begun in [Segment::create, Segment::create_emptied] {
        let error = begun(folder, 1, Count::default()).unwrap_err();
        assert!(error.to_string().contains("another relay"), "{error}");
        assert_eq!(theirs(), before);
    }
}

#[test]
fn failed_start_names_the_file_it_cannot_use() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.spool = None;
    let folder = fixture.folder.path();
    let (kept, damaged) = (folder.join("kept"), folder.join("damaged"));
    let refuses_naming = |path: &Path| {
        let error = Spool::open(folder, roomy(), &fixture.names).unwrap_err();
        assert!(format!("{error:#}").contains(&format!("{}: ", path.display())), "{error:#}");
    };
    for path in [folder.join("positions"), folder.join("lock"), segment::path(folder, 1)] {
        fs::rename(&path, &kept).unwrap();
        fs::create_dir(&path).unwrap();
        refuses_naming(&path);
        fs::remove_dir(&path).unwrap();
        fs::rename(&kept, &path).unwrap();
    }
    fs::remove_dir(&damaged).unwrap();
    fs::write(&damaged, "").unwrap();
    refuses_naming(&damaged);
}

#[test]
fn spool_continues_in_a_new_folder_when_its_folder_is_removed() {
    for remove in [
        |folder: &Path| fs::remove_dir_all(folder),
        |folder: &Path| fs::rename(folder, folder.with_extension("old")),
    ] {
        let above = TempDir::new().unwrap();
        let folder = above.path().join("spool");
        let mut fixture = Fixture::new(roomy(), &["a", "b"]);
        let open = |names: &[String]| Spool::open(&folder, roomy(), names).unwrap();
        fixture.spool = Some(open(&fixture.names));
        fixture.append(100).unwrap();
        assert_eq!(fixture.drain(0).len(), 100);
        remove(&folder).unwrap();
        fixture.append(10).unwrap();
        fixture.spool().sweep().unwrap();
        assert!(
            Spool::open(&folder, roomy(), &fixture.names).is_err(),
            "this relay holds the lock of the new folder"
        );
        let first = fixture.batch(1).unwrap();
        assert_eq!(numbers_in(&first)[0], 0);
        fixture.check();
        // As after kill -9.
        fixture.spool = None;
        fixture.spool = Some(open(&fixture.names));
        for upstream in [0, 1] {
            assert_eq!(fixture.drain(upstream), Vec::from_iter(100..110));
        }
        assert_eq!((fixture.lost(0, Loss::Damaged), fixture.lost(1, Loss::Damaged)), (0, 100));
        fixture.check();
    }
}

#[test]
fn a_spool_of_another_version_is_refused_and_left_as_it_is() {
    let mut fixture = Fixture::new(roomy(), &["a"]);
    fixture.append(5).unwrap();
    fixture.spool = None;
    let file = fixture.first_segment();
    let mut header = [0; SEGMENT_HEADER_BYTES];
    file.read_exact_at(&mut header, 0).unwrap();
    header[8] += 1;
    let sum = xxhash_rust::xxh3::xxh3_64(&header[..56]);
    header[56..].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&header, 0).unwrap();
    let error = Spool::open(fixture.folder.path(), roomy(), &fixture.names).unwrap_err();
    assert!(format!("{error:#}").contains("is of version 2"), "{error:#}");
    assert_eq!(fixture.damaged_files(), 0);
    // The version of the relay that wrote it can still read it.
    file.write_all_at(&layout::SegmentHeader { number: 1, before: Count::default() }.encode(), 0).unwrap();
    fixture.open();
    assert_eq!(fixture.drain(0).len(), 5);
}

#[test]
fn files_not_named_like_segments_are_left_alone() {
    let mut fixture = Fixture::new(roomy(), &["a"]);
    let names = ["ffffffffffffffff.spool", "00000000000000AB.spool", "+00000000000000a.spool", "b.spool"];
    for name in names {
        fs::write(fixture.folder.path().join(name), "not of a spool").unwrap();
    }
    fixture.open();
    fixture.append(3).unwrap();
    fixture.open();
    assert_eq!(fixture.drain(0), [0, 1, 2]);
    fixture.check();
    assert!(names.iter().all(|name| fixture.folder.path().join(name).exists()));
}

#[test]
fn replaced_positions_file_is_written_again() {
    let mut fixture = Fixture::new(roomy(), &["a"]);
    fixture.append(100).unwrap();
    let path = fixture.folder.path().join("positions");
    fs::remove_file(&path).unwrap();
    // As an old copy that was put back.
    fs::write(&path, [7; 100]).unwrap();
    assert_eq!(fixture.drain(0).len(), 100);
    fixture.spool().sweep().unwrap();
    fixture.open();
    assert!(fixture.drain(0).is_empty(), "the saved positions do not cover the sent entries");
    fixture.check();
}

#[test]
fn batches_are_read_ahead_of_settling_across_segments() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["a:1"]);
    for _ in 0..12 {
        fixture.append(10).unwrap();
    }
    assert!(fixture.spool().figures().segments > 2);
    let mut ahead: Vec<Batch> = Vec::new();
    while let Some(batch) = fixture.batch_behind(0, ahead.last()) {
        ahead.push(batch);
    }
    assert_eq!(ahead.iter().flat_map(numbers_in).collect::<Vec<_>>(), Vec::from_iter(0..120));
    assert_eq!(fixture.delivered(0).in_flight.entries, 120);
    assert!(ahead.iter().all(|batch| !fixture.spool().has_passed(0, batch)));
    // The oldest segment is dropped while its batches are under way: they are lost, and reading on skips nothing else.
    while fixture.lost(0, Loss::SpoolEvicted) == 0 {
        fixture.append(10).unwrap();
    }
    assert!(fixture.spool().has_passed(0, &ahead[0]) && !fixture.spool().has_passed(0, &ahead[10]));
    let rest = fixture.batch_behind(0, ahead.last()).unwrap();
    assert_eq!(numbers_in(&rest)[0], 120);
    ahead.iter().for_each(|batch| fixture.spool().settle(0, batch));
    let delivered = fixture.delivered(0);
    assert_eq!(delivered.acked.entries, 120 - fixture.lost(0, Loss::SpoolEvicted));
    assert_eq!(fixture.lost(0, Loss::Damaged), 0);
    fixture.check();
}

#[test]
fn a_torn_tail_that_was_never_acknowledged_is_cut_off() {
    for torn in [1, RECORD_HEADER_BYTES as u64, 500] {
        let mut fixture = Fixture::new(roomy(), &["a:1"]);
        fixture.append(3).unwrap();
        fixture.spool().sweep().unwrap();
        fixture.append(1).unwrap();
        let segment = fixture.first_segment();
        let length = segment.metadata().unwrap().len();
        let tail = length - record_bytes(ENTRY_BYTES) as u64;
        segment.set_len(tail + torn).unwrap();
        fixture.open();
        assert_eq!(fixture.first_segment().metadata().unwrap().len(), tail);
        assert_eq!((fixture.damaged_files(), fixture.spool().figures().damaged_regions), (0, 0));
        fixture.next = 3;
        fixture.append(2).unwrap();
        assert_eq!(fixture.drain(0), [0, 1, 2, 3, 4]);
        fixture.check();
    }
}

/// A folder in place of the next segment stands for a disk that refuses; `empty_passed` is what a full disk needs.
#[test]
fn emptying_delivered_segments_frees_room_and_loses_nothing() {
    let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
    fixture.append(3).unwrap();
    fixture.drain(0);
    assert!(!fixture.spool().empty_passed().unwrap(), "the other upstream has nothing yet");
    fixture.drain(1);
    assert!(fixture.spool().empty_passed().unwrap());
    assert_eq!((fixture.first_segment().metadata().unwrap().len(), fixture.spool().figures().bytes), (0, 0));
    assert!(!fixture.spool().empty_passed().unwrap(), "there is nothing left to empty");
    let in_the_way = segment::path(fixture.folder.path(), 2);
    fs::create_dir(&in_the_way).unwrap();
    assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
    assert!(fixture.batch(0).is_none() && fixture.spool().is_drained(0));
    fs::remove_dir(&in_the_way).unwrap();
    fixture.append(2).unwrap();
    assert_eq!(fixture.drain(0), [3, 4]);
    fixture.spool().sweep().unwrap();
    fixture.open();
    assert_eq!(fixture.drain(1), [3, 4]);
    fixture.check();
}

#[test]
fn emptying_also_frees_segments_before_the_newest() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..10).for_each(|_| fixture.append(10).unwrap());
    assert_eq!(fixture.spool().figures().segments, 2);
    fixture.drain(0);
    fs::create_dir(segment::path(fixture.folder.path(), 3)).unwrap();
    assert!(fixture.spool().empty_passed().unwrap());
    assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))), "the next segment cannot be created");
    fixture.spool().sweep().unwrap();
    assert_eq!((fixture.spool().figures().segments, fixture.spool().figures().bytes), (1, 0));
    assert!(!segment::path(fixture.folder.path(), 1).exists());
    fixture.check();
}

#[test]
fn restart_after_emptying_continues_in_the_next_segment() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(3).unwrap();
    fixture.drain(0);
    assert!(fixture.spool().empty_passed().unwrap());
    fixture.open();
    assert_eq!(segment::numbers(fixture.folder.path()).unwrap(), [2]);
    fixture.append(1).unwrap();
    assert_eq!(fixture.drain(0), [3]);
    assert_eq!((fixture.lost(0, Loss::Damaged), fixture.damaged_files()), (0, 0));
    fixture.check();
}

#[test]
fn missing_acknowledged_tail_is_counted_as_lost() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    for _ in 0..4 {
        fixture.append(1).unwrap();
    }
    fixture.spool().sweep().unwrap();
    let segment = fixture.first_segment();
    segment.set_len(segment.metadata().unwrap().len() - 2 * record_bytes(ENTRY_BYTES) as u64).unwrap();
    fixture.open();
    fixture.append(1).unwrap();
    assert_eq!(fixture.drain(0), [0, 1, 4]);
    assert_eq!(fixture.lost(0, Loss::Damaged), 2);
    fixture.check();
}

#[test]
fn unreadable_positions_cause_everything_to_be_sent_again() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(3).unwrap();
    fixture.drain(0);
    fixture.spool().sweep().unwrap();
    let path = fixture.folder.path().join("positions");
    let copy = fixture.folder.path().join("damaged/positions");
    // The second time, no copy can be kept, because a folder is in its place.
    for _ in 0..2 {
        fs::write(&path, vec![0x55; fs::metadata(&path).unwrap().len() as usize]).unwrap();
        fixture.open();
        assert_eq!(fixture.drain(0), [0, 1, 2]);
        assert_eq!(fixture.damaged_files(), 1);
        fixture.check();
        let _was_kept = fs::remove_file(&copy);
        fs::create_dir_all(&copy).unwrap();
    }
}

#[test]
fn new_upstream_gets_new_entries_and_removed_one_is_forgotten() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(3).unwrap();
    fixture.spool().sweep().unwrap();
    fixture.names = vec!["a:1".into(), "b:2".into()];
    fixture.open();
    fixture.append(2).unwrap();
    assert_eq!((fixture.drain(0), fixture.drain(1)), (vec![0, 1, 2, 3, 4], vec![3, 4]));
    fixture.append(2).unwrap();
    fixture.drain(1);
    fixture.names = vec!["b:2".into()];
    fixture.spool().sweep().unwrap();
    fixture.open();
    fixture.append(1).unwrap();
    assert_eq!(fixture.drain(0), [7]);
    assert_eq!(fixture.spool().figures().forgotten, Count { entries: 2, annotations: 2 * ANNOTATIONS });
    fixture.check();
}

#[test]
fn forgotten_count_includes_entries_after_the_last_checkpoint() {
    let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
    fixture.append(3).unwrap();
    fixture.spool().sweep().unwrap();
    fixture.append(2).unwrap();
    fixture.names = vec!["a:1".into()];
    fixture.open();
    assert_eq!(fixture.spool().figures().forgotten, Count { entries: 5, annotations: 5 * ANNOTATIONS });
    assert_eq!(fixture.drain(0), [0, 1, 2, 3, 4]);
    fixture.check();
}

#[test]
fn an_upstream_whose_address_is_corrected_gets_what_was_kept_for_it() {
    let mut fixture = Fixture::new(roomy(), &["a:1", "typo:2"]);
    fixture.append(3).unwrap();
    fixture.drain(0);
    fixture.spool().sweep().unwrap();
    fixture.append(1).unwrap();
    fixture.names = vec!["b:2".into(), "a:1".into()];
    fixture.open();
    assert_eq!((fixture.drain(0), fixture.drain(1)), (vec![0, 1, 2, 3], vec![3]));
    assert_eq!(fixture.spool().figures().forgotten, Count::default());
    fixture.check();
}

#[test]
fn upstream_replacing_two_resumes_at_the_slower_ones_position() {
    let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
    fixture.append(3).unwrap();
    fixture.drain(0);
    fixture.append(1).unwrap();
    fixture.spool().sweep().unwrap();
    fixture.names = vec!["c:3".into()];
    fixture.open();
    assert_eq!(fixture.drain(0), [0, 1, 2, 3]);
    assert_eq!(fixture.spool().figures().forgotten, Count::default());
    fixture.check();
}

#[test]
fn an_entry_larger_than_any_batch_or_segment_passes() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    let mut draft = Draft::default();
    let large = vec![9; 300 << 10];
    draft.push(&large, 1);
    draft.push(b"small", 1);
    fixture.spool().append(&[draft], &|| {}).unwrap();
    for _ in 0..2 {
        fixture.open();
        let batch = fixture.batch(0).unwrap();
        assert_eq!(batch.payloads().next().unwrap(), large);
    }
    let first = fixture.batch(0).unwrap();
    fixture.spool().settle(0, &first);
    assert_eq!(fixture.batch(0).unwrap().payloads().collect::<Vec<_>>(), [b"small"]);
    fixture.append(1).unwrap();
    fixture.check();
}

#[test]
fn rejected_count_is_capped_and_the_rest_is_acknowledged() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    for rejected in [Count::default(), Count { entries: 1, annotations: 0 }, Count::MAX] {
        fixture.append(2).unwrap();
        let batch = fixture.batch(0).unwrap();
        fixture.spool().settle_record(0, &batch, 0, rejected);
        fixture.spool().pass(0, &batch);
        fixture.check();
    }
    let (delivered, of) = (fixture.delivered(0), |entries, annotations| Count { entries, annotations });
    assert_eq!(delivered.lost[Loss::Rejected as usize], of(3, 2 * ANNOTATIONS));
    assert_eq!((delivered.acked, delivered.in_flight), (of(3, 4 * ANNOTATIONS), Count::default()));
}
