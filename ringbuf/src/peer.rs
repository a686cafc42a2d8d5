//! Who is at the other end of a local socket, as the kernel says (SO_PEERCRED, unix(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// A process that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process id; 0 if it has none here, because its PID namespace is not visible from this one.
    pub pid: u32,
}

/// Who connected to a listening socket.
///
/// # Errors
/// Whatever the system says about a descriptor that is not a local socket.
pub fn peer_of(connection: impl AsFd) -> io::Result<Peer> {
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: addresses of this frame's variables, with the size of the first (invariant 10).
    let done = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            peer.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if bytes as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: all of it was written (see above), and any bytes are valid numbers (invariant 17).
    let peer = unsafe { peer.assume_init() };
    Ok(Peer { uid: peer.uid, pid: peer.pid.cast_unsigned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_says_who_connected() {
        let (one, _other) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(peer_of(&one).unwrap(), Peer { uid, pid: std::process::id() });
        assert!(peer_of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
