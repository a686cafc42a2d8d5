//! consumerd's socket, at which programs offer their rings.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Check;
use super::daemons::{DaemonAnswers, OF_CONSUMERD, log_of};

/// Whether a program of this user could offer its rings to the consumerd that gave `answers`.
pub(super) fn check(path: &Path, answers: &DaemonAnswers) -> Check {
    const NAME: &str = "consumerd's socket";
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && answers.is_well(OF_CONSUMERD) => Check::failed(
            NAME,
            format!("{shown} does not exist, though the blkin-consumerd at {} is healthy", answers.base),
            "if that is its socket, somebody removed it: restart blkin-consumerd; if its socket is elsewhere, set BLKIN_SOCKET for \
             programs and for this command; in a container, mount the folder of the socket (docs/deploy.md)",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Check::failed(
            NAME,
            format!("{shown} does not exist"),
            "start blkin-consumerd; in a container, mount the folder of the socket (docs/deploy.md); if the socket is not at the \
             default place, set BLKIN_SOCKET for programs and for this command",
        ),
        Err(error) => Check::failed(
            NAME,
            format!("failed to look at {shown}: {error}"),
            "make its folder searchable for this user",
        ),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Check::failed(NAME, format!("{shown} is not a socket"), NO_SOCKET)
        }
        Ok(_) => connectable(NAME, path),
    }
}

/// What to do about a path that is not a socket. It may be anything, so the advice is not to remove it.
const NO_SOCKET: &str = "name consumerd's socket with --socket or BLKIN_SOCKET; if that is its path, move what is there and \
                         restart blkin-consumerd";

fn connectable(name: &'static str, path: &Path) -> Check {
    let shown = path.display();
    let attempt = || {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &address)
    };
    match attempt() {
        Ok(()) => {
            let but = closed_to_others(path).map(|what| format!("; {what}")).unwrap_or_default();
            Check::ok(name, format!("{shown} can be connected to by this user{but}"))
        }
        Err(rustix::io::Errno::ACCESS) => Check::failed(
            name,
            format!("{shown} refuses user {}", rustix::process::geteuid().as_raw()),
            "its mode should be 0666: restart blkin-consumerd, which sets it",
        ),
        Err(rustix::io::Errno::CONNREFUSED) => Check::failed(
            name,
            format!("nobody listens at {shown}"),
            "start blkin-consumerd: the last one left its socket behind",
        ),
        Err(rustix::io::Errno::PROTOTYPE) => Check::failed(
            name,
            format!("{shown} is not the socket on which consumerd accepts programs"),
            "name that one with --socket or BLKIN_SOCKET, for programs and for this command: /run/blkin/consumerd.sock unless \
             consumerd's `socket` says otherwise",
        ),
        Err(rustix::io::Errno::AGAIN) => Check::warning(
            name,
            format!("{shown} has a full queue"),
            format!("blkin-consumerd accepts too slowly: look at {}", log_of("consumerd")),
        ),
        Err(error) => {
            Check::failed(name, format!("failed to connect to {shown}: {error}"), "restart blkin-consumerd")
        }
    }
}

/// What keeps ordinary users from the socket at `path`, if anything: its mode, or the mode of a folder above it.
pub(super) fn closed_to_others(path: &Path) -> Option<String> {
    let lacks = |path: &Path, bit: u32| {
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        (mode & bit == 0).then(|| format!("{} is closed to other users (mode {mode:04o})", path.display()))
    };
    lacks(path, 0o002).or_else(|| path.ancestors().skip(1).find_map(|folder| lacks(folder, 0o001)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::super::Status;
    use super::*;
    use crate::http::{Client, answering};

    fn folder_for(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("blkin-doctor-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn answers(client: Client) -> DaemonAnswers {
        DaemonAnswers::ask(client, "/healthz")
    }

    #[test]
    fn a_socket_closed_to_other_users_is_reported_with_its_mode() {
        let folder = folder_for("closed");
        let path = folder.join("socket");
        std::fs::write(&path, "").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&path, 0o600);
        let closed = closed_to_others(&path).unwrap();
        assert_eq!(closed, format!("{} is closed to other users (mode 0600)", path.display()));
        mode(&path, 0o666);
        mode(&folder, 0o750);
        let closed = closed_to_others(&path).unwrap();
        assert_eq!(closed, format!("{} is closed to other users (mode 0750)", folder.display()));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_state_of_the_socket_has_its_own_message() {
        let folder = folder_for("states");
        let path = folder.join("socket");
        let nobody = answers(Client::new("127.0.0.1:1"));
        let socket = |path: &Path| check(path, &nobody);
        assert!(socket(&path).found.ends_with("does not exist"));
        let well = check(&path, &answers(answering(|_| ("200 OK", "blkin_offers_total 1\n"))));
        assert!(well.found.contains(" does not exist, though ") && well.advice.unwrap().contains("restart"));
        std::fs::write(&path, "").unwrap();
        let other = socket(&path);
        assert!(other.found.ends_with("is not a socket") && !other.advice.unwrap().contains("remove"));
        std::fs::remove_file(&path).unwrap();

        let address = SocketAddrUnix::new(&path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        assert!(socket(&path).found.starts_with("nobody listens at"));
        rustix::net::listen(&listener, 4).unwrap();
        assert_eq!(socket(&path).status, Status::Ok);

        let control = folder.join("control.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&control).unwrap();
        let wrong = socket(&control);
        assert!(
            wrong.found.ends_with(" is not the socket on which consumerd accepts programs"),
            "{}",
            wrong.found
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
