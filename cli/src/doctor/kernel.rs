//! What the kernel provides: sealed shared memory, restartable sequences, a clock that is cheap to read.

use std::{fs, io};

use blkin_ringbuf::Counter;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::Check;

/// Where the kernel lists its clock sources.
const CLOCK_SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";
/// What the kernel passed to this process at its start.
const AUXILIARY_VECTOR: &str = "/proc/self/auxv";
/// Auxiliary vector entry with the size of the kernel's rseq area (`AT_RSEQ_FEATURE_SIZE`).
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
/// From this size on the area contains `mm_cid`, a compact slot number.
const SIZE_WITH_MM_CID: u64 = 28;

/// A memfd with the seals that keep consumerd from writing program memory.
pub(super) fn memfd() -> Check {
    const NAME: &str = "memfd";
    let sealed = || {
        let fd = memfd_create("blkin-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, 4096)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)
    };
    match sealed() {
        Ok(()) => Check::ok(NAME, "shared memory can be created and sealed"),
        Err(error) => Check::failed(
            NAME,
            format!("failed to create and seal a memfd: {error}"),
            "Linux 5.1 or later is needed, and a seccomp profile must allow memfd_create and fcntl",
        ),
    }
}

/// Whether the kernel has restartable sequences, and whether with `mm_cid`.
pub(super) fn rseq() -> Check {
    judge_rseq(fs::read(AUXILIARY_VECTOR).map(|vector| auxiliary(&vector, AT_RSEQ_FEATURE_SIZE)))
}

fn judge_rseq(told: io::Result<Option<u64>>) -> Check {
    const NAME: &str = "rseq";
    match told {
        Ok(Some(size)) if size >= SIZE_WITH_MM_CID => Check::ok(NAME, "restartable sequences with mm_cid"),
        Ok(Some(_)) => Check::ok(NAME, "restartable sequences without mm_cid: slots follow the CPU number"),
        Ok(None) => Check::warning(
            NAME,
            "the kernel does not say whether it has restartable sequences",
            "tracing works without them: slots follow the CPU number (Linux 6.3 and later say so)",
        ),
        Err(error) => Check::warning(
            NAME,
            format!(
                "failed to find out whether there are restartable sequences: {AUXILIARY_VECTOR}: {error}"
            ),
            "tracing works with and without them; mount /proc to have this checked",
        ),
    }
}

/// A value of an auxiliary vector.
fn auxiliary(vector: &[u8], wanted: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(usize::from_ne_bytes).map(|word| word as u64);
    let size = size_of::<usize>();
    vector.chunks_exact(2 * size).find_map(|pair| {
        let (key, value) = pair.split_at(size);
        (word(key)? == wanted).then(|| word(value)).flatten()
    })
}

/// Which clock programs read, and the reason.
pub(super) fn clock() -> Check {
    let read = |name: &str| fs::read_to_string(format!("{CLOCK_SOURCES}/{name}_clocksource"));
    let [used, available] = ["current", "available"].map(|name| read(name).unwrap_or_default());
    judge_clock(Counter::of_machine(), used.trim(), available.trim())
}

fn judge_clock(counter: Counter, used: &str, available: &str) -> Check {
    const NAME: &str = "clock";
    const SLOWER: &str = "tracing works: time comes from clock_gettime, about 15 ns more for each event, or a system call where the \
                          kernel's own source is hpet or acpi_pm";
    let used = if used.is_empty() { "unknown" } else { used };
    match counter {
        Counter::Trusted if matches!(used, "tsc" | "unknown") => Check::ok(NAME, "invariant TSC"),
        Counter::Trusted => Check::ok(NAME, format!("invariant TSC (the kernel itself uses {used})")),
        Counter::NotInvariant => {
            Check::warning(NAME, format!("CLOCK_MONOTONIC: no invariant TSC (clock source: {used})"), SLOWER)
        }
        Counter::Distrusted => {
            let found = format!(
                "CLOCK_MONOTONIC: the TSC is invariant by CPUID, but the kernel does not list it as a clock source (listed: \
                 {available}; clock source: {used})"
            );
            Check::warning(
                NAME,
                found,
                format!("{SLOWER}; what the kernel found against the TSC is in `dmesg | grep -i tsc`"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn the_clock_check_says_why_the_tsc_is_not_used() {
        let judged = |counter, used, available| judge_clock(counter, used, available);
        let well = judged(Counter::Trusted, "kvm-clock", "kvm-clock tsc");
        assert_eq!(
            (well.status, &*well.found),
            (Status::Ok, "invariant TSC (the kernel itself uses kvm-clock)")
        );
        assert_eq!(judged(Counter::Trusted, "", "").found, "invariant TSC");
        let uneven = judged(Counter::NotInvariant, "hpet", "hpet");
        assert_eq!(uneven.status, Status::Warning);
        assert!(uneven.found.starts_with("CLOCK_MONOTONIC: no invariant TSC"), "{}", uneven.found);
        let rejected = judged(Counter::Distrusted, "hpet", "hpet acpi_pm");
        assert_eq!(rejected.status, Status::Warning);
        assert!(rejected.found.contains("(listed: hpet acpi_pm; clock source: hpet)"), "{}", rejected.found);
        assert!(rejected.advice.is_some_and(|advice| advice.contains("dmesg")));
    }

    #[test]
    fn auxiliary_vector_entries_are_read() {
        const AT_UID: u64 = 11;
        let vector = fs::read(AUXILIARY_VECTOR).unwrap();
        assert_eq!(auxiliary(&vector, AT_UID), Some(u64::from(rustix::process::getuid().as_raw())));
        assert_eq!(auxiliary(&vector, 987_654), None);
    }

    #[test]
    fn without_proc_rseq_support_is_reported_as_unknown() {
        let check = judge_rseq(Err(io::ErrorKind::NotFound.into()));
        assert_eq!(check.status, Status::Warning);
        assert!(
            check.found.contains("whether there are restartable sequences: /proc/self/auxv"),
            "{}",
            check.found
        );
        assert!(check.advice.is_some_and(|advice| advice.contains("mount /proc")));
    }
}
