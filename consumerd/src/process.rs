//! Reads what /proc says of a process.
//!
//! The name of a process can be any bytes, and so can the names of files that it maps. The kernel keeps 15 bytes of a process's
//! name, which may end within a character. So the files in /proc are not read as UTF-8 text.

/// The file mapping to look for in a list of mappings.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Device of the file, as `08:01`.
    pub device: &'a str,
    /// Name of the file.
    pub name: &'a str,
    /// Access of the mapping, as `rw-s`.
    pub access: &'a str,
}

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its addresses, written like the names in `map_files`.
    pub range: String,
    /// Inode of the file.
    pub inode: u64,
}

/// The first mapping in `maps` of each wanted file, in the order of inodes.
pub fn mapped(maps: &[u8], wanted: Wanted<'_>) -> Vec<Mapped> {
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.ends_with(wanted.name.as_bytes()));
    let mut found: Vec<Mapped> = lines.filter_map(|line| mapping(line, wanted)).collect();
    // The program decides how many there are, so this sorts them (stably), and keeps the first of each inode.
    found.sort_by_key(|mapped| mapped.inode);
    found.dedup_by_key(|mapped| mapped.inode);
    found
}

/// `7f00-7f10 rw-s 00000000 00:01 2077      /memfd:name (deleted)`
fn mapping(line: &[u8], wanted: Wanted<'_>) -> Option<Mapped> {
    let mut fields = words(line);
    let (range, access) = (fields.next()?, fields.next()?);
    let (device, inode) = (fields.nth(1)?, fields.next()?);
    let is_wanted = access == wanted.access && device == wanted.device;
    is_wanted.then(|| Some(Mapped { range: range.to_owned(), inode: inode.parse().ok()? })).flatten()
}

/// The effective user in `status`: the second id of the `Uid:` line. The process's name, in the first line, cannot contain a raw
/// line feed.
pub fn effective_user(status: &[u8]) -> Option<u32> {
    let ids = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    words(ids).nth(1)?.parse().ok()
}

/// When the process of a `stat` file started, in the kernel's ticks since boot; `None` if it is dead. A process of which only the
/// first thread has ended still runs.
pub fn started(stat: &[u8]) -> Option<u64> {
    // The name, in parentheses, may contain anything. Of the fields behind it, the first is the first thread's state, the 18th the
    // number of threads including that one, and the 20th the start time.
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = words(&stat[behind..]);
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    (threads > 1 || !state.starts_with(['Z', 'X'])).then_some(start)
}

/// The words of a line, up to the first that is not UTF-8.
fn words(line: &[u8]) -> impl Iterator<Item = &str> {
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map_while(|word| str::from_utf8(word).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_is_read_whatever_the_process_name() {
        let status = b"Name:\tUid:\\n\xc3\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t6\t7\t8\n";
        assert_eq!(effective_user(status), Some(1001));
        assert_eq!(effective_user(b"Name:\tx\nUid:\t1000\n"), None);
    }

    #[test]
    fn a_start_time_is_read_behind_any_name_if_alive() {
        let stat = |name: &[u8], state: &[u8], threads: &[u8]| {
            let fields = (4..20).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
            [b"7 (", name, b") ", state, b" ", fields.as_bytes(), b" ", threads, b" 21 4711 23\n"].concat()
        };
        for name in [&b"osd"[..], b"a) S 1 (b", b"gr\xc3", b""] {
            assert_eq!(started(&stat(name, b"S", b"1")), Some(4711));
            assert_eq!(started(&stat(name, b"Z", b"1")), None);
            assert_eq!(
                started(&stat(name, b"Z", b"2")),
                Some(4711),
                "another thread of the process still runs"
            );
        }
        assert_eq!(started(b"7 (osd) S 1 2"), None);
    }

    #[test]
    fn each_memfd_of_a_writer_is_found_once_in_the_order_of_inodes() {
        let maps = b"\
7f00-7f10 rw-s 00000000 00:01 2077                       /memfd:blkin-segment (deleted)
7f10-7f20 rw-s 00001000 00:01 2077                       /memfd:blkin-segment (deleted)
7f20-7f30 r--s 00000000 00:01 2078                       /memfd:blkin-control (deleted)
7f30-7f40 rw-s 00000000 00:01 2070                       /memfd:blkin-segment (deleted)
7e40-7e50 r--s 00000000 00:01 2075                       /memfd:blkin-segment (deleted)
7e50-7e60 rw-s 00000000 00:01 2076                       /memfd:blkin-control (deleted)
7f40-7f50 r-xp 00000000 08:01 99                         /usr/lib/libc.so.6
7f50-7f60 r--p 00000000 08:01 98                         /home/x/\xff
7f60-7f70 rw-s 00000000 00:2f 2069                       /home/x/memfd:blkin-segment (deleted)
";
        let of = |name, access| mapped(maps, Wanted { device: "00:01", name, access });
        let expected = [
            Mapped { range: "7f30-7f40".into(), inode: 2070 },
            Mapped { range: "7f00-7f10".into(), inode: 2077 },
        ];
        assert_eq!(of("/memfd:blkin-segment (deleted)", "rw-s"), expected);
        assert_eq!(of("/memfd:blkin-control (deleted)", "r--s").len(), 1);
    }
}
