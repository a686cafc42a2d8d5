//! Names that were seen: services, their spans, who they talk to, and values of tags offered for completion.

use std::collections::HashSet;
use std::ops::ControlFlow;

use foldhash::fast::RandomState;

use super::engine::{Snapshot, Transaction};
use super::secret::Secret;
use super::{Batch, StoreError, keys};

/// Longer names are stored in their spans, but not listed.
const MAX_NAME_BYTES: usize = 1024;
const HOUR_MS: u64 = 3_600_000;
/// Names that are remembered at most.
const MAX_RECENT: usize = 65_536;

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

/// Names that were noted within this hour, so that their rows need not be looked at.
#[derive(Debug, Default)]
pub(super) struct Recent {
    hour: u64,
    /// The kind of each, and what stands for whom it belongs to and for itself: nobody can keep another's name from being
    /// listed by one of equal hash.
    names: HashSet<(u8, u64, u64), RandomState>,
}

impl Recent {
    /// Forgets all, because rows may be gone.
    pub(super) fn forget(&mut self) {
        self.names.clear();
    }

    fn begin(&mut self, hour: u64) {
        if self.hour != hour || self.names.len() > MAX_RECENT {
            self.forget();
            self.hour = hour;
        }
    }

    /// Whether a name was not noted yet; from now on it is.
    fn is_new(&mut self, kind: NameKind, of: &str, name: &str) -> bool {
        let secret = Secret::of_process();
        self.names.insert((kind as u8, secret.half_stamp(of.as_bytes()), secret.half_stamp(name.as_bytes())))
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
            note(rows, kind, of, name, recent.hour)?;
        }
    }
    Ok(())
}

fn note(
    rows: &mut dyn Transaction,
    kind: NameKind,
    of: &str,
    name: &str,
    hour: u64,
) -> Result<(), StoreError> {
    if of.len() > MAX_NAME_BYTES || name.len() > MAX_NAME_BYTES {
        return Ok(());
    }
    let key = keys::name(kind as u8, of, name);
    let hour = hour.to_be_bytes();
    if rows.get(&key)?.is_none_or(|last| last != hour) {
        rows.put(&key, &hour)?;
    }
    Ok(())
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

/// Removes names that were last seen before `before_ms`.
pub(super) fn expire(rows: &mut dyn Transaction, before_ms: u64) -> Result<(), StoreError> {
    let mut old = Vec::new();
    rows.scan(&[keys::NAMES], &[keys::NAMES], &mut |key, hour| {
        if keys::read_u64(hour, 0).is_none_or(|hour| (hour + 1).saturating_mul(HOUR_MS) <= before_ms) {
            old.push(key.to_vec());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    old.iter().try_for_each(|key| rows.delete(key))
}
