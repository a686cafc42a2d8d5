use std::os::fd::OwnedFd;

use blkin_ringbuf::layout::CONTROL_BYTES;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pread;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::{gettid, set_name};

use super::*;
use crate::settings::file::FILE_BYTES;
use crate::settings::message::parse;

const DAEMON: Reach = Reach::All;

/// Ids of processes that do not exist, and count as running in these tests.
pub(super) const MADE_UP: [u32; 3] = [101, 102, 103];

/// A program's control page, as the program sees it.
struct Page(OwnedFd);

impl Page {
    fn new() -> Page {
        let memfd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, CONTROL_BYTES as u64).unwrap();
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        Page(memfd)
    }

    /// Blocked levels and rate, as the program reads them.
    fn applied(&self) -> (u64, u64) {
        let mut words = [0; 16];
        assert_eq!(pread(&self.0, &mut words, 3 * 8).unwrap(), words.len());
        let [blocked, rate] =
            [&words[..8], &words[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        (blocked, rate)
    }
}

/// Attaches a program of this process, of a child, or of a made-up process.
fn attached(settings: &Settings, number: u64, uid: u32, pid: u32, comm: &str) -> Page {
    let page = Page::new();
    let program = Program { number, uid, pid, comm: comm.into() };
    settings.attach(&program, ControlPage::open(&page.0).unwrap());
    page
}

fn ask(settings: &Settings, reach: Reach, request: &str) -> Answer {
    match parse(request.as_bytes()) {
        Ok(request) => settings.ask(request, reach),
        Err(refusal) => refusal,
    }
}

fn concerned(answer: Answer) -> Vec<u32> {
    match answer {
        Answer::Done { programs, .. } => programs.iter().map(|program| program.pid).collect(),
        Answer::Refused { why, .. } => panic!("{why}"),
    }
}

fn refused(answer: Answer) -> (Cause, String) {
    match answer {
        Answer::Refused { cause, why } => (cause, why),
        Answer::Done { .. } => panic!("the request was not refused"),
    }
}

#[test]
fn a_setting_reaches_matching_programs_now_and_later() {
    let settings = Settings::default();
    let (osd, mon) = (attached(&settings, 1, 5, 101, "osd"), attached(&settings, 2, 5, 102, "mon"));
    let set = |request| concerned(ask(&settings, DAEMON, request));
    assert_eq!(set(r#"{"set":{"target":{"label":"osd"},"rate":100}}"#), [101]);
    assert_eq!((osd.applied(), mon.applied()), ((0, 100), (0, 0)));
    assert_eq!(set(r#"{"set":{"target":"all","on":false}}"#), [101, 102]);
    assert_eq!(set(r#"{"set":{"target":{"pid":102},"on":true,"levels":["emerg","err"]}}"#), [102]);
    assert_eq!((osd.applied(), mon.applied()), ((0xff, 100), (0xf6, 0)));
    assert_eq!(attached(&settings, 3, 6, 103, "osd").applied(), (0xff, 100));
    assert_eq!(set(r#"{"reset":{}}"#), [101, 102, 103]);
    assert_eq!((osd.applied(), mon.applied()), ((0, 0), (0, 0)));
}

#[test]
fn attaching_overwrites_old_settings_in_a_control_page() {
    let settings = Settings::default();
    let page = Page::new();
    let before = ControlPage::open(&page.0).unwrap();
    before.block_levels(0xff);
    before.set_rate(3);
    settings.attach(&Program { number: 1, uid: 5, pid: 101, comm: "osd".into() }, before);
    assert_eq!(page.applied(), (0, 0));
}

#[test]
fn users_can_set_and_see_only_their_own_programs() {
    let settings = Settings::default();
    let (own, other) = (attached(&settings, 1, 1000, 101, "osd"), attached(&settings, 2, 1001, 102, "osd"));
    let user = Reach::Own(1000);
    let all_off = r#"{"set":{"target":"all","on":false}}"#;
    assert_eq!(concerned(ask(&settings, user, all_off)), [101]);
    assert_eq!((own.applied(), other.applied()), ((0xff, 0), (0, 0)));
    let (cause, why) = refused(ask(&settings, user, r#"{"set":{"target":{"pid":102},"on":false}}"#));
    assert_eq!(cause, Cause::NotAllowed);
    assert!(why.contains("1001"), "{why}");
    let (cause, why) = refused(ask(&settings, user, r#"{"set":{"target":{"pid":7},"on":false}}"#));
    assert_eq!(cause, Cause::UnknownPid);
    assert!(why.contains("101 (osd)") && !why.contains("102"), "{why}");
    assert_eq!(concerned(ask(&settings, Reach::Own(1001), r#"{"reset":{}}"#)), [102]);
    assert_eq!(own.applied(), (0xff, 0));
    assert_eq!(other.applied(), (0, 0));
}

#[test]
fn rules_outlive_the_worker_but_not_their_process() {
    let file = Memfd::create(FILE_BYTES).unwrap();
    let own = std::process::id();
    let settings = Settings::of_file(file.duplicate().unwrap()).unwrap();
    let _pages = [attached(&settings, 1, 5, own, "osd"), attached(&settings, 2, 5, 102, "mon")];
    for request in [
        r#"{"set":{"target":{"label":"osd"},"rate":7}}"#.to_owned(),
        format!(r#"{{"set":{{"target":{{"pid":{own}}},"rate":9}}}}"#),
        r#"{"set":{"target":{"pid":102},"rate":11}}"#.to_owned(),
    ] {
        ask(&settings, DAEMON, &request);
    }
    settings.depart(2);
    assert_eq!(settings.figures().rules, 2);

    let next = Settings::of_file(file.duplicate().unwrap()).unwrap();
    let page = attached(&next, 1, 5, own, "osd");
    next.complete();
    assert_eq!((next.figures().rules, page.applied()), (2, (0, 9)));

    let after = Settings::of_file(file).unwrap();
    let page = attached(&after, 2, 5, 102, "osd");
    after.complete();
    assert_eq!((after.figures().rules, page.applied()), (1, (0, 7)));
}

#[test]
fn rules_that_cannot_be_saved_do_not_take_effect() {
    let file = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, FILE_BYTES).unwrap();
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let settings = Settings::of_file(Memfd::from_fd(file)).unwrap();
    let page = attached(&settings, 1, 5, 101, "osd");
    let (cause, _) = refused(ask(&settings, DAEMON, r#"{"set":{"target":"all","on":false}}"#));
    assert_eq!((cause, page.applied(), settings.figures().rules), (Cause::Failed, (0, 0), 0));
}

#[test]
fn an_ended_program_is_not_set_though_its_rings_are_kept() {
    let settings = Settings::default();
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let _pages = [attached(&settings, 1, 5, pid, "osd"), attached(&settings, 2, 5, 102, "mon")];
    let all = r#"{"set":{"target":"all","rate":7}}"#;
    let one = format!(r#"{{"set":{{"target":{{"pid":{pid}}},"rate":9}}}}"#);
    assert_eq!(concerned(ask(&settings, DAEMON, all)), [pid, 102]);
    assert_eq!(concerned(ask(&settings, DAEMON, &one)), [pid]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(concerned(ask(&settings, DAEMON, all)), [102]);
    assert_eq!(concerned(ask(&settings, DAEMON, r#"{"show":{}}"#)), [102]);
    let (cause, why) = refused(ask(&settings, DAEMON, &one));
    assert_eq!(cause, Cause::UnknownPid);
    assert!(why.ends_with("; these are: 102 (mon)"), "{why}");
    let (_, why) = refused(settings.no_match_answer(&Target::Pid(7), DAEMON));
    assert!(why.contains(&format!("{pid} (osd), 102 (mon)")), "the ended program can still be read: {why}");
}

#[test]
fn a_program_that_ended_before_attach_is_not_set() {
    let settings = Settings::default();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    // The process is dead, but its parent has not waited for it yet.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
    let _pages = [attached(&settings, 1, 5, pid, "osd"), attached(&settings, 2, 5, 0, "elsewhere")];
    let all = r#"{"set":{"target":"all","rate":7}}"#;
    assert_eq!(concerned(ask(&settings, DAEMON, all)), [0]);
    child.wait().unwrap();
    assert_eq!(concerned(ask(&settings, DAEMON, all)), [0]);
    let (cause, _) =
        refused(ask(&settings, DAEMON, &format!(r#"{{"set":{{"target":{{"pid":{pid}}},"rate":9}}}}"#)));
    assert_eq!(cause, Cause::UnknownPid);
}

#[test]
fn a_label_is_cut_to_the_length_of_a_process_name() {
    let settings = Settings::default();
    let page = attached(&settings, 1, 5, 101, "a-very-long-nam");
    ask(&settings, DAEMON, r#"{"set":{"target":{"label":"a-very-long-name-indeed"},"rate":2}}"#);
    assert_eq!(page.applied(), (0, 2));
    let answer = ask(&settings, DAEMON, r#"{"reset":{"target":{"label":"a-very-long-name"}}}"#);
    assert_eq!((concerned(answer), page.applied()), (vec![101], (0, 0)));
}

#[test]
fn a_label_matches_both_the_real_and_the_shown_name() {
    for (name, shown) in [("ääääääää", "äääääää?"), ("osd→1", "osd?1")] {
        let settings = Settings::default();
        let page = attached(&settings, 1, 5, 101, shown);
        for (rate, label) in [(2, name), (3, shown)] {
            ask(&settings, DAEMON, &format!(r#"{{"set":{{"target":{{"label":"{label}"}},"rate":{rate}}}}}"#));
            assert_eq!(page.applied(), (0, rate), "{label}");
        }
    }
}

#[test]
fn a_process_with_several_programs_has_one_rule_for_all_of_them() {
    let settings = Settings::default();
    let pages = [attached(&settings, 1, 5, 101, "osd"), attached(&settings, 2, 5, 101, "osd")];
    ask(&settings, DAEMON, r#"{"set":{"target":{"pid":101},"on":false}}"#);
    assert_eq!(pages.map(|page| page.applied()), [(0xff, 0); 2]);
    settings.depart(1);
    assert_eq!((settings.figures().rules, settings.figures().programs.len()), (1, 1));
    settings.depart(2);
    assert_eq!(settings.figures(), Figures::default());
}

#[test]
fn a_process_belongs_to_the_user_of_its_newest_program() {
    let settings = Settings::default();
    let own = std::process::id();
    let _pages = [attached(&settings, 1, 1000, own, "ended"), attached(&settings, 2, 1001, own, "osd")];
    let off = format!(r#"{{"set":{{"target":{{"pid":{own}}},"on":false}}}}"#);
    assert_eq!(refused(ask(&settings, Reach::Own(1000), &off)).0, Cause::NotAllowed);
    assert_eq!(concerned(ask(&settings, Reach::Own(1001), &off)), [own]);
}

#[test]
fn a_start_time_is_stable_and_0_for_a_missing_process() {
    assert!(born(std::process::id()) > 0);
    assert_eq!(born(std::process::id()), born(std::process::id()));
    assert_eq!(born(u32::MAX), 0);
}

#[test]
fn the_start_time_is_read_despite_a_non_utf8_name() {
    let named = || {
        // The kernel may cut a name in the middle of a character like this.
        set_name(c"process-of-gr\xc3").unwrap();
        born(gettid().as_raw_nonzero().get().cast_unsigned())
    };
    assert!(std::thread::spawn(named).join().unwrap() > 0);
}
