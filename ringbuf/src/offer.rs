//! The offer: one message with both descriptors to consumerd's socket, no reply.
//!
//! It works while nobody accepts yet, and what was sent survives the sender's death. Nothing here blocks, allocates
//! or touches errno, and no call is a cancellation point.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};

use crate::uncancelled::Uncancelled;

/// Length of an offer's payload.
pub const OFFER_BYTES: usize = 16;
/// An offer's payload: "BLKOFFER", version 1, zeros; the descriptors of segment and control page go with it.
pub const OFFER_MESSAGE: [u8; OFFER_BYTES] = *b"BLKOFFER\x01\0\0\0\0\0\0\0";

/// Connects to the SEQPACKET socket at `path`, sends both descriptors and closes. The path must be UTF-8 and shorter
/// than a socket address.
pub(crate) fn send(path: &[u8], segment: BorrowedFd<'_>, control: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut terminated = [0u8; 108];
    let room = terminated.get_mut(..path.len()).ok_or(Errno::NAMETOOLONG)?;
    room.copy_from_slice(path);
    let path = terminated.get(..=path.len()).ok_or(Errno::NAMETOOLONG)?;
    let path = std::ffi::CStr::from_bytes_with_nul(path).map_err(|_| Errno::INVAL)?;
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = Uncancelled::from(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?);
    connect(&socket, &address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [segment, control];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let payload = [IoSlice::new(&OFFER_MESSAGE)];
    sendmsg(&socket, &payload, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
