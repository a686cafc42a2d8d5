//! Remembers the results of groups of traces for later queries. The key of a result covers everything on which the result
//! depends, so a remembered result is never out of date: a group that has changed has another key. Results that no query uses
//! any more make room for new ones.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, DefaultHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory for all results of one kind. With a hundred links between twenty services, 2,000 traces take some 3 KiB.
const MOST_BYTES: usize = 16 << 20;

/// About how many bytes an allocator takes for a block of memory beside its content.
pub(super) const OF_A_BLOCK: usize = 16;

/// A value whose memory is counted.
pub trait Weighed {
    /// About how many bytes it takes.
    fn bytes(&self) -> usize;
}

/// The remembered results of one kind. Clones share them.
#[derive(Debug)]
pub struct Remembered<K> {
    /// A secret, so that nobody outside can predict which traces form a group, or make two groups have the same key.
    secret: RandomState,
    groups: Arc<Mutex<Groups<K>>>,
}

impl<K> Default for Remembered<K> {
    fn default() -> Self {
        let groups = Groups { by_key: HashMap::new(), by_use: BTreeSet::new(), bytes: 0, queries: 0 };
        Remembered { secret: RandomState::new(), groups: Arc::new(Mutex::new(groups)) }
    }
}

impl<K> Clone for Remembered<K> {
    fn clone(&self) -> Self {
        Remembered { secret: self.secret.clone(), groups: self.groups.clone() }
    }
}

/// The key of a group: the number of its traces, and a hash of everything on which its result depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) traces: usize,
    pub(super) state: u64,
}

/// The number of a query, in the order in which queries began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

#[derive(Debug)]
struct Groups<K> {
    by_key: HashMap<Key, Group<K>>,
    /// The keys, in the order of their last use.
    by_use: BTreeSet<(Moment, Key)>,
    bytes: usize,
    queries: u64,
}

#[derive(Debug)]
struct Group<K> {
    kept: Arc<K>,
    last_used: Moment,
}

impl<K: Weighed> Group<K> {
    fn bytes(&self) -> usize {
        // Up to half of the places of a table and of a tree are free.
        2 * size_of::<((Key, Group<K>), (Moment, Key))>() + OF_A_BLOCK + self.kept.bytes()
    }
}

impl<K: Weighed> Remembered<K> {
    /// A hasher for everything on which the result of a group depends.
    pub(super) fn hasher(&self) -> DefaultHasher {
        self.secret.build_hasher()
    }

    /// A number for the low 64 bits of a trace id, always the same for the same bits.
    pub(super) fn number_of(&self, low: u64) -> u64 {
        self.secret.hash_one(low)
    }

    /// The moment of a query that begins now.
    pub(super) fn moment(&self) -> Moment {
        let mut groups = self.groups();
        groups.queries += 1;
        Moment(groups.queries)
    }

    /// The result of a group, if it is remembered.
    pub(super) fn get(&self, key: Key, moment: Moment) -> Option<Arc<K>> {
        self.groups().used(key, moment)
    }

    /// Remembers a result if there is room, or if results that neither this query nor a later one has used can make room. A query
    /// never drops its own results for later ones: if it forgot its first groups, the next query would find nothing.
    pub(super) fn keep(&self, key: Key, kept: Arc<K>, moment: Moment) {
        let mut groups = self.groups();
        // Another query may have found the same meanwhile.
        if groups.used(key, moment).is_none() {
            groups.keep(key, Group { kept, last_used: moment });
        }
    }

    fn groups(&self) -> MutexGuard<'_, Groups<K>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Weighed> Groups<K> {
    /// The result of a group, if it is remembered; notes its use at that moment.
    fn used(&mut self, key: Key, moment: Moment) -> Option<Arc<K>> {
        let group = self.by_key.get_mut(&key)?;
        if group.last_used < moment {
            self.by_use.remove(&(group.last_used, key));
            self.by_use.insert((moment, key));
            group.last_used = moment;
        }
        Some(group.kept.clone())
    }

    /// Remembers a group that is not known yet, if there is room.
    fn keep(&mut self, key: Key, group: Group<K>) {
        if self.make_room(group.bytes(), group.last_used) {
            self.bytes += group.bytes();
            self.by_use.insert((group.last_used, key));
            self.by_key.insert(key, group);
        }
    }

    /// Forgets the groups used longest ago, if that was before `moment`, until there is room; returns whether there is.
    fn make_room(&mut self, bytes: usize, moment: Moment) -> bool {
        if bytes > MOST_BYTES {
            return false;
        }
        while self.bytes + bytes > MOST_BYTES {
            let Some(&oldest) = self.by_use.first().filter(|(last_used, _)| *last_used < moment) else {
                return false;
            };
            self.by_use.remove(&oldest);
            self.bytes -= self.by_key.remove(&oldest.1).map_or(0, |group| group.bytes());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<K: Weighed> Remembered<K> {
        pub(in crate::query) fn number_of_groups(&self) -> usize {
            self.groups().by_key.len()
        }
    }

    /// A value that takes so much memory.
    #[derive(Debug)]
    struct Weight(usize);

    impl Weighed for Weight {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    fn weight(bytes: usize) -> Arc<Weight> {
        Arc::new(Weight(bytes))
    }

    fn key(state: u64) -> Key {
        Key { traces: 1, state }
    }

    #[test]
    fn only_later_queries_evict_the_least_recently_used_groups() {
        let remembered = Remembered::default();
        let third = MOST_BYTES / 3 - 1000;
        let has = |state| remembered.groups().by_key.contains_key(&key(state));
        let first = remembered.moment();
        (0..4).for_each(|state| remembered.keep(key(state), weight(third), first));
        assert_eq!([0, 1, 2, 3].map(has), [true, true, true, false]);
        let second = remembered.moment();
        assert!(remembered.get(key(0), second).is_some());
        assert!(remembered.get(key(0), first).is_some(), "an earlier query finds it too");
        remembered.keep(key(4), weight(third), second);
        remembered.keep(key(5), weight(third), second);
        remembered.keep(key(6), weight(third), second);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(has), [true, false, false, false, true, true, false]);
        let third_query = remembered.moment();
        remembered.keep(key(7), weight(MOST_BYTES), third_query);
        assert_eq!(
            [0, 4, 5, 7].map(has),
            [true, true, true, false],
            "a group larger than all room evicts nothing"
        );
        remembered.keep(key(8), weight(2 * third), third_query);
        assert_eq!(remembered.number_of_groups(), 2);
    }

    #[test]
    fn a_group_found_by_two_queries_at_once_is_kept_once() {
        let remembered = Remembered::default();
        let moments = [remembered.moment(), remembered.moment()];
        moments.into_iter().for_each(|moment| remembered.keep(key(1), weight(100), moment));
        let groups = remembered.groups();
        assert_eq!(groups.bytes, groups.by_key.values().map(Group::bytes).sum::<usize>());
        assert_eq!(Vec::from_iter(&groups.by_use), [&(moments[1], key(1))]);
    }
}
