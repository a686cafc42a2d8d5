//! The library, installed below a DESTDIR, works for projects outside this tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use blkin_cli::span::Span;
use blkin_tests::artifacts::{output, root, run};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::wait;
use tempfile::TempDir;

const PREFIX: &str = "/opt/blkin";

/// An installation in a folder of its own.
struct Installation {
    folder: TempDir,
}

impl Installation {
    fn new() -> Result<Installation> {
        let installation = Installation { folder: TempDir::new()? };
        installation.script(&[])?;
        Ok(installation)
    }

    fn script(&self, flags: &[&str]) -> Result<()> {
        let mut install = Command::new(root().join("scripts/install"));
        run(install.args(["--prefix", PREFIX, "--destdir"]).arg(self.destdir()).args(flags))
    }

    fn destdir(&self) -> PathBuf {
        self.folder.path().join("destdir")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.destdir().join(PREFIX.trim_start_matches('/')).join(below)
    }

    /// Runs a shell command in a copy of an example, which can find BlkKin only in the installation; returns the copy's folder.
    fn build(&self, example: &str, command: &str) -> Result<PathBuf> {
        let copy = self.folder.path().join(example);
        run(Command::new("cp").arg("-r").arg(root().join("examples").join(example)).arg(&copy))?;
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", command]).current_dir(&copy);
        shell.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig")).env("CMAKE_PREFIX_PATH", self.path(""));
        run(&mut shell)?;
        Ok(copy)
    }

    /// Runs a built program, which prints a trace id, and reads that trace of `spans` spans with the installed command.
    fn trace_of(&self, program: &Path, spans: usize, node: &Node) -> Result<Vec<Span>> {
        let mut traced = Command::new(program);
        traced.env("LD_LIBRARY_PATH", self.path("lib")).env("BLKIN_SOCKET", node.socket());
        let said = output(&mut traced)?;
        let id = said.split_whitespace().last().context("the program printed no trace id")?.to_owned();
        let read = || {
            let mut blkin = Command::new(self.path("bin/blkin"));
            blkin.args(["trace", &id, "--json", "--collector", node.collector.http.base()]);
            let read: Vec<Span> = serde_json::from_str(&output(&mut blkin).ok()?).ok()?;
            (read.len() == spans).then_some(read)
        };
        wait::until(LIMIT, &format!("{spans} spans of trace {id} of {}", program.display()), read)
    }
}

#[test]
fn projects_outside_the_tree_build_and_are_traced() -> Result<()> {
    let installed = Installation::new()?;
    let node = Node::start(Setup::default())?;
    let projects = [
        ("pkgconfig", "make", "example-pkgconfig", "pkg-config"),
        ("cmake", "cmake -S . -B build && cmake --build build", "build/example-cmake", "CMake"),
        ("autotools", "autoreconf -i && ./configure --with-blkin && make", "example-autotools", "autotools"),
    ];
    for (example, command, program, tag) in projects {
        let folder = installed.build(example, command)?;
        let spans = installed.trace_of(&folder.join(program), 1, &node)?;
        let span = spans.first().context("an empty trace")?;
        assert_eq!(span.service(), format!("example-{example}").as_str());
        assert_eq!((span.name.as_deref(), span.kind.as_deref()), (Some("work"), Some("SERVER")));
        assert_eq!(span.tags.get("built with").map(String::as_str), Some(tag));
    }
    the_quickstart_works(&installed, &node)?;
    assert!(installed.path("share/bash-completion/completions/blkin").is_file());
    nothing_is_left_after_uninstall(&installed)
}

fn the_quickstart_works(installed: &Installation, node: &Node) -> Result<()> {
    let command = "cc -Wall -Werror quickstart.c $(pkg-config --cflags --libs blkin) -o quickstart
        cc -Wall -Werror rpc.c $(pkg-config --cflags --libs blkin) -o rpc
        cc -static quickstart.c $(pkg-config --static --cflags --libs blkin) -o static";
    let folder = installed.build("quickstart", command)?;
    for program in ["quickstart", "static"] {
        let spans = installed.trace_of(&folder.join(program), 2, node)?;
        let services: Vec<&str> = spans.iter().map(Span::service).collect();
        assert!(services.contains(&"gateway"), "{program}: {services:?}");
    }
    the_call_is_one_span_of_both_sides(&folder.join("rpc"), installed, node)
}

fn the_call_is_one_span_of_both_sides(program: &Path, installed: &Installation, node: &Node) -> Result<()> {
    let spans = installed.trace_of(program, 4, node)?;
    let of = |name: &str, service: &str| {
        let mut found =
            spans.iter().filter(|span| span.name.as_deref() == Some(name) && span.service() == service);
        found.next().with_context(|| format!("no {name} of {service}: {spans:#?}"))
    };
    let (get, disk) = (of("get", "gateway")?, of("disk", "osd.0")?);
    let (caller, called) = (of("read", "gateway")?, of("read", "osd.0")?);
    assert_eq!((&caller.id, &caller.parent_id), (&called.id, &called.parent_id));
    assert_eq!((caller.kind.as_deref(), called.kind.as_deref()), (Some("CLIENT"), Some("SERVER")));
    assert_eq!((&caller.parent_id, &disk.parent_id), (&Some(get.id.clone()), &Some(called.id.clone())));
    Ok(())
}

fn nothing_is_left_after_uninstall(installed: &Installation) -> Result<()> {
    installed.script(&["--uninstall"])?;
    let mut left = Command::new("find");
    let left = output(left.arg(installed.destdir()).args(["-not", "-type", "d"]))?;
    assert_eq!(left, "");
    Ok(())
}

#[test]
fn code_in_the_readme_is_that_of_the_compiled_examples() -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let shown: Vec<&str> =
        readme.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let program = |name: &str| fs::read_to_string(root().join("examples/quickstart").join(name));
    let quickstart = program("quickstart.c")?;
    let whole = lines(shown.first().context("README.md shows no C program")?);
    assert!(whole.len() >= 10, "{whole:#?}");
    let compiled = lines(&quickstart);
    assert!(
        compiled.windows(whole.len()).any(|part| part == whole),
        "README.md and quickstart.c differ: {whole:#?}"
    );
    let call = shown.iter().find(|part| part.contains("blkin_pack_trace_info"));
    let rpc = program("rpc.c")?;
    let compiled = statements(&rpc);
    let missing: Vec<&str> = statements(call.context("README.md shows no call to another process")?)
        .into_iter()
        .filter(|statement| !compiled.contains(statement))
        .collect();
    assert!(missing.is_empty(), "not in rpc.c: {missing:#?}");
    Ok(())
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Lines without trailing comments.
fn statements(text: &str) -> Vec<&str> {
    lines(text).into_iter().filter_map(|line| line.split("/*").next()).map(str::trim_end).collect()
}
