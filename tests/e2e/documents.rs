//! Documents lead to files that are there.

use std::collections::BTreeSet;
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

/// Whose documents are read beside these, for their links: what is said there of a file was so when it was written.
const FOLDERS: [&str; 2] = ["docs", "examples"];

#[test]
fn each_link_and_each_path_in_a_document_leads_somewhere() -> Result<()> {
    let folders = folders()?;
    let mut paths = 0;
    let mut nowhere = Vec::new();
    let mut look = |document: &Path, path: PathBuf| {
        paths += 1;
        if !path.exists() {
            nowhere.push(format!("{}: {}", document.display(), path.display()));
        }
    };
    let led_by = DOCUMENTS.map(|document| root().join(document));
    for document in &led_by {
        let text = fs::read_to_string(document)?;
        told(&text, &folders).for_each(|path| look(document, root().join(path)));
    }
    let mut documents: BTreeSet<PathBuf> = led_by.into();
    for folder in FOLDERS {
        documents.extend(documents_in(&root().join(folder))?);
    }
    for document in &documents {
        let beside = document.parent().context("a folder")?;
        links(&fs::read_to_string(document)?).for_each(|link| look(document, beside.join(link)));
    }
    ensure!(nowhere.is_empty(), "{nowhere:#?}");
    ensure!(paths > 100, "only {paths} paths are read out of the documents");
    ensure!(documents.len() > 2 * DOCUMENTS.len(), "only {} documents are found", documents.len());
    Ok(())
}

/// All documents in a folder, however deep.
fn documents_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut documents = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            documents.extend(documents_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
    Ok(documents)
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
