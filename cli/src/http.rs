//! Bounded GET requests to the daemons' HTTP interfaces.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ureq::config::ConfigBuilder;
use ureq::typestate::AgentScope;

use crate::moments::{now_us, parse_http_us};
use crate::terminal::safe;

/// Largest answer that is read: a search for 1,000 large traces stays well below it.
const MAX_BODY_BYTES: u64 = 256 << 20;
/// How long to wait for an answer, unless [`Client::patient_for`] says otherwise: a search through much data may take a while.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for a connection.
const CONNECTING: Duration = Duration::from_secs(3);
/// After this time the user is told what the command is waiting for.
const LONG: Duration = Duration::from_secs(3);

/// Parses the address of a daemon on the command line.
///
/// # Errors
/// A sentence that says what an address has to look like.
pub fn parse_url(text: &str) -> Result<String, String> {
    let url = with_scheme(text);
    if url.contains(|character: char| character.is_whitespace() || character.is_control()) {
        return Err("write http://HOST:PORT: there is a space in it".to_owned());
    }
    match url.strip_prefix("http://").and_then(|rest| rest.split('/').next()) {
        Some(host) if !has_usable_port(host) => {
            Err(format!("write http://HOST:PORT: {host:?} names no port"))
        }
        Some(host) if !host.is_empty() => Ok(url),
        _ => Err("write http://HOST:PORT: only http is supported; for TLS put a proxy in between".to_owned()),
    }
}

/// Whether what follows the host is a valid port, or nothing: the HTTP client would treat an invalid port as none, and use port 80.
fn has_usable_port(host: &str) -> bool {
    port_of(host).is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// What follows the colon after a host.
fn port_of(host: &str) -> Option<&str> {
    let behind = |mark| host.rsplit_once(mark).map(|(_, behind)| behind);
    let behind_address = behind(']').or_else(|| behind('@')).unwrap_or(host);
    behind_address.split_once(':').map(|(_, port)| port)
}

/// Names the port that was used if the address has none: no daemon listens there by default.
fn implied_port_note(base: &str) -> &'static str {
    let host = base.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    if host.is_some_and(|host| port_of(host).is_none()) { " at port 80, as it names none" } else { "" }
}

/// The error of a request that got no answer.
pub(crate) fn unanswered(
    error: ureq::Error,
    base: &str,
    patience: Duration,
    option: Option<&str>,
) -> anyhow::Error {
    let hint = option
        .map(|option| format!(" (does it serve HTTP there? {option} names another)"))
        .unwrap_or_default();
    match error {
        ureq::Error::Timeout(ureq::Timeout::Global | ureq::Timeout::PerRead) => {
            NoAnswer::Silence(format!("{base} was reached, but did not answer within {patience:?}{hint}"))
                .into()
        }
        other => plain(other).context(format!("failed to reach {base}{}{hint}", implied_port_note(base))),
    }
}

fn with_scheme(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    format!("{}://{}", scheme.to_ascii_lowercase(), rest.trim_end_matches('/'))
}

/// The address without the user name and password (for a proxy in front of the daemon), which must not be shown.
pub(crate) fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Something listens there, but the request was not answered; each with a message.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The connection was accepted, but no answer came in time.
    Silence(String),
    /// The daemon answered that it cannot answer yet: one of its workers is being started.
    NotYet(String),
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Silence(words) | Self::NotYet(words)) = self;
        out.write_str(words)
    }
}

impl std::error::Error for NoAnswer {}

/// Tells the user at a terminal, once, what is waited for, unless the answer comes soon. The answer drops the sender.
pub(crate) fn tell_of_waiting(base: &str, patience: Duration, once: Arc<Once>) -> Option<Sender<()>> {
    let text = format!("{base}: no answer yet, waiting for up to {patience:?}\n");
    io::stderr().is_terminal().then(|| tell_later(LONG, text, once, io::stderr())).flatten()
}

/// Starts the thread that tells it; if there can be none, nothing is told.
fn tell_later(
    after: Duration,
    text: String,
    once: Arc<Once>,
    mut out: impl Write + Send + 'static,
) -> Option<Sender<()>> {
    let (answered, waiting) = mpsc::channel();
    let wait = move || {
        if waiting.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
            once.call_once(|| {
                let _unsaid = out.write_all(text.as_bytes());
            });
        }
    };
    thread::Builder::new().name("waiting".to_owned()).spawn(wait).ok()?;
    Some(answered)
}

/// Why nothing was reached, or nothing came back, in words that do not mention the HTTP library.
pub(crate) fn plain(error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => anyhow!("it hung up"),
        ureq::Error::Io(error) => error.into(),
        ureq::Error::Protocol(_) => anyhow!("it does not speak HTTP"),
        ureq::Error::Timeout(ureq::Timeout::Resolve) => anyhow!("no name server answered in time"),
        ureq::Error::Timeout(ureq::Timeout::Connect) => anyhow!("it did not accept the connection in time"),
        ureq::Error::Timeout(ureq::Timeout::Global | ureq::Timeout::PerRead) => {
            anyhow!("the answer was not complete in time")
        }
        other => other.into(),
    }
}

/// The time for name servers: what connecting leaves of all the time, if it leaves any. If resolving could use up all the time, the
/// error would say that the daemon was reached.
fn agent(patience: Duration) -> ureq::Agent {
    let resolving = patience.checked_sub(CONNECTING + Duration::from_secs(1));
    connecting().timeout_global(Some(patience)).timeout_resolve(resolving).build().new_agent()
}

/// The HTTP client for all daemons. It ignores the proxy in the environment, which leads out of the network that daemons are in.
pub(crate) fn connecting() -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder().timeout_connect(Some(CONNECTING)).http_status_as_error(false).proxy(None)
}

/// One daemon's HTTP interface.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    patience: Duration,
    url: String,
    base: String,
    option: Option<&'static str>,
    /// Done once the user was told what is waited for.
    told: Arc<Once>,
}

/// An answer: status and body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
    /// The key of the collector's configuration because of which something is missing in it.
    pub partial: Option<String>,
    /// When it was produced, if it says so.
    pub(crate) dated: Option<Dated>,
}

/// When an answer was produced by the daemon's clock (in whole seconds), and when it was requested and received by this machine's
/// clock; in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dated {
    pub(crate) theirs_us: u64,
    pub(crate) asked_us: u64,
    pub(crate) had_us: u64,
}

impl Client {
    /// A client of the daemon at `url`, such as `http://127.0.0.1:9411`; the scheme may be left out.
    pub fn new(url: &str) -> Client {
        let (agent, url) = (agent(PATIENCE), with_scheme(url));
        let base = without_login(&url);
        Client { agent, patience: PATIENCE, url, base, option: None, told: Arc::new(Once::new()) }
    }

    /// The same client, waiting no longer than that for an answer.
    #[must_use]
    pub fn patient_for(self, patience: Duration) -> Client {
        Client { agent: agent(patience), patience, ..self }
    }

    /// The same client, whose errors name the option by which another daemon is chosen.
    #[must_use]
    pub fn named_by(self, option: &'static str) -> Client {
        Client { option: Some(option), ..self }
    }

    /// The address that requests go to, including user name and password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address as it is shown, without them.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The address as it is shown, without the scheme.
    pub fn host(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// Gets `path` with its query, whatever the status.
    ///
    /// # Errors
    /// When nothing answers there, or the answer is too large or not text.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (key, value) in query {
            request = request.query(key, value);
        }
        let waiting = tell_of_waiting(&self.base, self.patience, self.told.clone());
        let asked_us = now_us();
        let mut response =
            request.call().map_err(|error| unanswered(error, &self.base, self.patience, self.option))?;
        let had_us = now_us();
        drop(waiting);
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let partial = header("blkin-partial").map(safe);
        let theirs_us = header("date").and_then(parse_http_us);
        let dated = theirs_us.map(|theirs_us| Dated { theirs_us, asked_us, had_us });
        let body = response
            .body_mut()
            .with_config()
            .limit(MAX_BODY_BYTES)
            .read_to_string()
            .map_err(plain)
            .with_context(|| format!("failed to read the answer of {}{path}", self.base))?;
        Ok(Answer { status, body, partial, dated })
    }

    /// Gets `path`; any status but 200 is an error that contains what the daemon said.
    ///
    /// # Errors
    /// As [`Client::get`], and when the status is not 200.
    pub fn get_ok(&self, path: &str, query: &[(&str, &str)]) -> Result<String> {
        self.answered(path, query).map(|answer| answer.body)
    }

    /// The same, returning the whole answer.
    pub(crate) fn answered(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer> {
        let answer = self.get(path, query)?;
        if answer.status != 200 {
            return Err(self.refused(path, &answer));
        }
        Ok(answer)
    }

    /// The error for an answer whose status is not 200.
    pub(crate) fn refused(&self, path: &str, answer: &Answer) -> anyhow::Error {
        let said =
            format!("{}{path} answered {}{}", self.base, answer.status, words(&answer.body, self.option));
        if answer.status == 503 { NoAnswer::NotYet(said).into() } else { anyhow!(said) }
    }

    /// The error for an answer that could not be parsed as what was asked for.
    pub(crate) fn strange(&self, what: &str) -> String {
        format!("failed to read the {what} that {} answered{}", self.base, mistaken(self.option))
    }

    /// The error for metrics that are not those of a `daemon`.
    pub(crate) fn other(&self, daemon: &str) -> String {
        format!("{} has no figures of a {daemon}{}", self.base, mistaken(self.option))
    }
}

/// What a daemon said, to append to an error. If it said nothing it may be another daemon.
pub(crate) fn words(body: &str, option: Option<&str>) -> String {
    match body.trim() {
        "" if option.is_some() => format!(" and no word{}", mistaken(option)),
        "" => String::new(),
        words => format!(": {}", safe(&words.chars().take(300).collect::<String>())),
    }
}

/// A hint that the wrong daemon may have been asked, and which option names the right one.
pub(crate) fn mistaken(option: Option<&str>) -> String {
    option.map(|option| format!(" (is it another daemon? {option} names the right one)")).unwrap_or_default()
}

/// A daemon that answers each path with a head and a body.
#[cfg(test)]
pub(crate) fn answering(answer: impl Fn(&str) -> (&'static str, &'static str) + Send + 'static) -> Client {
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::new(&listener.local_addr().unwrap().to_string());
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let Ok(length) = connection.read(&mut request) else { continue };
            let request = String::from_utf8_lossy(&request[..length]);
            let (status, body) = answer(request.split(' ').nth(1).unwrap_or_default());
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}");
            let _gone = connection.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
        }
    });
    client
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn only_http_urls_are_accepted_and_the_scheme_is_optional() {
        for url in ["http://10.0.0.5:9411/", "10.0.0.5:9411", "HTTP://10.0.0.5:9411"] {
            assert_eq!(parse_url(url).unwrap(), "http://10.0.0.5:9411");
        }
        for url in ["http://10.0.0.5:94110", "10.0.0.5:", "[::1]:x/zipkin", "fd00::5:9411", "10.0.0.5:0"] {
            assert!(parse_url(url).unwrap_err().contains(" names no port"), "{url}");
        }
        for url in
            ["10.0.0.5", "http://[::1]:9411", "[::1]", "proxy/zipkin", "proxy:80/a:b", "me:secret@proxy:80"]
        {
            assert!(parse_url(url).is_ok(), "{url}");
        }
        for url in ["http:// a:9411", "10.0.0.5:9411 ", "a\n:9411"] {
            assert!(parse_url(url).unwrap_err().contains("there is a space in it"), "{url}");
        }
        for url in ["https://10.0.0.5:9411", "file:///etc/passwd", "/etc/passwd", "", "http://"] {
            assert!(parse_url(url).unwrap_err().contains("only http is supported"), "{url}");
        }
    }

    #[test]
    fn an_unreached_daemon_is_named_with_the_option_for_its_address() {
        let error = Client::new("127.0.0.1:1").named_by("--collector").get("/", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to reach http://127.0.0.1:1 (does it serve HTTP there? --collector names another)"
        );
    }

    #[test]
    fn errors_name_port_80_if_the_address_has_no_port() {
        for (base, said) in [
            ("http://localhost", true),
            ("http://[::1]/zipkin", true),
            ("http://me@proxy/a:b", true),
            ("http://localhost:9411", false),
            ("http://[::1]:80/zipkin", false),
        ] {
            let error = unanswered(ureq::Error::HostNotFound, base, PATIENCE, None).to_string();
            assert_eq!(error.contains(" at port 80, as it names none"), said, "{error}");
        }
    }

    #[test]
    fn refused_connections_and_timeouts_have_plain_messages() {
        let error = Client::new("127.0.0.1:1").get("/", &[]).unwrap_err();
        assert!(format!("{error:#}").ends_with(":1: Connection refused (os error 111)"), "{error:#}");

        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(&silent.local_addr().unwrap().to_string());
        let client = client.patient_for(Duration::from_millis(1)).named_by("--collector");
        let error = format!("{:#}", client.get("/", &[]).unwrap_err());
        assert!(error.contains(" was reached, but did not answer within 1ms (does it serve HTTP"), "{error}");
    }

    #[test]
    fn a_name_lookup_timeout_is_not_reported_as_reached() {
        for patience in [Duration::from_secs(10), PATIENCE] {
            let timeouts = agent(patience).config().timeouts();
            assert!(timeouts.resolve.unwrap() + timeouts.connect.unwrap() < patience);
        }
        let silent = ureq::Error::Timeout(ureq::Timeout::Resolve);
        let error = format!("{:#}", unanswered(silent, "http://a:9411", PATIENCE, None));
        assert_eq!(error, "failed to reach http://a:9411: no name server answered in time");
    }

    #[test]
    fn credentials_in_a_url_are_sent_but_never_shown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let length = connection.read(&mut asked).unwrap();
            connection.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").unwrap();
            String::from_utf8_lossy(&asked[..length]).to_lowercase()
        });
        let client = Client::new(&format!("http://me:s3cret@{proxy}/zipkin"));
        let error = format!("{:#}", client.get_ok("/api/v2/services", &[]).unwrap_err());
        assert_eq!(error, format!("http://{proxy}/zipkin/api/v2/services answered 401"));
        assert_eq!(client.host(), format!("{proxy}/zipkin"));
        assert!(answering.join().unwrap().contains("authorization: basic bwu6cznjcmv0"));
    }

    #[test]
    fn a_long_wait_is_announced_once() {
        let told = |after, once: &Arc<Once>| {
            let (mut reader, writer) = io::pipe().unwrap();
            let answered = tell_later(after, "waiting\n".to_owned(), once.clone(), writer);
            // Until then the thread has the writer.
            let answered = answered.filter(|_| after.is_zero());
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            drop(answered);
            said
        };
        let once = Arc::new(Once::new());
        assert_eq!(told(Duration::from_secs(3600), &once), "");
        assert_eq!(told(Duration::ZERO, &once), "waiting\n");
        assert_eq!(told(Duration::ZERO, &once), "");
    }

    #[test]
    fn hang_ups_and_other_protocols_have_plain_messages() {
        for (says, expected) in
            [("", ": it hung up"), ("SSH-2.0-OpenSSH\r\n\r\n", ": it does not speak HTTP")]
        {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = Client::new(&listener.local_addr().unwrap().to_string());
            let answering = thread::spawn(move || {
                let (mut connection, _) = listener.accept().unwrap();
                let _asked = connection.read(&mut [0; 4096]).unwrap();
                connection.write_all(says.as_bytes()).unwrap();
            });
            let error = format!("{:#}", client.get("/", &[]).unwrap_err());
            assert!(error.ends_with(expected), "{error}");
            answering.join().unwrap();
        }
    }

    #[test]
    fn an_error_without_a_body_suggests_another_address() {
        assert_eq!((words(" a b\n", None), words("\n", None)), (": a b".to_owned(), String::new()));
        assert!(words("", Some("--collector")).contains("--collector names the right one"));
    }
}
