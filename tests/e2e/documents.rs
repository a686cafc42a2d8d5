//! Documents lead to files that are there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::root;

/// Documents that lead a reader through the tree.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/deploy.md",
    "docs/operations.md",
    "docs/portability.md",
    "examples/README.md",
];

#[test]
fn each_link_and_each_path_in_a_document_leads_somewhere() -> Result<()> {
    let folders = folders()?;
    let mut paths = 0;
    let mut nowhere = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document))?;
        let beside = root().join(document).parent().context("a folder")?.to_owned();
        let links = links(&text).map(|link| beside.join(link));
        let told = told(&text, &folders).map(|path| root().join(path));
        for path in links.chain(told) {
            paths += 1;
            if !path.exists() {
                nowhere.push(format!("{document}: {}", path.display()));
            }
        }
    }
    ensure!(nowhere.is_empty(), "{nowhere:#?}");
    ensure!(paths > 100, "only {paths} paths are read out of the documents");
    Ok(())
}

#[test]
fn paths_are_read_out_of_links_and_of_code() {
    let text = "[a](x/y.md#part), [b](https://z), [c](#here) and `ringbuf/src/{hot,rseq/a}.rs`, `lib/x.so`, `record/`";
    assert_eq!(links(text).collect::<Vec<_>>(), ["x/y.md"]);
    let folders = ["ringbuf".to_owned(), "record".to_owned()];
    let told: Vec<String> = told(text, &folders).collect();
    assert_eq!(told, ["ringbuf/src/hot.rs", "ringbuf/src/rseq/a.rs", "record/"]);
}

/// The folders of the tree's first level.
fn folders() -> Result<Vec<String>> {
    let entries = fs::read_dir(root())?.collect::<std::io::Result<Vec<_>>>()?;
    let folders = entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir());
    let name = |path: PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    Ok(folders.filter_map(name).filter(|name| name != "target").collect())
}

/// Where links lead within the tree.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Paths between backquotes, each of `{a,b}` for itself.
fn told<'a>(text: &'a str, folders: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = words.filter(move |word| {
        let first = Path::new(word).components().next().and_then(|first| first.as_os_str().to_str());
        word.contains('/') && !word.contains([' ', '*']) && folders.iter().any(|folder| first == Some(folder))
    });
    paths.flat_map(each)
}

fn each(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (names, after))) => {
            names.split(',').map(|name| format!("{before}{name}{after}")).collect()
        }
        None => vec![path.to_owned()],
    }
}
