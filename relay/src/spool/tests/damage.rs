//! What a disk lost, or cannot read, is skipped and counted, once.

use super::*;

#[test]
fn damage_loses_only_the_hit_records_and_counts_each_entry() {
    // Damage in the payload of the fourth record, then in its header, then in the segment's header.
    let record = record_bytes(2 * ENTRY_BYTES) as u64;
    for offset in [64 + 3 * record + 500, 64 + 3 * record + 5, 20] {
        let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
        for _ in 0..50 {
            fixture.append(2).unwrap();
        }
        fixture.spool().sweep().unwrap();
        fixture.first_segment().write_all_at(b"\xa5\x5a", offset).unwrap();
        fixture.open();
        assert_eq!(fixture.spool().figures().damaged_regions, 1);
        for upstream in 0..2 {
            let got = fixture.drain(upstream);
            let missing = 100 - got.len() as u64;
            assert_eq!(fixture.lost(upstream, Loss::Damaged), missing);
            assert_eq!(missing, if offset == 20 { 0 } else { 2 });
            assert!(got.is_sorted() && fixture.spool().is_drained(upstream));
        }
        assert_eq!(fixture.damaged_files(), 1);
        assert_eq!(fixture.spool().figures().damaged_regions, 1, "the same region is not counted twice");
        let unreported =
            |fixture: &Fixture| fixture.spool().lock().upstreams[1].take_unreported_damage(Instant::now());
        let lost = fixture.lost(1, Loss::Damaged);
        assert_eq!(unreported(&fixture), (lost > 0).then_some(lost));
        assert_eq!(unreported(&fixture), None, "the loss is reported only once");
        fixture.append(1).unwrap();
        assert_eq!(fixture.drain(0), [100]);
        fixture.check();
    }
}

#[test]
fn damage_that_cannot_be_copied_aside_is_counted_once() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(10).unwrap();
    let payload = (SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;
    fixture.first_segment().write_all_at(b"\xa5\x5a", payload).unwrap();
    let damaged = fixture.folder.path().join("damaged");
    fs::remove_dir_all(&damaged).unwrap();
    fs::write(damaged, "no folder for a copy").unwrap();
    for _ in 0..3 {
        assert!(
            fixture.batch(0).unwrap().is_empty(),
            "the damaged place holds no entries, however often it is read"
        );
        assert_eq!(fixture.spool().figures().damaged_regions, 1);
    }
}

#[test]
fn thousands_of_damaged_places_do_not_slow_the_start() {
    const RECORDS: u64 = 4000;
    let record = record_bytes(ENTRY_BYTES) as u64;
    // Damage in the payload of every second record, or in its header.
    for offset in [RECORD_HEADER_BYTES as u64, 0] {
        let mut fixture = Fixture::new(roomy(), &["a:1"]);
        let drafts = Vec::from_iter((0..RECORDS).map(|number| Fixture::draft(number..number + 1)));
        fixture.spool().append(&drafts, &|| {}).unwrap();
        fixture.spool().sweep().unwrap();
        let file = fixture.first_segment();
        for number in (0..RECORDS).step_by(2) {
            let place = SEGMENT_HEADER_BYTES as u64 + number * record + offset;
            file.write_all_at(b"\xa5\x5a", place).unwrap();
        }
        let before = segment::tests::read_so_far();
        fixture.open();
        let read = segment::tests::read_so_far() - before;
        // The start does not read the whole segment again for each place, and does not copy each.
        assert!(read < RECORDS / 2 * (512 << 10), "{read}");
        assert_eq!(fixture.damaged_files(), damaged_folder::MAX_FILES);
        assert_eq!(fixture.spool().figures().damaged_regions, RECORDS / 2);
        assert_eq!(fixture.drain(0), Vec::from_iter((1..RECORDS).step_by(2)));
        assert_eq!(fixture.lost(0, Loss::Damaged), RECORDS / 2);
        assert_eq!(fixture.spool().figures().damaged_regions, RECORDS / 2);
        fixture.check();
    }
}

#[test]
fn damage_at_the_end_is_counted_when_an_upstream_reaches_it() {
    let record = record_bytes(2 * ENTRY_BYTES) as u64;
    let third = SEGMENT_HEADER_BYTES as u64 + 2 * record;
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..4).for_each(|_| fixture.append(2).unwrap());
    // Neither header can be read any more.
    fixture.first_segment().write_all_at(&vec![0x55; 2 * record as usize], third).unwrap();
    assert_eq!(fixture.drain(0), [0, 1, 2, 3]);
    assert_eq!(fixture.lost(0, Loss::Damaged), 4);
    assert!(fixture.spool().is_drained(0));
    fixture.append(1).unwrap();
    assert_eq!(fixture.drain(0), [8]);
    assert_eq!(fixture.lost(0, Loss::Damaged), 4);
    fixture.check();
}

/// A bad place in the payload of the fourth record, in its header, and from there to the end of the segment.
#[test]
fn unreadable_place_loses_only_the_records_it_hits() {
    let record = record_bytes(2 * ENTRY_BYTES) as u64;
    let fourth = SEGMENT_HEADER_BYTES as u64 + 3 * record;
    for bad in [fourth + 500..fourth + 501, fourth + 5..fourth + 6, fourth + 500..u64::MAX] {
        let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
        for _ in 0..50 {
            fixture.append(2).unwrap();
        }
        assert!(fixture.spool().figures().segments > 1);
        fixture.spool().set_bad_place(bad.clone());
        for upstream in 0..2 {
            let (got, bad_places) = fixture.drain_over_bad_places(upstream);
            assert!(got.starts_with(&[0, 1, 2, 3, 4, 5]) && fixture.spool().is_drained(upstream), "{got:?}");
            assert!((1..=2).contains(&bad_places), "one read begins before the bad place, and one in it");
            let missing = 100 - got.len() as u64;
            assert_eq!(fixture.lost(upstream, Loss::Damaged), missing);
            assert!(if bad.end == u64::MAX { missing > 10 } else { (2..=6).contains(&missing) }, "{missing}");
            assert!(got.is_sorted());
        }
        let regions = fixture.spool().figures().damaged_regions;
        assert_eq!(fixture.damaged_files() as u64, regions, "each region is counted once for all upstreams");
        fixture.check();
    }
}

#[test]
fn start_continues_when_a_segment_header_is_unreadable() {
    // The header of the first segment, and of the newest one; the records in the same 4 KiB are lost with it.
    for number in [1, 2] {
        let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
        (0..50).for_each(|_| fixture.append(2).unwrap());
        assert_eq!(fixture.spool().figures().segments, 2);
        let first = if number == 1 { 0 } else { fixture.spool().lock().segments[1].before.entries };
        fixture.spool().sweep().unwrap();
        fixture.open_with_bad_place(number, 0..4096);
        fixture.append(1).unwrap();
        for upstream in 0..2 {
            let (got, _) = fixture.drain_over_bad_places(upstream);
            let all = (0..101).filter(|entry| !(first..first + 4).contains(entry));
            assert_eq!((got, fixture.lost(upstream, Loss::Damaged)), (Vec::from_iter(all), 4));
        }
        assert_eq!(fixture.damaged_files() as u64, fixture.spool().figures().damaged_regions);
        fixture.check();
        fixture.open_with_bad_place(number, 0..4096);
        assert_eq!(fixture.spool().figures().segments, 2, "the second start adds no segment");
        fixture.check();
    }
}

#[test]
fn start_skips_a_segment_that_is_wholly_unreadable() {
    // The positions know all of its records, then only some, then none.
    for (swept, lost) in [(3, 3), (2, 3), (0, 1)] {
        let mut fixture = Fixture::new(roomy(), &["a:1"]);
        for appended in 0..=3 {
            if appended > 0 {
                fixture.append(1).unwrap();
            }
            if appended == swept {
                fixture.spool().sweep().unwrap();
            }
        }
        fixture.open_with_bad_place(1, 0..u64::MAX);
        assert_eq!((fixture.damaged_files(), fixture.spool().figures().damaged_regions), (1, 1));
        fixture.append(1).unwrap();
        assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![3], lost));
        fixture.check();
    }
}

#[test]
fn unreadable_records_unknown_to_the_positions_are_counted() {
    let fifth = SEGMENT_HEADER_BYTES as u64 + 4 * record_bytes(4 * ENTRY_BYTES) as u64;
    // A bad place in the payload of the fifth of six records, of four entries each: the next record tells how much it held.
    // From there to the end: its own header tells, and at least one more entry followed. From its header on: nothing tells.
    let cases = [(fifth + 100..fifth + 101, 4, 0), (fifth + 100..u64::MAX, 5, 1), (fifth..u64::MAX, 1, 1)];
    let got =
        [[vec![20, 21, 22, 23], Vec::from_iter(16..24)], [vec![], vec![16, 17, 18, 19]], [vec![], vec![]]];
    for ((place, lost, lost_again), [behind, again]) in cases.into_iter().zip(got) {
        // Another start finds what can be read again, except for what was counted as lost.
        for (is_again, lost, behind) in [(false, lost, behind), (true, lost_again, again)] {
            let mut fixture = Fixture::new(roomy(), &["a:1"]);
            for appended in 0..6 {
                fixture.append(4).unwrap();
                if appended == 2 {
                    fixture.spool().sweep().unwrap();
                }
            }
            fixture.open_with_bad_place(1, place.clone());
            fixture.append(1).unwrap();
            if is_again {
                fixture.open();
            }
            let (got, _) = fixture.drain_over_bad_places(0);
            assert_eq!(got, Vec::from_iter((0..16).chain(behind).chain([24])));
            assert_eq!(fixture.damaged(0), lost);
            assert!(fixture.spool().is_drained(0));
            fixture.check();
        }
    }
}

#[test]
fn bad_place_is_not_skipped_while_the_disk_is_unwritable() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(2).unwrap();
    fixture.spool().set_bad_place(0..u64::MAX);
    let folder = fixture.folder.path();
    fs::remove_dir_all(folder).unwrap();
    fs::write(folder, "no folder can be made here").unwrap();
    fixture.spool().next_batch(0, None, 8 << 10, u64::MAX, BadPlace::IsZeros).unwrap_err();
    fs::remove_file(folder).unwrap();
    fixture.spool().set_bad_place(0..0);
    assert_eq!((fixture.drain(0), fixture.lost(0, Loss::Damaged)), (vec![0, 1], 0));
}

#[test]
fn read_only_disk_still_delivers_and_accepts_once_writable() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(2).unwrap();
    let segment = fixture.first_segment();
    let length = segment.metadata().unwrap().len();
    fixture.spool().set_writable(false);
    assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
    // As after a write that the disk accepted, and then refused to make durable and to cut off.
    for left in [&b"half"[..], &[7; 64 << 10]] {
        segment.write_all_at(left, length).unwrap();
        assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
    }
    assert_eq!(fixture.drain(0), [0, 1]);
    fixture.spool().set_writable(true);
    // More than the segment has room for, so that another segment follows it.
    fixture.append(70).unwrap();
    assert_eq!(segment.metadata().unwrap().len(), length);
    fixture.open();
    assert_eq!(
        fixture.drain(0),
        Vec::from_iter(0..72),
        "no positions were saved, so everything is sent again"
    );
    assert_eq!((fixture.damaged(0), fixture.damaged_files()), (0, 0));
    fixture.check();
}

#[test]
fn no_segment_is_begun_while_the_previous_end_is_uncertain() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(2).unwrap();
    // The sync of the write fails, that of the cut after it, and that of the cut before the next write.
    files::tests::fail_syncs(3);
    assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
    // More than the segment has room for.
    assert!(matches!(fixture.append(70), Err(AppendError::Disk(_))));
    assert_eq!(fixture.spool().figures().segments, 1);
    fixture.append(70).unwrap();
    assert_eq!((fixture.spool().figures().segments, fixture.drain(0)), (2, Vec::from_iter(0..72)));
    fixture.check();
}

#[test]
fn emptied_segment_takes_no_appends_even_if_its_sync_fails() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(2).unwrap();
    assert_eq!(fixture.drain(0), [0, 1]);
    // The sync of the write fails, that of the cut after it, and that of emptying the segment to make room.
    files::tests::fail_syncs(3);
    assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
    fixture.check();
    fixture.append(1).unwrap();
    fixture.open();
    assert_eq!((fixture.drain(0), fixture.spool().figures().damaged_regions), (vec![2], 0));
    fixture.check();
}

#[test]
fn start_with_damage_on_a_full_disk_delivers_intact_entries() {
    let damages: [fn(&Path); 2] = [
        // The header of the newest segment is damaged: nothing more may be written to it.
        |folder| {
            let newest = File::options().write(true).open(segment::path(folder, 1)).unwrap();
            newest.write_all_at(b"\xa5\x5a", 20).unwrap();
        },
        |folder| fs::remove_file(folder.join("positions")).unwrap(),
    ];
    for damage in damages {
        let mut fixture = Fixture::new(roomy(), &["a:1"]);
        fixture.append(5).unwrap();
        fixture.spool().sweep().unwrap();
        damage(fixture.folder.path());
        files::tests::set_full(true);
        fixture.open();
        assert_eq!(fixture.drain(0), [0, 1, 2, 3, 4]);
        assert!(fixture.spool().sweep().is_err(), "the sweep does not report the full disk");
        files::tests::set_full(false);
        fixture.append(2).unwrap();
        assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![5, 6], 0));
        fixture.spool().sweep().unwrap();
        fixture.open();
        fixture.append(1).unwrap();
        assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![7], 0));
        fixture.check();
    }
}

#[test]
fn repeated_starts_on_a_full_disk_count_the_damage_once() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(5).unwrap();
    fixture.spool().sweep().unwrap();
    // Damage the whole segment.
    let file = fixture.first_segment();
    file.write_all_at(&vec![0x55; file.metadata().unwrap().len() as usize], 0).unwrap();
    files::tests::set_full(true);
    for _ in 0..3 {
        fixture.open();
        assert!(matches!(fixture.append(1), Err(AppendError::Disk(_))));
        assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![], 5));
        fixture.check();
    }
    files::tests::set_full(false);
    fixture.append(1).unwrap();
    fixture.open();
    assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![5], 5));
    fixture.check();
}

#[test]
fn damaged_segment_left_in_place_does_not_block_delivery() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..7).for_each(|_| fixture.append(10).unwrap());
    fixture.spool().sweep().unwrap();
    let lost = fixture.spool().lock().segments[1].before.entries;
    fixture.first_segment().set_len(SEGMENT_HEADER_BYTES as u64).unwrap();
    fixture.first_segment().write_all_at(&[0x55; SEGMENT_HEADER_BYTES], 0).unwrap();
    let in_the_way = segment::path(&fixture.folder.path().join("damaged"), 1);
    fs::create_dir(in_the_way).unwrap();
    fixture.open();
    assert_eq!(fixture.spool().figures().damaged_regions, 1);
    assert_eq!((fixture.drain(0), fixture.damaged(0)), (Vec::from_iter(lost..70), lost));
    fixture.check();
}

#[test]
fn damaged_segment_counts_as_used_until_it_is_set_aside() {
    for is_removed in [false, true] {
        let mut fixture = Fixture::new(tight(WhenFull::Refuse), &["a:1"]);
        while fixture.append(10).is_ok() {}
        fixture.spool().sweep().unwrap();
        let full = fixture.spool().figures().bytes;
        let damaged = fixture.first_segment();
        let length = damaged.metadata().unwrap().len();
        damaged.write_all_at(&vec![0x55; length as usize], 0).unwrap();
        let in_the_way = segment::path(&fixture.folder.path().join("damaged"), 1);
        fs::create_dir(&in_the_way).unwrap();
        fixture.open();
        assert_eq!(fixture.spool().figures().bytes, full);
        assert!(fixture.append(10).is_err(), "there is no room for more");
        let error = fixture.spool().remove_departed().unwrap_err().to_string();
        assert!(error.contains("damaged/0000000000000001.spool: "), "{error}");
        assert_eq!(fixture.spool().figures().bytes, full);
        fs::remove_dir(&in_the_way).unwrap();
        let path = segment::path(fixture.folder.path(), 1);
        if is_removed {
            fs::remove_file(&path).unwrap();
        }
        fixture.spool().remove_departed().unwrap();
        assert_eq!(fixture.spool().figures().bytes, full - length);
        assert_eq!((path.exists(), in_the_way.exists()), (false, !is_removed));
        fixture.append(10).unwrap();
        fixture.check();
    }
}

#[test]
fn new_entries_go_behind_a_damaged_segment_left_in_place() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    fixture.append(3).unwrap();
    fixture.spool().sweep().unwrap();
    let newest = segment::path(fixture.folder.path(), 2);
    fs::write(&newest, [0x55; SEGMENT_HEADER_BYTES]).unwrap();
    fs::create_dir(segment::path(&fixture.folder.path().join("damaged"), 2)).unwrap();
    fixture.open();
    fixture.append(2).unwrap();
    assert_eq!(segment::numbers(fixture.folder.path()).unwrap(), [1, 2, 3]);
    assert_eq!(
        fs::read(newest).unwrap(),
        [0x55; SEGMENT_HEADER_BYTES],
        "the damaged segment is kept for inspection"
    );
    assert_eq!((fixture.drain(0), fixture.damaged(0)), (vec![0, 1, 2, 3, 4], 0));
    fixture.check();
}

#[test]
fn new_entries_are_delivered_after_an_empty_segment_is_removed() {
    let removals: [fn(&Path); 2] = [
        |segment| fs::remove_file(segment).unwrap(),
        // As a segment that was emptied.
        |segment| drop(File::create(segment).unwrap()),
    ];
    for remove in removals {
        let mut fixture = Fixture::new(roomy(), &["a:1", "b:2"]);
        fixture.append(5).unwrap();
        fixture.drain(0);
        fixture.spool().roll().unwrap();
        fixture.spool().sweep().unwrap();
        remove(&segment::path(fixture.folder.path(), 2));
        fixture.open();
        fixture.append(2).unwrap();
        assert_eq!(fixture.drain(0), [5, 6]);
        assert_eq!(fixture.drain(1), Vec::from_iter(0..7));
        fixture.check();
    }
}
