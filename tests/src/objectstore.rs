//! The example object store: a gateway, two OSDs and a client.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::artifacts::{built, output, root, run};
use crate::daemons::LIMIT;
use crate::process::Process;
use crate::wait;

/// A running cluster in a folder of its own. Its processes end in the order of the fields.
#[derive(Debug)]
pub struct ObjectStore {
    socket: PathBuf,
    _gateway: Process,
    _osds: Vec<Process>,
    folder: TempDir,
}

impl ObjectStore {
    /// Starts two OSDs and a gateway that offer their rings to `socket`.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start(socket: &Path) -> Result<ObjectStore> {
        let folder = TempDir::new()?;
        let mut osds = Vec::new();
        let mut known = Vec::new();
        for id in 0..2 {
            let name = format!("osd.{id}");
            let mut osd = Command::new(program("objstore-osd")?);
            osd.args(["--id", &id.to_string()]);
            osds.push(daemon(osd, &name, folder.path(), socket)?);
            known.extend([
                "--osd".to_owned(),
                format!("{id}=@{}", ready_file(folder.path(), &name).display()),
            ]);
        }
        let mut gateway = Command::new(program("objstore-gateway")?);
        gateway.args(known);
        let gateway = daemon(gateway, "gateway", folder.path(), socket)?;
        Ok(ObjectStore { socket: socket.to_owned(), _gateway: gateway, _osds: osds, folder })
    }

    /// Puts `count` objects, one after the other.
    ///
    /// # Errors
    /// When a put fails.
    pub fn put(&self, count: u32) -> Result<()> {
        let mut client = Command::new(program("objstore-client")?);
        client.arg("--gateway").arg(format!("@{}", ready_file(self.folder.path(), "gateway").display()));
        client.args(["load", "--mix", "100,0,0", "--threads", "1", "--count", &count.to_string()]);
        output(client.env("BLKIN_SOCKET", &self.socket)).map(drop)
    }
}

/// Builds the store once in a test process and returns one of its programs.
fn program(name: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    match folder {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) => bail!("{error}"),
    }
}

fn build() -> Result<PathBuf> {
    let folder = built()?.join("objectstore");
    let mut make = Command::new("make");
    make.args(["--quiet", "-C"]).arg(root().join("examples/objectstore"));
    // A relative path where possible, because to make a blank ends a path.
    let below =
        folder.strip_prefix(root()).map_or_else(|_| folder.clone(), |path| Path::new("../..").join(path));
    make.arg(format!("BUILD={}", below.display())).arg(format!("BLKIN_LIBDIR={}", built()?.display()));
    run(&mut make)?;
    Ok(folder)
}

fn ready_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.ready"))
}

fn daemon(mut command: Command, name: &str, folder: &Path, socket: &Path) -> Result<Process> {
    let ready = ready_file(folder, name);
    let log = folder.join(format!("{name}.log"));
    command.arg("--dir").arg(folder.join(name)).arg("--ready-file").arg(&ready);
    command
        .env("BLKIN_SOCKET", socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?);
    let mut process = Process::spawn(name, &mut command)?;
    let up = wait::until(LIMIT, &format!("{name} to be ready"), || {
        let written = std::fs::metadata(&ready).is_ok_and(|file| file.len() > 0);
        written.then_some(true).or_else(|| process.ended().map(|_| false))
    })?;
    if !up {
        bail!("{name} ended early: {}", std::fs::read_to_string(&log)?);
    }
    Ok(process)
}
