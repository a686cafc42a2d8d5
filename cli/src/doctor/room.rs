//! Whether there is room left for what waits until its upstream takes it. What does not fit is lost, or refused.

use super::Check;
use crate::metrics::Metrics;

/// From this share on it is said, as the alerts do (packaging/prometheus): that much may fill while somebody comes to look.
const NEARLY_FULL_PERCENT: i64 = 80;

/// What consumerd holds in memory until it is acknowledged.
pub(super) fn of_consumerd(metrics: &Metrics) -> Option<Check> {
    let percent = percent(metrics, "blkin_staging_used_bytes", "blkin_staging_bytes")?;
    let found = format!("{percent} % of the memory for what is not acknowledged is full (staging_bytes)");
    let advice =
        "repair the upstream that takes nothing or too little, or raise staging_bytes and queue_bytes";
    Some(Check::warning("consumerd's memory", found, advice))
}

/// What the relay at `address` holds on disk until every upstream has it.
pub(super) fn of_relay(address: &str, metrics: &Metrics) -> Option<Check> {
    let percent = percent(metrics, "blkin_relay_spool_bytes", "blkin_relay_spool_limit_bytes")?;
    let found = format!("{address}: {percent} % of the spool is full (spool_bytes)");
    let advice = "repair the upstream that lags behind, or raise spool_bytes";
    Some(Check::warning("relay's spool", found, advice))
}

/// What the collector at `address` has in memory of its index until its disk takes that.
pub(super) fn of_collector(address: &str, metrics: &Metrics) -> Option<Check> {
    let is_overfull = metrics.sum("blkin_collector_index_overfull", &[]) > 0;
    let found = format!("{address}: it stores nothing until its disk takes the index");
    let advice = "if it stays so, make room on its disk, or give it a faster one; it goes on by itself";
    is_overfull.then(|| Check::warning("collector's index", found, advice))
}

/// How full it is, if it is nearly full.
fn percent(metrics: &Metrics, used: &str, limit: &str) -> Option<i64> {
    let percent = metrics.sum(used, &[]).checked_mul(100)?.checked_div(metrics.sum(limit, &[]))?;
    (percent >= NEARLY_FULL_PERCENT).then_some(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_full_is_a_warning_and_what_is_not_or_cannot_be_told_is_none() {
        let staging = |used: u64| {
            Metrics::parse(&format!("blkin_staging_used_bytes {used}\nblkin_staging_bytes 1000\n"))
        };
        assert!(of_consumerd(&staging(799)).is_none() && of_consumerd(&Metrics::default()).is_none());
        assert!(of_consumerd(&staging(800)).unwrap().found.starts_with("80 % of the memory"));
        let spool = "blkin_relay_spool_bytes 950\nblkin_relay_spool_limit_bytes 1000\n";
        let check = of_relay("http://r:1", &Metrics::parse(spool)).unwrap();
        assert!(check.found.starts_with("http://r:1: 95 % of the spool") && check.advice.is_some());
        let index = |overfull: u64| {
            let metrics = Metrics::parse(&format!("blkin_collector_index_overfull {overfull}\n"));
            of_collector("http://c:1", &metrics)
        };
        assert!(index(0).is_none() && index(1).unwrap().found.starts_with("http://c:1: it stores nothing"));
    }
}
