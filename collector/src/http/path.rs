//! Paths as Zipkin's server reads them: several slashes in a row count as one, because a base URL that ends with a slash
//! produces two; and an escape of a character that needs none counts as that character.

use axum::http::Uri;
use blkin_daemon::escapes;

/// Rewrites the path of a URI to the form that the routes have. A path with a wrong escape stays as it is: rewritten, it might
/// look right.
pub(super) fn simplify(uri: &mut Uri) {
    if !uri.path().contains("//") && !uri.path().contains('%') || escapes::is_wrong(uri.path()) {
        return;
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let Ok(simple) = format!("{}{query}", simple(uri.path())).parse() else { return };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(simple);
    if let Ok(simplified) = Uri::from_parts(parts) {
        *uri = simplified;
    }
}

fn simple(path: &str) -> String {
    let (mut simple, mut rest) = (String::with_capacity(path.len()), path);
    while let Some(first) = rest.chars().next() {
        let (next, length) = unescaped(rest).map_or((first, first.len_utf8()), |plain| (plain, "%xx".len()));
        if next != '/' || !simple.ends_with('/') {
            simple.push(next);
        }
        rest = &rest[length..];
    }
    simple
}

/// The character of an escape at the beginning of a text, if that character means the same when escaped (RFC 3986, 2.3).
fn unescaped(text: &str) -> Option<char> {
    let digits = text.strip_prefix('%')?.get(..2)?;
    let character = char::from(u8::from_str_radix(digits, 16).ok()?);
    (character.is_ascii_alphanumeric() || "-._~".contains(character)).then_some(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_slashes_and_needless_escapes_are_simplified() {
        for (written, read) in [
            ("/", "/"),
            ("//", "/"),
            ("/api/v2/spans", "/api/v2/spans"),
            ("///api/v2//spans//", "/api/v2/spans/"),
            ("/api/v2/%73pans%2D?a=//%73", "/api/v2/spans-?a=//%73"),
            ("/a%2Fb%20%25%2573", "/a%2Fb%20%25%2573"),
            ("/a%7", "/a%7"),
            ("/%%37%33", "/%%37%33"),
            ("/%2e%2E//secret", "/../secret"),
            ("http://host:1//a//b?c", "http://host:1/a/b?c"),
        ] {
            let mut uri: Uri = written.parse().unwrap();
            simplify(&mut uri);
            assert_eq!(uri.to_string(), read.parse::<Uri>().unwrap().to_string(), "{written}");
        }
    }
}
