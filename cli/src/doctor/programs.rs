//! The programs of this machine that have rings, and whether consumerd is attached to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use blkin_ringbuf::UnreadReason;

use super::Check;
use super::scan::{Program, Reader, Scan, is_apart, is_hidden, is_same, real_uid, scan, socket_of};
use super::socket::closed_to_others;
use crate::metrics::Metrics;
use crate::terminal::safe;

/// At most this many programs are named.
const NAMED: usize = 20;
/// What to do about programs that have loaded the library, if none has rings.
const NO_RINGS: &str = "a program makes its rings with its first record, or in blkin_init(); a program that records and has none \
                        said why on its standard error (a limit, or a seccomp filter without memfd_create)";
/// What to raise if there are too many programs.
const LIMITS: &str =
    "raise max_programs, max_programs_per_uid or max_shared_bytes_per_uid of blkin-consumerd";

impl Scan {
    /// A clause about the programs without rings, to append to a sentence.
    fn more(&self) -> String {
        if self.without_rings.is_empty() {
            return String::new();
        }
        let names = first(&self.without_rings, String::clone).join(", ");
        format!(
            "; these have loaded the library but have no rings, as they have recorded nothing yet or said why they cannot: {names}"
        )
    }

    /// A clause about the programs that trace few of their requests because their environment says so: a variable may be meant for
    /// something else.
    fn sampled(&self) -> String {
        let named = |program: &Program| {
            let rate = program.rate.as_ref()?;
            Some(format!("{} (pid {}, {rate})", program.comm, program.pid))
        };
        let sampled: Vec<String> = self.programs.iter().filter_map(named).collect();
        if sampled.is_empty() {
            return String::new();
        }
        let names = first(&sampled, String::clone).join(", ");
        format!(
            "; these trace one in so many of the requests that begin there, by their environment unless `blkin set` has changed \
             it: {names}"
        )
    }
}

/// Compares the programs that have segments with those that consumerd reports.
pub(super) fn attachment(consumerd: Option<&Metrics>, socket: &Path) -> Check {
    judge(&scan(), consumerd, socket)
}

fn judge(scan: &Scan, consumerd: Option<&Metrics>, socket: &Path) -> Check {
    const NAME: &str = "programs";
    let Some(metrics) = consumerd else {
        let found = match scan.programs.len() {
            0 if scan.hidden > 0 => "instrumented and running: none that this user can see".to_owned(),
            count => format!("instrumented and running: {count}"),
        };
        let found = found + &scan.more();
        return Check::warning(
            NAME,
            found,
            "only consumerd, which could not be read, knows whether they are attached",
        );
    };
    let held = held_pids(metrics);
    let missed = scan.programs.iter().filter(|program| !held.contains(&program.pid));
    let (elsewhere, unread): (Vec<&Program>, Vec<&Program>) = missed.partition(|program| program.is_read());
    let advice = reasons(unread.iter().chain(&elsewhere).copied(), socket);
    let of_all = format!("of {} instrumented programs", scan.programs.len());
    if !unread.is_empty() {
        return Check::failed(NAME, format!("{} {of_all} are not attached", unread.len()), advice);
    }
    if !elsewhere.is_empty() {
        let found = format!("{} {of_all} are attached to another blkin-consumerd", elsewhere.len());
        return Check::warning(NAME, found, advice);
    }
    let found = match scan.programs.len() {
        0 if scan.hidden > 0 => "no instrumented program is running that this user can see".to_owned(),
        0 => "no instrumented program is running".to_owned(),
        1 => "one instrumented program is running, and attached".to_owned(),
        count => format!("{count} instrumented programs are running, all attached"),
    };
    if scan.hidden > 0 && scan.programs.is_empty() {
        let advice = format!("processes that this user may not examine: {}; run this as root", scan.hidden);
        return Check::warning(NAME, found, advice);
    }
    let found = found + &scan.sampled() + &scan.more();
    if scan.programs.is_empty() && !scan.without_rings.is_empty() {
        return Check::warning(NAME, found, NO_RINGS);
    }
    Check::ok(NAME, found)
}

/// Whether consumerd accepted every program that offered itself. Nobody counts what a refused program recorded, so the ledger
/// balances without it.
pub(super) fn offers(consumerd: &Metrics) -> Check {
    const NAME: &str = "offers";
    let by_quota = consumerd.sum("blkin_offers_total", &[("outcome", "refused_quota")]);
    let unattached = consumerd.sum("blkin_programs_rejected_total", &[]);
    let mut advice = Vec::new();
    if by_quota > 0 {
        advice.push(format!(
            "{LIMITS}, whose log (`journalctl -u blkin-consumerd`) names at most one refused program a second; if a sink has \
             trouble repair that first, for ended programs count towards the quotas until what they recorded is shipped",
        ));
    }
    if unattached > 0 {
        advice.push(
            "look at blkin-consumerd's log (`journalctl -u blkin-consumerd`) for the programs that it could not attach to"
                .to_owned(),
        );
    }
    if advice.is_empty() {
        return Check::ok(NAME, "no program was refused");
    }
    let found = format!(
        "refused since consumerd started: {by_quota} by a quota, {unattached} others; what a refused program recorded is missing \
         in the ledger, unless it was accepted later"
    );
    Check::warning(NAME, found, advice.join("\n"))
}

/// The process ids in consumerd's `comm:pid` labels.
fn held_pids(metrics: &Metrics) -> BTreeSet<u32> {
    let labels = metrics.values("blkin_program_attempted_total", "process");
    labels.iter().filter_map(|label| label.rsplit_once(':')?.1.parse().ok()).collect()
}

/// Why consumerd may have missed programs, and what to do: one line for all that it had no room for, and one for each of the
/// others.
fn reasons<'a>(missed: impl Iterator<Item = &'a Program>, socket: &Path) -> String {
    let (no_room, others): (Vec<&Program>, Vec<&Program>) = missed.partition(|program| program.has_no_room());
    let mut lines = Vec::new();
    if !no_room.is_empty() {
        let names = first(&no_room, |program| program.name()).join(", ");
        lines.push(format!("blkin-consumerd has no room for {names}: {LIMITS}"));
    }
    lines.extend(first(&others, |program| reason(program, socket)));
    lines.join("\n")
}

/// What `said` returns for the first programs, then how many more there are.
fn first<P>(programs: &[P], said: impl Fn(&P) -> String) -> Vec<String> {
    let more = programs.len().saturating_sub(NAMED);
    let named = programs.iter().take(NAMED).map(said);
    named.chain((more > 0).then(|| format!("and {more} more"))).collect()
}

fn reason(program: &Program, socket: &Path) -> String {
    let who = program.name();
    match program.reader {
        Some(Reader { pid: reader, is_well: true }) => {
            return format!(
                "{who} is read by another blkin-consumerd, pid {reader}, in whose figures it counts (name that one with \
                 --consumerd and --socket)"
            );
        }
        Some(Reader { pid: reader, .. }) => {
            return format!(
                "{who} is held by process {reader}, which is not a running blkin-consumerd: end that process"
            );
        }
        None if program.unread == Some(UnreadReason::Version) => {
            return format!(
                "{who} is refused: blkin-consumerd cannot read what its version of the library writes; install the same version \
                 of both"
            );
        }
        None => {}
    }
    unreached(&who, program.pid, socket)
}

/// Why a program that nobody reads may not have reached the socket.
fn unreached(who: &str, pid: u32, socket: &Path) -> String {
    let shown = socket.display();
    if let Some(named) = socket_of(pid).filter(|named| !is_same(pid, named, socket)) {
        let named = safe(&named.to_string_lossy());
        return format!(
            "{who} offers itself at {named}, not at {shown}: start it with another BLKIN_SOCKET, or name its own \
             blkin-consumerd with --socket and --consumerd"
        );
    }
    let inside = format!("/proc/{pid}/root{shown}");
    if is_apart(pid) && fs::symlink_metadata(&inside).is_err() {
        return format!("{who} has no {shown} in its container or chroot: mount that folder into it");
    }
    let Some(uid) = real_uid(pid) else { return format!("{who} has just ended or cannot be examined") };
    match closed_to_others(socket) {
        Some(closed) if uid != 0 => {
            format!(
                "{who} of user {uid} cannot reach {shown}: {closed}; it retries by itself once that is changed"
            )
        }
        _ if is_hidden(pid, uid) => format!(
            "{who} of user {uid} is not dumpable: a blkin-consumerd with CAP_SYS_PTRACE, which its unit gives it, finds such \
             programs when it starts; without that the program has to reach {shown}, which it tries at its next drop or first \
             use of a CPU"
        ),
        _ => format!(
            "{who} of user {uid} did not reach {shown}: it retries at its next drop or first use of a CPU; a restarted \
             blkin-consumerd (with CAP_SYS_PTRACE) looks for such programs"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::super::Status;
    use super::super::scan::tests::running;
    use super::*;
    use crate::target::OFFERS;

    #[test]
    fn process_ids_are_read_from_the_labels() {
        let text = "blkin_program_attempted_total{process=\"a:b:12\"} 1\nblkin_program_attempted_total{process=\"departed\"} 2\n";
        assert_eq!(held_pids(&Metrics::parse(text)), BTreeSet::from([12]));
    }

    #[test]
    fn refused_programs_are_a_warning() {
        let refused = |quota: u32, rejected: u32| {
            offers(&Metrics::parse(&format!(
                "blkin_offers_total{{outcome=\"taken\"}} 9\nblkin_offers_total{{outcome=\"refused_quota\"}} {quota}\n\
                 blkin_programs_rejected_total {rejected}\n"
            )))
        };
        assert_eq!(refused(0, 0).status, Status::Ok);
        let check = refused(570, 0);
        assert_eq!(check.status, Status::Warning);
        assert!(check.found.contains("570 by a quota, 0 others"), "{}", check.found);
        assert!(check.advice.unwrap().starts_with("raise max_programs, "));
        assert!(refused(0, 1).advice.unwrap().starts_with("look at "));
    }

    #[test]
    fn a_program_of_another_consumerd_warns_and_an_unread_one_fails() {
        let program = |pid, reader| Program { reader, ..unread(pid, None) };
        let read = |pid, is_well| program(pid, Some(Reader { pid: 9, is_well }));
        let judged = |programs: &[Program]| {
            let metrics = Metrics::parse("blkin_program_attempted_total{process=\"osd:1\"} 1\n");
            let scan = Scan { programs: programs.to_vec(), ..Scan::default() };
            judge(&scan, Some(&metrics), Path::new("/nonexistent/consumerd.sock"))
        };
        let check = judged(&[program(1, None)]);
        assert_eq!(
            (check.status, &*check.found),
            (Status::Ok, "one instrumented program is running, and attached")
        );
        let check = judged(&[Program { rate: Some("RATE=9".to_owned()), ..program(1, None) }]);
        assert_eq!(check.status, Status::Ok);
        assert!(
            check.found.ends_with("unless `blkin set` has changed it: osd (pid 1, RATE=9)"),
            "{}",
            check.found
        );
        let check = judged(&[program(1, None), read(2, true)]);
        assert_eq!(check.status, Status::Warning);
        assert_eq!(check.found, "1 of 2 instrumented programs are attached to another blkin-consumerd");
        assert!(check.advice.unwrap().contains("osd (pid 2) is read by another blkin-consumerd, pid 9"));
        let check = judged(&[read(2, false)]);
        assert_eq!(check.status, Status::Failed);
        assert!(check.advice.unwrap().contains("end that process"));
        let check = judged(&[read(2, true), program(3, None)]);
        assert_eq!(check.status, Status::Failed);
        assert!(check.found.starts_with("1 of 2 "), "{}", check.found);
        assert!(check.advice.unwrap().starts_with("osd (pid 3) "), "unread programs come first");
    }

    fn unread(pid: u32, unread: Option<UnreadReason>) -> Program {
        Program { pid, comm: "osd".into(), reader: None, unread, rate: None }
    }

    fn advised(programs: Vec<Program>, socket: &Path) -> String {
        let scan = Scan { programs, ..Scan::default() };
        judge(&scan, Some(&Metrics::default()), socket).advice.unwrap()
    }

    #[test]
    fn a_program_that_uses_another_socket_is_reported_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("consumerd.sock");
        fs::write(&here, "").unwrap();
        let said = |of_program: &Path| {
            let mut child = running("BLKIN_SOCKET", of_program);
            let said = advised(vec![unread(child.id(), None)], &here);
            child.wait().unwrap();
            said
        };
        let elsewhere = said(Path::new("/nonexist/x"));
        assert!(elsewhere.contains(&format!(" offers itself at /nonexist/x, not at {}", here.display())));
        assert!(said(Path::new("")).contains(&format!(" offers itself at {OFFERS}, not at ")));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&here, &link).unwrap();
        for same in [&here, &link] {
            let said = said(same);
            assert!(!said.contains("offers itself"), "{said}");
        }
    }

    #[test]
    fn advice_on_a_program_in_a_chroot_is_to_mount_the_socket() {
        const SHELL: &str = "cp -L --parents /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') .
            exec chroot . /bin/sh -c 'echo; read end'";
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(std::io::stderr(), "not shown: this needs root");
            return;
        }
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let socket = folder.path().join("consumerd.sock");
        fs::write(&socket, "").unwrap();
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", SHELL]).current_dir(&root).env("BLKIN_SOCKET", &socket);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let said = advised(vec![unread(child.id(), None)], &socket);
        child.wait().unwrap();
        assert!(said.contains(" in its container or chroot: mount "), "{said}");
    }

    #[test]
    fn long_lists_of_unread_programs_are_cut_and_counted() {
        let socket = Path::new("/nonexistent/consumerd.sock");
        let many = |why| (0..25).map(|pid| unread(1_000_000_000 + pid, why)).collect();
        let said = advised(many(Some(UnreadReason::NoRoom)), socket);
        assert!(said.starts_with("blkin-consumerd has no room for osd (pid 1000000000), "), "{said}");
        assert!(said.contains(", and 5 more: raise max_programs, ") && said.lines().count() == 1, "{said}");
        let said = advised(many(Some(UnreadReason::Version)), socket);
        assert!(said.starts_with("osd (pid 1000000000) is refused: "), "{said}");
        assert!(said.ends_with("\nand 5 more") && said.lines().count() == 21, "{said}");
    }

    #[test]
    fn hidden_processes_limit_the_check_to_what_this_user_can_see() {
        for consumerd in [None, Some(&Metrics::default())] {
            let found = |hidden| judge(&Scan { hidden, ..Scan::default() }, consumerd, Path::new("/s")).found;
            assert!(found(1).ends_with(" that this user can see"), "{}", found(1));
            assert!(!found(0).contains("can see"), "{}", found(0));
        }
    }

    #[test]
    fn programs_with_the_library_but_no_rings_are_named() {
        let judged = |programs: &[Program], consumerd: Option<&Metrics>| {
            let without_rings = vec!["osd (pid 7)".to_owned(), "mon (pid 8, by BLKIN_OFF)".to_owned()];
            let scan = Scan { programs: programs.to_vec(), without_rings, hidden: 0 };
            judge(&scan, consumerd, Path::new("/nonexistent/consumerd.sock"))
        };
        let names = "; these have loaded the library but have no rings, as they have recorded nothing yet or said why \
                     they cannot: osd (pid 7), mon (pid 8, by BLKIN_OFF)";
        let none = judged(&[], Some(&Metrics::default()));
        assert_eq!(none.found, format!("no instrumented program is running{names}"));
        assert_eq!((none.status, none.advice.as_deref()), (Status::Warning, Some(NO_RINGS)));
        let held = Metrics::parse("blkin_program_attempted_total{process=\"osd:1\"} 1\n");
        let others = judged(&[unread(1, None)], Some(&held));
        assert_eq!(others.status, Status::Ok, "a program that has not recorded yet is no reason to warn");
        assert!(others.found.ends_with(names), "{}", others.found);
        assert!(judged(&[], None).found.ends_with(names));
    }
}
