//! The scripts that users call.

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

#[test]
fn a_relative_folder_is_that_of_whoever_calls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut called = Command::new(root().join("scripts/install"));
    let said = called.args(["--destdir", "here", "--uninstall"]).current_dir(folder.path()).output()?;
    let manifest = folder.path().join("here/usr/local/share/blkin/manifest");
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(error.contains(&format!("there is no {} ", manifest.display())), "{error}");
    Ok(())
}
