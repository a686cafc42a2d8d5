//! The demo, as a stranger runs it.

use std::process::Command;

use anyhow::Result;
use blkin_tests::artifacts::{output, root};

#[test]
fn the_demo_shows_a_trace_a_balanced_ledger_and_a_link() -> Result<()> {
    let _alone = crate::alone();
    let said = output(Command::new(root().join("scripts/demo")).arg("--once"))?;
    assert!(said.contains("0 errors, 0 wrong"), "{said}");
    assert!(said.contains("sink scribe") && !said.contains("DOES NOT HOLD"), "{said}");
    assert!(said.contains("filestore access") && said.contains("filestore (osd."), "{said}");
    assert!(said.contains("/zipkin/traces/") && said.contains("without --once"), "{said}");
    Ok(())
}
