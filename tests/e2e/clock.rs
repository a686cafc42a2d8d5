//! The accuracy of recorded times after consumerd converted them. `benches/clock` measures the same with more records.

use anyhow::Result;
use blkin_tests::clock::measure;

#[test]
fn recorded_times_are_accurate_and_never_run_backwards() -> Result<()> {
    let accuracy = measure(100_000, 10)?;
    println!(
        "{:.4} % within a microsecond, 99.99 % within {} ns, all within {} ns",
        accuracy.percent_within(),
        accuracy.percentile_ns(99.99),
        accuracy.percentile_ns(100.0)
    );
    assert_eq!(accuracy.backwards, 0);
    assert!(accuracy.percent_within() >= 99.9, "{:.4} %", accuracy.percent_within());
    Ok(())
}
