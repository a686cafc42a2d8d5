//! The tags of a span.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Index;

use serde::{Serialize, Serializer};

/// Up to this number tags are kept in a list: a map takes half a KiB for its first entry, and answers hold many spans with few
/// tags. For more tags, sorted insertion into a list would take quadratic time.
const FEW: usize = 8;

/// The tags of a span: keys with their values, each key once, sorted by key.
#[derive(Debug, Clone)]
pub struct Tags(Held);

#[derive(Debug, Clone)]
enum Held {
    Few(Vec<(String, String)>),
    Many(BTreeMap<String, String>),
}

impl Tags {
    /// The number of tags.
    pub fn len(&self) -> usize {
        match &self.0 {
            Held::Few(few) => few.len(),
            Held::Many(many) => many.len(),
        }
    }

    /// Whether there are no tags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key, if there is such a tag.
    pub fn get(&self, key: &str) -> Option<&String> {
        match &self.0 {
            Held::Few(few) => few.iter().find(|(known, _)| known == key).map(|(_, value)| value),
            Held::Many(many) => many.get(key),
        }
    }

    /// Whether there is a tag with this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key; a former value is replaced.
    pub fn insert(&mut self, key: String, value: String) {
        let few = match &mut self.0 {
            Held::Many(many) => return drop(many.insert(key, value)),
            Held::Few(few) => few,
        };
        match few.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => few[at].1 = value,
            Err(at) if few.len() < FEW => {
                if few.is_empty() {
                    // Otherwise the vector would allocate room for four.
                    few.reserve_exact(1);
                }
                few.insert(at, (key, value));
            }
            Err(_) => self.0 = Held::Many(few.drain(..).chain([(key, value)]).collect()),
        }
    }

    /// All keys with their values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        let (few, many) = match &self.0 {
            Held::Few(few) => (Some(few), None),
            Held::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().map(|(key, value)| (key, value));
        few.chain(many.into_iter().flatten())
    }

    /// Adds the tags of `other`; if both have a key, the value of `other` wins.
    pub fn absorb(&mut self, other: Tags) {
        match other.0 {
            Held::Few(few) => few.into_iter().for_each(|(key, value)| self.insert(key, value)),
            Held::Many(many) => many.into_iter().for_each(|(key, value)| self.insert(key, value)),
        }
    }
}

impl Default for Tags {
    fn default() -> Tags {
        Tags(Held::Few(Vec::new()))
    }
}

impl PartialEq for Tags {
    fn eq(&self, other: &Tags) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Tags {}

impl Hash for Tags {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|tag| tag.hash(state));
    }
}

/// If a key occurs twice, the later value counts.
impl FromIterator<(String, String)> for Tags {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(tags: I) -> Tags {
        let mut collected = Tags::default();
        tags.into_iter().for_each(|(key, value)| collected.insert(key, value));
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

    /// The value of a key; panics if there is no such tag.
    fn index(&self, key: &str) -> &String {
        self.get(key).expect("a tag of this key")
    }
}

impl Serialize for Tags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use proptest::prelude::*;

    use super::*;

    fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
        proptest::collection::vec(("[a-d]{0,2}", "[x-z]"), 0..9)
    }

    fn hash(tags: &Tags) -> u64 {
        let mut hasher = DefaultHasher::new();
        tags.hash(&mut hasher);
        hasher.finish()
    }

    proptest! {
        #[test]
        fn tags_behave_as_a_map(collected in pairs(), absorbed in pairs(), inserted in pairs()) {
            let mut tags: Tags = collected.iter().cloned().collect();
            let mut map: BTreeMap<String, String> = collected.into_iter().collect();
            tags.absorb(absorbed.iter().cloned().collect());
            map.extend(absorbed);
            for (key, value) in inserted {
                tags.insert(key.clone(), value.clone());
                map.insert(key.clone(), value);
                prop_assert_eq!(tags.get(&key), map.get(&key));
            }
            prop_assert!(tags.iter().eq(&map));
            prop_assert_eq!((tags.len(), tags.is_empty()), (map.len(), map.is_empty()));
            prop_assert_eq!(tags.contains_key("b"), map.contains_key("b"));
            prop_assert_eq!(serde_json::to_string(&tags).unwrap(), serde_json::to_string(&map).unwrap());
            let many = Tags(Held::Many(map));
            prop_assert_eq!(&tags, &many);
            prop_assert_eq!(hash(&tags), hash(&many));
        }
    }

    #[test]
    fn a_single_tag_is_allocated_exactly() {
        let mut tags = Tags::default();
        tags.insert("key".to_owned(), "value".to_owned());
        assert!(matches!(tags.0, Held::Few(few) if few.capacity() == 1));
    }

    #[test]
    fn more_than_a_few_tags_are_held_in_a_map() {
        let of = |count: usize| (0..count).rev().map(|at| (at.to_string(), String::new())).collect::<Tags>();
        assert!(matches!(of(FEW).0, Held::Few(few) if few.len() == FEW));
        assert!(matches!(of(FEW + 1).0, Held::Many(many) if many.len() == FEW + 1));
    }
}
