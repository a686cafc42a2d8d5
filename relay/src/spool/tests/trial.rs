//! Tests the trials that find out whether the disk accepts again what it has refused.

use super::super::trial::filler;
use super::*;

/// As large as many segments, although no entry is that large.
const BYTES: usize = 200_003;

fn newest(fixture: &Fixture) -> PathBuf {
    segment::path(fixture.folder.path(), fixture.spool().lock().last().number)
}

#[test]
fn write_trial_leaves_the_spool_unchanged() {
    for when_full in [WhenFull::DropOldest, WhenFull::Refuse] {
        let mut fixture = Fixture::new(tight(when_full), &["a:1"]);
        fixture.append(3).unwrap();
        // The first trial needs a segment of its own, as an entry of this size would.
        fixture.spool().try_out(BYTES, &|| {}).unwrap();
        let (figures, length) = (fixture.spool().figures(), newest(&fixture).metadata().unwrap().len());
        (0..3).for_each(|_| fixture.spool().try_out(BYTES, &|| {}).unwrap());
        assert_eq!(newest(&fixture).metadata().unwrap().len(), length);
        assert_eq!((fixture.spool().figures().bytes, fixture.spool().figures().segments), (figures.bytes, 2));
        fixture.append(2).unwrap();
        fixture.open();
        assert_eq!(fixture.drain(0), Vec::from_iter(0..5));
        assert_eq!((fixture.delivered(0).offered.entries, fixture.damaged_files()), (5, 0));
        fixture.check();
    }
}

#[test]
fn write_trial_evicts_nothing_even_if_an_entry_would() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["dead:1"]);
    while fixture.spool().figures().bytes + (BYTES as u64) < fixture.limits.bytes {
        fixture.append(10).unwrap();
    }
    fixture.spool().try_out(BYTES, &|| {}).unwrap();
    assert_eq!(fixture.lost(0, Loss::SpoolEvicted), 0);
    assert_eq!(fixture.drain(0), Vec::from_iter(0..fixture.next));
}

#[test]
fn write_trial_in_refuse_mode_fails_until_there_is_room() {
    let mut fixture = Fixture::new(tight(WhenFull::Refuse), &["slow:1"]);
    while fixture.append(10).is_ok() {}
    assert!(matches!(fixture.spool().try_out(10 * ENTRY_BYTES, &|| {}), Err(AppendError::Full)));
    assert_eq!(fixture.drain(0), Vec::from_iter(0..fixture.next));
    fixture.spool().try_out(10 * ENTRY_BYTES, &|| {}).unwrap();
    fixture.check();
}

#[test]
fn write_trial_fails_as_long_as_appends_would() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(1).unwrap();
    fixture.spool().set_writable(false);
    assert!(fixture.append(1).is_err());
    assert!(matches!(fixture.spool().try_out(ENTRY_BYTES, &|| {}), Err(AppendError::Disk(_))));
    fixture.spool().set_writable(true);
    fixture.spool().try_out(ENTRY_BYTES, &|| {}).unwrap();
    // A trial also fails if the disk does not confirm the write.
    files::tests::fail_syncs(3);
    assert!(fixture.spool().try_out(ENTRY_BYTES, &|| {}).is_err());
    files::tests::fail_syncs(0);
    fixture.append(1).unwrap();
    assert_eq!(fixture.drain(0), [0, 1]);
    fixture.check();
}

#[test]
fn tail_left_by_a_crashed_trial_is_cut_off() {
    for cut in [1, 8, 47, 48, 4096, BYTES] {
        let mut fixture = Fixture::new(roomy(), &["a:1"]);
        fixture.append(3).unwrap();
        let length = fixture.spool().lock().last().length;
        fixture.first_segment().write_all_at(&filler(BYTES)[..cut], length).unwrap();
        fixture.open();
        assert_eq!(fixture.first_segment().metadata().unwrap().len(), length);
        fixture.append(2).unwrap();
        assert_eq!(fixture.drain(0), Vec::from_iter(0..5));
        assert_eq!((fixture.damaged(0), fixture.damaged_files()), (0, 0));
        fixture.check();
    }
}

#[test]
fn trial_filler_contains_no_record_magic() {
    let filler = filler(1 << 20);
    assert_eq!(filler.len(), 1 << 20);
    assert!(filler.chunks(layout::ALIGNMENT).all(|word| !word.starts_with(&layout::RECORD_MAGIC[..1])));
}
