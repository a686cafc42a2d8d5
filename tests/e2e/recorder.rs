//! Flight recorders: programs that overwrite their oldest annotations, snapshots of them, and what `blkin recover` reads from
//! the files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::{binary, binary_for_others, with_each_producer};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::process::signal_pid;
use blkin_tests::program::Program;
use blkin_tests::wait;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Small, so that a round overwrites it many times.
const RING: (&str, &str) = ("BLKIN_RING_BYTES", "65536");
const OVERWRITE: (&str, &str) = ("BLKIN_MODE", "overwrite");
/// Large enough for everything that a few rounds write.
const WHOLE: (&str, &str) = ("BLKIN_RING_BYTES", "4194304");
const CALLS_A_TRACE: i64 = 8;
const THREADS: usize = 2;

/// A consumerd, and a folder for files.
struct Site {
    node: Node,
    folder: TempDir,
}

/// A flight recorder that has recorded at least one round.
struct Recorder {
    program: Program,
    pid: String,
    /// Calls so far.
    calls: i64,
}

/// What `blkin recover` printed.
struct Recovered {
    annotations: Vec<Value>,
    summary: String,
}

fn run(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(binary("blkin")?).args(arguments).output()?)
}

fn recover(file: &Path) -> Result<Recovered> {
    let output = run(&["recover", "--json", &file.display().to_string()])?;
    let summary = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{summary}");
    let lines = String::from_utf8(output.stdout)?;
    let annotations = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(Recovered { annotations, summary })
}

impl Recovered {
    fn len(&self) -> i64 {
        self.annotations.len() as i64
    }

    /// The times of the annotations that have one.
    fn times(&self) -> impl Iterator<Item = i64> {
        self.annotations.iter().filter_map(|annotation| annotation["time_ns"].as_i64())
    }

    /// The numbers of the traces whose number is among the annotations.
    fn numbers(&self) -> Vec<i64> {
        self.annotations.iter().filter(|a| a["key"] == "number").filter_map(|a| a["value"].as_i64()).collect()
    }

    /// The ordinals of each ring, in the order of the file.
    fn rings(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut rings: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for annotation in &self.annotations {
            let ordinal = annotation["ordinal"].as_u64().unwrap_or(u64::MAX);
            rings.entry(annotation["slot"].as_u64().unwrap_or(u64::MAX)).or_default().push(ordinal);
        }
        rings.values_mut().for_each(|ordinals| ordinals.sort_unstable());
        rings
    }

    /// The annotations without their times, ring by ring. Times may differ between two snapshots: they are computed from two
    /// readings of both clocks, and the second is taken at the snapshot.
    fn without_times(&self) -> Vec<[Value; 8]> {
        let keys = ["slot", "ordinal", "trace_id", "span_id", "name", "service", "key", "value"];
        let mut all: Vec<_> = self.annotations.iter().map(|a| keys.map(|key| a[key].clone())).collect();
        all.sort_by_key(|of| (of[0].as_u64(), of[1].as_u64()));
        all
    }

    /// Checks that what each ring gave is a stretch without a gap, but for `holes` at most, and that nothing is corrupt.
    fn check_whole(&self, holes: usize) -> Result<()> {
        ensure!(self.summary.contains(" 0 corrupt"), "{}", self.summary);
        for (slot, ordinals) in self.rings() {
            let steps: Vec<u64> = ordinals.windows(2).map(|pair| pair[1] - pair[0]).collect();
            ensure!(!steps.contains(&0), "ring {slot}: a record was read twice");
            let gaps = steps.iter().filter(|step| **step > 1).count();
            ensure!(gaps <= holes, "ring {slot}: {gaps} gaps");
        }
        Ok(())
    }
}

impl Site {
    fn start() -> Result<Site> {
        Ok(Site { node: Node::start(Setup::default())?, folder: TempDir::new()? })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Program> {
        Program::start("writer", arguments, &self.node.socket(), environment)
    }

    /// Starts a recorder and waits until consumerd has seen its first round.
    fn recorder(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Recorder> {
        let program = self.program(arguments, environment)?;
        let mut recorder = Recorder { pid: program.process.pid().to_string(), program, calls: 0 };
        self.round(&mut recorder)?;
        Ok(recorder)
    }

    /// Runs another round and waits until consumerd has seen it.
    fn round(&self, recorder: &mut Recorder) -> Result<()> {
        recorder.program.begin()?;
        self.finish(recorder)
    }

    /// Waits for the end of the round that was begun, and until consumerd has seen it.
    fn finish(&self, recorder: &mut Recorder) -> Result<()> {
        recorder.calls += recorder.program.finish()?;
        self.attempted(recorder.calls)
    }

    fn try_snapshot(&self, arguments: &[&str]) -> Result<Output> {
        let socket = self.node.folder().join("control.sock").display().to_string();
        let file = self.file("saved").display().to_string();
        run(&[&["snapshot", "--socket", &socket, "-o", &file], arguments].concat())
    }

    /// Takes a snapshot and reads it.
    fn snapshot(&self, arguments: &[&str]) -> Result<Recovered> {
        let output = self.try_snapshot(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "blkin snapshot {arguments:?}: {error}");
        recover(&self.file("saved"))
    }

    /// Takes a snapshot of a program that has ended, once consumerd has noticed that.
    fn snapshot_of_ended(&self, arguments: &[&str]) -> Result<Recovered> {
        wait::until(LIMIT, "the recorder of an ended program", || {
            let kept = self.snapshot(arguments).ok()?;
            kept.summary.contains("it had ended").then_some(kept)
        })
    }

    /// One of consumerd's metrics.
    fn figure(&self, name: &str, labels: &[(&str, &str)]) -> Result<i64> {
        Ok(self.node.consumerd()?.metrics()?.sum(name, labels))
    }

    fn overwritten(&self) -> Result<i64> {
        self.figure("blkin_lost_total", &[("cause", "overwritten")])
    }

    fn released(&self) -> Result<i64> {
        self.figure("blkin_lost_total", &[("cause", "recorder_released")])
    }

    fn stalled(&self) -> Result<i64> {
        self.figure("blkin_program_lost_total", &[("cause", "stalled")])
    }

    /// Waits until consumerd counts that many calls.
    fn attempted(&self, calls: i64) -> Result<()> {
        wait::until(LIMIT, "consumerd to see every call", || {
            (self.figure("blkin_program_attempted_total", &[]).ok()? == calls).then_some(())
        })
    }

    /// Waits until consumerd holds no program any more, and checks the ledger.
    fn departed(&self) -> Result<()> {
        wait::until(LIMIT, "the program to depart", || {
            (self.figure("blkin_programs", &[]).ok()? == 0).then_some(())
        })?;
        let ledger = self.node.ledger()?;
        ensure!(ledger.balances(), "{ledger:#?}");
        Ok(())
    }
}

impl Recorder {
    /// The program's name in the kernel.
    fn label(&self) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/comm", self.pid))?.trim_end().to_owned())
    }

    fn end(mut self) -> Result<()> {
        ensure!(self.program.end()?.success(), "the program failed");
        Ok(())
    }
}

fn now_ns() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

#[test]
fn every_call_is_held_by_the_recorder_or_counted_as_lost() -> Result<()> {
    with_each_producer(&[OVERWRITE, RING], |environment| {
        let site = Site::start()?;
        let mut recorder = site.recorder(&["--threads", "2", "--traces", "3000"], environment)?;
        for _ in 0..2 {
            site.round(&mut recorder)?;
            let held = site.snapshot(&["--pid", &recorder.pid])?;
            held.check_whole(0)?;
            let (overwritten, stalled) = (site.overwritten()?, site.stalled()?);
            ensure!(held.len() > 500, "{} held", held.len());
            let counted = held.len() + overwritten + stalled;
            ensure!(
                counted == recorder.calls,
                "{} + {overwritten} + {stalled} of {}",
                held.len(),
                recorder.calls
            );
            ensure!(site.figure("blkin_pending", &[])? == held.len());
        }
        // A writer that is preempted between reserving and committing leaves a hole, which the portable producer's other
        // writers cannot evict until it goes on. Nothing else may be lost.
        ensure!(site.figure("blkin_program_lost_total", &[])? == site.stalled()?);
        ensure!(site.figure("blkin_drained_total", &[])? == 0, "a recorder was drained");
        let (label, calls) = (recorder.label()?, recorder.calls);
        recorder.end()?;
        let held = site.snapshot_of_ended(&["--label", &label])?;
        ensure!(held.numbers().contains(&2999), "the last trace is missing");
        site.departed()?;
        ensure!(
            site.overwritten()? + held.len() + site.stalled()? == calls && site.released()? == held.len()
        );
        Ok(())
    })
}

#[test]
fn a_recorder_repeats_its_offer_until_consumerd_starts() -> Result<()> {
    with_each_producer(&[OVERWRITE, RING], |environment| {
        let node = Node::without_consumerd(Setup::default())?;
        let mut site = Site { node, folder: TempDir::new()? };
        let mut program = site.program(&["--traces", "2000"], environment)?;
        let mut calls = program.round()?;
        site.node.start_consumerd()?;
        wait::until(LIMIT, "the program to be held", || {
            calls += program.round().ok()?;
            (site.figure("blkin_programs", &[]).ok()? == 1).then_some(())
        })?;
        site.attempted(calls)?;
        ensure!(program.end()?.success());
        Ok(())
    })
}

#[test]
fn a_snapshot_of_a_running_program_is_consistent() -> Result<()> {
    // Paced to take a second or two: on a busy machine, a program at full speed may overtake the copying.
    const TRACES: &str = "20000";
    with_each_producer(&[OVERWRITE, WHOLE], |environment| {
        let site = Site::start()?;
        let shape = ["--threads", "2", "--traces", TRACES, "--pace-us", "10"];
        let mut program = site.program(&shape, environment)?;
        let before = now_ns()?;
        program.begin()?;
        wait::until(LIMIT, "the program to record", || (site.overwritten().ok()? > 0).then_some(()))?;
        for _ in 0..3 {
            let held = site.snapshot(&["--all"])?;
            held.check_whole(THREADS)?;
            let last = held.times().max().context("nothing was held")?;
            ensure!((before..now_ns()?).contains(&last), "{}", last - before);
        }
        let calls = program.finish()?;
        ensure!(calls == THREADS as i64 * TRACES.parse::<i64>()? * CALLS_A_TRACE, "{calls}");
        site.attempted(calls)?;
        let held = site.snapshot(&["--all"])?;
        ensure!(held.len() + site.overwritten()? == calls);
        ensure!(program.end()?.success());
        Ok(())
    })
}

#[test]
fn a_snapshot_can_be_limited_to_the_last_moments() -> Result<()> {
    let site = Site::start()?;
    let mut recorder = site.recorder(&["--traces", "2000", "--pace-us", "500"], &[OVERWRITE, WHOLE])?;
    let (early, pid) = (recorder.calls, recorder.pid.clone());
    let since = now_ns()?;
    recorder.program.begin()?;
    let later = || (site.snapshot(&["--pid", &pid]).ok()?.len() > early + 100).then_some(());
    wait::until(LIMIT, "the second round to have begun", later)?;
    let all = site.snapshot(&["--pid", &pid])?;
    let last_ms = (now_ns()? - since) / 1_000_000;
    let asked = now_ns()?;
    let last = site.snapshot(&["--pid", &pid, "--last", &format!("{last_ms}ms")])?;
    let answered = now_ns()?;
    // The snapshot was taken at some moment between `asked` and `answered`.
    let (earliest, surely) = (asked - last_ms * 1_000_000, answered - last_ms * 1_000_000);
    ensure!(last.times().all(|time| time >= earliest), "annotations from before the limit were taken");
    ensure!(earliest >= since, "the limit reaches into the first round");
    let count = |of: &Recovered| of.times().filter(|time| *time >= surely).count();
    ensure!(count(&last) >= count(&all), "{} of {}", count(&last), count(&all));
    site.finish(&mut recorder)?;
    for long in [&["--pid", &pid][..], &["--pid", &pid, "--last", "1h"]] {
        ensure!(site.snapshot(long)?.len() == recorder.calls);
    }
    ensure!(site.snapshot(&["--pid", &pid, "--last", "1ms"])?.annotations.is_empty());
    recorder.end()
}

#[test]
fn the_recorder_of_a_killed_program_is_kept_until_taken() -> Result<()> {
    let site = Site::start()?;
    let mut recorder = site.recorder(&["--traces", "3000"], &[OVERWRITE, RING])?;
    let Recorder { ref pid, calls, .. } = recorder;
    let before = site.snapshot(&["--pid", pid])?;
    recorder.program.process.kill()?;
    // The worker may die as well, because the holder keeps the rings.
    let worker = site.node.worker()?;
    signal_pid(worker, Signal::KILL)?;
    wait::until(LIMIT, "another worker", || site.node.worker().ok().filter(|pid| *pid != worker))?;
    site.attempted(calls)?;
    site.snapshot_of_ended(&["--pid", pid, "--last", "1ms"])?;
    // A snapshot of the last millisecond leaves the recorder in place.
    let kept = site.snapshot_of_ended(&["--pid", pid])?;
    ensure!(kept.without_times() == before.without_times(), "{} of {}", kept.len(), before.len());
    // The whole snapshot releases the recorder, so nobody else gets it. Overwritten and released annotations are counted apart.
    site.departed()?;
    ensure!(site.released()? == kept.len() && site.overwritten()? + kept.len() == calls);
    let again = site.try_snapshot(&["--pid", pid])?;
    ensure!(again.status.code() == Some(1), "{again:?}");
    Ok(())
}

#[test]
fn without_consumerd_a_snapshot_is_taken_through_proc() -> Result<()> {
    let folder = TempDir::new()?;
    let nowhere = folder.path().join("nobody.sock");
    let mut program = Program::start("writer", &["--traces", "3000"], &nowhere, &[OVERWRITE, RING])?;
    let calls = program.round()?;
    let pid = program.process.pid().to_string();
    let (socket, file) = (nowhere.display().to_string(), folder.path().join("saved"));
    let saved = file.display().to_string();
    let output = run(&["snapshot", "--pid", &pid, "--socket", &socket, "-o", &saved])?;
    ensure!(output.status.success(), "{output:?}");
    let held = recover(&file)?;
    held.check_whole(0)?;
    ensure!(held.numbers().last() == Some(&2999) && held.len() < calls, "{}", held.len());
    ensure!(
        held.annotations.iter().all(|a| a["program"].as_str().is_some_and(|name| name.starts_with("writer")))
    );
    // --all needs consumerd, which knows the programs.
    let output = run(&["snapshot", "--all", "--socket", &socket, "-o", &saved])?;
    ensure!(output.status.code() == Some(1) && !output.stderr.is_empty());
    ensure!(program.end()?.success());
    Ok(())
}

#[test]
fn damaged_and_truncated_files_are_recovered_in_part() -> Result<()> {
    let site = Site::start()?;
    let recorder = site.recorder(&["--traces", "20000"], &[OVERWRITE, WHOLE])?;
    let whole = site.snapshot(&["--label", &recorder.label()?])?;
    ensure!(whole.summary.contains(" 0 missing") && !whole.summary.contains("damaged"), "{}", whole.summary);
    let saved = fs::read(site.file("saved"))?;

    let mut damaged = saved.clone();
    damaged[saved.len() / 2] ^= 1;
    fs::write(site.file("damaged"), &damaged)?;
    let some = recover(&site.file("damaged"))?;
    ensure!(some.summary.contains("bytes are damaged"), "{}", some.summary);
    ensure!(some.summary.contains("1 section is missing"), "{}", some.summary);
    // The damaged byte costs at most one section of 64 KiB.
    ensure!((1..=1024).contains(&(whole.len() - some.len())), "{} of {}", some.len(), whole.len());
    let all = whole.without_times();
    let order = |of: &[Value; 8]| (of[0].as_u64(), of[1].as_u64());
    let is_same =
        |one: &[Value; 8]| all.binary_search_by_key(&order(one), order).is_ok_and(|at| all[at] == *one);
    ensure!(some.without_times().iter().all(is_same));

    fs::write(site.file("cut"), &saved[..saved.len() / 2])?;
    let some = recover(&site.file("cut"))?;
    ensure!(some.summary.contains("the file ends too early"), "{}", some.summary);
    ensure!(!some.summary.contains("damaged"), "{}", some.summary);
    ensure!(some.len() > whole.len() / 3 && some.len() < whole.len(), "{}", some.len());

    fs::write(site.file("other"), b"something else")?;
    let output = run(&["recover", &site.file("other").display().to_string()])?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1) && error.contains("neither a saved segment nor a copy"),
        "{error}"
    );
    recorder.end()
}

#[test]
fn a_copy_of_the_segment_is_read_like_a_snapshot() -> Result<()> {
    let site = Site::start()?;
    let recorder = site.recorder(&["--traces", "3000"], &[OVERWRITE, RING])?;
    let snapshot = site.snapshot(&["--pid", &recorder.pid])?;
    let segment = fs::read_dir(format!("/proc/{}/fd", recorder.pid))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("blkin-segment")))
        .context("the program has no segment")?;
    fs::copy(segment, site.file("copy"))?;
    let copy = recover(&site.file("copy"))?;
    copy.check_whole(0)?;
    ensure!(copy.without_times() == snapshot.without_times(), "{} and {}", copy.len(), snapshot.len());
    let bytes = fs::read(site.file("copy"))?;
    fs::write(site.file("half"), &bytes[..bytes.len() / 2])?;
    recover(&site.file("half"))?.check_whole(1)?;
    recorder.end()
}

/// A user who is neither root nor the daemon's user.
const NOBODY: u32 = 65_534;

#[test]
fn snapshot_does_not_read_programs_of_other_users() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        writeln!(std::io::stderr(), "not shown: this needs root")?;
        return Ok(());
    }
    let site = Site::start()?;
    let recorder = site.recorder(&["--traces", "2"], &[OVERWRITE, WHOLE])?;
    fs::set_permissions(site.node.folder(), fs::Permissions::from_mode(0o755))?;
    let blkin = binary_for_others("blkin", site.node.folder())?;
    for whose in [&["--all"][..], &["--pid", &recorder.pid]] {
        let mut command = Command::new(&blkin);
        command.arg("snapshot").args(whose).args(["-o", "/dev/null", "--socket"]);
        command.arg(site.node.folder().join("control.sock")).uid(NOBODY).gid(NOBODY);
        let output = command.output()?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1) && error.contains("no program that you may read"), "{error}");
    }
    recorder.end()
}

#[test]
fn recover_prints_one_line_for_each_annotation() -> Result<()> {
    let site = Site::start()?;
    let recorder = site.recorder(&["--traces", "2", "--service", "osd.7"], &[OVERWRITE, WHOLE])?;
    let Recorder { ref pid, calls, .. } = recorder;
    site.snapshot(&["--all"])?;
    let output = run(&["recover", &site.file("saved").display().to_string()])?;
    let (text, summary) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(text.lines().count() as i64 == calls, "{text}");
    for expected in ["osd.7 write ", " warning cs\n", " Object = second\n", " number = 1\n"] {
        ensure!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    ensure!(summary.contains(&format!(":{pid}")), "{summary}");
    ensure!(summary.contains(&format!("{calls} annotations, 0 corrupt, 0 missing")), "{summary}");
    recorder.end()
}
