//! What is wrong with a value, in terms of the configuration: serde's messages name types of the program.

use toml::Value;

/// What is wrong with a value that was written as `given`. `error` is serde's message, `default` the default of the key.
pub(super) fn fault(given: &str, error: &str, default: Option<&Value>) -> String {
    let expected = error.split_once(", expected ").map(|(_, expected)| expected);
    let given = given.replace('\n', " ");
    let is_long = given.len() > 18 && given.bytes().all(|byte| byte.is_ascii_digit());
    let wanted = match expected {
        Some(choice) if error.starts_with("unknown variant") => choice.to_owned(),
        Some(expected) => wanted(expected, default),
        None if is_long => wanted("u64", default),
        None => return error.to_owned(),
    };
    format!("{given} {}; write {wanted}", if is_long { "is too large" } else { "cannot be used" })
}

fn wanted(expected: &str, default: Option<&Value>) -> String {
    let whole = "a whole number of 0 or more, such as";
    match default {
        Some(Value::Integer(number)) => format!("{whole} {number}"),
        Some(Value::Float(number)) => format!("a number such as {number:?}"),
        Some(Value::Boolean(_)) => "true or false".to_owned(),
        Some(Value::Array(_)) => "a list of strings, such as [\"a\", \"b\"]".to_owned(),
        None if expected.starts_with('u') => format!("{whole} 1000"),
        _ => "a string in quotes".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_errors_are_explained_in_words_with_an_example() {
        let integer = Value::from(7);
        for (given, error, default, said) in [
            (
                "-1",
                "invalid value: integer `-1`, expected usize",
                Some(&integer),
                "number of 0 or more, such as 7",
            ),
            ("'x'", "invalid type: string \"x\", expected u32", None, "number of 0 or more, such as 1000"),
            ("1", "invalid type: integer `1`, expected f64", Some(&Value::from(0.5)), "a number such as 0.5"),
            ("1", "invalid type: integer `1`, expected a boolean", Some(&Value::from(true)), "true or false"),
            ("1", "invalid type: integer `1`, expected path string", None, "a string in quotes"),
            ("x", "unknown variant `x`, expected `a` or `b`", Some(&Value::from("a")), "`a` or `b`"),
        ] {
            let fault = fault(given, error, default);
            assert!(fault.starts_with(&format!("{given} cannot be used; write ")), "{fault}");
            assert!(fault.ends_with(said), "{fault}");
        }
        let large = fault("99999999999999999999", "invalid type: x, expected usize", Some(&integer));
        assert!(large.starts_with("99999999999999999999 is too large; write a whole number"), "{large}");
        assert_eq!(fault("x", "\"x\" is not an address", None), "\"x\" is not an address");
    }
}
