//! An annotation as a JSON object, with the fields of BlkKin's first plugin (thesis, listing 7.2): `event`, `name`,
//! `timestamp` in nanoseconds, `service_name`, `trace_id`, `span_id`, `parent_span_id`, `ip`, `port`; a key has `key`
//! and `value` instead of `event` and `timestamp`. `source` and `position` identify an annotation that is sent again.

use serde::Serialize;

use crate::annotation::{Annotation, Content};

#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Integer(i64),
    Text(&'a str),
}

#[derive(Serialize)]
struct Object<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value<'a>>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<i64>,
    service_name: &'a str,
    parent_span_id: u64,
    trace_id: u64,
    ip: &'a str,
    port: u16,
    span_id: u64,
    level: u8,
    #[serde(skip_serializing_if = "is_false")]
    truncated: bool,
    source: i64,
    position: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Appends the object and a line feed.
pub fn append_line(annotation: &Annotation<'_>, out: &mut Vec<u8>) {
    let labels = annotation.labels;
    let key = &*labels.key;
    let (event, key, value) = match &annotation.content {
        Content::Event(_) => (Some(key), None, None),
        Content::Integer(number) => (None, Some(key), Some(Value::Integer(*number))),
        Content::Text(text) => (None, Some(key), Some(Value::Text(text))),
    };
    let object = Object {
        event,
        key,
        value,
        name: &labels.name,
        timestamp: annotation.time_ns(),
        service_name: &labels.endpoint.name,
        parent_span_id: annotation.parent_span_id,
        trace_id: annotation.trace_id,
        ip: &labels.endpoint.ip,
        port: labels.endpoint.port,
        span_id: annotation.span_id,
        level: annotation.level,
        truncated: annotation.truncated,
        source: annotation.origin.source,
        position: annotation.origin.position,
    };
    // This cannot fail: it writes only strings and numbers, and only into memory.
    if serde_json::to_writer(&mut *out, &object).is_ok() {
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation::{Labels, Origin};
    use blkin_record::Endpoint;

    fn line(content: Content<'_>) -> String {
        let endpoint = Endpoint { ip: "10.0.0.1".into(), port: 5000, name: "serviceua".into() };
        let annotation = Annotation {
            trace_id: 8_651_812_401_464_566_866,
            span_id: 7_498_859_655_107_060_208,
            parent_span_id: 0,
            labels: &Labels::new("processua".into(), endpoint.into(), "start".into()),
            content,
            level: 4,
            truncated: false,
            origin: Origin { program: 1, source: -5, position: 7, frame: 0 },
        };
        let mut out = Vec::new();
        append_line(&annotation, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_event_has_the_fields_of_the_thesis() {
        let expected = concat!(
            r#"{"event":"start","name":"processua","timestamp":1412236861119767739,"service_name":"serviceua","#,
            r#""parent_span_id":0,"trace_id":8651812401464566866,"ip":"10.0.0.1","port":5000,"#,
            r#""span_id":7498859655107060208,"level":4,"source":-5,"position":7}"#,
            "\n"
        );
        assert_eq!(line(Content::Event(1_412_236_861_119_767_739)), expected);
    }

    #[test]
    fn keys_have_a_value_instead_of_a_time() {
        assert!(line(Content::Integer(-3)).starts_with(r#"{"key":"start","value":-3,"name""#));
        let text = line(Content::Text("a\n\"b".into()));
        assert!(text.starts_with(r#"{"key":"start","value":"a\n\"b","name""#));
        assert_eq!(text.matches('\n').count(), 1);
    }
}
