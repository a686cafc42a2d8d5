//! A stand-in for systemd's descriptor store: it takes descriptors on a socket, and hands them to the process that it starts
//! next. `tests/systemd` uses the real systemd.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use blkin_consumerd::link::{Received, receive};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, pwrite};

type Kept = Arc<Mutex<BTreeMap<String, OwnedFd>>>;

/// The manager, and the descriptors that it keeps.
pub struct Manager {
    socket: PathBuf,
    kept: Kept,
}

impl Manager {
    /// Listens at a path until the process ends.
    pub fn start(socket: PathBuf) -> Self {
        let listening = UnixDatagram::bind(&socket).unwrap();
        let kept = Kept::default();
        let of_thread = kept.clone();
        std::thread::spawn(move || {
            loop {
                take(&receive(&listening, 4096).unwrap(), &of_thread);
            }
        });
        Self { socket, kept }
    }

    /// The names of the descriptors that it keeps.
    pub fn names(&self) -> Vec<String> {
        self.kept.lock().unwrap().keys().cloned().collect()
    }

    /// How many programs it keeps.
    pub fn programs(&self) -> usize {
        self.names().iter().filter(|name| name.starts_with('p')).count()
    }

    /// Drops the descriptors of programs, as if it had not been told of them yet.
    pub fn lose_programs(&self) {
        self.kept.lock().unwrap().retain(|name, _| name == "staging");
    }

    /// Overwrites bytes of the staging memory.
    pub fn spoil_staging(&self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.kept.lock().unwrap()["staging"], bytes, at).unwrap(), bytes.len());
    }

    /// A command that starts the program appended to it as the unit's next process, with everything that is kept.
    pub fn starter(&self) -> Command {
        let kept = self.kept.lock().unwrap();
        let names = kept.keys().cloned().collect::<Vec<_>>().join(":");
        let inherited: Vec<OwnedFd> = kept.values().map(|fd| fcntl_dupfd_cloexec(fd, 200).unwrap()).collect();
        let redirections = inherited.iter().enumerate().map(|(at, fd)| {
            fcntl_setfd(fd, FdFlags::empty()).unwrap();
            format!("exec {}<&{} {1}<&-; ", at + 3, fd.as_raw_fd())
        });
        let script = format!("{}export LISTEN_PID=$$; exec \"$@\"", redirections.collect::<String>());
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]);
        command.env("NOTIFY_SOCKET", &self.socket).env("FDSTORE", "100");
        command.env("LISTEN_FDS", inherited.len().to_string()).env("LISTEN_FDNAMES", names);
        // They must stay open until the command is run.
        std::mem::forget(inherited);
        command
    }
}

fn take(received: &Received, kept: &Kept) {
    let text = String::from_utf8_lossy(&received.bytes);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let Some(name) = value("FDNAME=") else { return };
    let mut kept = kept.lock().unwrap();
    match received.fds.first() {
        Some(fd) if value("FDSTORE=") == Some("1") => drop(kept.insert(name.into(), fd.try_clone().unwrap())),
        _ if value("FDSTOREREMOVE=") == Some("1") => drop(kept.remove(name)),
        _ => panic!("{text}"),
    }
}
