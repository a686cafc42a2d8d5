//! The real Zipkin server and our collector get the same inputs and the same queries, and must answer the same, except for the
//! differences that `zipkin_differences.toml` lists with their reasons. A listed difference that is not found is a failure,
//! too. Then both are tested against the rules that a store must follow.

mod corpus;
mod rules;
mod senders;
mod wire;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use blkin_cli::http::Client;
use blkin_tests::artifacts::root;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::ingest::now_us;
use blkin_tests::wait;
use blkin_tests::zipkin::Zipkin;
use serde::Deserialize;
use serde_json::Value;

use corpus::{Case, Road};

/// The file of differences.
#[derive(Deserialize)]
struct Differences {
    difference: Vec<Difference>,
}

/// One known difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// The beginning of the names of its cases, or of the queries.
    case: String,
    /// What we do better, or why it does not matter.
    why: String,
    /// Zipkin's answer to the sender, or the status of its answer to the query, if it differs from ours.
    zipkin: Option<String>,
    /// Our answer or status then.
    ours: Option<String>,
    /// Whether our spans say more than Zipkin's: each of its spans is part of one of ours.
    #[serde(default)]
    ours_says_more: bool,
    /// Whether the spans are joined from their pieces in another way.
    #[serde(default)]
    other_spans: bool,
    #[serde(skip)]
    found: Cell<bool>,
}

/// What a server made of a case: its answer to the sender, and the spans of the case's traces.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    answer: String,
    spans: Vec<Value>,
}

/// The answer to a query: status, cache lifetime, and the body if it is JSON, sorted.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    kept: Option<String>,
    body: Value,
}

struct Server<'a> {
    http: &'a Client,
    scribe: String,
}

impl Server<'_> {
    fn send(&self, road: &Road) -> Result<String> {
        match road {
            Road::Scribe { category, messages } => wire::log(&self.scribe, category, messages),
            Road::Http { path, headers, body } => {
                let mut request = agent().post(format!("{}{path}", self.http.base()));
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                Ok(request.send(&body[..])?.status().as_u16().to_string())
            }
        }
    }

    fn spans(&self, traces: &[String]) -> Result<Vec<Value>> {
        let mut spans = Vec::new();
        for trace in traces {
            let answer = self.http.get(&format!("/api/v2/trace/{trace}"), &[])?;
            ensure!(matches!(answer.status, 200 | 404), "{trace}: {} {}", answer.status, answer.body);
            if answer.status == 200 {
                spans.extend(serde_json::from_str::<Vec<Value>>(&answer.body)?);
            }
        }
        // A server may return the spans of a trace in any order.
        spans.sort_by_key(Value::to_string);
        Ok(spans)
    }

    /// A query is a path, after a method if that is not GET.
    fn ask(&self, query: &str) -> Result<Answer> {
        let (method, path) = query.split_once(' ').unwrap_or(("GET", query));
        let uri = format!("{}{path}", self.http.base());
        let request = ureq::http::Request::builder().method(method).uri(uri).body(())?;
        let mut answer = agent().run(request)?;
        let status = answer.status().as_u16();
        let kept = answer.headers().get("Cache-Control").map(|kept| kept.to_str().map(str::to_owned));
        let body = answer.body_mut().read_to_string()?;
        let mut body = serde_json::from_str(&body).unwrap_or(Value::Null);
        if let Value::Array(entries) = &mut body {
            entries
                .iter_mut()
                .filter_map(Value::as_array_mut)
                .for_each(|inner| inner.sort_by_key(Value::to_string));
            entries.sort_by_key(Value::to_string);
        }
        let body = if status == 200 { body } else { Value::Null };
        Ok(Answer { status, kept: kept.transpose()?, body })
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().new_agent()
}

impl Difference {
    /// Whether this difference explains how the outcomes differ.
    fn explains(&self, zipkin: &Outcome, ours: &Outcome) -> bool {
        let more = || zipkin.spans.iter().all(|span| ours.spans.iter().any(|our| is_part(span, our)));
        let spans = zipkin.spans == ours.spans || self.other_spans || self.ours_says_more && more();
        self.answers(&zipkin.answer, &ours.answer) && spans
    }

    /// Whether this difference has these answers, or these statuses.
    fn answers(&self, zipkin: &str, ours: &str) -> bool {
        match (&self.zipkin, &self.ours) {
            (Some(theirs), Some(our)) => theirs == zipkin && our == ours,
            _ => zipkin == ours,
        }
    }
}

/// Whether everything that `part` says is said by `whole`.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|other| is_part(value, other)))
        }
        (Value::Array(part), Value::Array(whole)) => {
            part.iter().all(|value| whole.iter().any(|other| is_part(value, other)))
        }
        _ => part == whole,
    }
}

fn differences() -> Result<Vec<Difference>> {
    let text = fs::read_to_string(root().join("tests/e2e/zipkin_differences.toml"))?;
    Ok(toml::from_str::<Differences>(&text)?.difference)
}

/// Sends a case to both servers; returns the difference, unless it is a known one.
fn compare(
    case: &Case,
    zipkin: &Server<'_>,
    ours: &Server<'_>,
    known: &[Difference],
) -> Result<Option<String>> {
    let our_answer = ours.send(&case.road).with_context(|| format!("our collector, {}", case.name))?;
    let our = Outcome { answer: our_answer, spans: ours.spans(&case.traces)? };
    let answer = zipkin.send(&case.road).with_context(|| format!("Zipkin, {}", case.name))?;
    let known: Vec<&Difference> = known.iter().filter(|known| case.name.starts_with(&known.case)).collect();
    let look = || {
        let spans = zipkin.spans(&case.traces).ok()?;
        let theirs = Outcome { answer: answer.clone(), spans };
        if theirs == our {
            return Some(());
        }
        // As long as Zipkin has stored nothing, its empty list would be part of any spans of ours.
        let settled = !theirs.spans.is_empty() || answer != our.answer;
        let explained = known.iter().find(|known| settled && known.explains(&theirs, &our))?;
        explained.found.set(true);
        Some(())
    };
    if wait::until(LIMIT, "the same answer", look).is_ok() {
        return Ok(None);
    }
    let theirs = Outcome { answer, spans: zipkin.spans(&case.traces)? };
    let show = |outcome: &Outcome| format!("{} {}", outcome.answer, Value::Array(outcome.spans.clone()));
    Ok(Some(format!("{}\n  zipkin {}\n  ours   {}", case.name, show(&theirs), show(&our))))
}

/// Sends a query to both servers; returns the difference, unless it is a known one.
fn compare_answers(
    query: &str,
    zipkin: &Server<'_>,
    ours: &Server<'_>,
    known: &[Difference],
) -> Result<Option<String>> {
    let (their, our) = (zipkin.ask(query)?, ours.ask(query)?);
    if their == our {
        return Ok(None);
    }
    let (theirs, ours) = (their.status.to_string(), our.status.to_string());
    let explains = |known: &&Difference| query.starts_with(&known.case) && known.answers(&theirs, &ours);
    if let Some(known) = known.iter().find(explains) {
        known.found.set(true);
        return Ok(None);
    }
    Ok(Some(format!("{query}\n  zipkin {their:?}\n  ours   {our:?}")))
}

/// Queries for the traces of today, and other requests.
fn queries(shops: &[String]) -> Vec<String> {
    let now_ms = now_us() / 1000;
    let search = |what: &str| format!("/api/v2/traces?endTs={now_ms}&lookback=3600000&{what}");
    let mut queries = vec![
        search("serviceName=shop-web"),
        search("serviceName=SHOP-WEB"),
        search("serviceName=shop-store&spanName=fetch"),
        search("serviceName=shop-web&spanName=all"),
        search("serviceName=shop-web&remoteServiceName=shop-store"),
        search("serviceName=shop-web&annotationQuery=error"),
        search("serviceName=shop-web&annotationQuery=error%20and%20item%3D2"),
        search("serviceName=shop-store&annotationQuery=cache.miss"),
        search("serviceName=shop-store&annotationQuery=error"),
        search("serviceName=shop-web&minDuration=3000"),
        search("serviceName=shop-web&minDuration=2000&maxDuration=4000"),
        search("serviceName=shop-web&limit=2"),
        search("minDuration=1000"),
        search("serviceName=nobody"),
        format!("/api/v2/traceMany?traceIds={}", shops.join(",")),
        format!("/api/v2/traceMany?traceIds={},000{},{:0>32}", shops[0], shops[1], shops[2]),
        // A parameter that only our collector knows; `blkin trace` sends it to any server.
        format!("/api/v2/trace/{}?nanos=true", shops[0]),
        format!("/api/v2/dependencies?endTs={now_ms}&lookback=3600000"),
        "/api/v2/services".to_owned(),
        "//api/v2//services".to_owned(),
        "/zipkin/api/v2/%73ervices".to_owned(),
        "/zipkin/config.json".to_owned(),
        "/metrics".to_owned(),
        "/info".to_owned(),
        "/health".to_owned(),
        "/actuator/health".to_owned(),
        "/actuator/info".to_owned(),
        "/actuator/prometheus".to_owned(),
        "/actuator".to_owned(),
        "/api/v2/autocompleteKeys".to_owned(),
        "/api/v2/autocompleteValues?key=item".to_owned(),
    ];
    for service in ["shop-web", "Shop-Store", "nobody", ""] {
        queries.push(format!("/api/v2/spans?serviceName={service}"));
        queries.push(format!("/api/v2/remoteServices?serviceName={service}"));
    }
    queries.extend(conditions().iter().map(|condition| search(&format!("annotationQuery={condition}"))));
    queries.extend(numbers().iter().map(|number| format!("/api/v2/traces?{number}")));
    let listed = [
        "/api/v2/traces?lookback=9223372036854775807",
        "/api/v2/spans",
        "/api/v2/remoteServices",
        "/api/v2/trace",
        "/api/v2/trace/",
        "/api/v2/trace/XYZ",
        "/api/v2/trace/%20",
        "/api/v2/trace/abcdef",
        "/api/v2/trace/0",
        "/api/v2/trace/+1",
        "/api/v2/trace/111111111111111111111111111111111",
        "/api/v2/traceMany",
        "/api/v2/traceMany?traceIds=",
        "/api/v2/traceMany?traceIds=,",
        "/api/v2/traceMany?traceIds=a",
        "/api/v2/traceMany?traceIds=a,",
        "/api/v2/traceMany?traceIds=a,,b",
        "/api/v2/traceMany?traceIds=a,%20b",
        "/api/v2/traceMany?traceIds=a,a",
        "/api/v2/traceMany?traceIds=a,0a",
        "/api/v2/traceMany?traceIds=a,X",
        "/api/v2/traceMany?traceIds=a,0",
        "/api/v2/traceMany?traceIds=a,0000000000000000a",
        "/api/v2/traceMany?traceIds=a,0000000000000000000000000000000a",
        "/api/v2/traceMany?traceIds=a,00000000000000000000000000000000a",
        "/api/v2/traceMany?traceIds=10000000000000000,00010000000000000000",
        "/api/v2/dependencies",
        "/api/v2/autocompleteValues",
        "/api/v2/autocompleteValues?key=",
        "/api/v2/traces?minDuration=5&maxDuration=1&serviceName=shop-web",
        "/api/v2/traces?minDuration=5&maxDuration=-1",
        "/api/v2/traces?limit=1&limit=2",
        "/api/v2/traces?limit=x&limit=2",
        "/api/v2/traces?serviceName=shop-web&serviceName=nobody",
        "/api/v2/traces?serviceName=%20",
        "/api/v2/traces?serviceName=%20shop-web",
        "/api/v2/traces?serviceName=shop-web&spanName=%20fetch",
        "/api/v2/traces?serviceName=shop-web&spanName=ALL",
        "/api/v2/traces?nobody=knows",
        "/api/v2/traces?serviceName=%E4",
        "/api/v2/traces?serviceName=100%",
        "/api/v2/services?nobody=%2",
        "/api/v2/trace/%zz",
        "/health?nobody=%zz",
        "/nothing%",
        "/nothing%25",
        "/config.json",
    ];
    queries.into_iter().chain(listed.into_iter().chain(other_methods()).map(str::to_owned)).collect()
}

/// Requests with methods that the path does not have.
fn other_methods() -> [&'static str; 19] {
    [
        "/api/v1/spans",
        "HEAD /api/v1/spans",
        "HEAD /api/v2/services",
        "HEAD /zipkin/api/v2/services",
        "HEAD /zipkin/config.json",
        "HEAD /health",
        "HEAD /info",
        "HEAD /prometheus",
        "HEAD /nothing",
        "POST /api/v2/services",
        "POST /zipkin/api/v2/services",
        "POST /prometheus",
        "POST /nothing",
        "PUT /api/v2/spans",
        "PUT /zipkin/config.json",
        "DELETE /api/v2/traces",
        "PATCH /health",
        "OPTIONS /api/v2/services",
        "OPTIONS /zipkin/api/v2/services",
    ]
}

/// Conditions on tags and annotations, in all forms that Zipkin reads in its own way.
fn conditions() -> Vec<&'static str> {
    vec![
        "item%3D",
        "item%3D2",
        "ITEM%3D2",
        "%20item%20%3D%202%20",
        "item%20and%20item%3D2",
        "item%3D2%20and%20item",
        "item%3D1%20and%20item%3D2",
        "item%3D2%20and%20item%3D1",
        "item%20AND%20error",
        "item%20and%20and%20error",
        "item%20and%20",
        "%20and%20item",
        "%20",
        "and",
        "%3D",
        "%3D2",
        "cache.miss%3D",
    ]
}

/// Each numeric parameter, with values at and beyond its limits.
fn numbers() -> Vec<String> {
    const VALUES: [&str; 14] = [
        "",
        "0",
        "-0",
        "-1",
        "007",
        "%2B5",
        "%205",
        "5%20",
        "1.5",
        "1e3",
        "0x5",
        "x",
        "9223372036854775808",
        "-9223372036854775809",
    ];
    let parameters =
        ["limit", "endTs", "lookback", "minDuration", "maxDuration", "minDuration=1&maxDuration"];
    // The service has no traces: only whether the number is accepted matters, because the traces found may differ.
    let each = |parameter| VALUES.map(|value| format!("serviceName=nobody&{parameter}={value}"));
    let limits = ["2147483647", "2147483648"].map(|value| format!("serviceName=nobody&limit={value}"));
    parameters.iter().flat_map(each).chain(limits).collect()
}

#[test]
fn the_collector_answers_as_zipkin_and_both_obey_store_rules() -> Result<()> {
    let zipkin = Zipkin::start()?;
    let node = Node::without_consumerd(Setup::default())?;
    let theirs = Server { http: &zipkin.http, scribe: zipkin.scribe.clone() };
    let ours = Server { http: &node.collector.http, scribe: node.collector.address("scribe")? };
    let known = differences()?;
    let cases = corpus::all()?;
    let names: BTreeSet<&str> = cases.iter().filter_map(|case| case.name.split(',').next()).collect();
    ensure!(names.len() == 5 && cases.len() > 400, "{} cases of {names:?}", cases.len());

    let mut wrong = Vec::new();
    for case in &cases {
        wrong.extend(compare(case, &theirs, &ours, &known)?);
    }
    let shops = cases.iter().filter(|case| case.name.contains("shop")).map(|case| case.traces[0].clone());
    for query in queries(&shops.collect::<Vec<_>>()) {
        wrong.extend(compare_answers(&query, &theirs, &ours, &known)?);
    }
    wrong.extend(
        known.iter().filter(|known| !known.found.get()).map(|known| {
            format!("{} is listed as a difference ({}), but there is none", known.case, known.why)
        }),
    );
    let ledger = node.collector.http.get_ok("/api/blkin/ledger?count=store", &[])?;
    ensure!(serde_json::from_str::<Value>(&ledger)?["balanced"] == true, "{ledger}");
    ensure!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    rules::hold(&zipkin.http);
    rules::hold(&node.collector.http);
    Ok(())
}
