//! fb303, the base service that Scribe extends: a few questions about the server itself.

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
    /// Its version.
    GetVersion,
    /// Whether it serves.
    GetStatus,
    /// More about that, for people.
    GetStatusDetails,
    /// Since when it runs.
    AliveSince,
    /// All of its counters.
    GetCounters,
    /// One counter.
    GetCounter(String),
}

/// What the service knows about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The name of the service.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it serves.
    pub status: Status,
    /// More about that, for people.
    pub details: String,
    /// Start in seconds since 1970.
    pub alive_since: i64,
    /// Its counters.
    pub counters: Vec<(String, i64)>,
}

/// fb303's `fb_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Does not serve.
    Dead = 0,
    /// Does not serve yet.
    Starting = 1,
    /// Serves.
    Alive = 2,
    /// Takes nothing new.
    Stopping = 3,
    /// Has stopped.
    Stopped = 4,
    /// Serves, but something is wrong.
    Warning = 5,
}

impl Fb303 {
    /// Reads the arguments of an fb303 method; none if the name is no such method.
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
    /// The framed answer to a call of fb303; none if the call is another one, or wants no answer.
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

    /// fb303 answers 0 for a counter that it does not have.
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
