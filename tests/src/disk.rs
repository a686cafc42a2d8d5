//! Small file systems, which can be full.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::artifacts::run;

/// One that is mounted as long as this lives; needs root.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one over `folder`, which is made; `size` as `mount` has it.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(folder: &Path, size: &str) -> Result<Disk> {
        fs::create_dir_all(folder)?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder))?;
        Ok(Disk(folder.to_owned()))
    }

    /// Takes all of its room, or what has become of it since the last time.
    ///
    /// # Errors
    /// When it fails by anything else than that none is left.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = OpenOptions::new().create(true).append(true).open(self.ballast())?;
        loop {
            match ballast.write_all(&[0; 1 << 16]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("failed to fill a disk"),
            }
        }
    }

    /// Gives back what [`Disk::fill`] took.
    ///
    /// # Errors
    /// When it had taken nothing.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("failed to empty a disk")
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _unmounted = run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}
