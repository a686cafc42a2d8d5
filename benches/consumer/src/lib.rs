//! Measures the path of an annotation after it leaves the program. Every program of this package prints lines
//! `case<TAB>unit<TAB>value`, and expects the daemons that it measures, built with `--release`, beside it.
//!
//! | program | what it measures |
//! |---|---|
//! | `transport` | rings alone: one process records, another drains and validates |
//! | `ship` | blkin-consumerd with a Scribe server that answers OK at once: annotations per second of its CPU |
//! | `moderate` | consumerd, collector and programs at 10,000 to 200,000 annotations a second, and idle |
//! | `scale` | CPU time of a call, and of an annotation in consumerd, with 1 to 100 programs and with 1,000 threads |
//! | `away` | a program that floods and a quiet one, while there is no Scribe server |

pub mod collector;
pub mod consumerd;
pub mod machine;
pub mod offers;
pub mod producer;
pub mod scribe;

/// One line of results.
#[allow(clippy::print_stdout, reason = "printing figures is the purpose of these programs")]
pub fn report(case: &str, unit: &str, value: f64) {
    println!("{case}\t{unit}\t{value:.2}");
}
