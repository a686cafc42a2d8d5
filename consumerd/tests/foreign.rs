//! Descriptors that local users send, and whose close these users can block: nobody else has to wait.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Daemon, Site, send_signal, wait_for};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};
use rustix::process::{Signal, Uid};
use rustix::thread::set_thread_res_uid;

const OFFER: &[u8] = b"BLKOFFER\x01\0\0\0\0\0\0\0";

/// A connection whose last close waits until its other side reads or is gone, and that other side.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    connection.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(e) = connection.write(&[0; 1 << 16]) {
            break e;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    set_socket_linger(&connection, Some(Duration::from_secs(3600))).unwrap();
    (connection, other)
}

fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
    // Not every kernel supports out-of-band bytes on local sockets.
    assert!(sent.is_ok() || (flags == SendFlags::OOB && sent == Err(Errno::OPNOTSUPP)), "{sent:?}");
}

fn connected(site: &Site) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(site.socket()).unwrap()).unwrap();
    socket
}

/// Sends something while a process is stopped, so that the process has the last descriptors of what is sent. Stopping also
/// interrupts a close that was blocked until then.
fn unheard_by<T>(pid: u32, send: impl FnOnce() -> T) -> T {
    send_signal(pid, Signal::STOP);
    wait_for("the process is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.starts_with(" T").then_some(())
    });
    let done = send();
    send_signal(pid, Signal::CONT);
    done
}

/// Sends messages to the socket for offers, each with so many descriptors of a lingering connection. Returns its other side.
fn send_offer(site: &Site, messages: &[(&[u8], usize)]) -> TcpStream {
    let (connection, other) = lingering();
    let socket = connected(site);
    for (bytes, fds) in messages {
        send(&socket, bytes, &vec![connection.as_fd(); *fds], SendFlags::empty());
    }
    other
}

/// How many threads of a daemon have this name.
fn threads(daemon: &Daemon, name: &str) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

fn assert_takes_programs(site: &Site, daemon: &Daemon) {
    let before = daemon.metrics().sum_where("blkin_offers_total", "taken");
    let program = site.program(&[1, 1], &[]);
    wait_for("an honest program is admitted", || {
        (daemon.metrics().sum_where("blkin_offers_total", "taken") > before).then_some(())
    });
    program.finish();
}

fn assert_answers(site: &Site) {
    let mut asker = UnixStream::connect(site.path("control.sock")).unwrap();
    asker.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    asker.write_all(b"{\"show\":{}}\n").unwrap();
    let mut answer = String::new();
    asker.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("done"), "{answer}");
}

#[test]
fn unclosable_descriptors_block_neither_offers_nor_the_end() {
    let offers: [&[(&[u8], usize)]; 5] = [
        &[(OFFER, 2)],
        // More descriptors than an offer has; another message; and an offer that lies unread behind it.
        &[(OFFER, 60)],
        &[(b"hello", 1)],
        &[(b"hello", 0), (OFFER, 2)],
        &[(b"", 0), (b"", 1)],
    ];
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let mut others = Vec::new();
    for messages in offers {
        others.push(unheard_by(daemon.pid(), || send_offer(&site, messages)));
        assert_takes_programs(&site, &daemon);
    }
    assert!(daemon.stop().success());
}

#[test]
fn unclosable_descriptors_do_not_block_control_requests() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let requests: [(&[u8], SendFlags); 3] =
        [(b"{\"show\":{}}\n", SendFlags::empty()), (b"{\"sh", SendFlags::empty()), (b"x", SendFlags::OOB)];
    let mut others = Vec::new();
    for (request, flags) in requests {
        others.push(unheard_by(daemon.worker_pid(), || {
            let (connection, other) = lingering();
            let asker = UnixStream::connect(site.path("control.sock")).unwrap();
            send(&asker, request, &[connection.as_fd()], flags);
            other
        }));
        assert_answers(&site);
    }
    assert!(daemon.stop().success());
}

#[test]
fn many_connections_with_unread_messages_are_all_closed() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    // The messages behind an empty one are not examined.
    let others: Vec<_> =
        unheard_by(daemon.pid(), || (0..80).map(|_| send_offer(&site, &[(b"", 0), (OFFER, 2)])).collect());
    assert_takes_programs(&site, &daemon);
    wait_for("no closing thread is left", || {
        (threads(&daemon, "blkin-closer") + threads(&daemon, "blkin-hang-up") == 0).then_some(())
    });
    assert!(daemon.said("cannot be closed").is_empty());
    drop(others);
}

#[test]
fn unclosable_descriptors_exclude_only_their_own_user() {
    // Only root can act as another user.
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return;
    }
    const UID: u32 = 65_534;
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    std::fs::set_permissions(site.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let others: Vec<_> = unheard_by(daemon.pid(), || {
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let uid = Uid::from_raw(UID);
                // Changes the user of this thread alone.
                set_thread_res_uid(uid, uid, uid).unwrap();
                (0..80).map(|_| send_offer(&site, &[(OFFER, 60)])).collect()
            });
            sending.join().unwrap()
        })
    });
    assert_takes_programs(&site, &daemon);
    let said = wait_for("the user is logged", || daemon.said("he blocks the close").first().cloned());
    assert!(said.contains(&format!("uid={UID}")), "{said}");
    assert_eq!(daemon.said("he blocks the close").len(), 1, "the user is logged once");
    // Apart from the blocked threads, one more closes the remaining connections, and ends.
    wait_for("few closing threads are left", || (threads(&daemon, "blkin-closer") <= 4).then_some(()));
    daemon.assert_healthy();
    drop(others);
    wait_for("all is closed", || (threads(&daemon, "blkin-closer") == 0).then_some(()));
    assert!(daemon.stop().success());
}
