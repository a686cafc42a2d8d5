//! Builds daemons, library and C programs, each once in a test process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, Result, bail, ensure};

/// The repository's root.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

/// The folder of built programs.
///
/// # Errors
/// When the build fails.
pub fn built() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Cargo's target directory.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["build", "--locked", "--quiet"]);
    // Selecting examples gives dependencies the same features as building all tests does. Otherwise the dependencies, and
    // the crates that use them, would be built twice.
    cargo.args(["--workspace", "--example", "tap", "--example", "requests"]);
    for program in ["blkin", "blkin-consumerd", "blkin-relay", "blkin-collector"] {
        cargo.args(["--bin", program]);
    }
    run(&mut cargo)?;
    run(Command::new("sh").arg(root().join("blkin-lib/build-so.sh")))?;
    Ok(target().join("debug"))
}

/// The folder of the library that C programs are linked with: this tree's, or BLKIN_TEST_LIBDIR with one that was built in
/// another way.
///
/// # Errors
/// When the build fails.
pub fn library() -> Result<PathBuf> {
    std::env::var_os("BLKIN_TEST_LIBDIR").map_or_else(|| Ok(built()?.to_owned()), |folder| Ok(folder.into()))
}

/// One of the library's ways of writing rings.
struct Producer {
    name: &'static str,
    /// The variables with which a program uses it.
    environment: [(&'static str, &'static str); 2],
}

/// All ways that the library in use supports.
fn producers() -> Result<Vec<Producer>> {
    const SEQUENCE: &[u8] = b"blkin_rseq_push_event_start";
    let way = |name, producer, areas| Producer {
        name,
        environment: [("BLKIN_PRODUCER", producer), ("GLIBC_TUNABLES", areas)],
    };
    let library = std::fs::read(library()?.join("libblkin.so"))?;
    let has_rseq = library.windows(SEQUENCE.len()).any(|name| name == SEQUENCE);
    let portable = way("portable", "portable", "glibc.pthread.rseq=1");
    let others = [
        way("rseq", "rseq", "glibc.pthread.rseq=1"),
        way("portable, without areas,", "portable", "glibc.pthread.rseq=0"),
    ];
    Ok(std::iter::once(portable).chain(others.into_iter().filter(|_| has_rseq)).collect())
}

/// Runs a test with each way of writing rings.
///
/// # Errors
/// The test's first error, with the name of the way.
pub fn with_each_producer<'a>(
    environment: &[(&'a str, &'a str)],
    test: impl Fn(&[(&'a str, &'a str)]) -> Result<()>,
) -> Result<()> {
    for producer in producers()? {
        let environment = [environment, &producer.environment].concat();
        test(&environment).with_context(|| format!("with the {} producer", producer.name))?;
    }
    Ok(())
}

/// The path of a built program: this tree's, or that in BLKIN_TEST_BINDIR, which was built in another way.
///
/// # Errors
/// When the build fails.
pub fn binary(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("BLKIN_TEST_BINDIR").map(PathBuf::from);
    Ok(folder.map_or_else(|| built().map(Path::to_owned), Ok)?.join(name))
}

/// A copy of a built program in `folder`, for other users, who may have no access to the tree.
///
/// # Errors
/// When the build or the copy fails.
pub fn binary_for_others(name: &str, folder: &Path) -> Result<PathBuf> {
    let copy = folder.join(name);
    std::fs::copy(binary(name)?, &copy)?;
    Ok(copy)
}

/// Compiles `tests/c/NAME.c` against the library of this tree and returns the program.
///
/// # Errors
/// When it does not compile.
pub fn c_program(name: &str) -> Result<PathBuf> {
    static COMPILED: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(Mutex::default);
    let mut compiled = compiled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(path) = compiled.get(name) {
        return Ok(path.clone());
    }
    let path = compile(name)?;
    compiled.insert(name.to_owned(), path.clone());
    Ok(path)
}

fn compile(name: &str) -> Result<PathBuf> {
    let library = library()?;
    let programs = built()?.join("e2e-programs");
    std::fs::create_dir_all(&programs)?;
    // The file name holds this process' id, because another test process may run the program while this one compiles it.
    let program = programs.join(format!("{name}-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Werror", "-pthread"]);
    cc.arg("-I").arg(root().join("blkin-lib/include")).arg("-o").arg(&program);
    cc.arg(root().join(format!("tests/c/{name}.c"))).arg("-L").arg(&library).arg("-lblkin");
    // RPATH, not RUNPATH: it comes before LD_LIBRARY_PATH, where cargo puts the folder of this tree's library.
    cc.args(["-Wl,--disable-new-dtags", &format!("-Wl,-rpath,{}", library.display())]);
    run(&mut cc)?;
    Ok(program)
}

/// The path of an artifact that no installed package provides, downloaded by `scripts/lib/fetch`.
///
/// # Errors
/// When it cannot be fetched or is not what it should be.
pub fn fetched(name: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(output(Command::new(root().join("scripts/lib/fetch")).arg(name))?.trim()))
}

/// Runs a command to its end.
///
/// # Errors
/// When it fails; the error holds its output.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it fails; the error holds its output.
pub fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("failed to start {command:?}"))?;
    if !done.status.success() {
        let said = [done.stdout, done.stderr].concat();
        bail!("{command:?} failed with {}:\n{}", done.status, String::from_utf8_lossy(&said));
    }
    let text = String::from_utf8(done.stdout)?;
    ensure!(text.len() < 64 << 20, "{command:?} wrote too much");
    Ok(text)
}
