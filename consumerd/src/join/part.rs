//! One program's part in a span, and when it is closed.
//!
//! "cr" closes the client's side, "ss" the server's. A part with neither side is closed by an annotation of the
//! configurable list, or by the end of its program.

use crate::annotation::{Annotation, Content, Role};

#[derive(Clone, Debug)]
pub(super) struct Part {
    program: u64,
    client: Side,
    server: Side,
    ended: bool,
    closed_in_sweep: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Unseen,
    Open,
    Closed,
}

impl Part {
    pub(super) fn new(program: u64) -> Self {
        Self { program, client: Side::Unseen, server: Side::Unseen, ended: false, closed_in_sweep: 0 }
    }

    pub(super) fn program(&self) -> u64 {
        self.program
    }

    /// The latest sweep for which the closing annotations have to wait.
    pub(super) fn closed_in_sweep(&self) -> u64 {
        self.closed_in_sweep
    }

    /// Notes an annotation, and returns whether it closes anything.
    #[inline]
    pub(super) fn note(&mut self, annotation: &Annotation<'_>, close_events: &[String], sweep: u64) -> bool {
        if !matches!(annotation.content, Content::Event(_)) {
            return false;
        }
        let closes = match annotation.labels.role {
            Role::ClientReceive => set(&mut self.client, Side::Closed),
            Role::ServerSend => set(&mut self.server, Side::Closed),
            Role::ClientSend | Role::ClientFragment => open(&mut self.client),
            Role::ServerReceive | Role::ServerFragment => open(&mut self.server),
            Role::Message | Role::None => {
                let closes = close_events.iter().any(|name| **name == *annotation.labels.key);
                self.ended |= closes;
                closes
            }
        };
        if closes {
            // An annotation that is read later may wait for an earlier sweep, because it was in its ring before.
            self.closed_in_sweep = self.closed_in_sweep.max(sweep);
        }
        closes
    }

    /// The program has ended: no side of it stays open.
    pub(super) fn end(&mut self) {
        self.ended = true;
        for side in [&mut self.client, &mut self.server] {
            if *side == Side::Open {
                *side = Side::Closed;
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match (self.client, self.server) {
            (Side::Unseen, Side::Unseen) => self.ended,
            (client, server) => client != Side::Open && server != Side::Open,
        }
    }
}

fn set(side: &mut Side, to: Side) -> bool {
    *side = to;
    true
}

fn open(side: &mut Side) -> bool {
    if *side == Side::Unseen {
        *side = Side::Open;
    }
    false
}
