//! Mends text that JSON does not allow but Zipkin's reader accepts: half a surrogate pair, which JavaScript writes for a text
//! that was cut within a pair; control characters that are not escaped; and `\'`.

/// The body with blanks in place of everything in which an entry may deviate from JSON: every control character and, within
/// strings, every backslash and what it escapes. The length and the places of the entries stay the same.
pub(super) fn blanked(body: &str) -> String {
    let (mut in_string, mut is_escaped) = (false, false);
    let blank = |character: char| {
        let is_odd = character < ' ' || (in_string && character == '\\') || is_escaped;
        in_string ^= character == '"' && !is_escaped;
        is_escaped = in_string && character == '\\' && !is_escaped;
        if is_odd && character.is_ascii() { ' ' } else { character }
    };
    body.chars().map(blank).collect()
}

/// An entry as valid JSON; none if there is nothing to mend in its strings.
pub(super) fn mended(json: &str) -> Option<String> {
    let (mut mended, mut rest, mut in_string) = (String::with_capacity(json.len()), json, false);
    let is_odd = |character, in_string| match character {
        '"' => true,
        '\\' | '\0'..' ' => in_string,
        _ => false,
    };
    while let Some(at) = rest.find(|character| is_odd(character, in_string)) {
        let (plain, odd) = rest.split_at(at);
        mended.push_str(plain);
        let length = match odd.as_bytes()[0] {
            b'"' => {
                in_string = !in_string;
                mended.push('"');
                1
            }
            b'\\' => {
                let (length, allowed) = escape(odd);
                mended.push_str(allowed);
                length
            }
            control => {
                mended.push_str(&format!("\\u{control:04x}"));
                1
            }
        };
        rest = &odd[length..];
    }
    mended.push_str(rest);
    Some(mended).filter(|mended| mended != json)
}

/// The length of the escape at the beginning of a text, and its replacement in JSON.
fn escape(text: &str) -> (usize, &str) {
    const LENGTH: usize = r"\ud83d".len();
    let unit = |at: usize| {
        let digits = text.get(at..at + LENGTH)?.strip_prefix(r"\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    match (unit(0), unit(LENGTH)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => (2 * LENGTH, &text[..2 * LENGTH]),
        (Some(0xd800..0xe000), _) => (LENGTH, "\u{fffd}"),
        _ if text.starts_with(r"\'") => (2, "'"),
        _ => {
            let length = text.char_indices().nth(2).map_or(text.len(), |(at, _)| at);
            (length, &text[..length])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_kept() {
        for (json, expected) in [
            (r#""cut \ud83d""#, Some("\"cut \u{fffd}\"")),
            (r#""\udE00 low""#, Some("\"\u{fffd} low\"")),
            (r#""\ud83d\uD83D\ude00""#, Some("\"\u{fffd}\\uD83D\\ude00\"")),
            (r#""\ude00\ud83d""#, Some("\"\u{fffd}\u{fffd}\"")),
            (r#""\ud83d\u0041""#, Some("\"\u{fffd}\\u0041\"")),
            (r#""\ud83d\\ude00""#, Some("\"\u{fffd}\\\\ude00\"")),
            (r#""\ud83d\"#, Some("\"\u{fffd}\\")),
            (r#""\\ud83d""#, None),
            (r#""\ud83d\ude00""#, None),
            (r#""\ud7ff\ue000""#, None),
            (r#""\ud83""#, None),
            (r#""\ud8日""#, None),
            (r#""\日""#, None),
            (r"\ud83d", None),
        ] {
            assert_eq!(mended(json).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn a_control_character_is_escaped_within_a_string_only() {
        let json = "{\t\"a\tb\\\"\u{1}\" :\n\"\0\u{7f}\\'\"}";
        let expected = "{\t\"a\\u0009b\\\"\\u0001\" :\n\"\\u0000\u{7f}'\"}";
        assert_eq!(mended(json).as_deref(), Some(expected));
        assert_eq!(mended(expected), None);
    }

    #[test]
    fn escapes_and_control_characters_are_blanked_in_place() {
        for (body, expected) in [
            ("[\"a\tb\",\"\\\"\\\\\"]", "[\"a b\",\"    \"]"),
            ("\"\\ud83d日\\日\\\"", "\"  d83d日 日  "),
            ("[2\0]\\]", "[2 ]\\]"),
        ] {
            assert_eq!(blanked(body), expected);
            assert_eq!(blanked(body).len(), body.len());
        }
    }
}
