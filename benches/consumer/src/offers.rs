//! Accepts the offers of programs, as consumerd's holder does.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use blkin_ringbuf::{Attachment, OFFER_BYTES};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, listen, recvmsg, socket_with,
};

/// The socket to which programs offer themselves.
#[derive(Debug)]
pub struct Offers(OwnedFd);

impl Offers {
    /// Listens at `path`.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn listen(path: &Path) -> Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, 128)?;
        Ok(Self(socket))
    }

    /// Waits for a program and maps its rings.
    ///
    /// # Errors
    /// When a connection fails or does not send a valid offer.
    pub fn next(&self) -> Result<Attachment> {
        let connection = accept(&self.0)?;
        let mut payload = [0; OFFER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut payload)];
        let received = recvmsg(&connection, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        ensure!(received.bytes == OFFER_BYTES, "an offer of {} bytes", received.bytes);
        let messages = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let mut descriptors = messages.flatten();
        let segment = descriptors.next().context("no segment")?;
        let control = descriptors.next().context("no control page")?;
        let attachment = Attachment::open(segment, &control)?;
        attachment.mark_attached(true);
        Ok(attachment)
    }
}
