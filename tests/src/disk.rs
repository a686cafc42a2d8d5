//! Small file systems that can be filled.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::artifacts::run;

/// A file system that stays mounted until this is dropped; needs root.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one over `folder`, which is created if it is missing; `size` as `mount` takes it.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(folder: &Path, size: &str) -> Result<Disk> {
        fs::create_dir_all(folder)?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder))?;
        Ok(Disk(folder.to_owned()))
    }

    /// Takes all of its free room, also what has become free since the last call.
    ///
    /// # Errors
    /// When writing fails for another reason than a full disk.
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

    /// Frees what [`Disk::fill`] took.
    ///
    /// # Errors
    /// When [`Disk::fill`] was not called before.
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
