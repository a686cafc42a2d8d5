//! The network between two daemons, which can have trouble: every byte that arrives is right, but it may come late or never.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Result;
use rustix::net::{Shutdown as Ends, listen, shutdown, sockopt};

use crate::daemons::unused_address;

/// What may wait in the kernel before a sender is not let write any more.
const BUFFER_BYTES: usize = 4 << 10;
/// What is read at a time; little enough that a slow wire that is well again is not slow for long.
const READ_BYTES: usize = 2 << 10;
/// A slow wire takes so many bytes, one after the other, without a pause.
const SLOW_BYTES: usize = 128;
const SLOW_PAUSE: Duration = Duration::from_millis(1);
const BACKLOG: i32 = 128;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Of calls.
    Up,
    /// Of answers.
    Down,
}

/// What a wire may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// All connections end at once; new ones are well.
    Cut,
    /// One direction of all connections ends at once, the other goes on; new ones are well.
    CutHalf(Way),
    /// Each connection ends after so many more bytes in one direction.
    CutAfter(Way, usize),
    /// Connections are taken, and nothing that is sent this way arrives.
    SilentOneWay(Way),
    /// As that, both ways.
    Silent,
    /// Bytes come one by one.
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
    /// Of the trouble: how many there were.
    number: u64,
    lines: Vec<Weak<Line>>,
}

/// A connection from a client, and the one to the upstream.
#[derive(Debug)]
struct Line([TcpStream; 2]);

impl Wire {
    /// Passes on to `upstream` whatever comes.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(upstream: &str) -> Result<Wire> {
        // A port that was asked for by its number stays ours while nobody is listened to.
        let address = unused_address()?;
        let listener = TcpListener::bind(&address)?;
        sockopt::set_socket_recv_buffer_size(&listener, BUFFER_BYTES)?;
        let (state, changed) = Default::default();
        let inner = Arc::new(Inner { listener, upstream: upstream.to_owned(), state, changed });
        let serving = inner.clone();
        std::thread::spawn(move || serving.serve());
        Ok(Wire { address, inner })
    }

    /// Where to call the upstream.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Has trouble from now on, instead of what it had.
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

    /// Is well again; what was held back arrives.
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

    /// Waits while `is_so` of the trouble.
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

    /// Connects a client with the upstream; if that is not there, the client's connection ends.
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

    /// Passes on one direction to its end.
    ///
    /// # Errors
    /// When the connection is over, or is to be.
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
    /// From where to where.
    fn ends(&self, way: Way) -> (&TcpStream, &TcpStream) {
        let [client, server] = &self.0;
        match way {
            Way::Up => (client, server),
            Way::Down => (server, client),
        }
    }

    /// Ends one direction, as its sender might.
    fn end(&self, way: Way) {
        let _ended_before = self.ends(way).1.shutdown(Shutdown::Write);
    }

    fn cut(&self) {
        for end in &self.0 {
            let _ended_before = end.shutdown(Shutdown::Both);
        }
    }
}

/// How many bytes a connection may still pass on.
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
