//! A rules file to which somebody else wrote. The first bytes of the input are changes of the file: as long as they hit only one of
//! its copies, the rules of the other copy are found. The rest is the content of a copy; the file can be written whatever it holds.
#![no_main]

#[path = "../../tests/common/bytes.rs"]
mod bytes;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use blkin_consumerd_fuzz::settings::file::{FILE_BYTES, RulesFile};
use blkin_consumerd_fuzz::settings::peer::Reach;
use blkin_consumerd_fuzz::settings::rules::{Change, Rule, Rules, Target};
use blkin_consumerd_fuzz::staging::Memory;
use blkin_consumerd_fuzz::staging::layout::checksum;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const COPY_BYTES: usize = FILE_BYTES as usize / 2;
/// Changes are made before this offset of a copy; its rules end well before it.
const USED_BYTES: usize = 256;
const CHANGE_BYTES: usize = 3;

/// Memory that stays when a file on it is closed.
#[derive(Clone)]
struct Kept(Rc<RefCell<Bytes>>);

impl Memory for Kept {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().write(offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.borrow().read(offset, bytes)
    }

    fn forget(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.0.borrow_mut().forget(offset, length)
    }
}

fn empty() -> Kept {
    Kept(Rc::new(RefCell::new(Bytes(vec![0; FILE_BYTES as usize]))))
}

fn rules(count: u32) -> Rules {
    let mut rules = Rules::default();
    for pid in 0..count {
        let says = Change { on: Some(false), ..Change::default() };
        rules.change(Rule::about_many(Target::Pid(pid), Reach::All, says), Reach::All).expect("few rules");
    }
    rules
}

fn open(memory: &Kept) -> (RulesFile<Kept>, Rules) {
    RulesFile::open(memory.clone()).expect("memory that can be read")
}

fn write(file: &mut RulesFile<Kept>, rules: &Rules) {
    file.write(rules).expect("memory that can be written");
}

fn check_changes(changes: &[u8]) {
    // Two rules in the newer copy, one in the older.
    let memory = empty();
    let (mut file, _) = open(&memory);
    [1, 2].map(rules).iter().for_each(|rules| write(&mut file, rules));
    let mut hit = [false; 2];
    for change in changes.chunks_exact(CHANGE_BYTES).filter(|change| change[2] != 0) {
        let copy = usize::from(change[0] % 2);
        memory.0.borrow_mut().0[copy * COPY_BYTES + usize::from(change[1]) % USED_BYTES] ^= change[2];
        hit[copy] = true;
    }
    let (_, found) = open(&memory);
    match hit {
        // The first copy is the newer one.
        [false, _] => assert_eq!(found, rules(2)),
        [true, false] => assert!([1, 2].map(rules).contains(&found), "{found:?}"),
        [true, true] => assert!([0, 1, 2].map(rules).contains(&found), "{found:?}"),
    }
}

/// A copy with this content, and with the right length and checksum.
fn sealed(sequence: &[u8; 8], content: &[u8]) -> Kept {
    let header = [sequence.as_slice(), &(content.len() as u64).to_le_bytes()].concat();
    let sum = checksum(&[&header, content]).to_le_bytes();
    let mut memory = empty();
    memory.write(0, &[&header, sum.as_slice(), content].concat()).expect("memory that can be written");
    memory
}

fuzz_target!(|input: &[u8]| {
    let Some((changed, rest)) = input.split_first() else { return };
    let (changes, rest) = rest.split_at((usize::from(changed % 8) * CHANGE_BYTES).min(rest.len()));
    check_changes(changes);
    let Some((sequence, content)) = rest.split_first_chunk() else { return };
    let memory = sealed(sequence, &content[..content.len().min(COPY_BYTES / 2)]);
    let (mut file, read) = open(&memory);
    write(&mut file, &read);
    let (mut file, again) = open(&memory);
    assert_eq!(again, read);
    write(&mut file, &rules(1));
    assert_eq!(open(&memory).1, rules(1));
});
