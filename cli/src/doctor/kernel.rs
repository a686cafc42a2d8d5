//! What the kernel gives: sealed shared memory, restartable sequences, a clock that is cheap to read.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::Check;

/// Auxiliary vector entry with the size of the kernel's rseq area (`AT_RSEQ_FEATURE_SIZE`).
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
/// From this size on the area tells `mm_cid`, a compact slot number.
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

/// Whether the kernel has restartable sequences, and with `mm_cid`.
pub(super) fn rseq() -> Check {
    const NAME: &str = "rseq";
    match auxiliary(AT_RSEQ_FEATURE_SIZE) {
        Some(size) if size >= SIZE_WITH_MM_CID => Check::ok(NAME, "restartable sequences with mm_cid"),
        Some(_) => Check::ok(NAME, "restartable sequences without mm_cid: slots follow the CPU number"),
        None => Check::warning(
            NAME,
            "the kernel does not tell of restartable sequences",
            "tracing works without them: slots follow the CPU number (Linux 6.3 and later tell)",
        ),
    }
}

/// A value of this process's auxiliary vector.
fn auxiliary(wanted: u64) -> Option<u64> {
    let raw = std::fs::read("/proc/self/auxv").ok()?;
    let word = |bytes: &[u8]| bytes.try_into().ok().map(usize::from_ne_bytes).map(|word| word as u64);
    let size = size_of::<usize>();
    raw.chunks_exact(2 * size).find_map(|pair| {
        let (key, value) = pair.split_at(size);
        (word(key)? == wanted).then(|| word(value)).flatten()
    })
}

/// Whether the time stamp counter can be the clock.
pub(super) fn clock() -> Check {
    const NAME: &str = "clock";
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let cpuinfo = read("/proc/cpuinfo");
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or("");
    let invariant =
        ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.split_whitespace().any(|word| word == *flag));
    match (source.trim(), invariant) {
        ("tsc", true) => Check::ok(NAME, "invariant TSC"),
        (source, true) => Check::ok(NAME, format!("invariant TSC (the kernel itself uses {source})")),
        (source, false) => Check::warning(
            NAME,
            format!("no invariant TSC (clock source: {source})"),
            "tracing works: time comes from clock_gettime, about 15 ns more for each event",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_auxiliary_vector_is_read() {
        const AT_UID: u64 = 11;
        assert_eq!(auxiliary(AT_UID), Some(u64::from(rustix::process::getuid().as_raw())));
        assert_eq!(auxiliary(987_654), None);
    }
}
