//! The network between two daemons, which can have trouble: every byte that arrives is right, but it may come late or never.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Result;
use rustix::net::{Shutdown as Ends, listen, shutdown, sockopt};

use crate::daemons::unused_address;

/// The kernel's receive buffer: little may wait there before a sender blocks.
const BUFFER_BYTES: usize = 4 << 10;
/// The most that is read at a time: little, so that a healed wire soon stops being slow.
const READ_BYTES: usize = 2 << 10;
/// The bytes that a slow wire passes on, one at a time, between two pauses.
const SLOW_BYTES: usize = 128;
const SLOW_PAUSE: Duration = Duration::from_millis(1);
const BACKLOG: i32 = 128;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The direction of calls.
    Up,
    /// The direction of answers.
    Down,
}

/// The faults of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// All connections end at once; new ones work.
    Cut,
    /// One direction of all connections ends at once, the other goes on; new connections work.
    CutHalf(Way),
    /// Each connection ends after this many more bytes in one direction.
    CutAfter(Way, usize),
    /// Connections are accepted, but nothing sent in this direction arrives.
    SilentOneWay(Way),
    /// Connections are accepted, but nothing arrives in either direction.
    Silent,
    /// Bytes arrive one by one, with pauses.
    Slow,
    /// All connections end at once, and new ones are refused.
    Away,
}

impl Trouble {
    fn is_silent(self, way: Way) -> bool {
        self == Trouble::Silent || self == Trouble::SilentOneWay(way)
    }
}

/// A listening wire; its threads end with the connections that pass through it.
#[derive(Debug)]
pub struct Wire {
    address: String,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    listener: TcpListener,
    upstream: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    trouble: Option<Trouble>,
    /// How many troubles there have been: the number of the current one.
    number: u64,
    lines: Vec<Weak<Line>>,
}

/// A connection from a client, and the one to the upstream.
#[derive(Debug)]
struct Line([TcpStream; 2]);

impl Wire {
    /// Starts a wire that passes everything on to `upstream`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(upstream: &str) -> Result<Wire> {
        // Binding to a fixed port number keeps the port ours while the listener is shut down.
        let address = unused_address()?;
        let listener = TcpListener::bind(&address)?;
        sockopt::set_socket_recv_buffer_size(&listener, BUFFER_BYTES)?;
        let (state, changed) = Default::default();
        let inner = Arc::new(Inner { listener, upstream: upstream.to_owned(), state, changed });
        let serving = inner.clone();
        std::thread::spawn(move || serving.serve());
        Ok(Wire { address, inner })
    }

    /// The address of the wire, to use instead of the upstream's.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Gives the wire this trouble, in place of any that it had.
    ///
    /// # Errors
    /// When it cannot refuse connections.
    pub fn suffer(&self, trouble: Trouble) -> Result<()> {
        let mut state = self.inner.lock();
        (state.trouble, state.number) = (Some(trouble), state.number + 1);
        let lines = state.lines.iter().filter_map(Weak::upgrade);
        match trouble {
            Trouble::Cut => lines.for_each(|line| line.cut()),
            Trouble::CutHalf(way) => lines.for_each(|line| line.end(way)),
            Trouble::Away => {
                lines.for_each(|line| line.cut());
                shutdown(&self.inner.listener, Ends::Both)?;
            }
            _ => {}
        }
        self.inner.changed.notify_all();
        Ok(())
    }

    /// Ends the trouble; what was held back arrives.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn heal(&self) -> Result<()> {
        let mut state = self.inner.lock();
        if state.trouble.take() == Some(Trouble::Away) {
            listen(&self.inner.listener, BACKLOG)?;
        }
        state.number += 1;
        self.inner.changed.notify_all();
        Ok(())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the wire has a trouble for which `is_so` is true.
    fn wait_while(&self, is_so: impl Fn(Trouble) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.lock(), |state| state.trouble.is_some_and(&is_so));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: Arc<Self>) {
        loop {
            match self.listener.accept() {
                Ok((client, _)) => {
                    let inner = self.clone();
                    std::thread::spawn(move || inner.connect(client));
                }
                Err(_) => drop(self.wait_while(|trouble| trouble == Trouble::Away)),
            }
        }
    }

    /// Connects a client with the upstream; if that fails, the client's connection ends.
    fn connect(self: Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(&self.upstream)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let line = Arc::new(Line([client, server]));
        let mut state = self.lock();
        state.lines.retain(|line| line.strong_count() > 0);
        state.lines.push(Arc::downgrade(&line));
        drop(state);
        let (inner, answers) = (self.clone(), line.clone());
        std::thread::spawn(move || inner.pass(&answers, Way::Down));
        self.pass(&line, Way::Up);
        Ok(())
    }

    fn pass(&self, line: &Line, way: Way) {
        if self.pass_all(line.ends(way), way).is_err() {
            line.cut();
        }
    }

    /// Passes on one direction until the sender ends it.
    ///
    /// # Errors
    /// When the connection has failed, or its trouble is to cut it.
    fn pass_all(&self, (mut from, mut to): (&TcpStream, &TcpStream), way: Way) -> io::Result<()> {
        let (mut bytes, mut seen, mut left) = ([0; READ_BYTES], 0, usize::MAX);
        loop {
            let read = from.read(&mut bytes)?;
            if read == 0 {
                return to.shutdown(Shutdown::Write);
            }
            let state = self.wait_while(|trouble| trouble.is_silent(way));
            let trouble = state.trouble;
            if std::mem::replace(&mut seen, state.number) != state.number {
                left = allowed(trouble, way);
            }
            drop(state);
            let passed = read.min(left);
            left -= passed;
            match trouble {
                Some(Trouble::Slow) => write_slowly(to, &bytes[..passed])?,
                _ => to.write_all(&bytes[..passed])?,
            }
            if left == 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

impl Line {
    /// The sender's and the receiver's end of a direction.
    fn ends(&self, way: Way) -> (&TcpStream, &TcpStream) {
        let [client, server] = &self.0;
        match way {
            Way::Up => (client, server),
            Way::Down => (server, client),
        }
    }

    /// Ends one direction, as if its sender had.
    fn end(&self, way: Way) {
        let _ended_before = self.ends(way).1.shutdown(Shutdown::Write);
    }

    fn cut(&self) {
        for end in &self.0 {
            let _ended_before = end.shutdown(Shutdown::Both);
        }
    }
}

/// How many bytes a connection may still pass on in this direction.
fn allowed(trouble: Option<Trouble>, way: Way) -> usize {
    match trouble {
        Some(Trouble::CutAfter(cut, bytes)) if cut == way => bytes,
        _ => usize::MAX,
    }
}

fn write_slowly(mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    for few in bytes.chunks(SLOW_BYTES) {
        few.iter().try_for_each(|byte| to.write_all(&[*byte]))?;
        std::thread::sleep(SLOW_PAUSE);
    }
    Ok(())
}
