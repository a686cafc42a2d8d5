//! The scripts that people call.

use std::process::Command;

use anyhow::Result;
use blkin_tests::artifacts::{output, root};

#[test]
fn each_script_says_how_it_is_used_wherever_it_is_called_from() -> Result<()> {
    for script in [
        "scripts/bench",
        "scripts/demo",
        "scripts/install",
        "scripts/package",
        "scripts/test",
        "examples/glusterfs/run",
    ] {
        for flag in ["-h", "--help"] {
            let mut called = Command::new(format!("../{script}"));
            let said = output(called.arg(flag).current_dir(root().join("docs")))?;
            let name = script.rsplit('/').next().unwrap_or(script);
            assert!(said.contains(&format!("{name} ")), "{script}: {said}");
        }
    }
    Ok(())
}
