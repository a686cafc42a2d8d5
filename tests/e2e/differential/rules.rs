//! Tests servers over HTTP against the rules that a store must follow: the real Zipkin confirms that the rules are right, and
//! our collector must follow them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use blkin_cli::http::Client;
use blkin_tests::daemons::LIMIT;
use blkin_tests::ingest::post;
use blkin_tests::wait;
use serde_json::{Value, json};

#[path = "../../../collector/tests/contract/mod.rs"]
mod contract;

use contract::{Link, NOW_MS, Names, Subject};

const DAY_MS: u64 = 86_400_000;
/// The bit of a trace id at which the number of the check begins.
const CHECK_BITS: u32 = 40;

/// Tests a server against all rules; panics with the message of a rule that it breaks.
#[allow(clippy::print_stderr)]
pub(super) fn hold(http: &Client) {
    for (check, (name, rule)) in (1_u64..).zip(contract::RULES) {
        eprintln!("{} must follow: {name}", http.base());
        rule(&Server { http, check, stored: RefCell::default() });
    }
}

/// A server whose store cannot be emptied, so each check has its own trace ids, service names and days.
struct Server<'a> {
    http: &'a Client,
    check: u64,
    /// The spans sent so far, by trace.
    stored: RefCell<BTreeMap<String, Vec<Value>>>,
}

impl Server<'_> {
    fn shift_ms(&self) -> u64 {
        self.check * 3 * DAY_MS
    }

    /// Translates a check's span for the server: moves its times back, and puts the number of the check into its ids and names.
    fn there(&self, span: &Value) -> Value {
        let shift_us = self.shift_ms() * 1000;
        let trace = |id: &str| {
            let (high, low) = id.split_at(id.len().saturating_sub(16));
            let low = u64::from_str_radix(low, 16).unwrap_or(0);
            format!("{high}{:016x}", low | self.check << CHECK_BITS)
        };
        self.translated(span, &trace, &|time| time.wrapping_sub(shift_us), &|name| self.prefixed(name))
    }

    fn back(&self, span: &Value) -> Value {
        let shift_us = self.shift_ms() * 1000;
        let trace = |id: &str| {
            let (high, low) = id.split_at(id.len().saturating_sub(16));
            let low = u64::from_str_radix(low, 16).unwrap_or(0);
            format!("{high}{:016x}", low & !(u64::MAX << CHECK_BITS))
        };
        let name = |name: &str| self.own(name).unwrap_or_else(|| format!("of another check: {name}"));
        self.translated(span, &trace, &|time| time.wrapping_add(shift_us), &name)
    }

    fn translated(
        &self,
        span: &Value,
        trace: &dyn Fn(&str) -> String,
        time: &dyn Fn(u64) -> u64,
        name: &dyn Fn(&str) -> String,
    ) -> Value {
        let mut span = span.clone();
        span["traceId"] = json!(trace(span["traceId"].as_str().unwrap_or_default()));
        let annotations = span.get_mut("annotations").and_then(Value::as_array_mut).into_iter().flatten();
        annotations.for_each(|annotation| translate_time(annotation, time));
        translate_time(&mut span, time);
        for endpoint in ["localEndpoint", "remoteEndpoint"] {
            if let Some(service) = span.get_mut(endpoint).and_then(|endpoint| endpoint.get_mut("serviceName"))
            {
                *service = json!(name(service.as_str().unwrap_or_default()));
            }
        }
        span
    }

    fn prefixed(&self, name: &str) -> String {
        format!("check{}.{name}", self.check)
    }

    fn own(&self, name: &str) -> Option<String> {
        name.strip_prefix(&format!("check{}.", self.check)).map(str::to_owned)
    }

    fn there_id(&self, id: &str) -> String {
        let span = self.there(&json!({"traceId": id}));
        span["traceId"].as_str().unwrap_or_default().to_owned()
    }

    fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let answer = self.http.get(path, parameters).expect("the server answers");
        assert!(matches!(answer.status, 200 | 404), "{path}: {} {}", answer.status, answer.body);
        (answer.status == 200).then(|| serde_json::from_str(&answer.body).expect("JSON"))
    }

    fn traces_of(&self, answer: Option<Value>) -> Vec<Vec<Value>> {
        let traces: Vec<Vec<Value>> =
            answer.map(|answer| serde_json::from_value(answer).expect("lists of spans")).unwrap_or_default();
        traces.iter().map(|trace| trace.iter().map(|span| self.back(span)).collect()).collect()
    }

    /// Waits until everything sent is stored, because Zipkin answers before it has stored the spans.
    fn settle(&self) {
        for (trace, spans) in &*self.stored.borrow() {
            let all_there = || {
                let found = self.trace(trace);
                spans.iter().all(|span| found.contains(&lower_cased(span))).then_some(())
            };
            wait::until(LIMIT, "what was sent to be stored", all_there)
                .unwrap_or_else(|error| panic!("{error}: {spans:?}, found {:?}", self.trace(trace)));
        }
    }
}

fn translate_time(object: &mut Value, time: &dyn Fn(u64) -> u64) {
    if let Some(timestamp) = object.get_mut("timestamp") {
        *timestamp = json!(time(timestamp.as_u64().unwrap_or_default()));
    }
}

/// A span as servers return it, with names in lower case.
fn lower_cased(span: &Value) -> Value {
    let mut span = span.clone();
    let lower = |name: &mut Value| *name = json!(name.as_str().unwrap_or_default().to_lowercase());
    span.get_mut("name").into_iter().for_each(lower);
    for endpoint in ["localEndpoint", "remoteEndpoint"] {
        span.get_mut(endpoint)
            .and_then(|endpoint| endpoint.get_mut("serviceName"))
            .into_iter()
            .for_each(lower);
    }
    span
}

impl Subject for Server<'_> {
    fn store(&self, spans: &[Value]) {
        let sent: Vec<Value> = spans.iter().map(|span| self.there(span)).collect();
        let body = serde_json::to_vec(&sent).expect("JSON");
        let (status, said) = post(self.http, "/api/v2/spans", "application/json", &body).expect("an answer");
        assert_eq!(status, 202, "{said}");
        for span in spans {
            let trace = span["traceId"].as_str().unwrap_or_default().to_owned();
            self.stored.borrow_mut().entry(trace).or_default().push(span.clone());
        }
        self.settle();
    }

    fn trace(&self, id: &str) -> Vec<Value> {
        let answer = self.ask(&format!("/api/v2/trace/{}", self.there_id(id)), &[]);
        self.traces_of(answer.map(|spans| json!([spans]))).pop().unwrap_or_default()
    }

    fn traces(&self, ids: &[&str]) -> Vec<Vec<Value>> {
        let ids: Vec<String> = ids.iter().map(|id| self.there_id(id)).collect();
        self.traces_of(self.ask("/api/v2/traceMany", &[("traceIds", &ids.join(","))]))
    }

    fn search(&self, parameters: &[(&str, &str)]) -> Vec<Vec<Value>> {
        let mut there: BTreeMap<&str, String> = [("endTs", NOW_MS.to_string())].into();
        there.extend(parameters.iter().map(|&(name, value)| (name, value.to_owned())));
        for (&name, value) in &mut there {
            match name {
                "endTs" => *value = (value.parse::<u64>().expect("a time") - self.shift_ms()).to_string(),
                "serviceName" | "remoteServiceName" => *value = self.prefixed(value),
                _ => {}
            }
        }
        let there: Vec<(&str, &str)> = there.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.traces_of(self.ask("/api/v2/traces", &there))
    }

    fn names(&self, kind: Names, service: &str) -> Vec<String> {
        let of = [("serviceName", self.prefixed(service))];
        let of: Vec<(&str, &str)> = of.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (path, parameters, prefixed) = match kind {
            Names::Services => ("/api/v2/services", &[][..], true),
            Names::Spans => ("/api/v2/spans", &of[..], false),
            Names::RemoteServices => ("/api/v2/remoteServices", &of[..], true),
        };
        let names: Vec<String> = self
            .ask(path, parameters)
            .map(|names| serde_json::from_value(names).expect("names"))
            .unwrap_or_default();
        if prefixed { names.iter().filter_map(|name| self.own(name)).collect() } else { names }
    }

    fn links(&self) -> Vec<Link> {
        let end_ms = (NOW_MS - self.shift_ms()).to_string();
        let answer = self.ask("/api/v2/dependencies", &[("endTs", &end_ms), ("lookback", "86400000")]);
        let links: Vec<Value> = serde_json::from_value(answer.unwrap_or_default()).expect("links");
        let name = |link: &Value, side: &str| self.own(link[side].as_str().unwrap_or_default());
        links
            .iter()
            .filter_map(|link| {
                let errors = link["errorCount"].as_u64().unwrap_or(0);
                let calls = link["callCount"].as_u64().unwrap_or(0);
                Some(Link { parent: name(link, "parent")?, child: name(link, "child")?, calls, errors })
            })
            .collect()
    }
}
