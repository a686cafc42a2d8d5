//! consumerd's socket, consumerd, the relays and the collector.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Deserialize;

use super::Check;
use crate::http::{Answer, Client};

/// Whether a program of this user could offer its rings.
pub(super) fn socket(path: &Path) -> Check {
    const NAME: &str = "consumerd's socket";
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Check::failed(
            NAME,
            format!("{shown} is not there"),
            "start blkin-consumerd; in a container, mount the folder of the socket (docs/deploy.md); \
             elsewhere than the default, set BLKIN_SOCKET for programs and for this command",
        ),
        Err(error) => Check::failed(
            NAME,
            format!("failed to look at {shown}: {error}"),
            "make its folder searchable for this user",
        ),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Check::failed(NAME, format!("{shown} is no socket"), "remove it and restart blkin-consumerd")
        }
        Ok(_) => connectable(NAME, path),
    }
}

fn connectable(name: &'static str, path: &Path) -> Check {
    let shown = path.display();
    let attempt = || {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &address)
    };
    match attempt() {
        Ok(()) => Check::ok(name, format!("{shown} can be connected to by this user")),
        Err(rustix::io::Errno::ACCESS) => Check::failed(
            name,
            format!("{shown} refuses user {}", rustix::process::geteuid().as_raw()),
            "its mode should be 0666 and its folder searchable: restart blkin-consumerd",
        ),
        Err(rustix::io::Errno::CONNREFUSED) => Check::failed(
            name,
            format!("nobody listens at {shown}"),
            "start blkin-consumerd: the last one left its socket behind",
        ),
        Err(rustix::io::Errno::AGAIN) => Check::warning(
            name,
            format!("{shown} has a full queue"),
            "blkin-consumerd accepts too slowly: look at its log",
        ),
        Err(error) => {
            Check::failed(name, format!("failed to connect to {shown}: {error}"), "restart blkin-consumerd")
        }
    }
}

/// Whether consumerd's workers are alive.
pub(super) fn consumerd(client: &Client) -> Check {
    let advice = "start blkin-consumerd, or name its metrics address with --consumerd";
    health("consumerd", client, "/healthz", Some("blkin_offers"), advice)
}

/// A side that takes nothing of what a daemon delivers, as its `/healthz` tells of it.
#[derive(Debug, Deserialize)]
struct Trouble {
    name: String,
    to: String,
    cause: String,
    reason: String,
    seconds: u64,
}

/// A worker, as `/healthz` tells of it.
#[derive(Debug, Deserialize)]
struct Worker {
    name: String,
    state: String,
}

#[derive(Debug, Default, Deserialize)]
struct Health {
    #[serde(default)]
    workers: Vec<Worker>,
    #[serde(default)]
    troubles: Vec<Trouble>,
}

/// What a daemon's `/healthz` tells of; nothing of one that does not answer, which is told of elsewhere.
fn troubles(client: &Client) -> Vec<Trouble> {
    let body = client.get("/healthz", &[]).map(|answer| answer.body).unwrap_or_default();
    serde_json::from_str::<Health>(&body).unwrap_or_default().troubles
}

impl Trouble {
    /// What docs/operations.md says of the cause, in short.
    fn advice(&self, daemon: &str) -> String {
        let Trouble { to, cause, .. } = self;
        match cause.as_str() {
            "unreachable" => {
                format!("start who should listen there, or name it right in {daemon}'s configuration")
            }
            "broken" => format!(
                "look at the log of {to}: it breaks connections off, or was silent for io_timeout_ms; {daemon} tries again \
                 by itself"
            ),
            "try_later" => format!(
                "look at the metrics and the log of {to}: it cannot keep up, or cannot write to its disk; {daemon} tries \
                 again by itself"
            ),
            "disk_full" => format!("make room there; {daemon} goes on by itself"),
            "bound" => {
                "repair the upstream that lags behind, or raise spool_bytes; the relay goes on by itself"
                    .to_owned()
            }
            "no_reader" => format!("let somebody read the pipe; {daemon} goes on by itself"),
            _ => format!("look at the log of {daemon}; it tries again by itself"),
        }
    }
}

/// Every upstream or file that takes nothing of what consumerd ships.
pub(super) fn sinks(client: &Client) -> Vec<Check> {
    let sink = |trouble: &Trouble| {
        let Trouble { name, to, cause, reason, seconds } = trouble;
        let found = format!("{name} ships nothing to {to} for {seconds} s ({cause}): {reason}");
        Check::warning("consumerd's sinks", found, trouble.advice("consumerd"))
    };
    troubles(client).iter().map(sink).collect()
}

/// Whether a relay's workers are alive.
pub(super) fn relay(client: &Client) -> Check {
    let advice = "start blkin-relay there, or name its metrics address with --relay";
    health("relay", client, "/healthz", Some("blkin_relay_"), advice)
}

/// Every upstream that takes nothing of what a relay passes on, and the relay's own spool if that takes nothing.
pub(super) fn deliveries(client: &Client) -> Vec<Check> {
    let delivery = |trouble: &Trouble| {
        let Trouble { name, to, cause, reason, seconds } = trouble;
        let relay = client.base();
        let found = format!("{relay}: the {name} {to} takes nothing for {seconds} s ({cause}): {reason}");
        Check::warning("relay's deliveries", found, trouble.advice("the relay"))
    };
    troubles(client).iter().map(delivery).collect()
}

/// Whether traces have somewhere to go, and can be read. A Zipkin server will do.
pub(super) fn collector(client: &Client) -> Check {
    let advice = "start blkin-collector, or name it with --collector";
    health("collector", client, "/health", None, advice)
}

/// Whether a daemon is healthy, and, if its metrics are known by something in their names, whether it is that daemon.
fn health(name: &'static str, client: &Client, path: &str, metrics: Option<&str>, advice: &str) -> Check {
    match client.get(path, &[]) {
        Ok(Answer { status: 200, .. }) if metrics.is_some_and(|metrics| !has_metrics(client, metrics)) => {
            Check::failed(name, format!("{} is healthy, but no {name}", client.base()), advice)
        }
        Ok(Answer { status: 200, .. }) => Check::ok(name, format!("{} is healthy", client.base())),
        Ok(Answer { status, body }) => {
            let found = format!("{} answered {status}: {}", client.base(), unwell(&body));
            Check::failed(name, found, "look at its log")
        }
        Err(error) => Check::failed(name, format!("{error:#}"), advice),
    }
}

/// Who of a daemon's workers is not well, or what it said if that names none.
fn unwell(body: &str) -> String {
    let workers = serde_json::from_str::<Health>(body).unwrap_or_default().workers;
    let unwell = workers.iter().filter(|worker| worker.state != "alive");
    let named: Vec<String> = unwell.map(|Worker { name, state }| format!("its {name} is {state}")).collect();
    if named.is_empty() {
        return body.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    }
    named.join(", ")
}

fn has_metrics(client: &Client, named: &str) -> bool {
    client.get("/metrics", &[]).is_ok_and(|answer| answer.body.lines().any(|line| line.starts_with(named)))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn whoever_is_not_well_is_named() {
        let body = r#"{"healthy":false,"workers":[{"name":"drain","state":"alive","since_last_beat_ms":3},
            {"name":"holder","state":"stuck","since_last_beat_ms":1700}],"troubles":[]}"#;
        assert_eq!(unwell(body), "its holder is stuck");
        assert_eq!(unwell("no worker\n serves"), "no worker serves");
    }

    #[test]
    fn what_to_do_of_a_trouble_names_whose_log_has_the_reason() {
        let advice = |cause: &str| {
            let (name, to, cause) = ("upstream".to_owned(), "b:1".to_owned(), cause.to_owned());
            Trouble { name, to, cause, reason: String::new(), seconds: 1 }.advice("the relay")
        };
        for cause in ["broken", "try_later"] {
            assert!(advice(cause).contains("log of b:1: it "), "{}", advice(cause));
        }
        assert!(advice("bound").contains("raise spool_bytes"));
        assert!(advice("failed").contains("log of the relay;"));
    }

    #[test]
    fn each_state_of_the_socket_is_told_apart() {
        let folder = std::env::temp_dir().join(format!("blkin-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        assert!(socket(&path).found.ends_with("is not there"));
        std::fs::write(&path, "").unwrap();
        assert!(socket(&path).found.ends_with("is no socket"));
        std::fs::remove_file(&path).unwrap();

        let address = SocketAddrUnix::new(&path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        assert!(socket(&path).found.starts_with("nobody listens at"));
        rustix::net::listen(&listener, 4).unwrap();
        assert_eq!(socket(&path).status, Status::Ok);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
