//! What /proc says about a process.

use std::{fs, io};

/// The text of a file in the process's folder. The names in it (of the process, and of files that it maps) may contain any bytes;
/// those that are not UTF-8 become U+FFFD. The kernel cuts a process's name after 15 bytes, perhaps within a character.
///
/// # Errors
/// The error of the system: the process has ended, or may not be examined.
pub(crate) fn text(pid: u32, file: &str) -> io::Result<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{gettid, set_name};

    #[test]
    fn a_process_name_that_is_not_utf_8_is_read() {
        let named = || {
            set_name(c"process-of-gr\xc3").unwrap();
            let thread = gettid().as_raw_nonzero().get().cast_unsigned();
            ["comm", "stat", "status"].map(|file| text(thread, file).unwrap())
        };
        let described = std::thread::spawn(named).join().unwrap();
        assert!(described.iter().all(|text| text.contains("process-of-gr\u{fffd}")), "{described:?}");
    }
}
