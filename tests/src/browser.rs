//! Headless Chromium, driven through chromedriver's WebDriver interface over plain HTTP.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ports::unused_port;
use crate::process::Process;
use crate::wait;

/// Time limit for drawing a page, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Much larger than any screenshot in base64.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// One browser with one window.
#[derive(Debug)]
pub struct Browser {
    agent: ureq::Agent,
    session: String,
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    /// Starts chromedriver and a window of the given size.
    ///
    /// # Errors
    /// When either is missing or does not start.
    pub fn start(width: u32, height: u32) -> Result<Browser> {
        let profile = TempDir::new()?;
        let mut command = Command::new("chromedriver");
        // Without --port, chromedriver picks a port that is free at its first address, and ends if its second address uses it.
        command.arg(format!("--port={}", unused_port()?)).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut driver = Process::spawn("chromedriver", &mut command)?;
        let output = driver.child().stdout.take().context("no pipe to chromedriver")?;
        let port = port(BufReader::new(output))?;
        let config = ureq::Agent::config_builder().timeout_global(Some(LIMIT)).http_status_as_error(false);
        let mut browser = Browser {
            agent: config.build().new_agent(),
            session: format!("http://127.0.0.1:{port}/session"),
            _driver: driver,
            _profile: profile,
        };
        let session = browser.post("", &browser.capabilities(width, height))?;
        let id = session["sessionId"].as_str().context("chromedriver gave no session")?;
        browser.session = format!("{}/{id}", browser.session);
        Ok(browser)
    }

    fn capabilities(&self, width: u32, height: u32) -> Value {
        let profile = format!("--user-data-dir={}", self._profile.path().display());
        let size = format!("--window-size={width},{height}");
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--lang=en-US",
            &profile,
            &size,
        ];
        json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": flags}}}})
    }

    /// Opens a page.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn open(&self, url: &str) -> Result<()> {
        self.post("/url", &json!({"url": url})).map(drop)
    }

    /// Runs JavaScript in the page and returns its value.
    ///
    /// # Errors
    /// When it throws.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The text that the page shows.
    ///
    /// # Errors
    /// When there is no page.
    pub fn text(&self) -> Result<String> {
        Ok(self.run("return document.body.innerText")?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the page shows all of `words`.
    ///
    /// # Errors
    /// When it does not; the error holds the text that it showed.
    pub fn shows(&self, words: &[&str]) -> Result<String> {
        let shown = || self.text().ok().filter(|text| words.iter().all(|word| text.contains(word)));
        wait::until(LIMIT, &format!("the page to show {words:?}"), shown)
            .with_context(|| format!("it shows: {}", self.text().unwrap_or_default()))
    }

    /// Presses the button with this label.
    ///
    /// # Errors
    /// When there is none within the limit.
    pub fn press(&self, label: &str) -> Result<()> {
        let label_json = json!(label);
        let script = format!(
            "const found = [...document.querySelectorAll('button')].find(b => b.innerText.trim() === {label_json}); \
             if (found) found.click(); return !!found"
        );
        let pressed = || self.run(&script).ok().filter(|found| found.as_bool() == Some(true));
        wait::until(LIMIT, &format!("a button {label}"), pressed).map(drop)
    }

    /// The window as a PNG.
    ///
    /// # Errors
    /// When there is none.
    pub fn screenshot(&self) -> Result<Vec<u8>> {
        let value = self.call(self.agent.get(format!("{}/screenshot", self.session)).call()?)?;
        let text = value.as_str().context("chromedriver gave no screenshot")?;
        Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(self.agent.post(format!("{}{path}", self.session)).send_json(body)?)
    }

    fn call(&self, mut response: ureq::http::Response<ureq::Body>) -> Result<Value> {
        let status = response.status();
        let body: Value = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_json()?;
        if !status.is_success() {
            bail!("chromedriver answered {status}: {}", body["value"]["message"]);
        }
        Ok(body["value"].clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium, which would go on if only chromedriver ended.
        let _ = self.agent.delete(&self.session).call();
    }
}

/// Reads the port from chromedriver's output: `… started successfully on port 38495.`
fn port(output: impl BufRead) -> Result<u16> {
    let mut said = String::new();
    for line in output.lines() {
        let line = line?;
        if let Some((_, port)) = line.rsplit_once("successfully on port ") {
            return Ok(port.trim_end_matches('.').parse()?);
        }
        said += &format!("\n{line}");
    }
    bail!("chromedriver ended without a port:{said}")
}
