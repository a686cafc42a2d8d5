//! The members that both versions of Zipkin's JSON have.

use serde::de::MapAccess;

use super::{Object, Reading, Text, Whole, set, skip};
use crate::model::{BadId, Endpoint};
use crate::refusal::BadEntry;

/// The members that spans of both versions have under the same names, as read so far.
#[derive(Default)]
pub(crate) struct Common {
    pub(crate) trace_id: Option<Text>,
    pub(crate) id: Option<Text>,
    pub(crate) parent_id: Option<Text>,
    pub(crate) name: Option<Text>,
    pub(crate) timestamp: Option<Whole>,
    pub(crate) duration: Option<Whole>,
    pub(crate) debug: bool,
}

impl Common {
    /// Takes the value of one of them; if it is none of them, takes nothing and returns false.
    pub(crate) fn member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        members: &mut A,
    ) -> Result<bool, A::Error> {
        match name {
            "traceId" => self.trace_id = Some(members.next_value()?),
            "id" => self.id = Some(members.next_value()?),
            "parentId" => set(&mut self.parent_id, members)?,
            "name" => set(&mut self.name, members)?,
            "timestamp" => set(&mut self.timestamp, members)?,
            "duration" => set(&mut self.duration, members)?,
            "debug" => self.debug |= members.next_value::<Option<bool>>()?.unwrap_or(false),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The members of an annotation in both versions: a time and a value.
#[derive(Default)]
pub(crate) struct Moment {
    timestamp: Option<Whole>,
    value: Option<Text>,
}

impl Moment {
    /// Takes the value of one of them; if it is none of them, takes nothing and returns false.
    pub(crate) fn member<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        members: &mut A,
    ) -> Result<bool, A::Error> {
        match name {
            "timestamp" => self.timestamp = Some(members.next_value()?),
            "value" => self.value = Some(members.next_value()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Time and value; an annotation that lacks one of them is refused.
    pub(crate) fn finish(self) -> Result<(i64, String), BadEntry> {
        match (self.timestamp, self.value) {
            (Some(Whole(timestamp)), Some(Text(value))) => Ok((timestamp, value)),
            _ => Err(BadEntry::IncompleteAnnotation),
        }
    }
}

/// An endpoint as both versions write it; none if it is empty.
pub(crate) struct EndpointWire(pub(crate) Option<Endpoint>);

impl Object for EndpointWire {
    type Parts = Endpoint;

    fn member<'de, A: MapAccess<'de>>(
        endpoint: &mut Endpoint,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error> {
        match name {
            "serviceName" => {
                if let Some(Text(name)) = members.next_value()? {
                    endpoint.service_name = Endpoint::service(&name).service_name;
                }
            }
            "ipv4" | "ipv6" => {
                if let Some(Text(ip)) = members.next_value()? {
                    endpoint.set_ip_text(&ip);
                }
            }
            "port" => {
                if let Some(Whole(port)) = members.next_value()? {
                    endpoint.port = reading.check(read_port(port))?;
                }
            }
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(endpoint: Endpoint) -> Result<Self, BadEntry> {
        Ok(EndpointWire(Some(endpoint).filter(|endpoint| !endpoint.is_empty())))
    }
}

/// A port; none if it is zero or negative.
pub(crate) fn read_port(port: i64) -> Result<Option<u16>, BadEntry> {
    match u16::try_from(port) {
        Err(_) if port > 0 => Err(BadEntry::Port(port)),
        Err(_) | Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
    }
}

/// An id that a span must have; fails if it is missing or bad.
pub(crate) fn required<T>(id: Option<Result<T, BadId>>, member: &'static str) -> Result<T, BadEntry> {
    id.ok_or(BadEntry::Missing(member))?.map_err(|cause| BadEntry::Id { member, cause })
}
