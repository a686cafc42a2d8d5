//! A spool that reaches its limit.

use super::*;

#[test]
fn full_spool_evicts_oldest_and_charges_only_lagging_upstreams() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["alive:1", "dead:1"]);
    let mut got = Vec::new();
    for _ in 0..100 {
        fixture.append(10).unwrap();
        got.extend(fixture.drain(0));
        fixture.check();
    }
    assert_eq!(got, Vec::from_iter(0..1000));
    assert_eq!(fixture.lost(0, Loss::SpoolEvicted), 0);
    let evicted = fixture.lost(1, Loss::SpoolEvicted);
    assert!((700..900).contains(&evicted), "{evicted}");
    fixture.open();
    assert_eq!(fixture.drain(1), Vec::from_iter(evicted..1000), "exactly the newest are left");
    fixture.check();
}

#[test]
fn a_batch_under_way_that_is_evicted_is_counted_once() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["slow:1"]);
    fixture.append(4).unwrap();
    let batch = fixture.batch(0).unwrap();
    for _ in 0..100 {
        fixture.append(10).unwrap();
    }
    let before = fixture.delivered(0);
    fixture.spool().settle(0, &batch);
    assert_eq!(fixture.delivered(0), before);
    fixture.check();
}

#[test]
fn full_spool_in_refuse_mode_refuses_until_there_is_room() {
    let mut fixture = Fixture::new(tight(WhenFull::Refuse), &["slow:1"]);
    let mut accepted = 0;
    while fixture.append(10).is_ok() {
        accepted += 10;
    }
    assert!(matches!(fixture.append(10), Err(AppendError::Full)));
    assert!((200..=260).contains(&accepted), "{accepted}");
    assert_eq!(fixture.drain(0), Vec::from_iter(0..accepted));
    fixture.spool().sweep().unwrap();
    fixture.append(10).unwrap();
    assert_eq!(fixture.drain(0), Vec::from_iter(accepted..accepted + 10));
    fixture.check();
}

/// Housekeeping has begun to write the positions, and the disk is slow.
#[test]
fn full_spool_waits_for_a_position_write_that_frees_room() {
    let mut fixture = Fixture::new(tight(WhenFull::Refuse), &["slow:1"]);
    while fixture.append(10).is_ok() {}
    fixture.spool().roll().unwrap();
    fixture.drain(0);
    fixture.spool().lock().dirty = false;
    let (spool, draft) = (fixture.spool.take().unwrap(), Fixture::draft(0..10));
    let (told, appended) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(spool.append(&[draft], &|| {}).map(|()| spool.figures().segments)));
    let segments = appended.recv_timeout(PATIENCE).expect("the append does not return").unwrap();
    assert_eq!(segments, 1);
}

/// Replaces a segment by a folder that is not empty: removing it as a file fails.
fn make_stay(fixture: &Fixture, number: u64) {
    let path = segment::path(fixture.folder.path(), number);
    fs::remove_file(&path).unwrap();
    fs::create_dir_all(path.join("stays")).unwrap();
}

#[test]
fn unremovable_segment_counts_as_used_until_it_is_removed() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..20).for_each(|_| fixture.append(10).unwrap());
    let first = fixture.spool().lock().segments[0].length;
    make_stay(&fixture, 1);
    fixture.drain(0);
    fixture.spool().sweep().unwrap();
    let figures = fixture.spool().figures();
    let last = fixture.spool().lock().last().length;
    assert_eq!((figures.segments, figures.bytes), (1, first + last));
    let error = fixture.spool().remove_departed().unwrap_err();
    assert!(error.to_string().contains("0000000000000001.spool: "), "{error}");
    fixture.append(1).unwrap();
    let bytes = fixture.spool().figures().bytes;
    fs::remove_dir_all(segment::path(fixture.folder.path(), 1)).unwrap();
    (0..2).for_each(|_| fixture.spool().remove_departed().unwrap());
    assert_eq!(fixture.spool().figures().bytes, bytes - first);
    fixture.check();
}

#[test]
fn full_spool_refuses_when_its_oldest_cannot_be_removed() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["dead:1"]);
    while fixture.spool().figures().bytes < 240 << 10 {
        fixture.append(10).unwrap();
    }
    make_stay(&fixture, 1);
    for _ in 0..3 {
        assert!(matches!(fixture.append(30), Err(AppendError::Disk(_))));
        fixture.check();
    }
    let first = fixture.spool().lock().segments[0].before.entries;
    assert_eq!(
        fixture.lost(0, Loss::SpoolEvicted),
        first,
        "only the entries of the first segment are evicted"
    );
    assert_eq!(fixture.spool().lock().segments[0].number, 2);
    fs::remove_dir_all(segment::path(fixture.folder.path(), 1)).unwrap();
    fixture.spool().remove_departed().unwrap();
    fixture.append(30).unwrap();
    fixture.check();
}

#[test]
fn spool_shrinks_in_steps_after_restart_with_a_lower_limit() {
    let mut fixture = Fixture::new(roomy(), &["dead:1", "alive:2"]);
    (0..200).for_each(|_| fixture.append(10).unwrap());
    fixture.drain(1);
    fixture.spool().sweep().unwrap();
    let all = fixture.spool().figures();
    assert!(all.segments > 20);
    fixture.limits = tight(WhenFull::DropOldest);
    let before = segment::tests::read_so_far();
    fixture.open();
    let read = segment::tests::read_so_far() - before;
    assert!(read < 2 * fixture.limits.bytes, "{read} of {}", all.bytes);
    fixture.append(1).unwrap();
    assert!(fixture.spool().figures().segments >= all.segments - 1, "an append evicts at most one segment");
    assert_eq!(fixture.drain(1), [2000], "delivery does not wait until the spool has shrunk");
    while fixture.spool().figures().bytes > fixture.limits.bytes {
        let segments = fixture.spool().figures().segments;
        fixture.spool().shrink();
        assert_eq!(fixture.spool().figures().segments, segments - 1);
    }
    fixture.spool().shrink();
    fixture.check();
    let evicted = fixture.lost(0, Loss::SpoolEvicted);
    assert_eq!(fixture.drain(0), Vec::from_iter(evicted..2001));
    assert_eq!(fixture.lost(1, Loss::SpoolEvicted), 0);
    fixture.check();
}

#[test]
fn spool_in_refuse_mode_is_not_shrunk() {
    let mut fixture = Fixture::new(roomy(), &["a:1"]);
    (0..50).for_each(|_| fixture.append(10).unwrap());
    fixture.spool().sweep().unwrap();
    fixture.limits = tight(WhenFull::Refuse);
    fixture.open();
    fixture.spool().shrink();
    assert!(matches!(fixture.append(1), Err(AppendError::Full)));
    assert_eq!(fixture.drain(0), Vec::from_iter(0..500));
    fixture.append(1).unwrap();
    fixture.check();
}

#[test]
fn the_header_of_a_new_segment_stays_within_the_bound() {
    let mut fixture = Fixture::new(tight(WhenFull::DropOldest), &["a:1"]);
    for entries in [32, 1, 37, 57, 7, 27, 12, 55, 14, 16, 3, 1] {
        fixture.append(entries).unwrap();
        fixture.check();
    }
}

#[test]
fn append_signals_life_between_slow_disk_operations() {
    let fixture = Fixture::new(tight(WhenFull::DropOldest), &["dead:1"]);
    let state = || {
        let figures = fixture.spool().figures();
        (fixture.spool().lock().segments[0].number, figures.segments, figures.commits)
    };
    // Each append fills more than half a segment, so the next one needs another segment, until there is no room for one.
    let append = |alive: &dyn Fn()| fixture.spool().append(&[Fixture::draft(0..20)], alive).unwrap();
    while state().0 == 1 {
        append(&|| {});
    }
    let (first, segments, commits) = state();
    let seen = std::cell::RefCell::new(Vec::new());
    append(&|| seen.borrow_mut().push(state()));
    let mut seen = seen.into_inner();
    seen.dedup();
    let evicted = (first + 1, segments - 1, commits);
    assert_eq!(seen, [(first, segments, commits), evicted, (first + 1, segments, commits)]);
}
