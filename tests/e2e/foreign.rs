//! A Scribe client that we did not write: Apache's Python library, as Debian packages it.

use std::process::Command;

use anyhow::Result;
use blkin_cli::traces;
use blkin_tests::artifacts::{output, root};
use blkin_tests::daemons::{Node, Setup};

#[test]
fn apaches_python_thrift_sends_a_span_to_the_collector() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    // Debian's interpreter: another python3 in PATH would not find Debian's module.
    let mut client = Command::new("/usr/bin/python3");
    client.arg(root().join("tests/foreign/scribe_client.py"));
    let said = output(client.arg(node.collector.address("scribe")?).arg("00000000000000ab"))?;
    assert_eq!(said.lines().collect::<Vec<_>>(), ["result 0", "exception 1"]);

    let spans = traces::fetch(&node.collector.http, "00000000000000ab")?.spans;
    assert_eq!(spans.len(), 1);
    let span = &spans[0];
    assert_eq!((span.name.as_deref(), span.kind.as_deref()), (Some("foreign call"), Some("SERVER")));
    assert_eq!((span.service(), span.duration), ("foreign", Some(1_500)));
    assert_eq!(span.tags.get("Object").map(String::as_str), Some("alpha"));
    Ok(())
}
