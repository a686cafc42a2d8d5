//! How programs are admitted when there is no room for them, or when much happens at once.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use blkin_consumerd::link::send;
use common::{Daemon, Program, Site, send_signal, wait_for};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// Allows a process as many file descriptors as it has now, and `more`; with `None`, as many as at first.
fn limit_descriptors(pid: u32, more: Option<u64>) {
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = more.map(|more| open() + more).or(maximum);
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Allows a process no further file descriptor, not even one with a free number below the highest.
fn give_no_descriptor(pid: u32) {
    let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
}

fn limit_addresses(pid: u32, limit: Rlimit) {
    prlimit(Pid::from_raw(pid as i32), Resource::As, limit).unwrap();
}

/// Leaves a process fewer addresses than any segment takes. Returns the limit of all others.
fn give_no_addresses(pid: u32) -> Rlimit {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let bytes = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64;
    let unlimited = getrlimit(Resource::As);
    limit_addresses(pid, Rlimit { current: Some(bytes + (1 << 20)), ..unlimited });
    unlimited
}

#[test]
fn programs_wait_without_loss_while_descriptors_are_short() {
    for more in [0, 5, 9, 12] {
        let site = Site::new();
        let daemon = site.bare_daemon(&[]);
        limit_descriptors(daemon.pid(), Some(more));
        let programs: Vec<_> = (0..8).map(|_| site.program(&[20, 1], &[])).collect();
        wait_for("the daemon logs that programs wait", || {
            daemon.said("programs wait to be admitted").first().cloned()
        });
        let made: u64 = programs.into_iter().map(Program::finish).sum();
        limit_descriptors(daemon.pid(), None);
        daemon.settled(made).assert_balanced();
        wait_for("the daemon logs that no program waits any more", || {
            daemon.said("descriptors for all").first().cloned()
        });
        assert_eq!(daemon.said("programs wait to be admitted").len(), 1);
        assert_eq!(daemon.metrics().sum_where("blkin_offers_total", "refused_malformed"), 0);
    }
}

/// Otherwise no worker would hear of the program again, and what it records would not be read.
#[test]
fn a_program_beyond_worker_descriptors_goes_to_the_next_worker() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let worker = daemon.worker_pid();
    give_no_descriptor(worker);
    let made = site.program(&[20, 1], &[]).finish();
    daemon.settled(made).assert_balanced();
    assert_ne!(daemon.worker_pid(), worker);
    daemon.says("no file descriptors were left for a program");
}

/// Many programs have ended by then, and nobody else would read them.
#[test]
fn attaching_is_retried_while_address_space_is_short() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let worker = daemon.worker_pid();
    let unlimited = give_no_addresses(worker);
    let made = site.program(&[20, 1], &[]).finish();
    daemon.says("failed to attach to a program, trying again");
    limit_addresses(worker, unlimited);
    daemon.settled(made).assert_balanced();
    assert_eq!(daemon.metrics().sum("blkin_programs_rejected_total"), 0);
    assert_eq!(daemon.worker_pid(), worker);
}

#[test]
fn a_program_waiting_to_be_attached_goes_to_the_next_worker() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let attached = site.program(&[20, 1], &[]);
    wait_for("the program is attached to", || (daemon.metrics().sum("blkin_programs") == 1).then_some(()));
    give_no_addresses(daemon.worker_pid());
    let waiting = site.program(&[20, 1], &[]).finish();
    daemon.says("failed to attach to a program, trying again");
    // The checkpoint from which the next worker continues is written once a program has gone.
    let gone = attached.finish();
    wait_for("the other program has departed", || {
        (daemon.metrics().sum("blkin_programs_departed_total") == 1).then_some(())
    });
    daemon.signal_worker(Signal::KILL);
    daemon.settled(gone + waiting).assert_balanced();
}

#[test]
fn control_requests_wait_while_descriptors_are_short() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    give_no_descriptor(daemon.worker_pid());
    let mut asker = UnixStream::connect(site.path("control.sock")).unwrap();
    asker.write_all(b"{\"show\":{}}\n").unwrap();
    let told = wait_for("the failure is logged again", || {
        Some(daemon.said("failed to accept on the control socket")).filter(|told| told.len() > 1)
    });
    limit_descriptors(daemon.worker_pid(), None);
    let mut answer = String::new();
    asker.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("done"), "{answer}");
    let held_back = told[1].split("held_back=").nth(1).unwrap();
    assert!(!held_back.starts_with('0'), "{told:?}");
}

/// Offers a program as it does itself, with its segment and its control page.
fn offer(site: &Site, pid: u32) {
    let memfds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let is_memfd = std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().contains("memfd:"));
        is_memfd.then(|| std::fs::File::options().read(true).write(true).open(path).unwrap())
    });
    let mut files: Vec<_> = memfds.collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.metadata().unwrap().len()));
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(site.socket()).unwrap()).unwrap();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    send(&socket, b"BLKOFFER\x01\0\0\0\0\0\0\0", &fds).unwrap();
}

/// A program that ends soon after its first offer sends another, since it cannot know yet that it is read. The holder is stopped
/// until the worker has released the program, so that this offer and the worker's message wait for it together.
#[test]
fn a_program_offered_again_as_it_ends_counts_once() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let offers = |outcome: &str| daemon.metrics().sum_where("blkin_offers_total", outcome);
    let mut made = 0;
    for round in 1..=8 {
        let mut program = site.program(&[20, 1], &[]);
        made += program.calls();
        wait_for("the program is admitted", || (offers("taken") == round).then_some(()));
        wait_for("the program is read", || {
            (daemon.metrics().sum("blkin_drained_total") == made).then_some(())
        });
        // The program may have offered itself twice before it was admitted.
        let before = offers("already_held");
        send_signal(daemon.pid(), Signal::STOP);
        offer(&site, program.pid());
        let label = program.label();
        program.end();
        let is_gone = || daemon.metrics().sum_where("blkin_drained_total", &label) == 0;
        wait_for("the worker releases the program", || is_gone().then_some(()));
        send_signal(daemon.pid(), Signal::CONT);
        wait_for("the repeated offer is handled", || {
            (offers("already_held") > before || offers("taken") > round).then_some(())
        });
        assert_eq!(offers("taken"), round);
    }
    daemon.settled(made).assert_balanced();
    assert_eq!(offers("taken"), 8);
}

/// The holder is stopped until many offers wait, and behind them the offer of a program for which there is room once another
/// program is released.
#[test]
fn freed_places_go_to_programs_already_waiting() {
    const REPEATED: usize = 1000;
    let site = Site::new();
    let daemon = site.bare_daemon(&["--config", &site.config("max_programs_per_uid = 2\n")]);
    let offers = |outcome: &str| daemon.metrics().sum_where("blkin_offers_total", outcome);
    let mut lasting = site.program(&[20, 1], &[]);
    let mut ending = site.program(&[20, 1], &[]);
    let mut made = lasting.calls() + ending.calls();
    wait_for("both programs are admitted", || (offers("taken") == 2).then_some(()));
    wait_for("both are read", || (daemon.metrics().sum("blkin_drained_total") == made).then_some(()));
    let held_already = offers("already_held");
    send_signal(daemon.pid(), Signal::STOP);
    let label = ending.label();
    ending.end();
    let is_gone = || daemon.metrics().sum_where("blkin_drained_total", &label) == 0;
    wait_for("the worker releases the ended program", || is_gone().then_some(()));
    (0..REPEATED).for_each(|_| offer(&site, lasting.pid()));
    let mut waiting = site.program(&[20, 1], &[]);
    made += waiting.calls();
    send_signal(daemon.pid(), Signal::CONT);
    wait_for("the program is admitted", || (offers("taken") == 3).then_some(()));
    assert_eq!(offers("refused_quota"), 0);
    assert!(offers("already_held") - held_already >= REPEATED as u64);
    [lasting, waiting].into_iter().for_each(Program::end);
    daemon.settled(made).assert_balanced();
}

#[test]
fn a_program_over_quota_waits_for_a_place_then_is_refused() {
    let site = Site::new();
    let daemon = site.bare_daemon(&["--config", &site.config("max_programs_per_uid = 1\n")]);
    let offers = |outcome: &str| daemon.metrics().sum_where("blkin_offers_total", outcome);
    let mut first = site.program(&[20, 1], &[]);
    wait_for("the program is admitted", || (offers("taken") == 1).then_some(()));
    let mut second = site.program(&[20, 1], &[]);
    let made = first.calls() + second.calls();
    let held_already = offers("already_held");
    // Offers are handled in order: once this one is counted, all before it have been handled.
    offer(&site, first.pid());
    wait_for("the second program waits", || (offers("already_held") > held_already).then_some(()));
    assert_eq!((offers("taken"), offers("refused_quota")), (1, 0));
    first.end();
    wait_for("the second program is admitted", || (offers("taken") == 2).then_some(()));
    assert_eq!(offers("refused_quota"), 0);
    wait_for("the program is read", || (daemon.metrics().sum("blkin_drained_total") == made).then_some(()));
    let third = site.program(&[0, 1], &[]);
    wait_for("the third program is refused", || (offers("refused_quota") == 1).then_some(()));
    [second, third].into_iter().for_each(Program::end);
    daemon.settled(made).assert_balanced();
}

/// The next daemon does not search for programs, and a recorder that crashes cannot offer itself, so it has to be held before.
#[test]
fn a_running_flight_recorder_is_held_by_the_next_daemon() {
    let site = Site::new();
    let is_one = |daemon: &Daemon, figure: &str| daemon.metrics().sum(figure) == 1;
    let first = site.bare_daemon(&[]);
    let mut recorder = site.program(&[200, 1], &[("BLKIN_MODE", "overwrite"), ("BLKIN_RING_BYTES", "4096")]);
    recorder.calls();
    wait_for("the recorder is held", || is_one(&first, "blkin_programs_held").then_some(()));
    first.killed();
    let second = site.bare_daemon(&[]);
    wait_for("the recorder is held again", || {
        recorder.record_more();
        recorder.calls();
        is_one(&second, "blkin_programs_held").then_some(())
    });
    // While it is held, it does not offer itself again.
    assert!(is_one(&second, "blkin_offers_total"));
    send_signal(recorder.pid(), Signal::KILL);
    wait_for("the recorder is kept", || is_one(&second, "blkin_recorders_kept").then_some(()));
}

/// As when consumerd runs in a container that shares only the folder of its socket: the kernel has no process id there for a
/// program outside.
#[test]
fn programs_of_other_pid_namespaces_are_shown_by_own_name() {
    let site = Site::new();
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let daemon = site.started_by(unshare, &[]).ready();
    let mut programs: Vec<_> = (0..2).map(|_| site.program(&[20, 1], &[])).collect();
    let made: u64 = programs.iter_mut().map(Program::calls).sum();
    wait_for("both are read", || {
        let drained = daemon.metrics().sum_where("blkin_drained_total", "process=\"producer:0\"");
        (drained == made).then_some(())
    });
    programs.into_iter().for_each(Program::end);
    daemon.settled(made).assert_balanced();
    assert_eq!(daemon.says("programs of another PID namespace").len(), 1);
}
