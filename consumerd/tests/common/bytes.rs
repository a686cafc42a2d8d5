//! Memory of a staging log, in this process's own heap. The file that includes this one has to import [`Memory`].

#![allow(unreachable_pub)]

use std::io;

use super::Memory;

#[derive(Clone, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Memory for Bytes {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.0[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn forget(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.0[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
}
