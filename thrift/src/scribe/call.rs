//! The call `Log(messages)`, and the other methods that a peer may call.

use thrift::protocol::{TInputProtocol, TMessageIdentifier, TMessageType, TOutputProtocol, TType};

use super::fb303::Fb303;
use super::reply::{ExceptionKind, encode_exception};
use crate::binary::{
    Input, Output, WriteResult, input, read_struct, read_struct_list, read_text, write_bytes,
    write_struct_list, write_to,
};
use crate::frame::framed;
use crate::{Error, Limits};

/// One entry of a `Log` call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// The kind of message; `zipkin` for Zipkin's spans.
    pub category: String,
    /// The message; for Zipkin a span in base64.
    pub message: Vec<u8>,
}

/// A call from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The sequence number, which the reply must repeat.
    pub seq: i32,
    /// Whether the peer waits for a reply.
    pub wants_reply: bool,
    /// The method with its arguments.
    pub method: Method,
}

/// A method that a peer calls, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// `Log`: accept these entries.
    Log(Vec<LogEntry>),
    /// A question of fb303 about the service.
    Fb303(Fb303),
    /// The name of a method that this service does not have.
    Unknown(String),
}

/// A call that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to read a call: {cause}")]
pub struct BadCall {
    /// What is wrong with the call.
    pub cause: Error,
    /// The framed answer for the peer. `None` if the header was unreadable or not that of a call, in which case the connection
    /// must be closed, or if the peer wants no answer.
    pub reply: Option<Vec<u8>>,
}

/// Encodes a framed `Log` call.
pub fn encode_log_call(seq: i32, entries: &[LogEntry]) -> Vec<u8> {
    framed(|bytes| {
        write_to(bytes, |output| {
            output.write_message_begin(&TMessageIdentifier::new("Log", TMessageType::Call, seq))?;
            write_struct_list(output, 1, entries, write_entry)?;
            output.write_field_stop()
        });
    })
}

/// Reads a call from one frame, with or without a version in its header.
///
/// # Errors
/// [`BadCall`] if the call cannot be read or is over a limit. It contains the answer for the peer, if there is one.
pub fn parse_call(frame: &[u8], limits: &Limits) -> Result<Call, BadCall> {
    let header = |cause: Error| BadCall { cause, reply: None };
    let mut input = input(frame, limits).map_err(header)?;
    let message = input.read_message_begin().map_err(|e| header(e.into()))?;
    let wants_reply = match message.message_type {
        TMessageType::Call => true,
        TMessageType::OneWay => false,
        other => return Err(header(Error::Malformed(format!("a {other} is not a call")))),
    };
    let seq = message.sequence_number;
    match read_method(&mut input, &message.name, limits) {
        Ok(method) => Ok(Call { seq, wants_reply, method }),
        Err(cause) => {
            let text = cause.to_string();
            let reply = wants_reply
                .then(|| encode_exception(&message.name, seq, ExceptionKind::ProtocolError, &text));
            Err(BadCall { cause, reply })
        }
    }
}

impl Call {
    /// The framed answer to a call of an unknown method; `None` if the method is known, or if the peer wants no answer.
    pub fn unknown_method_reply(&self) -> Option<Vec<u8>> {
        let Method::Unknown(name) = &self.method else { return None };
        let text = format!("Invalid method name: '{name}'");
        self.wants_reply.then(|| encode_exception(name, self.seq, ExceptionKind::UnknownMethod, &text))
    }
}

fn read_method(input: &mut Input<'_>, name: &str, limits: &Limits) -> Result<Method, Error> {
    if name == "Log" {
        return Ok(Method::Log(read_log_arguments(input, limits)?));
    }
    match Fb303::read(input, name)? {
        Some(method) => Ok(Method::Fb303(method)),
        None => Ok(Method::Unknown(name.to_owned())),
    }
}

/// Reads the entries of a `Log` call. A call without the list is refused: if it counted as a call without entries, entries in
/// another form would be lost and answered with OK.
fn read_log_arguments(input: &mut Input<'_>, limits: &Limits) -> Result<Vec<LogEntry>, Error> {
    let mut found = None;
    read_struct(input, |input, field_type, id| {
        if (field_type, id) != (TType::List, 1) {
            return Ok(false);
        }
        let mut entries = Vec::new();
        read_struct_list(input, "log entries", limits.max_entries, |input| {
            entries.push(read_entry(input)?);
            Ok(())
        })?;
        found = Some(entries);
        Ok(true)
    })?;
    found.ok_or_else(|| Error::Malformed("a Log call holds no list of entries".to_owned()))
}

fn read_entry(input: &mut Input<'_>) -> Result<LogEntry, Error> {
    let mut entry = LogEntry::default();
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::String, 1) => entry.category = read_text(input)?,
            (TType::String, 2) => entry.message = input.read_bytes()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(entry)
}

fn write_entry(output: &mut Output<'_>, entry: &LogEntry) -> WriteResult {
    write_bytes(output, 1, entry.category.as_bytes())?;
    write_bytes(output, 2, &entry.message)?;
    output.write_field_stop()
}
