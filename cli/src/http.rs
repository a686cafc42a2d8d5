//! Bounded GET requests to the daemons' HTTP interfaces.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::terminal::safe;

/// No answer of a daemon is read beyond this: a search of 1,000 large traces stays well below it.
const MAX_BODY_BYTES: u64 = 256 << 20;
/// An answer is waited for this long, unless [`Client::patient_for`] says otherwise: a search over much may take its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reads the address of a daemon, as the command line has it.
///
/// # Errors
/// A sentence that says which scheme is spoken.
pub fn parse_url(text: &str) -> Result<String, String> {
    let url = with_scheme(text);
    match url.strip_prefix("http://") {
        Some(rest) if !rest.is_empty() => Ok(url),
        _ => {
            Err("write http://HOST:PORT: only http is spoken here, put a proxy before it for TLS".to_owned())
        }
    }
}

/// What is said when nobody answers at `base`.
pub(crate) fn unreachable(base: &str, option: Option<&str>) -> String {
    let hint = option
        .map(|option| format!(" (does it serve HTTP there? {option} names another)"))
        .unwrap_or_default();
    format!("failed to reach {base}{hint}")
}

fn with_scheme(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    format!("{scheme}://{}", rest.trim_end_matches('/'))
}

/// Whoever listens there has not answered in time.
#[derive(Debug)]
pub(crate) struct Silence;

impl std::fmt::Display for Silence {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("it does not answer in time")
    }
}

impl std::error::Error for Silence {}

/// Why nobody was reached, or nothing came back, without the names of parts that this program is made of.
pub(crate) fn plain(error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(error) => error.into(),
        ureq::Error::Timeout(ureq::Timeout::Connect) => anyhow!("no connection came about in time"),
        ureq::Error::Timeout(ureq::Timeout::Global) => Silence.into(),
        other => other.into(),
    }
}

fn agent(patience: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(3)))
        .timeout_global(Some(patience))
        .http_status_as_error(false)
        .build();
    config.new_agent()
}

/// One daemon's HTTP interface.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    option: Option<&'static str>,
}

/// An answer: status and body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

impl Client {
    /// A client of the daemon at `url`, such as `http://127.0.0.1:9411`; the scheme may be left out.
    pub fn new(url: &str) -> Client {
        Client { agent: agent(PATIENCE), base: with_scheme(url), option: None }
    }

    /// The same, which waits no longer than that for an answer.
    #[must_use]
    pub fn patient_for(self, patience: Duration) -> Client {
        Client { agent: agent(patience), ..self }
    }

    /// The same, which tells by what option another daemon is named when it reaches nobody.
    #[must_use]
    pub fn named_by(self, option: &'static str) -> Client {
        Client { option: Some(option), ..self }
    }

    /// The address that requests go to.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The same without the scheme.
    pub fn host(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// Gets `path` with its query, whatever the status.
    ///
    /// # Errors
    /// When nobody answers there, or the answer is no text of bearable size.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (key, value) in query {
            request = request.query(key, value);
        }
        let mut response =
            request.call().map_err(plain).with_context(|| unreachable(&self.base, self.option))?;
        let status = response.status().as_u16();
        let body = response
            .body_mut()
            .with_config()
            .limit(MAX_BODY_BYTES)
            .read_to_string()
            .map_err(plain)
            .with_context(|| format!("failed to read the answer of {}{path}", self.base))?;
        Ok(Answer { status, body })
    }

    /// Gets `path` and takes anything but 200 for an error that carries the daemon's own words.
    ///
    /// # Errors
    /// As [`Client::get`], and when the status is not 200.
    pub fn get_ok(&self, path: &str, query: &[(&str, &str)]) -> Result<String> {
        let answer = self.get(path, query)?;
        if answer.status != 200 {
            bail!("{}{path} answered {}{}", self.base, answer.status, self.words(&answer.body));
        }
        Ok(answer.body)
    }

    /// What a daemon said of a request that it did not answer. One that says nothing is another daemon, perhaps.
    fn words(&self, body: &str) -> String {
        match (body.trim(), self.option) {
            ("", Some(option)) => format!(" and no word: is it another daemon? {option} names the right one"),
            ("", None) => String::new(),
            (words, _) => format!(": {}", safe(&words.chars().take(300).collect::<String>())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_is_spoken_and_its_name_may_be_left_out() {
        for url in ["http://10.0.0.5:9411/", "10.0.0.5:9411"] {
            assert_eq!(parse_url(url).unwrap(), "http://10.0.0.5:9411");
        }
        for url in ["https://10.0.0.5:9411", "file:///etc/passwd", "", "http://"] {
            assert!(parse_url(url).unwrap_err().contains("only http is spoken"), "{url}");
        }
    }

    #[test]
    fn whoever_is_not_reached_is_named_with_the_option_that_names_another() {
        let error = Client::new("127.0.0.1:1").named_by("--collector").get("/", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to reach http://127.0.0.1:1 (does it serve HTTP there? --collector names another)"
        );
    }

    #[test]
    fn who_does_not_listen_and_who_does_not_answer_is_told_in_plain_words() {
        let error = Client::new("127.0.0.1:1").get("/", &[]).unwrap_err();
        assert!(format!("{error:#}").ends_with(":1: Connection refused (os error 111)"), "{error:#}");

        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(&silent.local_addr().unwrap().to_string());
        let error = client.patient_for(Duration::from_millis(1)).get("/", &[]).unwrap_err();
        assert!(format!("{error:#}").ends_with(": it does not answer in time"), "{error:#}");
    }

    #[test]
    fn a_daemon_that_refuses_without_a_word_may_be_the_wrong_one() {
        let client = Client::new("127.0.0.1:1");
        assert_eq!((client.words(" a b\n"), client.words("\n")), (": a b".to_owned(), String::new()));
        assert!(client.named_by("--collector").words("").contains("--collector names the right one"));
    }
}
