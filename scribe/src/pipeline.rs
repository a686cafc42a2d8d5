//! Calls under way to one upstream: sent without waiting for the answers to earlier calls, up to a window, and settled in the
//! order in which they were pushed.
//!
//! ```text
//!  push ──▶ Waiting ──sent──▶ Sent ──OK──────────▶ Done ──pop, once all before it are──▶
//!              ▲                │ └──exception────▶ Done: nothing behind it is sent before it was popped
//!              ├──TRY_LATER─────┤
//!         Unknown ◀──the connection broke
//! ```
//!
//! - Calls go out in their order, and each is sent again until it is done; the caller may forget it only then.
//! - After `TRY_LATER` or an exception, nothing is sent before every call under way has its answer. Calls behind one that was
//!   answered with `TRY_LATER` may be done before it: only with a window of one call does everything arrive in order.
//! - Of the calls that are sent here, only one whose connection broke before its answer may arrive twice. (After [`Pipeline::clear`]
//!   the caller sends acknowledged calls again that it has not popped.) No call stays `Sent` once its connection is gone:
//!   it would take the answer to another call for its own.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use blkin_daemon::Cause;

use crate::client::{Alive, Client, Reply};
use crate::doorbell::Doorbell;

/// How much may be under way. A single call of any size always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Most calls; with 1, each call waits for the answer to the one before.
    pub calls: usize,
    /// Most bytes of all calls.
    pub bytes: usize,
}

/// Why calls have to be sent again, after a pause.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The upstream asks to send them later.
    #[error("it answered TRY_LATER")]
    TryLater,
    /// The upstream failed, for its own reasons or because of the content of the call.
    #[error("it failed: {0}")]
    Failed(String),
    /// No connection could be made, or the wait was ended; the outcome of calls that were under way is not known.
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The connection broke: the outcome of the calls under way is not known.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
}

impl Trouble {
    /// The cause in logs and metrics.
    pub fn cause(&self) -> Cause {
        match self {
            Trouble::TryLater | Trouble::Failed(_) => Cause::TryLater,
            Trouble::Unreachable(_) => Cause::Unreachable,
            Trouble::Broken(_) => Cause::Broken,
        }
    }
}

/// The outcome of a call that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The upstream has the entries.
    Taken,
    /// The upstream cannot read the call, or fails over it: it may never accept some of the entries.
    Refused,
}

/// Calls under way, each with the batch by which its owner knows it.
#[derive(Debug)]
pub struct Pipeline<B> {
    client: Client,
    window: Window,
    calls: VecDeque<Call<B>>,
    bytes: usize,
}

#[derive(Debug)]
struct Call<B> {
    batch: B,
    bytes: usize,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// As `Waiting`, but the call may have arrived.
    Unknown,
    Sent,
    Done(Verdict),
}

impl State {
    fn is_to_be_sent(&self) -> bool {
        matches!(self, State::Waiting | State::Unknown)
    }

    fn is_refused(&self) -> bool {
        *self == State::Done(Verdict::Refused)
    }
}

impl<B> Pipeline<B> {
    /// A pipeline with nothing under way.
    pub fn new(client: Client, window: Window) -> Self {
        Pipeline { client, window, calls: VecDeque::new(), bytes: 0 }
    }

    /// Whether another call may be pushed.
    pub fn has_room(&self) -> bool {
        self.calls.is_empty() || (self.calls.len() < self.window.calls && self.bytes < self.window.bytes)
    }

    /// Whether everything that was pushed was popped.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls that may have arrived although there is no answer. The next turn sends them again.
    pub fn with_unknown_outcome(&self) -> impl Iterator<Item = &B> {
        self.calls.iter().filter(|call| call.state == State::Unknown).map(|call| &call.batch)
    }

    /// Closes the connection, so that the next call makes a new one. Call it only while no call waits for its answer.
    pub fn disconnect(&mut self) {
        self.client.disconnect();
    }

    /// Makes a call outside of the window and waits for the answer. Call it only while no call waits for its answer, as after an
    /// exception was popped.
    ///
    /// # Errors
    /// When there is no answer; after [`Trouble::Broken`] the upstream may have the entries all the same.
    pub fn call(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> Result<Reply, Trouble> {
        let replied = self.client.log(request, alive);
        replied.map_err(|error| self.trouble(error))
    }

    /// Why the client failed to send, or to get an answer to what it had sent.
    fn trouble(&self, error: io::Error) -> Trouble {
        if self.client.was_sent() { Trouble::Broken(error) } else { Trouble::Unreachable(error) }
    }

    /// Adds a call of about `bytes`.
    pub fn push(&mut self, batch: B, bytes: usize) {
        self.add(batch, bytes, State::Waiting);
    }

    /// Adds a batch that needs no call, and only has to be popped in its turn.
    pub fn push_done(&mut self, batch: B) {
        self.add(batch, 0, State::Done(Verdict::Taken));
    }

    fn add(&mut self, batch: B, bytes: usize, state: State) {
        self.bytes += bytes;
        self.calls.push_back(Call { batch, bytes, state });
    }

    /// Removes and returns the oldest call with its outcome, once that is known.
    pub fn pop(&mut self) -> Option<(B, Verdict)> {
        let call = self.calls.pop_front_if(|call| matches!(call.state, State::Done(_)))?;
        self.bytes -= call.bytes;
        match call.state {
            State::Done(verdict) => Some((call.batch, verdict)),
            State::Waiting | State::Unknown | State::Sent => None,
        }
    }

    /// Removes the calls that are still to be sent and are no longer wanted.
    pub fn retain_waiting(&mut self, mut is_wanted: impl FnMut(&B) -> bool) {
        self.calls.retain(|call| !call.state.is_to_be_sent() || is_wanted(&call.batch));
        self.bytes = self.calls.iter().map(|call| call.bytes).sum();
    }

    /// Takes back the calls that are still to be sent, in their order.
    pub fn take_waiting(&mut self) -> Vec<B> {
        let (waiting, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.calls).into_iter().partition(|call| call.state.is_to_be_sent());
        self.bytes -= waiting.iter().map(|call| call.bytes).sum::<usize>();
        self.calls = kept;
        waiting.into_iter().map(|call| call.batch).collect()
    }

    /// Forgets everything, even calls that are done and not popped. Call it only while no call waits for its answer, as after
    /// [`Trouble::Broken`].
    pub fn clear(&mut self) {
        self.calls.clear();
        self.bytes = 0;
    }

    /// Sends the waiting calls (`encode` writes the framed call for a sequence number) and reads the answers that arrive
    /// meanwhile. If nothing can be popped then, waits for an answer, for `bell`, or until `due` if that is given.
    ///
    /// # Errors
    /// When calls have to be sent again. Other calls may be ready to be popped.
    pub fn turn(
        &mut self,
        encode: impl Fn(&B, i32) -> Vec<u8>,
        bell: &Doorbell,
        due: Option<Instant>,
        alive: Alive<'_>,
    ) -> Result<(), Trouble> {
        let turned = self.exchange(encode, bell, due, alive);
        if self.client.unanswered() == 0 {
            let lost = self.calls.iter_mut().filter(|call| call.state == State::Sent);
            lost.for_each(|call| call.state = State::Unknown);
        }
        turned
    }

    fn exchange(
        &mut self,
        encode: impl Fn(&B, i32) -> Vec<u8>,
        bell: &Doorbell,
        due: Option<Instant>,
        alive: Alive<'_>,
    ) -> Result<(), Trouble> {
        self.send(encode, alive)?;
        if self.has_done() {
            return Ok(());
        }
        self.client.wait(Some(bell), due).map_err(Trouble::Broken)?;
        self.take_answers(alive)
    }

    /// Whether something can be popped.
    fn has_done(&self) -> bool {
        self.calls.front().is_some_and(|call| matches!(call.state, State::Done(_)))
    }

    /// Sends the waiting calls until an answer can be popped. Over a slow link a whole window takes long; if the connection broke
    /// meanwhile, calls that were already answered would be sent again.
    fn send(&mut self, encode: impl Fn(&B, i32) -> Vec<u8>, alive: Alive<'_>) -> Result<(), Trouble> {
        while self.next_to_send().is_some() {
            if self.client.unanswered() > 0 {
                self.client.wait(None, Some(Instant::now())).map_err(Trouble::Broken)?;
                self.take_answers(alive)?;
            }
            let Some(next) = self.next_to_send().filter(|_| !self.has_done()) else { break };
            let call = &mut self.calls[next];
            let sent = self.client.send(|sequence| encode(&call.batch, sequence), alive);
            if self.client.was_sent() {
                call.state = State::Sent;
            }
            if let Err(error) = sent {
                return Err(self.trouble(error));
            }
        }
        Ok(())
    }

    fn next_to_send(&self) -> Option<usize> {
        let mut sendable = self.calls.iter().take_while(|call| !call.state.is_refused());
        sendable.position(|call| call.state.is_to_be_sent())
    }

    fn take_answers(&mut self, alive: Alive<'_>) -> Result<(), Trouble> {
        let mut is_later = false;
        while let Some(reply) = self.client.next_reply().map_err(Trouble::Broken)? {
            is_later |= self.answered(reply);
        }
        if is_later || self.calls.iter().any(|call| call.state.is_refused()) {
            while self.client.unanswered() > 0 {
                let reply = self.client.reply(alive).map_err(Trouble::Broken)?;
                is_later |= self.answered(reply);
            }
        }
        if is_later { Err(Trouble::TryLater) } else { Ok(()) }
    }

    /// Notes the answer to the oldest call that was sent; returns whether it is `TRY_LATER`.
    fn answered(&mut self, reply: Reply) -> bool {
        let state = match reply {
            Reply::Ok => State::Done(Verdict::Taken),
            Reply::Refused(_) | Reply::Failed(_) => State::Done(Verdict::Refused),
            Reply::TryLater => State::Waiting,
        };
        let is_later = state == State::Waiting;
        if let Some(call) = self.calls.iter_mut().find(|call| call.state == State::Sent) {
            call.state = state;
        }
        is_later
    }
}

#[cfg(test)]
mod tests;
