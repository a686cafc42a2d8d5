//! Which spans a program annotates: with its end they may be closed.

use std::collections::BTreeMap;

use super::table::Ticket;

#[derive(Debug, Default)]
pub(super) struct ByProgram {
    spans: BTreeMap<u64, Vec<Ticket>>,
    len: usize,
}

impl ByProgram {
    /// How many are listed, those of every program.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, program: u64, ticket: Ticket) {
        self.spans.entry(program).or_default().push(ticket);
        self.len += 1;
    }

    /// Keeps only these of the programs that are meant, and all of others, which are not looked at.
    pub(super) fn retain(
        &mut self,
        is_meant: impl Fn(u64) -> bool,
        mut is_kept: impl FnMut(u64, Ticket) -> bool,
    ) {
        self.spans.retain(|program, tickets| {
            if is_meant(*program) {
                let before = tickets.len();
                tickets.retain(|ticket| is_kept(*program, *ticket));
                tickets.shrink_to(2 * tickets.len());
                self.len -= before - tickets.len();
            }
            !tickets.is_empty()
        });
    }
}
