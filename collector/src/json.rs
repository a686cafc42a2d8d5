//! What both versions of Zipkin's JSON share: a list whose entries are read one by one, and objects and scalars that are read as
//! tolerantly as by Zipkin, but within limits.
//!
//! If a member comes twice, the later one counts, as in Zipkin; if a list comes twice, the elements of both count.

mod members;
mod mend;

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use blkin_thrift::Limits;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

pub(crate) use self::members::{Common, EndpointWire, Moment, read_port, required};
use self::mend::{blanked, mended};
use crate::refusal::{BadEntry, BadList};

/// Reads a list, and each entry as a `T`. Bytes that are not UTF-8 are replaced.
pub(crate) fn read_entries<T: Object>(
    body: &[u8],
    limits: &Limits,
) -> Result<Vec<Result<T, BadEntry>>, BadList> {
    let text = text_of(body);
    let list = entries(&text, limits)?;
    let read = list.entries.into_iter().map(|entry| read_entry(entry, limits));
    Ok(read.chain(list.excess.map(Err)).collect())
}

/// A body as text; bytes that are not UTF-8 are replaced.
pub(crate) fn text_of(body: &[u8]) -> Cow<'_, str> {
    // The search for bytes to replace is slower, so it is made only if there are any.
    str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed)
}

/// The entries of a body.
#[derive(Debug)]
pub struct List<'a> {
    /// The texts of the entries. Each is JSON or can be mended to be JSON; whether it is a span has not been checked.
    pub entries: Vec<&'a str>,
    /// The refusal of text after the list's end, where nothing should be.
    pub excess: Option<BadEntry>,
}

/// Splits a body into the texts of its entries.
///
/// # Errors
/// When the body is not a JSON list, or has too many entries.
pub fn entries<'a>(body: &'a str, limits: &Limits) -> Result<List<'a>, BadList> {
    match split(body, limits) {
        // An error within the strings of one entry must not affect the other entries.
        Err(BadList::Json(_)) => {
            let blanked = blanked(body);
            let List { entries, excess } = split(&blanked, limits)?;
            let own = |entry: &str| {
                let begin = entry.as_ptr().addr() - blanked.as_ptr().addr();
                &body[begin..begin + entry.len()]
            };
            Ok(List { entries: entries.into_iter().map(own).collect(), excess })
        }
        read => read,
    }
}

fn split<'a>(body: &'a str, limits: &Limits) -> Result<List<'a>, BadList> {
    let mut deserializer = serde_json::Deserializer::from_str(body);
    let mut list = Entries { limits, entries: Vec::new(), too_many: false };
    let read = deserializer.deserialize_seq(&mut list);
    if list.too_many {
        return Err(BadList::TooMany(limits.max_entries));
    }
    read?;
    Ok(List { entries: list.entries, excess: deserializer.end().err().map(BadEntry::AfterList) })
}

struct Entries<'l, 'a> {
    limits: &'l Limits,
    entries: Vec<&'a str>,
    too_many: bool,
}

impl<'a> Visitor<'a> for &mut Entries<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of spans")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element::<&'a RawValue>()? {
            if self.entries.len() == self.limits.max_entries {
                self.too_many = true;
                return Err(de::Error::custom("too many spans"));
            }
            self.entries.push(raw.get());
        }
        Ok(())
    }
}

/// Reads one entry; mends it only if it cannot be read as it is.
pub(crate) fn read_entry<T: Object>(json: &str, limits: &Limits) -> Result<T, BadEntry> {
    BadEntry::check_length(json.len(), limits)?;
    match read_object(json, limits) {
        Err(BadEntry::Json(error)) => match mended(json) {
            Some(mended) => read_object(&mended, limits),
            None => Err(BadEntry::Json(error)),
        },
        read => read,
    }
}

fn read_object<T: Object>(json: &str, limits: &Limits) -> Result<T, BadEntry> {
    let reading = Reading { limits, refusal: Cell::new(None) };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let read = reading.object().deserialize(&mut deserializer);
    read.map_err(|error| reading.refusal.take().unwrap_or(BadEntry::Json(error)))
}

/// The state while one entry is read. Errors of serde carry only text, so a refusal with a cause of its own is kept here.
pub(crate) struct Reading<'l> {
    limits: &'l Limits,
    refusal: Cell<Option<BadEntry>>,
}

impl Reading<'_> {
    /// An object, read member by member.
    pub(crate) fn object<T>(&self) -> ObjectSeed<'_, T> {
        ObjectSeed { reading: self, object: PhantomData }
    }

    /// What was read, or the error that ends the reading.
    pub(crate) fn check<T, E: de::Error>(&self, read: Result<T, BadEntry>) -> Result<T, E> {
        read.map_err(|refusal| {
            let error = E::custom(&refusal);
            self.refusal.set(Some(refusal));
            error
        })
    }

    /// Fails if the limit does not allow one more of a counted thing.
    pub(crate) fn one_more<E: de::Error>(&self, what: &'static str, so_far: usize) -> Result<(), E> {
        self.check(BadEntry::check_count(what, so_far + 1, self.limits))
    }

    /// Reads the next value as a list; null is an empty list.
    pub(crate) fn extend<'de, T: Object, A: MapAccess<'de>>(
        &self,
        list: &mut Vec<T>,
        what: &'static str,
        members: &mut A,
    ) -> Result<(), A::Error> {
        members.next_value_seed(ListSeed { reading: self, list, what })
    }

    /// Reads the next value as an object; none if it is null.
    pub(crate) fn optional<'de, T: Object, A: MapAccess<'de>>(
        &self,
        members: &mut A,
    ) -> Result<Option<T>, A::Error> {
        members.next_value_seed(OptionalSeed(self.object()))
    }
}

/// A type that is read from a JSON object.
pub(crate) trait Object: Sized {
    /// The values of the members read so far.
    type Parts: Default;

    /// Takes the value of one member.
    fn member<'de, A: MapAccess<'de>>(
        parts: &mut Self::Parts,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error>;

    /// The object, once all members are known.
    fn finish(parts: Self::Parts) -> Result<Self, BadEntry>;
}

/// Skips the value of a member.
pub(crate) fn skip<'de, A: MapAccess<'de>>(members: &mut A) -> Result<(), A::Error> {
    members.next_value::<IgnoredAny>().map(drop)
}

/// Reads the value of an optional member: null changes nothing.
pub(crate) fn set<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    place: &mut Option<T>,
    members: &mut A,
) -> Result<(), A::Error> {
    if let Some(value) = members.next_value()? {
        *place = Some(value);
    }
    Ok(())
}

pub(crate) struct ObjectSeed<'r, T> {
    reading: &'r Reading<'r>,
    object: PhantomData<T>,
}

impl<'de, T: Object> DeserializeSeed<'de> for ObjectSeed<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Object> Visitor<'de> for ObjectSeed<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<T, A::Error> {
        let mut parts = T::Parts::default();
        while let Some(name) = members.next_key::<Name<'_>>()? {
            // The place stays at the end of the error's text, where serde_json looks for it.
            T::member(&mut parts, &name.0, &mut members, self.reading)
                .map_err(|error| de::Error::custom(format_args!("{}: {error}", name.0)))?;
        }
        self.reading.check(T::finish(parts))
    }
}

struct OptionalSeed<'r, T>(ObjectSeed<'r, T>);

impl<'de, T: Object> DeserializeSeed<'de> for OptionalSeed<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T: Object> Visitor<'de> for OptionalSeed<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

struct ListSeed<'r, T> {
    reading: &'r Reading<'r>,
    list: &'r mut Vec<T>,
    what: &'static str,
}

impl<'de, T: Object> DeserializeSeed<'de> for ListSeed<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Object> Visitor<'de> for ListSeed<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element_seed(self.reading.object())? {
            self.reading.one_more(self.what, self.list.len())?;
            self.list.push(element);
        }
        Ok(())
    }
}

/// The name of a member; copied only if it is escaped.
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }
            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// A string, or a number taken as one.
pub(crate) struct Text(pub(crate) String);

/// A whole number, or a string that holds one.
pub(crate) struct Whole(pub(crate) i64);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?;
        match json.get().as_bytes().first() {
            // Kept as written: no numeric type here can hold 1.10 or thirty digits unchanged.
            Some(b'-' | b'0'..=b'9') => Ok(Text(json.get().to_owned())),
            _ => within(json).map(Text),
        }
    }
}

/// Reads a value by itself. The place in an error would be relative to the value, so it is removed; the reader of the whole adds
/// the right one.
pub(crate) fn within<'de, T: Deserialize<'de>, E: de::Error>(json: &'de RawValue) -> Result<T, E> {
    serde_json::from_str(json.get()).map_err(|error| {
        let said = error.to_string();
        E::custom(said.rsplit_once(" at line ").map_or(&*said, |(reason, _)| reason))
    })
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NOT_WHOLE: &str = "not a whole number of 64 bits";
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
                match i64::try_from(number) {
                    Ok(whole) => Ok(Whole(whole)),
                    // Zipkin reads numbers that its longs cannot hold in the same way.
                    Err(_) => self.visit_f64(number as f64),
                }
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
                let whole = number as i64;
                if whole as f64 == number { Ok(Whole(whole)) } else { Err(E::custom(NOT_WHOLE)) }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Whole, E> {
                match text.parse() {
                    Ok(whole) => Ok(Whole(whole)),
                    Err(_) => self.visit_f64(text.parse().map_err(|_| E::custom(NOT_WHOLE))?),
                }
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}
