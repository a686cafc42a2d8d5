//! Measures the road of an annotation behind the program. Every program of this package prints lines
//! `case<TAB>unit<TAB>value`, and needs what it measures built with `--release` beside it.
//!
//! | program | what it measures |
//! |---|---|
//! | `transport` | rings alone: one process records, another drains and validates |
//! | `ship` | blkin-consumerd over a Scribe server that answers OK at once: annotations for each second of its CPU |
//! | `moderate` | consumerd, collector and programs at 10,000 to 200,000 annotations a second, and idle |
//! | `scale` | the same, and what a call costs, from 1 to 100 traced programs and to 1,000 threads |

pub mod collector;
pub mod consumerd;
pub mod machine;
pub mod offers;
pub mod producer;
pub mod scribe;

/// One line of results.
#[allow(clippy::print_stdout, reason = "it is what the programs are for")]
pub fn report(case: &str, unit: &str, value: f64) {
    println!("{case}\t{unit}\t{value:.2}");
}
