//! Whether there is room left for data that waits for its upstream. What does not fit is lost, or refused.

use super::Check;
use crate::metrics::Metrics;

/// Warn from this percentage on, as the alerts do (packaging/prometheus): the rest may fill while somebody comes to look.
const NEARLY_FULL_PERCENT: i64 = 80;

/// A warning if the memory is nearly full in which consumerd keeps annotations until they are acknowledged.
pub(super) fn of_consumerd(metrics: &Metrics) -> Option<Check> {
    let percent = percent(metrics, "blkin_staging_used_bytes", "blkin_staging_bytes")?;
    let found = format!("{percent} % of the memory for unacknowledged annotations is full (staging_bytes)");
    let advice =
        "repair the upstream that accepts nothing or too little, or raise staging_bytes and queue_bytes";
    Some(Check::warning("consumerd's memory", found, advice))
}

/// A warning if the spool of the relay at `address` is nearly full.
pub(super) fn of_relay(address: &str, metrics: &Metrics) -> Option<Check> {
    let percent = percent(metrics, "blkin_relay_spool_bytes", "blkin_relay_spool_limit_bytes")?;
    let found = format!("{address}: {percent} % of the spool is full (spool_bytes)");
    let advice = "repair the upstream that lags behind, or raise spool_bytes";
    Some(Check::warning("relay's spool", found, advice))
}

/// A warning if the collector at `address` holds too much of its index in memory, because its disk does not accept it.
pub(super) fn of_collector(address: &str, metrics: &Metrics) -> Option<Check> {
    let is_overfull = metrics.sum("blkin_collector_index_overfull", &[]) > 0;
    let found = format!("{address}: it stores nothing until its disk accepts the index");
    let advice = "if this persists, make room on its disk, or give it a faster one; it continues by itself";
    is_overfull.then(|| Check::warning("collector's index", found, advice))
}

/// The percentage that is used, if nearly all of it is.
fn percent(metrics: &Metrics, used: &str, limit: &str) -> Option<i64> {
    let percent = metrics.sum(used, &[]).checked_mul(100)?.checked_div(metrics.sum(limit, &[]))?;
    (percent >= NEARLY_FULL_PERCENT).then_some(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_full_buffers_are_a_warning() {
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
