//! Whether each unsafe block says by which numbered invariant it is sound: one of those in `ringbuf/src/lib.rs`, or in the C
//! interface of those in `blkin-lib/src/capi/mod.rs`.

use std::fs;
use std::path::{Path, PathBuf};

/// All sources below a folder, except tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let is_of_tests = path.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
        if path.is_dir() && !is_of_tests {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_of_tests {
            found.push(path);
        }
    }
}

/// The comments that say why a block is sound, each in one line.
fn reasons(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let (mut reasons, mut is_within) = (Vec::<String>::new(), false);
    for line in source.lines().map(str::trim) {
        if let Some(reason) = line.strip_prefix("// SAFETY: ") {
            reasons.push(reason.to_owned());
            is_within = true;
        } else if let (true, Some(more), Some(reason)) =
            (is_within, line.strip_prefix("// "), reasons.last_mut())
        {
            *reason += " ";
            *reason += more;
        } else {
            is_within = false;
        }
    }
    reasons
}

fn cites_an_invariant(reason: &str) -> bool {
    let mut cited = reason.match_indices("nvariant").map(|(at, word)| &reason[at + word.len()..]);
    cited.any(|rest| rest.trim_start_matches(['s', ' ']).starts_with(|number: char| number.is_ascii_digit()))
}

#[test]
fn every_unsafe_block_cites_an_invariant() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = Vec::new();
    ["ringbuf/src", "blkin-lib/src"].iter().for_each(|folder| sources(&crates.join(folder), &mut found));
    let mut count = 0;
    for path in found {
        for reason in reasons(&fs::read_to_string(&path).expect("a source")) {
            assert!(cites_an_invariant(&reason), "{}: {reason}", path.display());
            count += 1;
        }
    }
    assert!(count > 300, "only {count} were found");
}
