//! The open spans that each program annotates, which may be closed when the program ends.

use std::collections::BTreeMap;

use super::table::Ticket;

#[derive(Debug, Default)]
pub(super) struct ByProgram {
    spans: BTreeMap<u64, Vec<Ticket>>,
    len: usize,
}

impl ByProgram {
    /// Number of entries, over all programs.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn add(&mut self, program: u64, ticket: Ticket) {
        self.spans.entry(program).or_default().push(ticket);
        self.len += 1;
    }

    /// Removes the entries of the programs in question for which `is_kept` is false. Other programs' entries are not visited.
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
