//! Test programs, most of them in C; those that write count their own calls.
//!
//! They print `ready` once initialised. Then each line on standard input starts a round, at whose end they print
//! `wrote CALLS`. They exit at the end of the input.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::artifacts::{binary, c_program};
use crate::daemons::LIMIT;
use crate::process::Process;

/// A running test program.
#[derive(Debug)]
pub struct Program {
    /// Its process.
    pub process: Process,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts `tests/c/NAME.c`, which offers its rings to `socket`, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not compile, start or become ready.
    pub fn start(
        name: &str,
        arguments: &[&str],
        socket: &Path,
        environment: &[(&str, &str)],
    ) -> Result<Program> {
        Program::of(name, Command::new(c_program(name)?).args(arguments), socket, environment)
    }

    /// As [`Program::start`], with a file for its standard error.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn start_overheard(
        name: &str,
        arguments: &[&str],
        socket: &Path,
        environment: &[(&str, &str)],
        errors: &Path,
    ) -> Result<Program> {
        let mut command = Command::new(c_program(name)?);
        Program::of(name, command.args(arguments).stderr(File::create(errors)?), socket, environment)
    }

    /// Starts one of consumerd's examples, a Rust program, in the same way.
    ///
    /// # Errors
    /// When it does not start or become ready.
    pub fn start_rust(name: &str, socket: &Path) -> Result<Program> {
        Program::of(name, &mut Command::new(binary(&format!("examples/{name}"))?), socket, &[])
    }

    fn of(name: &str, command: &mut Command, socket: &Path, environment: &[(&str, &str)]) -> Result<Program> {
        command.env("BLKIN_SOCKET", socket).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(name, command)?;
        let input = process.child().stdin.take();
        let output = BufReader::new(process.child().stdout.take().context("no pipe to the program")?);
        let mut program = Program { process, input, output };
        ensure!(program.line()? == "ready", "{name} did not become ready");
        Ok(program)
    }

    /// Starts a round without waiting for its end.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn begin(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("the program was told to end")?;
        Ok(input.write_all(b"go\n")?)
    }

    /// Waits for the end of a round and returns how many calls the program counted in it.
    ///
    /// # Errors
    /// When the program fails.
    pub fn finish(&mut self) -> Result<i64> {
        let line = self.line()?;
        let count = line.strip_prefix("wrote ").with_context(|| format!("the program said {line:?}"))?;
        Ok(count.parse()?)
    }

    /// Runs one round and returns its calls.
    ///
    /// # Errors
    /// When the program fails.
    pub fn round(&mut self) -> Result<i64> {
        self.begin()?;
        self.finish()
    }

    /// Closes the program's input and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn end(&mut self) -> Result<ExitStatus> {
        self.input = None;
        self.process.wait(LIMIT)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line)?;
        ensure!(read > 0, "the program ended early");
        Ok(line.trim_end().to_owned())
    }
}
