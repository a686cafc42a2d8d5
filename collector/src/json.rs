//! What both versions of Zipkin's JSON share: a list whose entries are read one by one, and scalars as tolerant as
//! Zipkin's reader.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{BadId, Endpoint};

/// Most entries in one list.
const MAX_ENTRIES: usize = 65_536;

/// Why a whole list was refused.
#[derive(Debug, thiserror::Error)]
#[error("failed to read a JSON list of spans: {0}")]
pub struct BadList(#[from] serde_json::Error);

/// Why one entry of a list was refused. The others are not affected.
#[derive(Debug, thiserror::Error)]
pub enum BadEntry {
    /// A member has another type than it must have, or a name twice.
    #[error("failed to read a span: {0}")]
    Shape(#[from] serde_json::Error),
    /// A member that every span has is not there.
    #[error("failed to read a span: no {0}")]
    Missing(&'static str),
    /// A member that must be an id is none.
    #[error("failed to read a span's {member}: {cause}")]
    Id {
        /// Which member.
        member: &'static str,
        /// What is wrong with it.
        cause: BadId,
    },
    /// A kind that Zipkin does not have.
    #[error("failed to read a span: unknown kind {0:?}")]
    Kind(String),
    /// A port above 65535.
    #[error("failed to read a span: port {0} is out of range")]
    Port(i64),
    /// An annotation without time or value.
    #[error("failed to read a span: incomplete annotation")]
    IncompleteAnnotation,
}

/// Reads a list; each entry by `read`. Bytes that are not UTF-8 are replaced.
pub(crate) fn read_entries<T>(
    body: &[u8],
    read: impl Fn(&str) -> Result<T, BadEntry>,
) -> Result<Vec<Result<T, BadEntry>>, BadList> {
    let text = String::from_utf8_lossy(body);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let entries = deserializer.deserialize_seq(Entries(read))?;
    deserializer.end()?;
    Ok(entries)
}

struct Entries<F>(F);

impl<'de, T, F: Fn(&str) -> Result<T, BadEntry>> Visitor<'de> for Entries<F> {
    type Value = Vec<Result<T, BadEntry>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of spans")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(raw) = list.next_element::<&RawValue>()? {
            if entries.len() == MAX_ENTRIES {
                return Err(de::Error::custom(format_args!(
                    "more than {MAX_ENTRIES} spans, send smaller lists"
                )));
            }
            entries.push((self.0)(raw.get()));
        }
        Ok(entries)
    }
}

/// A string, or a number taken as one.
pub(crate) struct Text(pub(crate) String);

/// A whole number, or a string that holds one.
pub(crate) struct Whole(pub(crate) i64);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Text, E> {
                Ok(Text(text))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;
        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of 64 bits")
            }
            fn visit_i64<E>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole, E> {
                i64::try_from(number).map(Whole).map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
                let whole = number as i64;
                if whole as f64 == number { Ok(Whole(whole)) } else { Err(E::custom("not a whole number")) }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Whole, E> {
                text.parse().map(Whole).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}

/// An endpoint as both versions write it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointWire {
    service_name: Option<Text>,
    ipv4: Option<Text>,
    ipv6: Option<Text>,
    port: Option<Whole>,
}

impl EndpointWire {
    /// The endpoint; none if it says nothing.
    pub(crate) fn read(self) -> Result<Option<Endpoint>, BadEntry> {
        let mut endpoint = Endpoint::service(self.service_name.as_ref().map_or("", |name| &name.0));
        for Text(ip) in [self.ipv4, self.ipv6].into_iter().flatten() {
            endpoint.set_ip_text(&ip);
        }
        if let Some(Whole(port)) = self.port {
            endpoint.port = match u16::try_from(port) {
                Err(_) if port > 0 => return Err(BadEntry::Port(port)),
                Err(_) | Ok(0) => None,
                Ok(port) => Some(port),
            };
        }
        Ok(Some(endpoint).filter(|endpoint| !endpoint.is_empty()))
    }
}
