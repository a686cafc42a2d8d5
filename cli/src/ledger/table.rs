//! The ledger as text.

use std::fmt::Write as _;

use super::{COLLECTOR, DEPARTED, DRAINED_BEFORE, Equation, Ledger, Term};
use crate::terminal::{Colour, Style, filled, fit, safe, width};

/// The steps of an annotation's journey, each described in a few words.
pub(super) const STEPS: [&str; 6] = [
    "recorded by programs, into their rings",
    "read out of the rings by consumerd",
    "understood by consumerd",
    "shipped by each sink of consumerd",
    "received by relays and forwarded to upstreams",
    "stored by the collector",
];
/// The steps with an equation for each program.
const OF_PROGRAMS: std::ops::Range<usize> = 0..3;
/// Up to this many programs that lost nothing have a line each.
const MOST_LINES: usize = 8;

impl Ledger {
    /// A line for each equation, below the description of its step. Many programs that lost nothing share one line.
    pub fn table(&self, style: Style) -> String {
        let of_step = |step| self.equations.iter().filter(|equation| equation.step() == step).collect();
        let steps: Vec<Vec<Equation>> =
            (0..STEPS.len()).map(|step| printed_equations(of_step(step))).collect();
        let mut out = String::new();
        for (equations, what) in steps.iter().zip(STEPS).filter(|(equations, _)| !equations.is_empty()) {
            let _ = writeln!(out, "  {what}");
            let widest = equations.iter().map(|equation| width(&equation.whom())).max().unwrap_or(0);
            for equation in equations {
                let _ = writeln!(out, "{}", equation.text(widest, style));
            }
        }
        out
    }
}

impl Term {
    fn is_rare(&self) -> bool {
        self.is_loss() || self.name == DRAINED_BEFORE
    }
}

impl Equation {
    /// Index of its step in [`STEPS`].
    fn step(&self) -> usize {
        match self.left.name.as_str() {
            "attempted" => 0,
            "committed" => 1,
            "drained" => 2,
            "valid" => 3,
            _ if self.scope == COLLECTOR => 5,
            _ => 4,
        }
    }

    /// Its scope, as printed.
    fn whom(&self) -> String {
        safe(if self.scope == DEPARTED { "ended programs" } else { &self.scope })
    }

    /// Its line; if that is too long, the scope alone, and the rest in lines below. Terms that are rarely other than 0 are left
    /// out if they are 0.
    fn text(&self, widest: usize, style: Style) -> String {
        let (verdict, colour) =
            if self.holds() { ("holds", Colour::Green) } else { ("DOES NOT HOLD", Colour::Red) };
        let shown = self.right.iter().filter(|term| term.value != 0 || !term.is_rare());
        let terms: Vec<String> = shown.map(|term| format!("{} {}", term.name, term.value)).collect();
        let sum = safe(&format!("{} {} = {}", self.left.name, self.left.value, terms.join(" + ")));
        let whom = self.whom();
        let mut text = format!("    {}  {sum}  {verdict}", fit(&whom, widest));
        if width(&text) > style.columns {
            let pieces = sum.split_inclusive(['=', '+']).map(str::trim).chain([verdict]);
            let below = filled(pieces, style.columns.saturating_sub(6));
            text = format!("    {whom}\n      {}", below.join("\n      "));
        }
        text.truncate(text.len() - verdict.len());
        text + &style.paint(colour, verdict)
    }

    /// Whether it is that of a running program, holds, and contains no loss.
    fn is_uneventful(&self) -> bool {
        let lost = self.right.iter().any(|term| term.is_loss() && term.value != 0);
        OF_PROGRAMS.contains(&self.step()) && self.scope != DEPARTED && self.holds() && !lost
    }

    /// Whether it is that of ended programs, and these recorded nothing.
    fn is_of_no_ended_program(&self) -> bool {
        let terms = std::iter::once(&self.left).chain(&self.right);
        self.scope == DEPARTED && terms.map(|term| term.value).all(|value| value == 0)
    }

    /// One equation for all of these programs. It holds, as each of theirs does.
    fn of_all(uneventful: &[&Equation]) -> Equation {
        let mut sum = Equation {
            scope: format!("{} programs without a loss", uneventful.len()),
            ..uneventful[0].clone()
        };
        for more in &uneventful[1..] {
            sum.left.value += more.left.value;
            for term in &more.right {
                match sum.right.iter_mut().find(|known| known.name == term.name) {
                    Some(known) => known.value += term.value,
                    None => sum.right.push(term.clone()),
                }
            }
        }
        sum
    }
}

/// The equations of a step as they are printed. Many programs that lost nothing share one equation. That of ended programs is left
/// out if it is empty, unless it is the only one.
fn printed_equations(mut equations: Vec<&Equation>) -> Vec<Equation> {
    if equations.len() > 1 {
        equations.retain(|equation| !equation.is_of_no_ended_program());
    }
    let (uneventful, others): (Vec<_>, Vec<_>) =
        equations.iter().partition(|equation| equation.is_uneventful());
    if uneventful.len() <= MOST_LINES {
        return equations.into_iter().cloned().collect();
    }
    std::iter::once(Equation::of_all(&uneventful)).chain(others.into_iter().cloned()).collect()
}
