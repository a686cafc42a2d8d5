//! Which packages the scripts regard as installed (`scripts/lib/packages.sh`).

use std::fs;
use std::process::Command;

use anyhow::Result;
use blkin_tests::artifacts::{output, root};
use tempfile::TempDir;

const RENAMED: &str =
    "Package: libnew1t64\nStatus: install ok installed\nProvides: libother1 (= 2), libnew1 (= 2)\n";
const REMOVED: &str = "Package: libold1\nStatus: deinstall ok config-files\n";
const MORE: &str =
    "Version: 2\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: none\n\n";

/// As with Debian 13's libraries with 64-bit time, such as libnew1t64, which provides libnew1.
#[test]
fn a_package_provided_by_another_is_not_missing() -> Result<()> {
    let database = TempDir::new()?;
    fs::create_dir(database.path().join("info"))?;
    fs::write(database.path().join("status"), format!("{RENAMED}{MORE}{REMOVED}{MORE}"))?;
    let mut shell = Command::new("bash");
    shell.args([
        "-ec",
        ". scripts/lib/packages.sh; missing =libnew1 =libnew1t64 =libother1 =libnew =libold1 =t64",
    ]);
    shell.current_dir(root()).env("DPKG_ADMINDIR", database.path());
    assert_eq!(output(&mut shell)?, "libnew\nlibold1\nt64\n");
    Ok(())
}
