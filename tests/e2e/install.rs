//! Installed below a DESTDIR, the library serves projects that know nothing of this tree.

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

    /// A shell command in a copy of an example, with nothing but the installation to find BlkKin by.
    fn build(&self, example: &str, command: &str) -> Result<PathBuf> {
        let copy = self.folder.path().join(example);
        run(Command::new("cp").arg("-r").arg(root().join("examples").join(example)).arg(&copy))?;
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", command]).current_dir(&copy);
        shell.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig")).env("CMAKE_PREFIX_PATH", self.path(""));
        run(&mut shell)?;
        Ok(copy)
    }

    /// Runs a built program, and reads the trace whose id it printed by the installed command.
    fn trace_of(&self, program: &Path, node: &Node) -> Result<Vec<Span>> {
        let mut traced = Command::new(program);
        traced.env("LD_LIBRARY_PATH", self.path("lib")).env("BLKIN_SOCKET", node.socket());
        let said = output(&mut traced)?;
        let id = said.split_whitespace().last().context("the program printed no trace id")?.to_owned();
        let read = || {
            let mut blkin = Command::new(self.path("bin/blkin"));
            blkin.args(["trace", &id, "--json", "--collector", node.collector.http.base()]);
            output(&mut blkin).ok()
        };
        let json = wait::until(LIMIT, &format!("trace {id} of {}", program.display()), read)?;
        Ok(serde_json::from_str(&json)?)
    }
}

#[test]
fn projects_out_of_tree_get_their_spans_into_the_collector() -> Result<()> {
    let installed = Installation::new()?;
    let node = Node::start(Setup::default())?;
    let projects = [
        ("pkgconfig", "make", "example-pkgconfig", "pkg-config"),
        ("cmake", "cmake -S . -B build && cmake --build build", "build/example-cmake", "CMake"),
        ("autotools", "autoreconf -i && ./configure --with-blkin && make", "example-autotools", "autotools"),
    ];
    for (example, command, program, tag) in projects {
        let folder = installed.build(example, command)?;
        let spans = installed.trace_of(&folder.join(program), &node)?;
        let span = spans.first().context("an empty trace")?;
        assert_eq!((spans.len(), span.service()), (1, format!("example-{example}").as_str()));
        assert_eq!((span.name.as_deref(), span.kind.as_deref()), (Some("work"), Some("SERVER")));
        assert_eq!(span.tags.get("built with").map(String::as_str), Some(tag));
    }
    the_quickstart_works(&installed, &node)?;
    nothing_is_left_after_uninstall(&installed)
}

fn the_quickstart_works(installed: &Installation, node: &Node) -> Result<()> {
    let command = "cc -Wall -Werror quickstart.c $(pkg-config --cflags --libs blkin) -o quickstart
        cc -static quickstart.c $(pkg-config --static --cflags --libs blkin) -o static";
    let folder = installed.build("quickstart", command)?;
    for program in ["quickstart", "static"] {
        let spans = installed.trace_of(&folder.join(program), node)?;
        let services: Vec<&str> = spans.iter().map(Span::service).collect();
        assert!(services.contains(&"gateway"), "{program}: {services:?}");
    }
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
fn the_readme_shows_the_program_that_is_compiled() -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let program = fs::read_to_string(root().join("examples/quickstart/quickstart.c"))?;
    let shown = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = shown.context("README.md shows no C program")?;
    let lines = |text: &str| {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    let (shown, program) = (lines(shown), lines(&program));
    assert!(shown.len() >= 10, "{shown:#?}");
    assert!(
        program.windows(shown.len()).any(|part| part == shown),
        "README.md and quickstart.c differ: {shown:#?}"
    );
    Ok(())
}
