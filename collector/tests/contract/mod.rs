//! The rules that a store of traces must follow. Each rule is a check that runs against something empty: one of the collector's
//! stores in this process, or a server over HTTP. The checks use only JSON spans, so that they do not depend on the collector's
//! types.

pub(crate) mod listing;
pub(crate) mod reading;
pub(crate) mod searching;

use serde_json::{Value, json};

/// The time at which every check takes place, in milliseconds since 1970.
pub(crate) const NOW_MS: u64 = 1_700_000_000_000;
/// The same in microseconds.
pub(crate) const NOW_US: u64 = NOW_MS * 1000;

/// The lists of names that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    Services,
    Spans,
    RemoteServices,
}

/// A link between two services.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) parent: String,
    pub(crate) child: String,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
}

/// The store or server under test. Trace ids are hexadecimal; the spans of a trace may come in any order.
pub(crate) trait Subject {
    /// Stores v2 spans; they can be read once this returns.
    fn store(&self, spans: &[Value]);

    /// The spans of a trace; none if it is not known.
    fn trace(&self, id: &str) -> Vec<Value>;

    /// The spans of those of several traces that are known.
    fn traces(&self, ids: &[&str]) -> Vec<Vec<Value>>;

    /// Searches with these parameters of `/api/v2/traces`; without `endTs`, the window ends at [`NOW_MS`].
    fn search(&self, parameters: &[(&str, &str)]) -> Vec<Vec<Value>>;

    /// Names that belong to a service ("" for the services themselves), sorted.
    fn names(&self, kind: Names, service: &str) -> Vec<String>;

    /// The links of the day that ends at [`NOW_MS`].
    fn links(&self) -> Vec<Link>;
}

/// A check.
pub(crate) type Rule = fn(&dyn Subject);

/// Passes all rules to a macro.
macro_rules! each_rule {
    ($then:ident) => {
        $then! {
            reading:
                an_id_is_matched_exactly_and_an_unknown_one_gives_nothing
                identical_spans_sent_again_are_returned_once
                debug_and_shared_spans_stay_distinct_and_unmerged
                traces_that_share_low_bits_stay_apart
                long_values_read_back_untruncated
                an_empty_store_answers_everything
                a_span_that_holds_only_ids_is_stored
                several_traces_are_read_at_once_and_misses_left_out;
            searching:
                the_time_of_a_trace_is_that_of_its_first_span_without_parent
                a_trace_without_any_time_is_never_found
                a_root_that_comes_late_moves_the_trace_in_time
                both_ends_of_the_window_are_inside
                a_found_trace_is_returned_whole
                the_limit_counts_traces_and_the_latest_come_first
                every_condition_is_met_by_a_span_of_the_service
                names_are_lower_cased
                durations_include_both_ends
                an_empty_tag_value_can_be_searched
                annotations_and_tag_keys_are_found_by_text;
            listing:
                services_are_local_names_only_and_all_of_them
                span_names_and_remote_services_belong_to_a_service
                two_hundred_and_fifty_six_traces_give_all_their_links
                links_are_not_doubled_by_a_replay_or_by_long_ids;
        }
    };
}

macro_rules! table {
    ($($module:ident: $($rule:ident)*;)*) => {
        /// All rules by name.
        pub(crate) const RULES: &[(&str, Rule)] = &[$($((stringify!($rule), $module::$rule)),*),*];
    };
}
each_rule!(table);

/// A span of a service: trace, id, parent (0 is none), time in microseconds (0 is none), and further members.
pub(crate) fn span(trace: u64, id: u64, parent: u64, service: &str, time_us: u64, more: Value) -> Value {
    let mut span = json!({"traceId": hex(trace), "id": hex(id), "localEndpoint": {"serviceName": service}});
    if parent != 0 {
        span["parentId"] = json!(hex(parent));
    }
    if time_us != 0 {
        span["timestamp"] = json!(time_us);
    }
    if let (Some(members), Value::Object(more)) = (span.as_object_mut(), more) {
        members.extend(more);
    }
    span
}

/// No further members.
pub(crate) fn nothing() -> Value {
    json!({})
}

/// An id as spans write it.
pub(crate) fn hex(id: u64) -> String {
    format!("{id:016x}")
}

/// Spans in a defined order.
pub(crate) fn sorted(spans: &[Value]) -> Vec<Value> {
    let mut spans = spans.to_vec();
    spans.sort_by_key(Value::to_string);
    spans
}

/// The spans of a trace, in a defined order.
pub(crate) fn read(subject: &dyn Subject, trace: u64) -> Vec<Value> {
    sorted(&subject.trace(&hex(trace)))
}

/// The ids of the traces found, in the order of the answer.
pub(crate) fn found(subject: &dyn Subject, parameters: &[(&str, &str)]) -> Vec<u64> {
    let id = |trace: &Vec<Value>| {
        let text = trace.first()?.get("traceId")?.as_str()?;
        u64::from_str_radix(text.get(text.len().saturating_sub(16)..)?, 16).ok()
    };
    subject.search(parameters).iter().map(|trace| id(trace).expect("a trace has spans with ids")).collect()
}
