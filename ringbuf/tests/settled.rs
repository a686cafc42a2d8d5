//! Texts that changed with each call and then stay the same are soon known again: even what is most likely in vain is looked up
//! now and then.

mod own;

use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{
    self, Call, CallMatch, CallValue, Place, Short, Size, Status, init, recognise_call,
};

/// After this many calls with new texts a place is known for its changing texts.
const CHANGING: usize = 300;
/// A look-up is due once in about a thousand calls, and it takes two until the call is known as a whole.
const SOON: usize = 8192;

/// Records an event as `blkin_record` does. Returns how its texts were met.
fn record(buffers: &[[u8; 16]; 4], number: usize) -> CallMatch {
    let texts = buffers.each_ref().map(|buffer| buffer.as_ptr());
    let place = Place { ip: texts[1], port: 6800, service: texts[2] };
    let call = Call { texts, endpoint: (&raw const place).cast(), port: 6800 };
    let own = [1, number as u64 + 1, 0];
    // SAFETY: strings with an end, which stay as they are meanwhile.
    let met = unsafe { recognise_call(call) };
    let is_done = match met {
        CallMatch::New(Size::Cells) => {
            // SAFETY: three words, and strings that were met as such.
            unsafe { process::record_in_cells(own.as_ptr(), &raw const place, texts) };
            true
        }
        // SAFETY: as above.
        CallMatch::New(_) => unsafe { process::record_brief_call(own.as_ptr(), call, Short::Event, 4) },
        // SAFETY: as above.
        CallMatch::Never => unsafe {
            process::record_new_call(own.as_ptr(), call, CallValue::Short(Short::Event), 4)
        },
        _ => false,
    };
    if !is_done {
        // SAFETY: as above.
        unsafe { process::record_call(own.as_ptr(), call, CallValue::Short(Short::Event), 4) };
    }
    met
}

fn make_room(program: &mut Attachment) {
    let mut raw = Vec::new();
    for slot in 0..program.slots() {
        program.drain(slot, usize::MAX, &mut raw);
        program.publish(slot);
    }
}

#[test]
fn texts_that_stop_changing_are_soon_known_again() {
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    // As large as the blocks that are read, none of which then crosses a page.
    #[repr(align(64))]
    struct Buffers([[u8; 16]; 4]);
    let mut buffers = Buffers([[0; 16]; 4]);
    let mut in_cells = 0;
    for number in 0..CHANGING {
        for (buffer, what) in buffers.0.iter_mut().zip(['n', 'a', 's', 'k']) {
            let text = format!("{what}{number}");
            buffer[..text.len()].copy_from_slice(text.as_bytes());
        }
        in_cells += usize::from(matches!(record(&buffers.0, number), CallMatch::New(Size::Cells)));
        make_room(&mut program);
    }
    assert!(!own::is_by_sequence(&program) || in_cells > CHANGING / 4, "{in_cells}");
    let known = (0..SOON).position(|number| {
        let met = record(&buffers.0, number);
        make_room(&mut program);
        matches!(met, CallMatch::Whole(..))
    });
    assert!(!process::may_at_once() || known.is_some(), "the texts were never known again");
}

/// On other machines there is only one way of writing, and an emulator does not start a program again.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_way_of_writing_knows_texts_that_stop_changing_again() {
    own::run_again_by_each_way("texts_that_stop_changing_are_soon_known_again");
}
