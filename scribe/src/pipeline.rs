//! Calls under way to one upstream: sent without waiting for the answers to those before, up to a window, and settled in
//! the order in which they were handed over.
//!
//! ```text
//!  push ──▶ Waiting ──sent──▶ Sent ──OK──────────▶ Done ──pop, once all before it are──▶
//!              ▲                │ └──exception────▶ Done: nothing behind it is sent before it was popped
//!              ├──TRY_LATER─────┤
//!            Dark ◀──the connection broke
//! ```
//!
//! - Calls go out in their order, and each is sent again until it is done: whoever pushed it may forget it only then.
//! - After `TRY_LATER` or an exception nothing is sent before every call under way has its answer. Calls behind one that is
//!   told `TRY_LATER` may be done before it: with a window of one call, and only then, everything arrives in order.
//! - Only a call whose connection broke before its answer may arrive twice. No call is `Sent` without the connection on which
//!   it was: it would take the answer to another for its own.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use blkin_daemon::Cause;

use crate::client::{Alive, Client, Reply};
use crate::doorbell::Doorbell;

/// How much may be under way. A single call always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Most calls; 1: each waits for the answer to the one before.
    pub calls: usize,
    /// Most bytes of calls.
    pub bytes: usize,
}

/// Why calls have to be sent again, after a pause.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The upstream wants them later.
    #[error("it answered TRY_LATER")]
    TryLater,
    /// It failed, for its own reasons or because of what was called.
    #[error("it failed: {0}")]
    Failed(String),
    /// No connection could be made, or nothing more is to be sent: of calls that were under way nothing is known.
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The connection broke: what became of the calls under way is not known.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
}

impl Trouble {
    /// What it is called in logs and metrics.
    pub fn cause(&self) -> Cause {
        match self {
            Trouble::TryLater | Trouble::Failed(_) => Cause::TryLater,
            Trouble::Unreachable(_) => Cause::Unreachable,
            Trouble::Broken(_) => Cause::Broken,
        }
    }
}

/// What became of a call that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The upstream has it.
    Taken,
    /// The upstream cannot read it, or fails over it: something in it perhaps it will never take.
    Refused,
}

/// Calls under way, each with what its owner knows it by.
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
    /// As waiting, but it may have arrived.
    Dark,
    Sent,
    Done(Verdict),
}

impl State {
    fn is_to_be_sent(&self) -> bool {
        matches!(self, State::Waiting | State::Dark)
    }

    fn is_refused(&self) -> bool {
        *self == State::Done(Verdict::Refused)
    }
}

impl<B> Pipeline<B> {
    /// Nothing under way.
    pub fn new(client: Client, window: Window) -> Self {
        Pipeline { client, window, calls: VecDeque::new(), bytes: 0 }
    }

    /// Whether another call may be handed over.
    pub fn has_room(&self) -> bool {
        self.calls.is_empty() || (self.calls.len() < self.window.calls && self.bytes < self.window.bytes)
    }

    /// Whether everything that was handed over was popped.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls that may have arrived though there is no answer, and are sent again with the next turn.
    pub fn in_the_dark(&self) -> impl Iterator<Item = &B> {
        self.calls.iter().filter(|call| call.state == State::Dark).map(|call| &call.batch)
    }

    /// Has the next call make a new connection; of use while nothing is unanswered.
    pub fn disconnect(&mut self) {
        self.client.disconnect();
    }

    /// Calls outside of the window and waits for the answer: of use while nothing is unanswered, as after an exception was
    /// popped.
    ///
    /// # Errors
    /// When there is no answer; after [`Trouble::Broken`] the upstream may have it all the same.
    pub fn call(&mut self, request: impl FnOnce(i32) -> Vec<u8>, alive: Alive<'_>) -> Result<Reply, Trouble> {
        let replied = self.client.log(request, alive);
        replied.map_err(|error| self.trouble(error))
    }

    /// Why the client failed to send, or to hear of what it had sent.
    fn trouble(&self, error: io::Error) -> Trouble {
        if self.client.was_sent() { Trouble::Broken(error) } else { Trouble::Unreachable(error) }
    }

    /// Hands a call over, of about so many bytes.
    pub fn push(&mut self, batch: B, bytes: usize) {
        self.add(batch, bytes, State::Waiting);
    }

    /// Hands over what needs no call, and is only to be settled in its turn.
    pub fn push_done(&mut self, batch: B) {
        self.add(batch, 0, State::Done(Verdict::Taken));
    }

    fn add(&mut self, batch: B, bytes: usize, state: State) {
        self.bytes += bytes;
        self.calls.push_back(Call { batch, bytes, state });
    }

    /// The oldest call and what became of it, once that is known.
    pub fn pop(&mut self) -> Option<(B, Verdict)> {
        let call = self.calls.pop_front_if(|call| matches!(call.state, State::Done(_)))?;
        self.bytes -= call.bytes;
        match call.state {
            State::Done(verdict) => Some((call.batch, verdict)),
            State::Waiting | State::Dark | State::Sent => None,
        }
    }

    /// Leaves out what is to be sent and nobody wants any more.
    pub fn retain_waiting(&mut self, mut is_wanted: impl FnMut(&B) -> bool) {
        self.calls.retain(|call| !call.state.is_to_be_sent() || is_wanted(&call.batch));
        self.bytes = self.calls.iter().map(|call| call.bytes).sum();
    }

    /// Takes back what is to be sent, in its order.
    pub fn take_waiting(&mut self) -> Vec<B> {
        let (waiting, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.calls).into_iter().partition(|call| call.state.is_to_be_sent());
        self.bytes -= waiting.iter().map(|call| call.bytes).sum::<usize>();
        self.calls = kept;
        waiting.into_iter().map(|call| call.batch).collect()
    }

    /// Forgets everything, also what is done and waits for its turn. Of use while nothing is unanswered, as after
    /// [`Trouble::Broken`].
    pub fn clear(&mut self) {
        self.calls.clear();
        self.bytes = 0;
    }

    /// Sends what waits (`encode` writes the framed call of a sequence number) and takes the answers that come meanwhile; if
    /// nothing can be popped then, waits for an answer, for `bell` or until `due`, if there is such a time.
    ///
    /// # Errors
    /// When calls have to be sent again. Others may be there to be popped.
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
            lost.for_each(|call| call.state = State::Dark);
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

    /// Sends what waits, up to the first answer that can be popped: over a slow link a whole window takes long, and what was
    /// answered is not to be sent again should that break.
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

    /// The oldest call that was sent has its answer; says whether that is `TRY_LATER`.
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
