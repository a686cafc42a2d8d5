//! How many roots are sampled while the rate changes, in each slot: all at a rate of 1, one in N at a rate of N.

mod own;

use blkin_ringbuf::ControlPage;
use blkin_ringbuf::layout::CONTROL_NAME;
use blkin_ringbuf::process::{Status, init, samples_root};

const ROOTS: u64 = 20_000;
/// 0 means the environment's rate, which is 1.
const RATES: [u64; 12] = [0, 10, 1, 1000, 3, 1, 10, 1000, 10, 0, 7, 1];

#[test]
fn a_rate_of_one_samples_all_roots_and_others_one_in_n() {
    assert_eq!(init(), Status::Tracing);
    let page = ControlPage::open(&own::own_memfd(CONTROL_NAME)).expect("a valid control page");
    // Each slot is off by less than one, and comes from another rate, at which it may have been about to sample.
    let slots = own::attach().slots() as u64;
    for rate in RATES {
        page.set_rate(rate);
        let sampled = (0..ROOTS).filter(|_| samples_root()).count() as u64;
        match rate {
            0 | 1 => assert_eq!(sampled, ROOTS),
            _ => assert!(sampled.abs_diff(ROOTS / rate) <= slots, "{sampled} at {rate}"),
        }
    }
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_counting_samples_roots_at_the_rate() {
    own::run_again_by_each_way("a_rate_of_one_samples_all_roots_and_others_one_in_n");
}
