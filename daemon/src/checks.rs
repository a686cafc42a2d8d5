//! The checks that daemons make of their configuration before they start. All report a [`ConfigError`], which names the key.
//!
//! Some checks depend on the machine and on the user that runs the daemon, such as whether a folder can be written. A daemon
//! makes these apart from the checks of the values alone, since a configuration may be read on another machine.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde::{Deserialize, Deserializer};

use crate::config::ConfigError;

/// A value that cannot be used, and what is allowed.
pub fn invalid(key: &'static str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key, reason: reason.into() }
}

/// Checks numbers, each with its key, the least and the most that it may be.
///
/// # Errors
/// Names the first that is out of its range.
pub fn in_ranges(
    numbers: impl IntoIterator<Item = (&'static str, u64, u64, u64)>,
) -> Result<(), ConfigError> {
    let mut numbers = numbers.into_iter();
    match numbers.find(|&(_, value, least, most)| !(least..=most).contains(&value)) {
        Some((key, value, least, most)) => {
            Err(invalid(key, format!("{value} is not between {least} and {most}")))
        }
        None => Ok(()),
    }
}

/// Parses an address to listen on, for clap; the error says how such an address is written.
///
/// # Errors
/// When it is not an address with a port.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let wanted =
            "write ADDRESS:PORT, such as 127.0.0.1:9410, [::1]:9410, or 0.0.0.0:9410 for every address";
        format!("{text:?} is not an address to listen on; {wanted}")
    })
}

/// Parses an address to listen on in a file, for serde.
///
/// # Errors
/// When it is not a string, or not an address with a port.
pub fn read_listen_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    listen_address(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Checks that two listeners do not want the same port of the same address. Port 0 is a different port each time.
///
/// # Errors
/// Names the second key.
pub fn listen_apart(
    (one, at): (&'static str, SocketAddr),
    (other, other_at): (&'static str, SocketAddr),
) -> Result<(), ConfigError> {
    if at.port() == 0 || at.port() != other_at.port() || !share(at.ip(), other_at.ip()) {
        return Ok(());
    }
    Err(invalid(other, format!("{other_at} is taken by {one} ({at}); choose another port for one of them")))
}

/// Whether two addresses overlap. A socket that listens on every IPv6 address also listens on every IPv4 address.
fn share(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    let takes = |all: IpAddr, other: IpAddr| all.is_unspecified() && (all.is_ipv6() || other.is_ipv4());
    one == other || takes(one, other) || takes(other, one)
}

/// Checks that a folder is named: an empty one would be the working directory.
///
/// # Errors
/// When it is empty.
pub fn named_folder(key: &'static str, folder: &Path) -> Result<(), ConfigError> {
    if folder.as_os_str().is_empty() { Err(invalid(key, "a folder is needed")) } else { Ok(()) }
}

/// Checks that this process may write into a folder, or create it if it does not exist. Nothing is left behind.
///
/// # Errors
/// Says what cannot be written, and why.
pub fn writable_folder(key: &'static str, folder: &Path) -> Result<(), ConfigError> {
    named_folder(key, folder)?;
    let there = folder.ancestors().find(|part| part.exists()).unwrap_or(Path::new("."));
    let what = if there == folder { "exists" } else { "is the nearest parent that exists" };
    if !there.is_dir() {
        return Err(invalid(key, format!("{} {what}, and is not a folder", there.display())));
    }
    // Only an attempt takes owners, access lists, namespaces and read-only file systems into account.
    let probe = there.join(format!(".blkin-check-{}", std::process::id()));
    let tried = std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe));
    match tried {
        // A full disk is not a fault of the configuration.
        Err(error) if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            let (folder, there, advice) = (folder.display(), there.display(), advice(&error));
            let reason = format!("{folder} cannot be written: {error} in {there}, which {what}; {advice}");
            Err(invalid(key, reason))
        }
        _ => Ok(()),
    }
}

/// What to do about a folder that cannot be written.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "mount it read-write; a systemd unit can write only below /run/blkin and /var/lib/blkin, and to the paths that \
             its ReadWritePaths= names"
        }
        _ => "let the user that the daemon runs as write there, and run the check as that user",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn out_of_range_number_is_reported_with_its_range() {
        in_ranges([("a", 1, 1, 2), ("b", 2, 1, 2)]).unwrap();
        for value in [0, 3] {
            let said = in_ranges([("a", 1, 1, 2), ("b", value, 1, 2)]).unwrap_err().to_string();
            assert!(said.ends_with(&format!("b: {value} is not between 1 and 2")), "{said}");
        }
    }

    #[test]
    fn invalid_listen_address_error_shows_how_to_write_one() {
        for good in ["127.0.0.1:0", "0.0.0.0:9410", "[::1]:9410"] {
            listen_address(good).unwrap();
        }
        for bad in ["::1:9410", "9410", ":9410", "localhost:9410", "127.0.0.1", "127.0.0.1:65536", ""] {
            let said = listen_address(bad).unwrap_err();
            assert!(said.contains(&format!("{bad:?}")) && said.contains("[::1]:9410"), "{said}");
        }
    }

    #[test]
    fn listeners_on_the_same_address_and_port_are_rejected() {
        let apart = |one: &str, other: &str| {
            listen_apart(("one", one.parse().unwrap()), ("other", other.parse().unwrap()))
        };
        for (one, other) in [
            ("127.0.0.1:9410", "127.0.0.1:9411"),
            ("127.0.0.1:9410", "127.0.0.2:9410"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:9410", "[::1]:9410"),
        ] {
            apart(one, other).unwrap();
            apart(other, one).unwrap();
        }
        for (one, other) in [
            ("127.0.0.1:9410", "127.0.0.1:9410"),
            ("0.0.0.0:9410", "127.0.0.1:9410"),
            ("[::]:9410", "127.0.0.1:9410"),
            ("[::]:9410", "0.0.0.0:9410"),
            ("[::ffff:127.0.0.1]:9410", "127.0.0.1:9410"),
        ] {
            let said = apart(one, other).unwrap_err().to_string();
            assert!(said.contains(&format!("other: {other} is taken by one ({one})")), "{said}");
            assert!(apart(other, one).is_err());
        }
    }

    #[test]
    fn checking_a_usable_folder_leaves_it_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        writable_folder("spool_dir", folder.path()).unwrap();
        writable_folder("spool_dir", &folder.path().join("not/yet")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn unwritable_folder_is_reported_with_the_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = |path: &Path| writable_folder("spool_dir", path).unwrap_err().to_string();
        let path = file.path().to_str().unwrap();
        for below in [file.path().to_owned(), file.path().join("spool")] {
            let said = refused(&below);
            assert!(
                said.contains("spool_dir") && said.contains(path) && said.contains("is not a folder"),
                "{said}"
            );
        }
        assert!(refused(Path::new("")).contains("a folder is needed"));
        // Not even root can create files there.
        let said = refused(Path::new("/proc/self/spool"));
        assert!(
            said.contains("/proc/self/spool cannot be written") && said.contains("/proc/self,"),
            "{said}"
        );
    }

    #[test]
    fn read_only_file_system_error_suggests_readwritepaths() {
        let advice = advice(&ErrorKind::ReadOnlyFilesystem.into());
        assert!(advice.contains("ReadWritePaths="), "{advice}");
    }
}
