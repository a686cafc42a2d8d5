//! One span in all wire formats: thrift and protocol buffers are converted from JSON.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use blkin_thrift::scribe::{LogEntry, Outcome, ResultCode, decode_reply, encode_log_call, span_message};
use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Limits, Span};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// Converts a v1 span from JSON to thrift; None if thrift cannot express it.
pub(super) fn thrift_span(json: &Value) -> Option<Span> {
    let trace_id = u128::from_str_radix(json["traceId"].as_str()?, 16).ok()?;
    let high = (trace_id >> 64) as i64;
    Some(Span {
        trace_id: trace_id as i64,
        trace_id_high: (high != 0).then_some(high),
        id: id(&json["id"])?,
        parent_id: optional(&json["parentId"], id)?,
        name: optional(&json["name"], Value::as_str)?.unwrap_or_default().to_owned(),
        timestamp: optional(&json["timestamp"], Value::as_i64)?,
        duration: optional(&json["duration"], Value::as_i64)?,
        debug: json["debug"] == true,
        annotations: list(&json["annotations"], thrift_annotation)?,
        binary_annotations: list(&json["binaryAnnotations"], thrift_binary_annotation)?,
        source: None,
        left_out: 0,
    })
}

fn optional<'a, T>(json: &'a Value, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<Option<T>> {
    if json.is_null() { Some(None) } else { read(json).map(Some) }
}

fn list<T>(json: &Value, read: fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    json.as_array().map_or(Some(Vec::new()), |list| list.iter().map(read).collect())
}

fn id(json: &Value) -> Option<i64> {
    u64::from_str_radix(json.as_str()?, 16).ok().map(|id| id as i64)
}

fn thrift_annotation(json: &Value) -> Option<Annotation> {
    Some(Annotation {
        timestamp: json["timestamp"].as_i64().filter(|&timestamp| timestamp != 0)?,
        value: json["value"].as_str()?.to_owned(),
        host: optional(&json["endpoint"], thrift_endpoint)?,
        ..Annotation::default()
    })
}

fn thrift_binary_annotation(json: &Value) -> Option<BinaryAnnotation> {
    let (kind, value) = match &json["value"] {
        Value::String(text) => (AnnotationType::String, text.clone().into_bytes()),
        Value::Bool(flag) => (AnnotationType::Bool, vec![u8::from(*flag)]),
        _ => return None,
    };
    let host = optional(&json["endpoint"], thrift_endpoint)?;
    Some(BinaryAnnotation { key: json["key"].as_str()?.to_owned(), value, kind, host, ..Default::default() })
}

fn thrift_endpoint(json: &Value) -> Option<Endpoint> {
    let ipv4 = optional(&json["ipv4"], |ip| ip.as_str()?.parse::<std::net::Ipv4Addr>().ok())?;
    let ipv6 = optional(&json["ipv6"], |ip| ip.as_str()?.parse::<std::net::Ipv6Addr>().ok())?;
    Some(Endpoint {
        ipv4: ipv4.map_or(0, |ip| u32::from(ip) as i32),
        port: optional(&json["port"], |port| u16::try_from(port.as_i64()?).ok())?.unwrap_or(0) as i16,
        service_name: optional(&json["serviceName"], Value::as_str)?.unwrap_or_default().to_owned(),
        ipv6: ipv6.map(|ip| ip.octets()),
    })
}

/// A TBinary list of encoded spans.
pub(super) fn thrift_list(spans: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![12];
    bytes.extend_from_slice(&(spans.len() as u32).to_be_bytes());
    bytes.extend(spans.iter().flatten());
    bytes
}

/// Converts v2 spans from JSON to a `ListOfSpans`; None if protocol buffers cannot express them.
pub(super) fn proto3_list(spans: &[Value]) -> Option<Vec<u8>> {
    let spans: Option<Vec<Vec<u8>>> = spans.iter().map(|span| Some(chunk(1, &proto3_span(span)?))).collect();
    Some(spans?.concat())
}

fn proto3_span(json: &Value) -> Option<Vec<u8>> {
    let mut span = chunk(1, &bytes_of_hex(&json["traceId"])?);
    if let Some(parent) = optional(&json["parentId"], bytes_of_hex)? {
        span.extend(chunk(2, &parent));
    }
    span.extend(chunk(3, &bytes_of_hex(&json["id"])?));
    if let Some(kind) = optional(&json["kind"], Value::as_str)? {
        let at = ["CLIENT", "SERVER", "PRODUCER", "CONSUMER"].iter().position(|&known| known == kind)?;
        span.extend([4 << 3, at as u8 + 1]);
    }
    if let Some(name) = optional(&json["name"], Value::as_str)? {
        span.extend(chunk(5, name.as_bytes()));
    }
    if let Some(timestamp) = optional(&json["timestamp"], Value::as_u64)? {
        span.push(6 << 3 | 1);
        span.extend(timestamp.to_le_bytes());
    }
    if let Some(duration) = optional(&json["duration"], Value::as_u64)? {
        span.push(7 << 3);
        span.extend(varint(duration));
    }
    for (number, place) in [(8, "localEndpoint"), (9, "remoteEndpoint")] {
        if let Some(endpoint) = optional(&json[place], proto3_endpoint)? {
            span.extend(chunk(number, &endpoint));
        }
    }
    for annotation in json["annotations"].as_array().into_iter().flatten() {
        span.extend(chunk(10, &proto3_annotation(annotation)?));
    }
    for (key, value) in json["tags"].as_object().into_iter().flatten() {
        span.extend(chunk(11, &[chunk(1, key.as_bytes()), chunk(2, value.as_str()?.as_bytes())].concat()));
    }
    for (number, flag) in [(12, "debug"), (13, "shared")] {
        if optional(&json[flag], Value::as_bool)? == Some(true) {
            span.extend([number << 3, 1]);
        }
    }
    Some(span)
}

fn proto3_annotation(json: &Value) -> Option<Vec<u8>> {
    let timestamp = json["timestamp"].as_u64().filter(|&timestamp| timestamp != 0)?;
    Some(
        [&[1 << 3 | 1][..], &timestamp.to_le_bytes(), &chunk(2, json["value"].as_str()?.as_bytes())].concat(),
    )
}

fn proto3_endpoint(json: &Value) -> Option<Vec<u8>> {
    let mut endpoint = Vec::new();
    if let Some(name) = optional(&json["serviceName"], Value::as_str)? {
        endpoint.extend(chunk(1, name.as_bytes()));
    }
    if let Some(ip) = optional(&json["ipv4"], |ip| ip.as_str()?.parse::<std::net::Ipv4Addr>().ok())? {
        endpoint.extend(chunk(2, &ip.octets()));
    }
    if let Some(ip) = optional(&json["ipv6"], |ip| ip.as_str()?.parse::<std::net::Ipv6Addr>().ok())? {
        endpoint.extend(chunk(3, &ip.octets()));
    }
    if let Some(port) = optional(&json["port"], Value::as_u64)? {
        endpoint.push(4 << 3);
        endpoint.extend(varint(port));
    }
    Some(endpoint)
}

/// The bytes of an id, padded as tracers do.
fn bytes_of_hex(json: &Value) -> Option<Vec<u8>> {
    let text = json.as_str().filter(|text| !text.is_empty() && text.len() <= 32)?;
    let width = if text.len() > 16 { 32 } else { 16 };
    let number = u128::from_str_radix(text, 16).ok()?;
    Some(number.to_be_bytes()[16 - width / 2..].to_vec())
}

pub(super) fn chunk(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

pub(super) fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

pub(super) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// The message of an entry that carries an encoded span.
pub(super) fn scribe_message(span: &Span) -> Vec<u8> {
    span_message(span)
}

/// A Scribe server's answer to these messages: a result code, an exception's kind, or that it closed the connection.
pub(super) fn log(address: &str, category: &str, messages: &[Vec<u8>]) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let entry = |message: &Vec<u8>| LogEntry { category: category.to_owned(), message: message.clone() };
    let entries: Vec<LogEntry> = messages.iter().map(entry).collect();
    stream.write_all(&encode_log_call(7, &entries))?;
    let mut header = [0; 4];
    if stream.read_exact(&mut header).is_err() {
        return Ok("closed".to_owned());
    }
    let mut frame = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut frame)?;
    let reply = decode_reply(&frame, &Limits::default()).context("the frame is no reply")?;
    Ok(match reply.outcome {
        Outcome::Result(ResultCode::Ok) => "OK".to_owned(),
        Outcome::Result(ResultCode::TryLater) => "TRY_LATER".to_owned(),
        Outcome::Exception(_) => "exception".to_owned(),
    })
}
