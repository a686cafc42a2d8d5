//! The reply: a result code, or an exception.

use thrift::protocol::{TInputProtocol, TMessageIdentifier, TMessageType, TOutputProtocol, TType};

use crate::binary::{
    Input, Output, WriteResult, input, read_struct, read_text, write_bytes, write_field, write_to,
};
use crate::frame::framed;
use crate::{Error, Limits};

/// Scribe's answer to `Log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultCode {
    /// The server has accepted all entries.
    Ok,
    /// The server has accepted no entry: send the same call again later.
    TryLater,
}

/// A reply to `Log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The sequence number of the call that this answers.
    pub seq: i32,
    /// The outcome of the call.
    pub outcome: Outcome,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Result(ResultCode),
    /// The server could not handle the call. The same bytes will fail again, except perhaps after an [internal
    /// error](ExceptionKind::InternalError).
    Exception(Exception),
}

/// Thrift's own exception, `TApplicationException`.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("the server could not handle the call: {message} (TApplicationException {kind})")]
pub struct Exception {
    /// The exception's number; one of [`ExceptionKind`] if a BlkKin daemon sent it.
    pub kind: i32,
    /// The peer's message.
    pub message: String,
}

/// The exceptions that BlkKin's servers send, with their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionKind {
    /// The server does not have the method.
    UnknownMethod = 1,
    /// The service failed for its own reasons.
    InternalError = 6,
    /// The arguments could not be read.
    ProtocolError = 7,
}

/// Encodes a framed reply to `Log`.
pub fn encode_log_reply(seq: i32, code: ResultCode) -> Vec<u8> {
    encode_reply("Log", seq, |output| {
        write_field(output, TType::I32, 0)?;
        output.write_i32(match code {
            ResultCode::Ok => 0,
            ResultCode::TryLater => 1,
        })
    })
}

/// Encodes a framed exception.
pub fn encode_exception(method: &str, seq: i32, kind: ExceptionKind, message: &str) -> Vec<u8> {
    encode_message(method, TMessageType::Exception, seq, |output| {
        write_bytes(output, 1, message.as_bytes())?;
        write_field(output, TType::I32, 2)?;
        output.write_i32(kind as i32)
    })
}

/// Encodes a framed reply; `body` writes its result.
pub(super) fn encode_reply(method: &str, seq: i32, body: impl Fn(&mut Output<'_>) -> WriteResult) -> Vec<u8> {
    encode_message(method, TMessageType::Reply, seq, body)
}

fn encode_message(
    method: &str,
    kind: TMessageType,
    seq: i32,
    body: impl Fn(&mut Output<'_>) -> WriteResult,
) -> Vec<u8> {
    framed(|bytes| {
        write_to(bytes, |output| {
            output.write_message_begin(&TMessageIdentifier::new(method, kind, seq))?;
            body(output)?;
            output.write_field_stop()
        });
    })
}

/// Reads the reply to a `Log` call from one frame.
///
/// # Errors
/// If the frame cannot be read, or is not a reply to `Log`.
pub fn decode_reply(frame: &[u8], limits: &Limits) -> Result<Reply, Error> {
    let mut input = input(frame, limits)?;
    let message = input.read_message_begin()?;
    let outcome = match message.message_type {
        TMessageType::Exception => Outcome::Exception(read_exception(&mut input)?),
        TMessageType::Reply if message.name == "Log" => Outcome::Result(read_result(&mut input)?),
        other => return Err(Error::UnexpectedReply(format!("a {other} of {:?}", message.name))),
    };
    Ok(Reply { seq: message.sequence_number, outcome })
}

fn read_result(input: &mut Input<'_>) -> Result<ResultCode, Error> {
    let mut code = None;
    read_struct(input, |input, field_type, id| {
        if (field_type, id) != (TType::I32, 0) {
            return Ok(false);
        }
        code = Some(input.read_i32()?);
        Ok(true)
    })?;
    match code {
        Some(0) => Ok(ResultCode::Ok),
        Some(1) => Ok(ResultCode::TryLater),
        Some(other) => Err(Error::UnexpectedReply(format!("result code {other}"))),
        None => Err(Error::UnexpectedReply("no result code".to_owned())),
    }
}

fn read_exception(input: &mut Input<'_>) -> Result<Exception, Error> {
    let mut exception = Exception::default();
    read_struct(input, |input, field_type, id| {
        match (field_type, id) {
            (TType::String, 1) => exception.message = read_text(input)?,
            (TType::I32, 2) => exception.kind = input.read_i32()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(exception)
}
