//! The memory under the staging log: a memfd in the daemon, a recording double in tests.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

/// Memory that outlives the process that writes it.
///
/// A write of eight aligned bytes happens as a whole or not at all; a longer write may be cut anywhere.
pub trait Memory {
    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// Any error of the system, for instance that no memory is left.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// Any error of the system; `UnexpectedEof` when reading past the end.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Frees the pages that lie entirely inside the range; they read as zero afterwards.
    ///
    /// # Errors
    /// Any error of the system.
    fn forget(&mut self, offset: u64, length: u64) -> io::Result<()>;
}

/// A memfd that the holder made and passes to every worker.
#[derive(Debug)]
pub struct Memfd(OwnedFd);

impl Memfd {
    /// Creates an empty memfd of `bytes` bytes; pages are allocated when they are first written.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let fd = match memfd_create("blkin-staging", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create("blkin-staging", MemfdFlags::CLOEXEC)?,
            other => other?,
        };
        ftruncate(&fd, bytes)?;
        Ok(Self(fd))
    }

    /// Takes over a received descriptor.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A second handle on the same bytes.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Memory for Memfd {
    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match pwrite(&self.0, bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read(&self, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match pread(&self.0, &mut *bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    bytes = &mut bytes[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn forget(&mut self, offset: u64, length: u64) -> io::Result<()> {
        rustix::fs::fallocate(
            &self.0,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            length,
        )?;
        Ok(())
    }
}
