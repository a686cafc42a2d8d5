//! Name and endpoint of a span, from texts whose addresses may hold something else the next time.

mod own;

use blkin_record::{Endpoint, EndpointParts};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{self, Status, init};

/// Each one continues another, below and above the length that is compared at once.
const TEXTS: [&str; 7] =
    ["", "o", "osd", "osd.0", "fifteen letters", "fifteen letters+", "fifteen letters+ and more"];
/// Near the end of a page there is less to compare at once.
const PAGE: usize = 4096;

/// Every combination of a name, an IP and a service.
const COMBINATIONS: usize = TEXTS.len().pow(3);

/// A place for texts, of which the next one begins where the last one did, or a page further on.
struct Place {
    bytes: Box<[u8]>,
    start: usize,
}

impl Place {
    /// `from_end`: how far before the end of a page texts begin.
    fn new(from_end: usize) -> Place {
        let bytes = vec![b'+'; (COMBINATIONS + 3) * PAGE].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(PAGE) + PAGE - from_end;
        Place { bytes, start }
    }

    /// Goes on where nothing was said yet: texts at an address that changes often are not looked up.
    fn move_on(&mut self) {
        self.start += PAGE;
    }

    /// `behind`: what follows the text in memory.
    fn say(&mut self, text: &str, behind: u8) -> &[u8] {
        let here = self.start..self.start + text.len();
        self.bytes[here.clone()].copy_from_slice(text.as_bytes());
        self.bytes[here.end..][..16].fill(behind);
        &self.bytes[here]
    }
}

#[test]
fn a_reused_address_yields_its_current_text() {
    assert_eq!(init(), Status::Tracing);
    let program = own::attach();
    for from_end in [1, 8, 15, 16, 100] {
        let mut places = [(); 3].map(|()| Place::new(from_end));
        for step in 0..COMBINATIONS {
            let mut said = [step, step / 7, step / 49].map(|step| step % TEXTS.len());
            are_what_they_say(&program, &mut places, said);
            said[step % 3] = (said[step % 3] + 1) % TEXTS.len();
            are_what_they_say(&program, &mut places, said);
            places.iter_mut().for_each(Place::move_on);
        }
    }
}

/// Checks that a span of these texts has a name and an endpoint with these texts, however often it is met.
fn are_what_they_say(program: &Attachment, places: &mut [Place; 3], said: [usize; 3]) {
    let [name, ip, service] = places;
    let said = said.map(|text| TEXTS[text]);
    let port = said[0].len() as u16 % 2;
    // Met, met with something else after its texts, and found.
    for behind in [b'+', b'-', 0] {
        let endpoint =
            EndpointParts { ip: ip.say(said[1], behind), port, name: service.say(said[2], behind) };
        let name = name.say(said[0], behind);
        let names = process::recognise_texts(name, endpoint);
        let names = names.unwrap_or_else(|| process::intern_span_texts(name, &endpoint));
        let text = |id: u64| program.text(id as u32).expect("a text has this id");
        assert_eq!(text(names & u64::from(u32::MAX)), said[0].as_bytes());
        let expected = Endpoint { ip: said[1].to_owned(), port, name: said[2].to_owned() };
        assert_eq!(Endpoint::decode(&text(names >> 32)), Some(expected));
    }
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_comparing_yields_the_current_text() {
    own::run_again_by_each_way("a_reused_address_yields_its_current_text");
}
