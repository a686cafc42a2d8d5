//! Name and endpoint of a span, by texts whose places may say something else the next time.

mod own;

use blkin_record::{Endpoint, EndpointParts};
use blkin_ringbuf::process::{self, Status, init};

/// Such that one goes on as another begins, below and above what is compared at once.
const TEXTS: [&str; 7] =
    ["", "o", "osd", "osd.0", "fifteen letters", "fifteen letters+", "fifteen letters+ and more"];
/// In front of the end of a page there is less to compare at once.
const PAGE: usize = 4096;

/// A place for texts of which the next one begins where the last one did.
struct Place {
    bytes: Box<[u8]>,
    start: usize,
}

impl Place {
    /// `from_end`: how far in front of the end of a page texts begin.
    fn new(from_end: usize) -> Place {
        let bytes = vec![b'+'; 3 * PAGE].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(PAGE) + PAGE - from_end;
        Place { bytes, start }
    }

    /// `behind`: what follows it in memory.
    fn say(&mut self, text: &str, behind: u8) -> &[u8] {
        let here = self.start..self.start + text.len();
        self.bytes[here.clone()].copy_from_slice(text.as_bytes());
        self.bytes[here.end..][..16].fill(behind);
        &self.bytes[here]
    }
}

#[test]
fn texts_are_what_they_say_whatever_their_places_said_before() {
    assert_eq!(init(), Status::Tracing);
    let program = own::attach();
    for from_end in [1, 8, 15, 16, 100] {
        let [mut name, mut ip, mut service] = [(); 3].map(|()| Place::new(from_end));
        let mut known = 0;
        for step in 0..TEXTS.len().pow(3) {
            let said = [step, step / 7, step / 49].map(|step| TEXTS[step % TEXTS.len()]);
            let port = (step % 2) as u16;
            // Met, met with something else behind it, and found.
            for behind in [b'+', b'-', 0] {
                let endpoint =
                    EndpointParts { ip: ip.say(said[1], behind), port, name: service.say(said[2], behind) };
                let name = name.say(said[0], behind);
                let names = process::recognise_texts(name, endpoint);
                let names = names.unwrap_or_else(|| process::meet_texts(name, &endpoint));
                if names == 0 {
                    continue;
                }
                known += 1;
                let text = |id: u64| program.text(id as u32).expect("it has this id");
                assert_eq!(text(names & u64::from(u32::MAX)), said[0].as_bytes());
                let endpoint = text(names >> 32);
                let expected = Endpoint { ip: said[1].to_owned(), port, name: said[2].to_owned() };
                assert_eq!(Endpoint::decode(&endpoint), Some(expected));
            }
        }
        assert!(known > 0, "{from_end} bytes in front of a page's end");
    }
}

/// Elsewhere there is one way, and an emulator starts no program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn so_they_are_by_every_way_of_comparing() {
    own::run_again_by_each_way("texts_are_what_they_say_whatever_their_places_said_before");
}
