//! The tags of a span. Most spans have few, and answers hold many spans: the tree of a map takes half a KiB for the first tag.

use std::ops::Index;
use std::{slice, vec};

use serde::{Serialize, Serializer};

/// Keys with their values, each key once, in the order of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tags(Vec<(String, String)>);

impl Tags {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// Whether there is a key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.place(key).is_ok()
    }

    /// Sets the value of a key. Cheap for keys that come in their order; many that do not are to be collected instead.
    pub fn insert(&mut self, key: String, value: String) {
        match self.place(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                if self.0.is_empty() {
                    // Else there would be room for four.
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (key, value));
            }
        }
    }

    /// Keys with values, in order.
    pub fn iter(&self) -> TagIter<'_> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Where a key is, or would be.
    fn place(&self, key: &str) -> Result<usize, usize> {
        match self.0.last() {
            Some((last, _)) if last.as_str() < key => Err(self.0.len()),
            _ => self.0.binary_search_by(|(known, _)| known.as_str().cmp(key)),
        }
    }
}

/// What goes through tags.
pub type TagIter<'t> =
    std::iter::Map<slice::Iter<'t, (String, String)>, fn(&'t (String, String)) -> (&'t String, &'t String)>;

impl<'t> IntoIterator for &'t Tags {
    type Item = (&'t String, &'t String);
    type IntoIter = TagIter<'t>;

    fn into_iter(self) -> TagIter<'t> {
        self.iter()
    }
}

impl IntoIterator for Tags {
    type Item = (String, String);
    type IntoIter = vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Of a key that comes twice the later value counts.
impl Extend<(String, String)> for Tags {
    fn extend<I: IntoIterator<Item = (String, String)>>(&mut self, more: I) {
        let before = self.0.len();
        self.0.extend(more);
        if self.0[before.saturating_sub(1)..].is_sorted_by(|(one, _), (next, _)| one < next) {
            return;
        }
        self.0.sort_by(|(one, _), (next, _)| one.cmp(next));
        self.0.dedup_by(|next, kept| {
            let is_same = next.0 == kept.0;
            if is_same {
                std::mem::swap(&mut next.1, &mut kept.1);
            }
            is_same
        });
    }
}

impl FromIterator<(String, String)> for Tags {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(tags: I) -> Tags {
        let mut collected = Tags::default();
        collected.extend(tags);
        collected
    }
}

impl<const N: usize> From<[(String, String); N]> for Tags {
    fn from(tags: [(String, String); N]) -> Tags {
        tags.into_iter().collect()
    }
}

impl Index<&str> for Tags {
    type Output = String;

    /// The value of a key that is there.
    fn index(&self, key: &str) -> &String {
        self.get(key).expect("a tag of this key")
    }
}

impl Serialize for Tags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
        proptest::collection::vec(("[a-d]{0,2}", "[x-z]"), 0..9)
    }

    proptest! {
        #[test]
        fn they_are_what_a_map_would_have(collected in pairs(), added in pairs(), inserted in pairs()) {
            let mut tags: Tags = collected.iter().cloned().collect();
            let mut map: BTreeMap<String, String> = collected.into_iter().collect();
            tags.extend(added.clone());
            map.extend(added);
            for (key, value) in inserted {
                tags.insert(key.clone(), value.clone());
                map.insert(key.clone(), value);
                prop_assert_eq!(tags.get(&key), map.get(&key));
            }
            prop_assert!(tags.iter().eq(&map));
            prop_assert_eq!(tags.len(), map.len());
            prop_assert_eq!(tags.contains_key("b"), map.contains_key("b"));
            prop_assert_eq!(serde_json::to_string(&tags).unwrap(), serde_json::to_string(&map).unwrap());
        }
    }

    #[test]
    fn one_takes_no_more_room_than_it_needs() {
        let mut tags = Tags::default();
        tags.insert("key".to_owned(), "value".to_owned());
        assert_eq!(tags.0.capacity(), 1);
    }
}
