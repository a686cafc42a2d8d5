//! The keys of a configuration, and the key that a misspelt word was probably meant to be.

use serde::de::{DeserializeOwned, Deserializer, Visitor};

/// All keys of a configuration, including those that have no value by default.
pub(crate) fn keys<C: DeserializeOwned>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // Deserialising asks for the fields by name, which is all that is wanted; it gets no values, and fails.
    let _no_value = C::deserialize(Asked(&mut keys));
    keys
}

struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("only asked"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The key that is spelt nearly like `word`, if there is one.
pub(crate) fn nearest<'a>(word: &str, keys: &[&'a str]) -> Option<&'a str> {
    // Two changes turn a short word into nearly any other.
    let most = if word.len() < 6 { 1 } else { 2 };
    let near = keys.iter().map(|key| (changes(word, key), *key)).filter(|(changes, _)| *changes <= most);
    near.min().map(|(_, key)| key)
}

/// How many bytes have to be changed, inserted or removed to turn one text into the other (Levenshtein distance).
fn changes(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, byte) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (left, wanted) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(byte != wanted);
            diagonal = row[left + 1];
            row[left + 1] = changed.min(diagonal + 1).min(row[left] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_include_optional_fields() {
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "nobody reads it")]
        struct Config {
            listen: String,
            folder: Option<String>,
        }
        assert_eq!(keys::<Config>(), ["listen", "folder"]);
        assert!(keys::<Vec<u8>>().is_empty());
    }

    #[test]
    fn edits_between_two_words_are_counted() {
        for (one, other, count) in
            [("", "", 0), ("", "ab", 2), ("ab", "", 2), ("lisen", "listen", 1), ("lgo", "log", 2)]
        {
            assert_eq!(changes(one, other), count, "{one} {other}");
        }
        assert_eq!(changes("spol_dirs", "spool_dir"), 2);
    }

    #[test]
    fn nearest_finds_misspelt_keys_but_not_other_words() {
        const KEYS: [&str; 5] = ["log", "log_format", "spool_dir", "scribe_listen", "upstreams"];
        for (slip, meant) in [
            ("spol_dir", "spool_dir"),
            ("upstream", "upstreams"),
            ("scribe_lisetn", "scribe_listen"),
            ("logs", "log"),
        ] {
            assert_eq!(nearest(slip, &KEYS), Some(meant));
        }
        // Kubernetes sets the last two for a service named blkin-relay; the command blkin has the third.
        for other in ["relay", "config", "url", "port", "service_host"] {
            assert_eq!(nearest(other, &KEYS), None, "{other}");
        }
    }
}
