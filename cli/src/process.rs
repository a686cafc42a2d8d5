//! What /proc says of a process.

use std::{fs, io};

/// A file in its folder. Names in it, its own and those of files that it maps, are of any bytes, and what is no text of them is
/// shown as U+FFFD: the kernel keeps 15 bytes of its own, which may end within a character.
///
/// # Errors
/// Whatever the system says: it has ended, or may not be looked at.
pub(crate) fn text(pid: u32, file: &str) -> io::Result<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{gettid, set_name};

    #[test]
    fn a_process_is_described_whatever_its_name_is() {
        let named = || {
            set_name(c"process-of-gr\xc3").unwrap();
            let thread = gettid().as_raw_nonzero().get().cast_unsigned();
            ["comm", "stat", "status"].map(|file| text(thread, file).unwrap())
        };
        let described = std::thread::spawn(named).join().unwrap();
        assert!(described.iter().all(|text| text.contains("process-of-gr\u{fffd}")), "{described:?}");
    }
}
