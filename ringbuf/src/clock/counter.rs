//! Whether the time stamp counter can be the clock.
//!
//! The CPU says whether its counter runs evenly (CPUID's invariant bit), but not whether the counters of all CPUs agree: only
//! the kernel compares them, at boot and whenever a CPU comes online, and then watches them against another clock. A counter that
//! it has found wanting (`mark_tsc_unstable` in arch/x86/kernel/tsc.c) is taken off the list of its clock sources: it is either
//! never registered (`init_tsc_clocksource`), or loses the flag without which `available_clocksource_show`
//! (kernel/time/clocksource.c) leaves it out.
//!
//! What counts is that list, not the source that the kernel itself uses. Guests of KVM often run on `kvm-clock` with a
//! sound counter beside it, and an administrator may choose another source. A guest of Hyper-V whose counter may change its
//! rate when the guest moves to another machine (no `HV_ACCESS_TSC_INVARIANT`: arch/x86/kernel/cpu/mshyperv.c) does not list
//! it, whatever CPUID says there, though the source that the guest uses is made of it. `tsc-early` is the counter until the
//! kernel has measured its rate, a second into the boot.
//!
//! A kernel without high-resolution timers lists every source there is; its word is then no better than CPUID's.

use std::ffi::CStr;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};

use super::tsc;
use crate::uncancelled::Uncancelled;

/// Names of the kernel's clock sources, with spaces between them.
const AVAILABLE: &CStr = c"/sys/devices/system/clocksource/clocksource0/available_clocksource";
/// More than the names of all existing sources take.
const MOST_BYTES: usize = 256;

/// What is known about the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// It is invariant, and the kernel has found nothing against it, or cannot be asked.
    Trusted,
    /// It does not run evenly, or there is none.
    NotInvariant,
    /// It is said to be invariant, but the kernel has taken it off its list.
    Distrusted,
}

impl Counter {
    /// This machine's counter. The kernel is asked once: children of a process that asked have its answer. Async-signal-safe.
    pub fn of_machine() -> Counter {
        static LISTED: Listed = Listed::unasked();
        match tsc::is_invariant() {
            false => Counter::NotInvariant,
            true if LISTED.by(AVAILABLE) => Counter::Trusted,
            true => Counter::Distrusted,
        }
    }
}

/// Whether the kernel lists the counter. Outside the memory that fork wipes.
struct Listed(AtomicU8);

impl Listed {
    const UNASKED: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;

    const fn unasked() -> Listed {
        Listed(AtomicU8::new(Self::UNASKED))
    }

    /// Asks the first time, and keeps the answer. Where the kernel cannot be asked, CPUID decides; if only a descriptor or memory
    /// was lacking, the next call asks again.
    fn by(&self, path: &CStr) -> bool {
        match self.0.load(Relaxed) {
            Self::YES => return true,
            Self::NO => return false,
            _ => {}
        }
        let is_listed = match is_listed(path) {
            Ok(is_listed) => is_listed,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => return true,
            Err(_) => true,
        };
        self.0.store(if is_listed { Self::YES } else { Self::NO }, Relaxed);
        is_listed
    }
}

fn is_listed(path: &CStr) -> Result<bool, Errno> {
    // Not `open`, which is a system call of its own that filters tend to forget.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = Uncancelled::from(openat(CWD, path, flags, Mode::empty())?);
    let mut names = [0; MOST_BYTES];
    let length = read(&file, &mut names)?;
    Ok(names_counter(&names[..length]))
}

/// Whether a list of clock sources has the counter. An empty list, or one longer than any kernel's, says nothing against it.
fn names_counter(list: &[u8]) -> bool {
    let mut names = list.split(u8::is_ascii_whitespace).filter(|name| !name.is_empty()).peekable();
    names.peek().is_none()
        || list.len() == MOST_BYTES
        || names.any(|name| matches!(name, b"tsc" | b"tsc-early"))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn c_path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte")
    }

    fn lists(content: &str) -> bool {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), content).expect("it is written");
        Listed::unasked().by(&c_path(file.path()))
    }

    #[test]
    fn a_counter_missing_from_the_kernels_list_is_not_trusted() {
        for healthy in
            ["tsc kvm-clock \n", "kvm-clock tsc hpet acpi_pm \n", "tsc-early hpet acpi_pm \n", "tsc\n"]
        {
            assert!(lists(healthy), "{healthy}");
        }
        for rejected in
            ["hpet acpi_pm \n", "kvm-clock acpi_pm \n", "hyperv_clocksource_tsc_page acpi_pm \n", "xen \n"]
        {
            assert!(!lists(rejected), "{rejected}");
        }
    }

    #[test]
    fn without_an_answer_from_the_kernel_the_cpu_is_trusted() {
        assert!(Listed::unasked().by(c"/nowhere/available_clocksource"));
        assert!(Listed::unasked().by(c"/"), "a folder cannot be read as a list");
        assert!(lists("") && lists("\n"));
        assert!(lists(&"hpet ".repeat(MOST_BYTES)), "a file that is too long is not taken for a list");
    }

    #[test]
    fn the_kernel_is_asked_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "hpet acpi_pm\n").expect("it is written");
        let listed = Listed::unasked();
        assert!(!listed.by(&c_path(file.path())));
        fs::write(file.path(), "tsc\n").expect("it is written");
        assert!(!listed.by(&c_path(file.path())));
        assert!(!listed.by(c"/nowhere"));
    }
}
