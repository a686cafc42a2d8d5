//! The files in /proc of a process whose name, and the names of whose mapped files, are any bytes: the input. What the kernel
//! writes next to these names is found, and no file is mistaken for another whose name has a different end.
#![no_main]

use blkin_consumerd_fuzz::process::{Mapped, Wanted, effective_user, mapped, started};
use libfuzzer_sys::fuzz_target;

const WANTED: Wanted<'_> = Wanted { device: "00:01", name: "/memfd:blkin-segment (deleted)", access: "rw-s" };
const LINE: &[u8] = b"7f00-7f10 rw-s 00000000 00:01 2077                 /memfd:blkin-segment (deleted)";
/// How many bytes the kernel keeps of a process's name.
const NAME_BYTES: usize = 15;

/// A name as the kernel writes it into a line: `escaped` are the bytes that would end the line, or begin an escape.
fn as_escaped(name: &[u8], escaped: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        byte if !escaped.contains(byte) => vec![*byte],
        byte => format!("\\{byte:03o}").into_bytes(),
    };
    name.iter().flat_map(escape).collect()
}

/// Checks that a segment is found between mappings of files with this name.
fn check_maps(name: &[u8]) {
    let of_name = [b"7e00-7e10 rw-s 00000000 00:01 2076     ", &as_escaped(name, b"\n")[..]].concat();
    let maps = [&of_name, LINE, &of_name, b""].join(&b'\n');
    let found = mapped(&maps, WANTED);
    assert!(found.contains(&Mapped { range: "7f00-7f10".into(), inode: 2077 }));
    let is_like_it = name.ends_with(WANTED.name.as_bytes());
    assert_eq!(found.len(), 1 + usize::from(is_like_it));
}

fuzz_target!(|input: &[u8]| {
    check_maps(input);
    let name = &input[..input.len().min(NAME_BYTES)];
    let status =
        [b"Name:\t", &as_escaped(name, b"\n\\")[..], b"\nUmask:\t0022\nUid:\t1\t1001\t3\t4\n"].concat();
    assert_eq!(effective_user(&status), Some(1001));
    let fields = b" 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
    let stat = |state: &[u8]| [b"7 (", name, b") ", state, fields].concat();
    assert_eq!(started(&stat(b"S")), Some(4711));
    assert_eq!(started(&stat(b"Z")), None);
    // The input as any other content of these files.
    let lines = input.iter().filter(|byte| **byte == b'\n').count() + 1;
    assert!(mapped(input, WANTED).len() <= lines);
    let _whatever = (effective_user(input), started(input));
});
