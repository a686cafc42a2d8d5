//! Names that were seen: services, their span names and remote services, and the values of tags that are offered for completion.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;

use foldhash::fast::RandomState;

use super::engine::{Snapshot, Transaction};
use super::expire::BELIEVED_MS;
use super::secret::Secret;
use super::{Batch, StoreError, keys};

/// Longer names are stored in their spans, but not listed.
const MAX_NAME_BYTES: usize = 1024;
const HOUR_MS: u64 = 3_600_000;
/// Most names that are remembered.
const MAX_RECENT: usize = 65_536;
/// Most names of a kind that are listed. Names stay after retention has removed their spans by size, and some programs make a
/// new name for each request.
const MOST_LISTED: usize = 200_000;
/// Most listed names that belong to one service, and most listed values of one tag: a program that makes a new name for each
/// request must leave room for the names of others.
const MOST_OF_ONE: usize = 20_000;
/// More than the greatest number of a kind.
const KINDS: usize = 5;

/// The kinds of names. Each number is part of a key: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NameKind {
    /// Services that recorded spans; they belong to "".
    Service = 1,
    /// Names of the spans of a service.
    Span = 2,
    /// Remote services of a service.
    RemoteService = 3,
    /// Values of a tag.
    TagValue = 4,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameKind::Service => "a service",
            NameKind::Span => "a span",
            NameKind::RemoteService => "a remote service",
            NameKind::TagValue => "a tag value",
        })
    }
}

/// Names that were noted within this hour, so that their rows need not be read.
#[derive(Debug, Default)]
pub(super) struct Recent {
    hour: u64,
    /// For each name its kind, and the secret hashes of its owner and of itself; so nobody can keep another's name off the lists
    /// by sending one with the same hash.
    names: HashSet<(u8, u64, u64), RandomState>,
    /// How many names are listed, once that was counted.
    listed: Option<Listed>,
    /// The greatest limit for which it was logged in this hour that a list is full.
    told: usize,
    /// Whether it was logged that a name is too long to be listed; that is logged once.
    told_of_long: bool,
    /// All names that were last seen before this hour have been removed.
    left_before: u64,
}

impl Recent {
    /// Forgets all names, because their rows may be gone.
    pub(super) fn forget(&mut self) {
        *self = Recent { told_of_long: self.told_of_long, ..Recent::default() };
    }

    fn begin(&mut self, hour: u64) {
        if self.hour != hour || self.names.len() > MAX_RECENT {
            self.names.clear();
        }
        if self.hour != hour {
            (self.hour, self.told) = (hour, 0);
        }
    }

    fn tell_of_long(&mut self, kind: NameKind, bytes: usize) {
        if !std::mem::replace(&mut self.told_of_long, true) {
            tracing::warn!(
                bytes,
                "left {kind} out of the lists of names, and will leave out others like it: the name, or that of its service or \
                 tag, is longer than {MAX_NAME_BYTES} bytes; its spans are stored and can be found"
            );
        }
    }

    /// Counts a name that is not listed yet; false if the list has no room for it.
    fn list(&mut self, rows: &dyn Snapshot, kind: NameKind, of: &str) -> Result<bool, StoreError> {
        let listed = match &mut self.listed {
            Some(listed) => listed,
            none => none.insert(Listed::count(rows)?),
        };
        let Err(most) = listed.add(kind, of) else { return Ok(true) };
        if most > self.told {
            self.told = most;
            let whose = if most == MOST_LISTED { String::new() } else { format!(" of {of:?}") };
            tracing::warn!(
                "left {kind}{whose} out of the lists of names, which hold {most} already; its spans are stored and can be \
                 found, and it is listed once other names have not been seen for as long as traces are kept"
            );
        }
        Ok(false)
    }

    /// Whether a name was not noted yet; from now on it counts as noted.
    fn is_new(&mut self, kind: NameKind, of: &str, name: &str) -> bool {
        let secret = Secret::of_process();
        self.names.insert((kind as u8, secret.half_stamp(of.as_bytes()), secret.half_stamp(name.as_bytes())))
    }
}

/// How many names are listed.
#[derive(Debug, Default)]
struct Listed {
    of_kind: [usize; KINDS],
    /// How many names each owner has, by a hash of the prefix of its rows.
    of_one: HashMap<u64, usize, RandomState>,
}

impl Listed {
    fn count(rows: &dyn Snapshot) -> Result<Listed, StoreError> {
        let mut listed = Listed::default();
        rows.scan(&[keys::NAMES], &[keys::NAMES], &mut |key, _| {
            let of_kind = key.get(1).and_then(|&kind| listed.of_kind.get_mut(usize::from(kind)));
            if let Some((count, prefix)) = of_kind.zip(keys::prefix_of_name(key)) {
                *count += 1;
                *listed.of_one.entry(Listed::one(prefix)).or_default() += 1;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(listed)
    }

    /// Counts one more name.
    ///
    /// # Errors
    /// When a list is full; the error is its limit.
    fn add(&mut self, kind: NameKind, of: &str) -> Result<(), usize> {
        let most_of_one = if kind == NameKind::Service { MOST_LISTED } else { MOST_OF_ONE };
        let of_kind = &mut self.of_kind[kind as usize];
        if *of_kind >= MOST_LISTED {
            return Err(MOST_LISTED);
        }
        let of_one = self.of_one.entry(Listed::one(&keys::names_prefix(kind as u8, of))).or_default();
        if *of_one >= most_of_one {
            return Err(most_of_one);
        }
        *of_kind += 1;
        *of_one += 1;
        Ok(())
    }

    fn one(prefix: &[u8]) -> u64 {
        Secret::of_process().half_stamp(prefix)
    }
}

/// Notes that the names of a batch are in use.
pub(super) fn learn(
    rows: &mut dyn Transaction,
    batch: &Batch,
    now_ms: u64,
    recent: &mut Recent,
) -> Result<(), StoreError> {
    recent.begin(now_ms / HOUR_MS);
    for (kind, of, name) in batch.names() {
        if recent.is_new(kind, of, name) {
            note(rows, kind, of, name, recent)?;
        }
    }
    Ok(())
}

fn note(
    rows: &mut dyn Transaction,
    kind: NameKind,
    of: &str,
    name: &str,
    recent: &mut Recent,
) -> Result<(), StoreError> {
    if of.len() > MAX_NAME_BYTES || name.len() > MAX_NAME_BYTES {
        recent.tell_of_long(kind, of.len().max(name.len()));
        return Ok(());
    }
    let key = keys::name(kind as u8, of, name);
    let hour = recent.hour.to_be_bytes();
    let is_wanted = match rows.get(&key)? {
        Some(last) => last != hour,
        None => recent.list(&*rows, kind, of)?,
    };
    if is_wanted { rows.put(&key, &hour) } else { Ok(()) }
}

/// Names of a kind, sorted.
pub(super) fn list(rows: &dyn Snapshot, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError> {
    let prefix = keys::names_prefix(kind as u8, of);
    let mut names = Vec::new();
    rows.scan(&prefix, &prefix, &mut |key, _| {
        if let Some(name) = key.get(prefix.len()..).and_then(|name| std::str::from_utf8(name).ok()) {
            names.push(name.to_owned());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(names)
}

/// Removes names that were last seen before the hour of `before_ms`. A name whose hour lies in the future, because the clock was
/// ahead, counts as seen now; otherwise it would stay until that hour.
pub(super) fn expire(
    rows: &mut dyn Transaction,
    before_ms: u64,
    now_ms: u64,
    recent: &mut Recent,
) -> Result<(), StoreError> {
    let before = before_ms / HOUR_MS;
    if before == recent.left_before {
        return Ok(());
    }
    let latest = now_ms.saturating_add(BELIEVED_MS) / HOUR_MS;
    let (mut old, mut misdated) = (Vec::new(), Vec::new());
    rows.scan(&[keys::NAMES], &[keys::NAMES], &mut |key, hour| {
        match keys::read_u64(hour, 0) {
            Some(hour) if hour > latest => misdated.push(key.to_vec()),
            Some(hour) if hour >= before => {}
            _ => old.push(key.to_vec()),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    old.iter().try_for_each(|key| rows.delete(key))?;
    let now = (now_ms / HOUR_MS).to_be_bytes();
    misdated.iter().try_for_each(|key| rows.put(key, &now))?;
    recent.forget();
    recent.left_before = before;
    Ok(())
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, Endpoint, Span};

    use super::*;
    use crate::merge::Piece;
    use crate::store::engine::Engine;
    use crate::store::memory::Memory;
    use crate::store::{Retention, Store, TraceStore};

    fn of_services(names: impl Iterator<Item = String>) -> Batch {
        of_spans(names.map(|service| (service, String::new())))
    }

    /// Spans with names, each of a service.
    fn of_spans(spans: impl Iterator<Item = (String, String)>) -> Batch {
        let mut batch = Batch::default();
        for (service_name, name) in spans {
            let host = Some(Endpoint { service_name, ..Endpoint::default() });
            let annotations =
                vec![Annotation { timestamp: 1, value: "sr".to_owned(), host, ..Annotation::default() }];
            batch.push(&Piece::V1(Span { trace_id: 1, id: 1, name, annotations, ..Span::default() }));
        }
        batch
    }

    #[test]
    fn recent_names_are_remembered_for_an_hour_up_to_a_limit() {
        let mut recent = Recent::default();
        let note = |recent: &mut Recent, hour, name: usize| {
            recent.begin(hour);
            recent.is_new(NameKind::Service, "", &name.to_string())
        };
        assert_eq!([1, 1, 2].map(|hour| note(&mut recent, hour, 0)), [true, false, true]);
        for name in 0..2 * MAX_RECENT {
            note(&mut recent, 2, name);
            assert!(recent.names.len() <= MAX_RECENT + 1);
        }
    }

    #[test]
    fn a_service_with_endless_span_names_leaves_room_for_others() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let names = |service: &str| store.names(NameKind::Span, service).unwrap();
        let numbered =
            |from: usize, to: usize| of_spans((from..to).map(|n| ("big".to_owned(), format!("n{n}"))));
        store.commit(&[numbered(0, MOST_OF_ONE - 1)], 2 * HOUR_MS).unwrap();
        let retention = Retention { max_age_ms: HOUR_MS, max_bytes: 0 };
        // The numbers of names are forgotten here, and counted again.
        while store.expire(&retention, 2 * HOUR_MS + 1).unwrap() {}
        store.commit(&[numbered(MOST_OF_ONE - 1, MOST_LISTED + 10)], 2 * HOUR_MS + 2).unwrap();
        assert_eq!(names("big").len(), MOST_OF_ONE);
        store.commit(&[of_spans([("small".to_owned(), "put".to_owned())].into_iter())], 2 * HOUR_MS).unwrap();
        assert_eq!(names("small"), ["put"]);
    }

    #[test]
    fn a_name_dated_in_the_future_expires_like_others() {
        let store = TraceStore::new(Memory::default()).unwrap();
        store.commit(&[of_services(["a".to_owned()].into_iter())], 1000 * HOUR_MS).unwrap();
        let retention = Retention { max_age_ms: 2 * HOUR_MS, max_bytes: 0 };
        let services_at = |hour: u64| {
            while store.expire(&retention, hour * HOUR_MS).unwrap() {}
            store.names(NameKind::Service, "").unwrap()
        };
        assert_eq!((services_at(10), services_at(12)), (vec!["a".to_owned()], vec!["a".to_owned()]));
        assert!(services_at(13).is_empty());
    }

    #[test]
    fn overlong_names_are_reported_and_not_listed() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let [most, more] = [MAX_NAME_BYTES, MAX_NAME_BYTES + 1].map(|bytes| "n".repeat(bytes));
        store.commit(&[of_services([most.clone(), more].into_iter())], 1).unwrap();
        assert_eq!(store.names(NameKind::Service, "").unwrap(), [most]);
        let mut recent = Recent::default();
        let batch = of_services(["n".repeat(MAX_NAME_BYTES + 1)].into_iter());
        store.engine.write(&mut |rows| learn(rows, &batch, 1, &mut recent)).unwrap();
        recent.forget();
        assert!(recent.told_of_long, "long names are reported only once");
    }

    #[test]
    fn names_of_overlong_services_are_not_listed() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let [most, more] = [MAX_NAME_BYTES, MAX_NAME_BYTES + 1].map(|bytes| "s".repeat(bytes));
        let spans = [&most, &more].map(|service| (service.clone(), "get".to_owned()));
        store.commit(&[of_spans(spans.into_iter())], 1).unwrap();
        let names = [most, more].map(|service| store.names(NameKind::Span, &service).unwrap().len());
        assert_eq!(names, [1, 0]);
    }

    #[test]
    fn stored_names_count_towards_the_limit_of_their_kind() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let spans = ["a", "b"].map(|service| (service.to_owned(), "get".to_owned()));
        store.commit(&[of_spans(spans.into_iter())], 1).unwrap();
        let mut listed = Listed::count(&*store.engine.read().unwrap()).unwrap();
        assert_eq!(listed.of_kind[NameKind::Span as usize], 2);
        listed.of_kind[NameKind::Span as usize] = MOST_LISTED - 1;
        assert_eq!(listed.add(NameKind::Span, "c"), Ok(()));
        assert_eq!(listed.add(NameKind::Span, "d"), Err(MOST_LISTED));
        assert_eq!(listed.add(NameKind::RemoteService, "d"), Ok(()));
    }

    #[test]
    fn listed_names_are_limited_in_number_until_some_expire() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let services = || store.names(NameKind::Service, "").unwrap();
        let numbered = (0..MOST_LISTED + 10).map(|number| format!("s{number}"));
        store.commit(&[of_services(numbered)], 1).unwrap();
        assert_eq!(services().len(), MOST_LISTED);
        store.commit(&[of_services(["late".to_owned()].into_iter())], 2 * HOUR_MS).unwrap();
        store.commit(&[of_services(["s7".to_owned()].into_iter())], 2 * HOUR_MS).unwrap();
        assert_eq!(services().len(), MOST_LISTED);
        let retention = Retention { max_age_ms: HOUR_MS, max_bytes: 0 };
        while store.expire(&retention, 2 * HOUR_MS + 1).unwrap() {}
        assert_eq!(services(), ["s7"]);
        store.commit(&[of_services(["late".to_owned()].into_iter())], 2 * HOUR_MS + 2).unwrap();
        assert_eq!(services(), ["late", "s7"]);
    }
}
