//! The scripts that users call.

use std::process::Command;

use anyhow::Result;
use blkin_tests::artifacts::{output, root};

#[test]
fn scripts_print_their_usage_from_any_folder() -> Result<()> {
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
fn install_resolves_a_relative_folder_from_the_callers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut called = Command::new(root().join("scripts/install"));
    let said = called.args(["--destdir", "here", "--uninstall"]).current_dir(folder.path()).output()?;
    let manifest = folder.path().join("here/usr/local/share/blkin/manifest");
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(error.contains(&format!("there is no {} ", manifest.display())), "{error}");
    Ok(())
}
