//! What the environment says. It is read when the library is loaded, mostly before the program has threads, and by
//! `blkin_init()`, which the program calls when it chooses. The first record may come at any time, even while another thread
//! changes a variable: that may free the memory in which all variables are looked for.

use std::ffi::{CStr, c_char};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::cstring;
use crate::kept::KeptText;
use crate::layout::{ProducerKind, RingMode, ring_bytes_are_valid};
use crate::say::OnceLine;

/// Where consumerd listens unless BLKIN_SOCKET says otherwise.
const DEFAULT_SOCKET: &[u8] = b"/run/blkin/consumerd.sock";

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// A variable, and its value when it was read. Outside the memory that fork wipes.
struct Variable {
    name: &'static CStr,
    kept: KeptText,
}

impl Variable {
    const fn new(name: &'static CStr) -> Variable {
        Variable { name, kept: KeptText::none() }
    }

    /// Without a lock or an allocation; programs that run with another's privileges see no value. A variable that is gone by now
    /// keeps its value: daemons that clear their environment, as nginx does before its workers run, mean to change nothing here.
    fn read(&self) {
        // SAFETY: `name` is a C string; secure_getenv has no other precondition than that no thread changes the
        // environment at the same time (see `read`) (invariant 14).
        let value = unsafe { secure_getenv(self.name.as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: a value that getenv returned is a C string in the environment (see above) (invariant 17).
        self.kept.keep(unsafe { CStr::from_ptr(value) }.to_bytes());
    }

    /// Calls `body` with its value. An empty one counts as not set.
    fn with<T>(&self, body: impl FnOnce(Option<&[u8]>) -> T) -> T {
        self.kept.with(|text| body(Some(text).filter(|text| !text.is_empty())))
    }
}

static OFF: Variable = Variable::new(c"BLKIN_OFF");
static SOCKET: Variable = Variable::new(c"BLKIN_SOCKET");
static RING_BYTES: Variable = Variable::new(c"BLKIN_RING_BYTES");
static PRODUCER: Variable = Variable::new(c"BLKIN_PRODUCER");
static STRINGS: Variable = Variable::new(c"BLKIN_STRINGS");
static WAKE: Variable = Variable::new(c"BLKIN_WAKE");
static MODE: Variable = Variable::new(c"BLKIN_MODE");
static BLKIN_RATE: Variable = Variable::new(c"BLKIN_RATE");
static RATE: Variable = Variable::new(c"RATE");

static IS_READ: AtomicBool = AtomicBool::new(false);

/// Reads all variables. The caller promises, for the program, that none of its threads changes the environment now.
pub(crate) fn read() {
    for variable in [&OFF, &SOCKET, &RING_BYTES, &PRODUCER, &STRINGS, &WAKE, &MODE, &BLKIN_RATE, &RATE] {
        variable.read();
    }
    IS_READ.store(true, Release);
}

/// Reads them for a caller that records before this library's constructor has run, as a constructor of the program may.
pub(crate) fn read_if_unread() {
    if !IS_READ.load(Acquire) {
        read();
    }
}

/// Run by the dynamic linker (or libc's start in a static program) when this is loaded.
#[cfg(not(miri))]
extern "C" fn read_at_load() {
    read();
}

#[cfg(not(miri))]
#[used]
// SAFETY: the section holds pointers to functions that the linker calls once, at the start; the arguments that it passes are
// not looked at (invariant 14).
#[unsafe(link_section = ".init_array")]
static READ_AT_LOAD: extern "C" fn() = read_at_load;

/// Whether BLKIN_OFF is set to anything but 0.
pub(crate) fn is_off() -> bool {
    OFF.with(|value| value.is_some_and(|value| value != b"0"))
}

/// Calls `body` with the path of the socket at which consumerd listens.
pub(crate) fn with_socket<T>(body: impl FnOnce(&[u8]) -> T) -> T {
    SOCKET.with(|path| body(path.unwrap_or(DEFAULT_SOCKET)))
}

/// BLKIN_RING_BYTES; `None` for the default, also (reported once) if the value is not a possible size.
pub(crate) fn ring_bytes() -> Option<usize> {
    static BAD: OnceLine = OnceLine::new();
    RING_BYTES.with(|value| {
        let number = std::str::from_utf8(value?).ok().and_then(|text| text.parse().ok());
        let valid = number.filter(|bytes| ring_bytes_are_valid(*bytes));
        if valid.is_none() {
            BAD.say(format_args!(
                "BLKIN_RING_BYTES must be a power of two from 4096 to 67108864; using the default"
            ));
        }
        valid
    })
}

/// BLKIN_PRODUCER: portable, or rseq where that is possible, which is the default there.
pub(crate) fn producer(can_rseq: bool) -> ProducerKind {
    static BAD: OnceLine = OnceLine::new();
    let best = if can_rseq { ProducerKind::Rseq } else { ProducerKind::Portable };
    PRODUCER.with(|value| match value {
        None => best,
        Some(b"portable") => ProducerKind::Portable,
        Some(b"rseq") if can_rseq => best,
        Some(b"rseq") => {
            BAD.say(format_args!("BLKIN_PRODUCER=rseq is not possible here; using portable"));
            best
        }
        Some(_) => {
            BAD.say(format_args!("BLKIN_PRODUCER must be rseq or portable; choosing automatically"));
            best
        }
    })
}

/// Whether strings are read in blocks. BLKIN_STRINGS: bytes, or blocks where they can be read; `default` if it says neither.
pub(crate) fn reads_blocks(default: bool) -> bool {
    static BAD: OnceLine = OnceLine::new();
    STRINGS.with(|value| match value {
        None => default,
        Some(b"bytes") => false,
        Some(b"blocks") if cstring::HAS_BLOCKS => true,
        Some(_) => {
            BAD.say(format_args!("BLKIN_STRINGS must be bytes, or on x86-64 blocks; choosing automatically"));
            default
        }
    })
}

/// BLKIN_WAKE=0 forbids the one system call that a record may make.
pub(crate) fn may_wake() -> bool {
    WAKE.with(|value| value != Some(b"0"))
}

/// BLKIN_MODE: discard, which is the default (reported once if it is anything else), or overwrite.
pub(crate) fn mode() -> RingMode {
    static BAD: OnceLine = OnceLine::new();
    MODE.with(|value| match value {
        Some(b"overwrite") => RingMode::Overwrite,
        None | Some(b"discard") => RingMode::Discard,
        Some(_) => {
            BAD.say(format_args!("BLKIN_MODE must be discard or overwrite; using discard"));
            RingMode::Discard
        }
    })
}

/// BLKIN_RATE, or else RATE: one in this many roots is traced. 0, negative or not a number traces all, and is reported once.
pub(crate) fn rate() -> u64 {
    static BAD: OnceLine = OnceLine::new();
    let of = |variable: &Variable| {
        let number = |value: &[u8]| {
            let text = std::str::from_utf8(value).ok();
            let number = text.and_then(|text| text.trim().parse::<u64>().ok()).filter(|rate| *rate > 0);
            number.unwrap_or_else(|| {
                let name = variable.name.to_str().unwrap_or_default();
                BAD.say(format_args!("{name} must be a whole number, 1 or more; tracing every request"));
                1
            })
        };
        variable.with(|value| value.map(number))
    };
    of(&BLKIN_RATE).or_else(|| of(&RATE)).unwrap_or(1)
}
