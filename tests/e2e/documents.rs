//! Documents lead to files that are there, and manual pages name what programs are told.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::{binary, output, root};

/// Documents that lead a reader through the tree.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
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
fn manual_pages_have_each_option_of_the_daemons_and_each_command_of_blkin() -> Result<()> {
    for daemon in ["blkin-consumerd", "blkin-relay", "blkin-collector"] {
        let (help, page) = (help(daemon)?, items(&format!("{daemon}.8"))?);
        let options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let options: BTreeSet<&str> = options.flat_map(|line| words_after(line, "--").take(1)).collect();
        assert_eq!(words_after(&page, "Fl -").collect::<BTreeSet<_>>(), options, "{daemon}");
    }
    let (help, page) = (help("blkin")?, items("blkin.1")?);
    let commands = help.split_once("Commands:\n").and_then(|(_, rest)| rest.split_once("\n\n"));
    let (commands, _) = commands.context("no commands")?;
    // A line that goes on with what the one above says is indented further.
    let named = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let named: BTreeSet<&str> = named.filter(|name| !name.is_empty()).collect();
    assert_eq!(words_after(&page, "Cm ").collect::<BTreeSet<_>>(), named);
    Ok(())
}

/// What a program says of itself.
fn help(program: &str) -> Result<String> {
    output(Command::new(binary(program)?).arg("--help"))
}

/// The lines of a manual page that begin what is explained one by one.
fn items(page: &str) -> Result<String> {
    let text = fs::read_to_string(root().join("packaging/man").join(page))?;
    let items = text.lines().filter(|line| line.starts_with(".It "));
    Ok(items.map(|item| item.to_owned() + "\n").collect())
}

/// The words, of letters and hyphens, that stand right after each `before`.
fn words_after<'a>(text: &'a str, before: &str) -> impl Iterator<Item = &'a str> {
    let word = |rest: &'a str| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next();
    text.split(before).skip(1).filter_map(word).filter(|word| !word.is_empty())
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
