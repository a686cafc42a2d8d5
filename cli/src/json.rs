//! JSON as `--json` prints it: it contains text that other programs recorded, and may be shown on a terminal.

use serde::Serialize;

use crate::terminal::drives;

/// `value` over several lines, with a final newline.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| safe(text) + "\n")
}

/// `value` on one line, with a newline.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn line(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|text| safe(text) + "\n")
}

/// The same JSON with characters escaped that control a terminal or change the direction of text: JSON itself requires escapes
/// only below U+0020. A JSON parser reads back what was recorded.
pub fn safe(json: String) -> String {
    let is_unsafe = |c: char| drives(c) && !matches!(c, '\n' | '\r' | '\t');
    if !json.contains(is_unsafe) {
        return json;
    }
    json.chars().fold(String::with_capacity(json.len()), |mut escaped, c| {
        match is_unsafe(c) {
            // All of them are in the Basic Multilingual Plane.
            true => escaped += &format!("\\u{:04x}", u32::from(c)),
            false => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = "a\u{9b}31m\u{7f}b\u{202e}\u{2069}\\ \" \n\t\u{1b}[2J é 商 \u{1f600}";

    #[test]
    fn control_characters_in_json_output_are_escaped_without_loss() {
        for text in [pretty(&[RECORDED]).unwrap(), line(&[RECORDED]).unwrap()] {
            assert!(!text.trim_end().chars().any(|c| drives(c) && c != '\n'), "{text:?}");
            assert!(
                text.contains(r"\u009b31m\u007fb\u202e\u2069") && text.contains("é 商 \u{1f600}"),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [RECORDED]);
        }
    }

    #[test]
    fn harmless_json_is_left_unchanged() {
        let json = "[\n\t\"é 商\"\r\n]";
        assert_eq!(safe(json.to_owned()), json);
    }

    #[test]
    fn control_characters_are_escaped_in_invalid_json_too() {
        assert_eq!(safe("{\u{1b}]0;title\u{7}".to_owned()), r"{\u001b]0;title\u0007");
    }
}
