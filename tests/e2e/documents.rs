//! Links and paths in documents lead to existing files and headings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::root;

/// Documents that describe the current tree: their links and their paths are checked.
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

/// Folders of further documents, of which only the links are checked: the paths in their text were right when it was written.
const FOLDERS: [&str; 2] = ["docs", "examples"];

#[test]
fn links_and_paths_in_documents_exist() -> Result<()> {
    let folders = folders()?;
    let mut paths = 0;
    let mut nowhere = Vec::new();
    let mut look = |document: &Path, path: PathBuf| {
        paths += 1;
        if !path.exists() {
            nowhere.push(format!("{}: {}", document.display(), path.display()));
        }
    };
    for document in DOCUMENTS.map(|document| root().join(document)) {
        let text = fs::read_to_string(&document)?;
        told(&text, &folders).for_each(|path| look(&document, root().join(path)));
    }
    let documents = documents()?;
    for document in &documents {
        let beside = document.parent().context("no parent folder")?;
        let text = fs::read_to_string(document)?;
        links(&text).for_each(|(path, _)| look(document, beside.join(path)));
    }
    ensure!(nowhere.is_empty(), "{nowhere:#?}");
    ensure!(paths > 100, "only {paths} paths are read out of the documents");
    ensure!(documents.len() > 2 * DOCUMENTS.len(), "only {} documents are found", documents.len());
    Ok(())
}

#[test]
fn anchors_in_documents_lead_to_headings() -> Result<()> {
    let (mut parts, mut nowhere) = (0, Vec::new());
    for document in documents()? {
        let text = fs::read_to_string(&document)?;
        let beside = document.parent().context("no parent folder")?;
        for (path, part) in links(&text).filter(|(_, part)| !part.is_empty()) {
            let other = if path.is_empty() { document.clone() } else { beside.join(path) };
            parts += 1;
            if !headings(&fs::read_to_string(&other)?).any(|heading| heading == part) {
                nowhere.push(format!("{}: {path}#{part}", document.display()));
            }
        }
    }
    ensure!(nowhere.is_empty(), "{nowhere:#?}");
    ensure!(parts > 10, "only {parts} links to parts are found");
    Ok(())
}

/// The anchors of a document's headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let texts =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    texts.map(|text| {
        let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

/// All documents whose links are checked.
fn documents() -> Result<BTreeSet<PathBuf>> {
    let mut documents = BTreeSet::from(DOCUMENTS.map(|document| root().join(document)));
    for folder in FOLDERS {
        documents.extend(documents_in(&root().join(folder))?);
    }
    Ok(documents)
}

/// All documents in a folder and the folders below it.
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
fn paths_are_found_in_links_and_in_code_spans() {
    let text = "[a](x/y.md#part), [b](https://z), [c](#here), [d](z) and `ringbuf/src/{hot,rseq/a}.rs`, `lib/x.so`, `record/`";
    assert_eq!(links(text).collect::<Vec<_>>(), [("x/y.md", "part"), ("", "here"), ("z", "")]);
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

/// The targets of links within the tree: the file, empty for the document itself, and the anchor, empty if there is none.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let within = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    within.map(|target| target.split_once('#').unwrap_or((target, "")))
}

/// The paths between backquotes, with `{a,b}` expanded.
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
