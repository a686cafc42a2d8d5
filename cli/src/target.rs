//! Which programs consumerd is asked about, and its control socket: common to `blkin set` and `blkin snapshot`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::terminal::safe;

/// Where programs offer themselves unless `BLKIN_SOCKET` says otherwise.
pub const OFFERS: &str = "/run/blkin/consumerd.sock";
/// The kernel keeps this many bytes of a program's name, and consumerd knows programs by that.
const NAME_BYTES: usize = 15;

/// At most one of these options; commands refer to them as the group `target`.
#[derive(Args, Debug)]
#[group(id = "target", multiple = false)]
pub struct Target {
    /// Every program
    #[arg(long)]
    all: bool,
    /// Programs of this name; only its first 15 bytes count
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new().try_map(parse_name))]
    label: Option<String>,
    /// One process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
}

impl Target {
    /// Whether one of them was given.
    pub fn is_given(&self) -> bool {
        self.all || self.label.is_some() || self.pid.is_some()
    }

    /// As consumerd's control socket expects it; all programs if none was given.
    pub fn request(&self) -> Value {
        match (&self.label, self.pid) {
            (Some(label), _) => json!({ "label": label }),
            (None, Some(pid)) => json!({ "pid": pid }),
            (None, None) => json!("all"),
        }
    }

    /// The part of the name that the kernel keeps, if that is not all of it.
    pub(crate) fn cut_name(&self) -> Option<String> {
        let name = self.label.as_deref().filter(|name| name.len() > NAME_BYTES)?;
        Some(safe(&String::from_utf8_lossy(&name.as_bytes()[..NAME_BYTES])))
    }

    /// The end of a sentence about the chosen programs; empty for all programs.
    pub(crate) fn suffix(&self) -> String {
        match (&self.label, self.pid) {
            (Some(label), _) => format!(" under the name {}", safe(label)),
            (None, Some(pid)) => format!(" under process id {pid}"),
            (None, None) => String::new(),
        }
    }
}

/// Refuses a name with control characters: consumerd knows such a program by another name than the one given here.
fn parse_name(name: String) -> Result<String, &'static str> {
    match name.contains(char::is_control) {
        true => Err("write ? for each control character, as such a name is shown"),
        false => Ok(name),
    }
}

/// The option for consumerd's control socket.
#[derive(Args, Debug)]
#[group(skip)]
pub struct ControlSocket {
    /// consumerd's control socket; if not given, control.sock in the folder of BLKIN_SOCKET
    #[arg(
        id = "socket",
        long = "socket",
        value_name = "PATH",
        env = "BLKIN_CONTROL_SOCKET",
        default_value_os_t = beside(&offers(std::env::var_os("BLKIN_SOCKET")))
    )]
    pub path: PathBuf,
}

impl ControlSocket {
    /// Sends consumerd a request, one line of JSON, and returns the stream from which to read the answer, for which a read waits
    /// `patience`.
    ///
    /// # Errors
    /// When consumerd cannot be reached. The error ends with advice, and `without` is the last part of that.
    pub fn ask(&self, request: &Value, patience: Duration, without: Option<&str>) -> Result<UnixStream> {
        let send = || {
            let mut stream = UnixStream::connect(&self.path)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            stream.write_all(format!("{request}\n").as_bytes())?;
            Ok(stream)
        };
        send().map_err(|error: io::Error| {
            let advice: Vec<&str> = [advice(&error)].into_iter().chain(without).collect();
            let unreachable =
                format!("failed to reach consumerd at {} ({})", self.path.display(), advice.join("; "));
            anyhow::Error::new(error).context(unreachable)
        })
    }
}

/// What to do if consumerd cannot be reached.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        // A socket of packets, not of streams.
        Some(Errno::PROTOTYPE) => {
            "that is where programs offer themselves; --socket names consumerd's control socket, control.sock beside it"
        }
        _ => "is it running? `blkin doctor` tells; --socket names another",
    }
}

/// Where programs offer themselves, given the value of `BLKIN_SOCKET`. Programs treat an empty value as unset.
pub fn offers(named: Option<OsString>) -> PathBuf {
    named.filter(|path| !path.is_empty()).map_or_else(|| OFFERS.into(), PathBuf::from)
}

/// The path of consumerd's control socket if the socket on which programs offer themselves is at `offers`.
fn beside(offers: &Path) -> PathBuf {
    offers.with_file_name("control.sock")
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    use super::*;

    fn asked(path: PathBuf) -> String {
        format!("{:#}", ControlSocket { path }.ask(&json!("all"), Duration::from_secs(5), None).unwrap_err())
    }

    #[test]
    fn the_programs_socket_is_not_reported_as_a_missing_daemon() {
        let folder = tempfile::TempDir::new().unwrap();
        let offers = folder.path().join("consumerd.sock");
        assert!(asked(offers.clone()).contains("is it running?"));
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&offers).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let said = asked(offers);
        assert!(said.contains("control.sock beside it") && !said.contains("is it running?"), "{said}");
    }

    #[test]
    fn the_control_socket_lies_beside_that_of_the_programs() {
        for (offers, control) in [
            (None, "/run/blkin/control.sock"),
            (Some(""), "/run/blkin/control.sock"),
            (Some("/srv/a/consumerd.sock"), "/srv/a/control.sock"),
            (Some("offers"), "control.sock"),
        ] {
            assert_eq!(
                beside(&super::offers(offers.map(OsString::from))),
                PathBuf::from(control),
                "{offers:?}"
            );
        }
    }
}
