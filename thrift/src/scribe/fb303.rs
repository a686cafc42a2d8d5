//! fb303, the base service that Scribe extends: questions about the server itself.

use thrift::protocol::{TMapIdentifier, TOutputProtocol, TType};

use super::call::{Call, Method};
use super::reply::encode_reply;
use crate::Error;
use crate::binary::{
    Input, Output, WriteResult, read_struct, read_text, write_bytes, write_field, write_i64,
};

/// A question of fb303.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fb303 {
    /// The name of the service.
    GetName,
    /// The version of the service.
    GetVersion,
    /// The status of the service.
    GetStatus,
    /// The status as a text for people.
    GetStatusDetails,
    /// The time at which the service started.
    AliveSince,
    /// All counters.
    GetCounters,
    /// The counter with this name.
    GetCounter(String),
}

/// The answers of the service to the questions of fb303.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The name of the service.
    pub name: String,
    /// The version of the service.
    pub version: String,
    /// The status of the service.
    pub status: Status,
    /// The status as a text for people.
    pub details: String,
    /// Time of the start, in seconds since 1970.
    pub alive_since: i64,
    /// All counters, with their names.
    pub counters: Vec<(String, i64)>,
}

/// fb303's `fb_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The service does not work.
    Dead = 0,
    /// The service does not work yet.
    Starting = 1,
    /// The service works.
    Alive = 2,
    /// The service accepts no new calls.
    Stopping = 3,
    /// The service has stopped.
    Stopped = 4,
    /// The service works, but something is wrong.
    Warning = 5,
}

impl Fb303 {
    /// Reads the arguments of an fb303 method; `None` if fb303 has no method with this name.
    pub(super) fn read(input: &mut Input<'_>, name: &str) -> Result<Option<Fb303>, Error> {
        let mut key = String::new();
        let method = match name {
            "getName" => Fb303::GetName,
            "getVersion" => Fb303::GetVersion,
            "getStatus" => Fb303::GetStatus,
            "getStatusDetails" => Fb303::GetStatusDetails,
            "aliveSince" => Fb303::AliveSince,
            "getCounters" => Fb303::GetCounters,
            "getCounter" => Fb303::GetCounter(String::new()),
            _ => return Ok(None),
        };
        read_struct(input, |input, field_type, id| {
            if (field_type, id) != (TType::String, 1) {
                return Ok(false);
            }
            key = read_text(input)?;
            Ok(true)
        })?;
        Ok(Some(if method == Fb303::GetCounter(String::new()) { Fb303::GetCounter(key) } else { method }))
    }

    fn name(&self) -> &'static str {
        match self {
            Fb303::GetName => "getName",
            Fb303::GetVersion => "getVersion",
            Fb303::GetStatus => "getStatus",
            Fb303::GetStatusDetails => "getStatusDetails",
            Fb303::AliveSince => "aliveSince",
            Fb303::GetCounters => "getCounters",
            Fb303::GetCounter(_) => "getCounter",
        }
    }
}

impl ServiceStatus {
    /// The framed answer to a call of fb303; `None` if the call is of another method, or wants no answer.
    pub fn answer(&self, call: &Call) -> Option<Vec<u8>> {
        let Method::Fb303(method) = &call.method else { return None };
        call.wants_reply.then(|| encode_reply(method.name(), call.seq, |output| self.write(output, method)))
    }

    fn write(&self, output: &mut Output<'_>, method: &Fb303) -> WriteResult {
        match method {
            Fb303::GetName => write_bytes(output, 0, self.name.as_bytes()),
            Fb303::GetVersion => write_bytes(output, 0, self.version.as_bytes()),
            Fb303::GetStatusDetails => write_bytes(output, 0, self.details.as_bytes()),
            Fb303::AliveSince => write_i64(output, 0, self.alive_since),
            Fb303::GetCounter(key) => write_i64(output, 0, self.counter(key)),
            Fb303::GetCounters => self.write_counters(output),
            Fb303::GetStatus => {
                write_field(output, TType::I32, 0)?;
                output.write_i32(self.status as i32)
            }
        }
    }

    /// The value of a counter; 0 if there is none with this name, as fb303 answers.
    fn counter(&self, key: &str) -> i64 {
        self.counters.iter().find(|(name, _)| name == key).map_or(0, |(_, value)| *value)
    }

    fn write_counters(&self, output: &mut Output<'_>) -> WriteResult {
        write_field(output, TType::Map, 0)?;
        let size = i32::try_from(self.counters.len()).unwrap_or(i32::MAX);
        output.write_map_begin(&TMapIdentifier::new(TType::String, TType::I64, size))?;
        self.counters.iter().take(size as usize).try_for_each(|(name, value)| {
            output.write_string(name)?;
            output.write_i64(*value)
        })
    }
}
