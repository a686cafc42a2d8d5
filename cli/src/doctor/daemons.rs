//! consumerd, the relays and the collector.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::{Check, Status, losses};
use crate::http::{Answer, Client, Dated, NoAnswer};
use crate::ledger::is_zipkins;
use crate::metrics::Metrics;

/// How long to wait for an answer. A stopped daemon accepts connections and never answers. A healthy one answers at once, but may
/// have to wait for a CPU on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a daemon says about itself. Health and metrics are requested once each, and metrics only if health was answered, so a
/// stopped daemon costs a single wait.
pub(super) struct DaemonAnswers {
    /// Its address without the scheme, and the same with it.
    pub(super) host: String,
    pub(super) base: String,
    health: Result<Answer>,
    metrics: Option<String>,
}

impl DaemonAnswers {
    /// Asks the daemon at `client`, whose health is at `path`.
    pub(super) fn ask(client: Client, path: &str) -> DaemonAnswers {
        DaemonAnswers::request(&client.patient_for(PATIENCE), path)
    }

    /// Asks the collector, which may be a Zipkin server: that serves its health at `/health`, where our collector says less than
    /// at `/healthz`.
    pub(super) fn ask_collector(client: Client) -> DaemonAnswers {
        let client = client.patient_for(PATIENCE);
        let answers = DaemonAnswers::request(&client, "/health");
        if !answers.has_metrics("blkin_collector_") {
            return answers;
        }
        DaemonAnswers { health: client.get("/healthz", &[]), ..answers }
    }

    fn request(client: &Client, path: &str) -> DaemonAnswers {
        let health = client.get(path, &[]);
        let metrics = health.as_ref().ok().and_then(|_| client.get_ok("/metrics", &[]).ok());
        DaemonAnswers { host: client.host().to_owned(), base: client.base().to_owned(), health, metrics }
    }

    /// Its metrics, if it can be read.
    pub(super) fn metrics(&self) -> Option<Metrics> {
        self.metrics.as_deref().map(Metrics::parse)
    }

    /// Whether it is healthy, and is the daemon whose metrics have that prefix.
    pub(super) fn is_well(&self, metrics: &str) -> bool {
        matches!(self.health, Ok(Answer { status: 200, .. })) && self.has_metrics(metrics)
    }

    /// When it answered, by its clock and by this machine's.
    pub(super) fn dated(&self) -> Option<Dated> {
        self.health.as_ref().ok()?.dated
    }

    fn has_metrics(&self, named: &str) -> bool {
        self.metrics.iter().any(|text| text.lines().any(|line| line.starts_with(named)))
    }

    /// Whether it is unhealthy only because of workers whose disk accepts no writes.
    fn is_held_up_by_its_disk(&self) -> bool {
        let Ok(Answer { status: 503, body, .. }) = &self.health else { return false };
        let Health { workers, troubles } = serde_json::from_str(body).unwrap_or_default();
        let mut unwell = workers.iter().filter(|worker| worker.state != "alive").peekable();
        unwell.peek().is_some()
            && unwell.all(|worker| troubles.iter().any(|trouble| trouble.holds_up(worker)))
    }

    /// The destinations that accept nothing of what it delivers. None if it does not answer, which another check reports.
    fn troubles(&self) -> Vec<Trouble> {
        let body = self.health.as_ref().map(|answer| &*answer.body).unwrap_or_default();
        serde_json::from_str::<Health>(body).unwrap_or_default().troubles
    }
}

/// Prefix of metrics that only consumerd has.
pub(super) const OF_CONSUMERD: &str = "blkin_offers";

/// Whether consumerd's workers are alive.
pub(super) fn consumerd(answers: &DaemonAnswers) -> Check {
    let advice = format!("{}, or name its metrics address with --consumerd", start("consumerd"));
    health("consumerd", answers, Some(OF_CONSUMERD), &advice)
}

/// A destination that accepts nothing of what a daemon delivers, as `/healthz` describes it.
#[derive(Debug, Deserialize)]
struct Trouble {
    name: String,
    to: String,
    cause: String,
    reason: String,
    seconds: u64,
}

/// A worker, as `/healthz` describes it.
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

impl Trouble {
    /// Whether this worker is unwell because of this trouble. The collector's worker `store` also does retention; if retention
    /// only distrusts the clock, the worker goes on.
    fn holds_up(&self, worker: &Worker) -> bool {
        let is_retention = (&*self.name, &*self.to) == ("retention", "disk");
        self.name == worker.name || is_retention && worker.name == "store"
    }

    /// In short what docs/operations.md advises for the cause.
    fn advice(&self, daemon: &str) -> String {
        let Trouble { to, cause, .. } = self;
        match cause.as_str() {
            "unreachable" => unreachable(daemon),
            "broken" => format!(
                "configure its Scribe port (9410 on a collector, 1463 on a relay) if the reason says that this is not a Scribe \
                 server; otherwise look at the log of {to}: it drops connections, or was silent for io_timeout_ms; {daemon} \
                 retries by itself"
            ),
            "try_later" => format!(
                "look at the metrics and the log of {to}: it cannot keep up, or cannot write to its disk; {daemon} retries by \
                 itself"
            ),
            "refused" => format!(
                "is {to} a Scribe server? look at its log, or configure the right one: what it refuses is lost for it (rejected)"
            ),
            "disk_full" => format!("make room there; {daemon} continues by itself"),
            "bound" => {
                "repair the upstream that lags behind, or raise spool_bytes; the relay continues by itself"
                    .to_owned()
            }
            "no_reader" => format!("start a reader of the pipe; {daemon} continues by itself"),
            "clock" => format!("correct the clock of its machine; if it is right, restart {daemon}"),
            _ => format!("look at {}; it retries by itself", log_of(daemon)),
        }
    }
}

/// What to do about an upstream of a daemon that cannot be reached.
fn unreachable(daemon: &str) -> String {
    format!("start the server that should listen there, or correct its address in {daemon}'s configuration")
}

/// A warning for every upstream or file that accepts nothing of what consumerd ships.
pub(super) fn sinks(answers: &DaemonAnswers) -> Vec<Check> {
    let sink = |trouble: &Trouble| {
        let Trouble { name, to, cause, reason, seconds } = trouble;
        let found = format!("{name} has shipped nothing to {to} for {seconds} s ({cause}): {reason}");
        Check::warning("consumerd's sinks", found, trouble.advice("consumerd"))
    };
    answers.troubles().iter().map(sink).collect()
}

/// A warning if consumerd has no sink at all.
pub(super) fn no_sink(consumerd: &Metrics) -> Option<Check> {
    let sinks = consumerd.values("blkin_sink_valid_total", "sink");
    sinks.iter().any(|sink| sink == "none").then(|| {
        let found = "none is configured: what programs record is lost, except by flight recorders";
        Check::warning("consumerd's sinks", found, losses::advice(["no_sink"].into_iter()))
    })
}

/// Whether a relay's workers are alive.
pub(super) fn relay(answers: &DaemonAnswers) -> Check {
    let advice = format!("{} there, or name its metrics address with --relay", start("relay"));
    health("relay", answers, Some("blkin_relay_"), &advice)
}

/// A warning for every upstream that accepts nothing of what a relay forwards, and for the relay's spool if that accepts nothing.
pub(super) fn deliveries(answers: &DaemonAnswers) -> Vec<Check> {
    let delivery = |trouble: &Trouble| {
        let Trouble { name, to, cause, reason, seconds } = trouble;
        let found = format!(
            "{}: the {name} {to} has accepted nothing for {seconds} s ({cause}): {reason}",
            answers.base
        );
        Check::warning("relay's deliveries", found, trouble.advice("the relay"))
    };
    answers.troubles().iter().map(delivery).collect()
}

/// Whether traces have somewhere to go, and can be read. A Zipkin server will do.
pub(super) fn collector(answers: &DaemonAnswers, consumerd: Option<&Metrics>) -> Check {
    let elsewhere = consumerd.filter(|_| is_here(&answers.host)).and_then(ships_to);
    let advice = elsewhere.unwrap_or_else(|| format!("{}, or name it with --collector", start("collector")));
    let check = health("collector", answers, None, &advice);
    if answers.is_held_up_by_its_disk() {
        let advice = "its disk accepts no writes, see below: it continues by itself once the disk does";
        return Check { advice: Some(advice.to_owned()), ..check };
    }
    if check.status == Status::Ok && answers.metrics.as_deref().is_some_and(is_zipkins) {
        let silence = "a Zipkin server, which has no figures for the ledger";
        return Check { found: format!("{}: {silence}", check.found), ..check };
    }
    check
}

/// What to do about a collector that is not on this machine, if consumerd ships only to other machines.
fn ships_to(consumerd: &Metrics) -> Option<String> {
    let upstreams = upstreams(consumerd);
    let host = upstreams.first()?.rsplit_once(':')?.0;
    (!upstreams.iter().any(|upstream| is_here(upstream))).then(|| {
        format!(
            "consumerd ships to {}: give the address of the collector there, or behind it, with --collector or \
             BLKIN_COLLECTOR_URL, such as http://{host}:9411",
            upstreams.join(" and ")
        )
    })
}

/// The servers that consumerd ships to.
fn upstreams(consumerd: &Metrics) -> Vec<String> {
    let of_sink = |sink| consumerd.select("blkin_sink_since_success_seconds", sink);
    let samples = of_sink(&[("sink", "scribe")]).chain(of_sink(&[("sink", "scribe_json")]));
    samples.filter_map(|sample| sample.labels.get("to").cloned()).collect()
}

/// A warning for every server that this machine's consumerd ships to and that cannot be reached. consumerd connects only once
/// there is something to ship, so a wrong address would otherwise show with the first request only.
pub(super) fn unreached(answers: &DaemonAnswers, consumerd: &Metrics) -> Vec<Check> {
    let DaemonAnswers { host, .. } = answers;
    let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name).trim_matches(['[', ']']);
    let is_own = UdpSocket::bind((name, 0)).is_ok();
    let troubles = answers.troubles();
    let is_untold = |to: &String| is_own && troubles.iter().all(|trouble| trouble.to != *to);
    let unreached = |to: String| {
        let found = format!("nothing can be shipped to {to}, which cannot be reached: {}", reach(&to).err()?);
        Some(Check::warning("consumerd's sinks", found, unreachable("consumerd")))
    };
    upstreams(consumerd).into_iter().filter(is_untold).filter_map(unreached).collect()
}

/// Connects to the first address of a server that accepts a connection.
fn reach(server: &str) -> io::Result<TcpStream> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for address in addresses(server)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The addresses of a server, as consumerd resolves them: the system resolves an address with an interface (`fe80::1%eth0`) only
/// without brackets.
fn addresses(server: &str) -> io::Result<impl Iterator<Item = SocketAddr> + use<>> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let port = port.parse().map_err(|_| io::Error::new(ErrorKind::InvalidInput, "it has no port"))?;
    (host.trim_matches(['[', ']']), port).to_socket_addrs()
}

/// Whether `HOST:PORT` names this machine, judged by the name alone.
fn is_here(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name == "[::1]" || name.starts_with("127.")
}

/// Warnings for the parts of the collector that cannot write to its disk, or cannot trust its clock.
pub(super) fn disk_and_clock(answers: &DaemonAnswers) -> Vec<Check> {
    let writer = |trouble: &Trouble| {
        let Trouble { name: what, to, cause, reason, seconds } = trouble;
        let found =
            format!("{}: its {what} has been failing for {seconds} s ({cause}): {reason}", answers.base);
        let name = if to == "clock" { "collector's clock" } else { "collector's disk" };
        Check::warning(name, found, trouble.advice("the collector"))
    };
    answers.troubles().iter().map(writer).collect()
}

/// Whether a daemon is healthy, and, if a prefix of its metrics is given, whether it is that daemon.
fn health(name: &'static str, answers: &DaemonAnswers, metrics: Option<&str>, advice: &str) -> Check {
    let base = &answers.base;
    match &answers.health {
        Ok(Answer { status: 200, .. }) if metrics.is_some_and(|metrics| !answers.has_metrics(metrics)) => {
            Check::failed(name, format!("{base} is healthy, but is not a {name}"), advice)
        }
        Ok(Answer { status: 200, .. }) => Check::ok(name, format!("{base} is healthy")),
        Ok(Answer { status: 503, body, .. }) => Check::failed(
            name,
            format!("{base} answered 503: {}", unwell(body)),
            format!("look at {}", log_of(name)) + IF_NOT,
        ),
        Ok(Answer { status, .. }) => {
            Check::failed(name, format!("{base} answered {status}, which a {name} never does"), advice)
        }
        Err(error) if matches!(error.downcast_ref(), Some(NoAnswer::Silence(_))) => {
            let log = log_of(name);
            let advice = format!("look at the process that listens there, and at {log} if it is a {name}");
            Check::failed(name, format!("{base} accepts connections and does not answer"), advice + IF_NOT)
        }
        Err(error) => Check::failed(name, format!("{error:#}"), advice),
    }
}

/// How to start a daemon under systemd, and where to read why it ended.
fn start(daemon: &str) -> String {
    format!("start blkin-{daemon} (`systemctl start blkin-{daemon}`, `journalctl -u blkin-{daemon}`)")
}

/// The log of a daemon, and how to read it under systemd.
pub(super) fn log_of(daemon: &str) -> String {
    let unit = daemon.trim_start_matches("the ");
    format!("the log of {daemon} (`journalctl -u blkin-{unit}`)")
}

/// What to do if looking does not help.
const IF_NOT: &str = ", and whether somebody stopped it; if this persists, restart it";

/// The workers of a daemon that are not alive, or the text of its answer if that names none.
fn unwell(body: &str) -> String {
    let workers = serde_json::from_str::<Health>(body).unwrap_or_default().workers;
    let unwell = workers.iter().filter(|worker| worker.state != "alive");
    let named: Vec<String> = unwell.map(|Worker { name, state }| format!("its {name} is {state}")).collect();
    if named.is_empty() {
        return body.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::http::answering;

    #[test]
    fn unhealthy_workers_are_named() {
        let body = r#"{"healthy":false,"workers":[{"name":"drain","state":"alive","since_last_beat_ms":3},
            {"name":"holder","state":"stuck","since_last_beat_ms":1700}],"troubles":[]}"#;
        assert_eq!(unwell(body), "its holder is stuck");
        assert_eq!(unwell("no worker\n serves"), "no worker serves");
    }

    #[test]
    fn advice_on_an_upstreams_trouble_names_the_log_to_read() {
        let advice = |cause: &str| {
            let (name, to, cause) = ("upstream".to_owned(), "b:1".to_owned(), cause.to_owned());
            Trouble { name, to, cause, reason: String::new(), seconds: 1 }.advice("the relay")
        };
        for cause in ["broken", "try_later"] {
            assert!(advice(cause).contains("log of b:1: it "), "{}", advice(cause));
        }
        assert!(advice("broken").starts_with("configure its Scribe port"), "the port may be that of HTTP");
        assert!(advice("refused").starts_with("is b:1 a Scribe server?"));
        assert!(advice("bound").contains("raise spool_bytes"));
        let log = "look at the log of the relay (`journalctl -u blkin-relay`);";
        assert!(advice("failed").starts_with(log), "{}", advice("failed"));
    }

    /// A daemon that answers every request with that head and body.
    fn serving(status: &'static str, body: &'static str) -> Client {
        answering(move |_| (status, body))
    }

    fn answers(client: Client) -> DaemonAnswers {
        DaemonAnswers::ask(client, "/healthz")
    }

    #[test]
    fn a_stopped_daemon_is_distinguished_from_an_absent_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(&listener.local_addr().unwrap().to_string());
        let silent = DaemonAnswers::request(&client.patient_for(Duration::from_millis(1)), "/healthz");
        let check = consumerd(&silent);
        assert!(check.found.ends_with(" accepts connections and does not answer"), "{}", check.found);
        assert!(check.advice.unwrap().contains("whether somebody stopped it"));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.incoming().take_while(Result::is_ok).count() <= 1, "it was asked again");

        let away = consumerd(&answers(Client::new("127.0.0.1:1")));
        assert!(away.found.ends_with("Connection refused (os error 111)"), "{}", away.found);
        assert!(away.advice.unwrap().starts_with("start blkin-consumerd"));
    }

    #[test]
    fn a_consumerd_without_a_sink_is_a_warning() {
        let with = |sink| no_sink(&Metrics::parse(&format!("blkin_sink_valid_total{{sink=\"{sink}\"}} 0\n")));
        assert!(with("scribe").is_none());
        let check = with("none").unwrap();
        assert!(check.status == Status::Warning && check.advice.unwrap().contains("scribe_upstream"));
    }

    #[test]
    fn upstream_addresses_may_have_an_ipv6_scope() {
        let found = |server: &str| addresses(server).unwrap().next().unwrap();
        assert_eq!(found("127.0.0.1:9410"), SocketAddr::from(([127, 0, 0, 1], 9410)));
        let SocketAddr::V6(of_interface) = found("[fe80::1%lo]:9410") else { panic!("version 6") };
        assert_eq!((of_interface.scope_id(), of_interface.port()), (1, 9410));
    }

    #[test]
    fn an_unreachable_upstream_warns_before_anything_is_shipped() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap().to_string();
        let metrics = format!("blkin_sink_since_success_seconds{{sink=\"scribe\",to=\"{to}\"}} 1\n");
        let metrics = Metrics::parse(&metrics);
        let here = || answers(serving("200 OK", r#"{"troubles":[]}"#));
        assert!(unreached(&here(), &metrics).is_empty());
        drop(server);
        let [check] = &unreached(&here(), &metrics)[..] else { panic!("one") };
        let found = format!("nothing can be shipped to {to}, which cannot be reached: Connection refused");
        assert!(check.status == Status::Warning && check.found.starts_with(&found), "{}", check.found);
        assert!(
            unreached(&answers(Client::new("192.0.2.1:1")), &metrics).is_empty(),
            "an upstream on another machine is not tried"
        );
        let told = format!(
            r#"{{"troubles":[{{"name":"scribe","to":"{to}","cause":"unreachable","reason":"","seconds":1}}]}}"#
        );
        let told = answers(answering(move |_| ("200 OK", told.clone().leak())));
        assert!(unreached(&told, &metrics).is_empty(), "consumerd reports it already");
    }

    #[test]
    fn a_foreign_server_is_not_taken_for_a_daemon() {
        let check = collector(&answers(serving("404 Not Found", "<html>")), None);
        assert!(check.found.ends_with(" answered 404, which a collector never does"), "{}", check.found);
        assert!(check.advice.unwrap().starts_with("start blkin-collector"));
        let check = consumerd(&answers(serving("200 OK", "hello")));
        assert!(check.found.ends_with(" is healthy, but is not a consumerd"), "{}", check.found);
        let check = relay(&answers(serving("503 Service Unavailable", "no worker")));
        assert!(check.found.ends_with(" answered 503: no worker"), "{}", check.found);
    }

    #[test]
    fn troubles_are_read_from_our_collector_and_not_from_zipkin() {
        let ours = DaemonAnswers::ask_collector(answering(|path| match path {
            "/metrics" => ("200 OK", "blkin_collector_commits_total 1\n"),
            "/healthz" => (
                "200 OK",
                r#"{"healthy":true,"workers":[],"troubles":[{"name":"index","to":"disk","cause":"disk_full",
                "reason":"no space","seconds":7,"since_success_seconds":9},{"name":"retention","to":"clock","cause":"clock",
                "reason":"it jumped","seconds":8}]}"#,
            ),
            _ => ("200 OK", r#"{"status":"UP"}"#),
        }));
        let [check, clock] = &disk_and_clock(&ours)[..] else { panic!("two") };
        assert_eq!(
            check.found,
            format!("{}: its index has been failing for 7 s (disk_full): no space", ours.base)
        );
        assert!(check.advice.as_ref().unwrap().starts_with("make room there"));
        assert_eq!((check.name, clock.name), ("collector's disk", "collector's clock"));
        assert!(clock.advice.as_ref().unwrap().starts_with("correct the clock of its machine"));
        let zipkin = DaemonAnswers::ask_collector(answering(|path| match path {
            "/health" => ("200 OK", r#"{"status":"UP"}"#),
            "/metrics" => ("200 OK", r#"{"counter.zipkin_collector.spans.http":4.0}"#),
            _ => ("404 Not Found", "no such page"),
        }));
        let check = collector(&zipkin, None);
        assert!(disk_and_clock(&zipkin).is_empty() && check.status == Status::Ok);
        assert!(
            check.found.ends_with(": a Zipkin server, which has no figures for the ledger"),
            "{}",
            check.found
        );
    }

    #[test]
    fn advice_names_the_collector_of_a_remote_upstream() {
        let by = |sink: &str, upstream: &str| {
            let text = format!(
                "blkin_sink_since_success_seconds{{sink=\"{sink}\",to=\"{upstream}\"}} 1\n\
                 blkin_sink_since_success_seconds{{sink=\"json_lines\",to=\"/srv/spans\"}} 1\n"
            );
            let away = answers(Client::new("127.0.0.1:1"));
            collector(&away, Some(&Metrics::parse(&text))).advice.unwrap()
        };
        let advice = |upstream: &str| by("scribe", upstream);
        let elsewhere = advice("10.0.0.5:9410");
        assert_eq!(by("scribe_json", "10.0.0.5:9410"), elsewhere);
        assert!(
            elsewhere.starts_with("consumerd ships to 10.0.0.5:9410: give the address of the collector "),
            "{elsewhere}"
        );
        assert!(elsewhere.ends_with("BLKIN_COLLECTOR_URL, such as http://10.0.0.5:9411"), "{elsewhere}");
        for here in ["127.0.0.1:9410", "localhost:9410", "[::1]:9410"] {
            assert!(advice(here).starts_with("start blkin-collector"), "{here}");
        }
        let named = collector(&answers(Client::new("10.0.0.256:1")), Some(&Metrics::default()));
        assert!(named.advice.unwrap().starts_with("start blkin-collector"));
    }

    #[test]
    fn advice_on_a_full_disk_is_not_to_restart_the_collector() {
        let advice = |body: &'static str| {
            let ours = DaemonAnswers::ask_collector(answering(move |path| match path {
                "/metrics" => ("200 OK", "blkin_collector_commits_total 1\n"),
                _ => ("503 Service Unavailable", body),
            }));
            let check = collector(&ours, None);
            assert_eq!(check.status, Status::Failed);
            assert!(check.found.ends_with("its store is stuck"), "{}", check.found);
            check.advice.unwrap()
        };
        let full = r#"{"workers":[{"name":"store","state":"stuck"},{"name":"live","state":"alive"}],"troubles":
            [{"name":"store","to":"disk","cause":"disk_full","reason":"no room","seconds":2}]}"#;
        assert!(advice(full).starts_with("its disk accepts no writes"), "{}", advice(full));
        let retention = r#"{"workers":[{"name":"store","state":"stuck"}],"troubles":
            [{"name":"retention","to":"disk","cause":"disk_full","reason":"no room","seconds":2}]}"#;
        assert!(advice(retention).starts_with("its disk accepts no writes"), "{}", advice(retention));
        let clock = r#"{"workers":[{"name":"store","state":"stuck"}],"troubles":
            [{"name":"retention","to":"clock","cause":"clock","reason":"it jumped","seconds":2}]}"#;
        let stuck = r#"{"workers":[{"name":"store","state":"stuck"}],"troubles":[]}"#;
        for other in [stuck, clock] {
            assert!(advice(other).ends_with("restart it"), "{}", advice(other));
        }
    }
}
