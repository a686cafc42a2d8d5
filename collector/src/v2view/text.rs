//! A parser that reads JSON in its plainest form, from left to right.

/// A place in JSON. Each method reads what it names, if that comes next in its plainest form. The small methods are inlined: with
/// the place in registers, a span is read in a fifth less time.
pub(super) struct Text<'a> {
    pub(super) json: &'a str,
    pub(super) at: usize,
    /// Whether the text has neither a backslash nor a control character, so that every string ends at the next quote.
    is_plain: bool,
}

impl<'a> Text<'a> {
    /// The beginning of a text. The whole text is scanned once, many bytes at a time, so that for nearly all strings only their
    /// end has to be found.
    pub(super) fn new(json: &'a str) -> Self {
        Text { json, at: 0, is_plain: is_plain(json.as_bytes()) }
    }

    /// Skips blanks, which few reporters write, and returns the byte after them.
    #[cold]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let next = *self.json.as_bytes().get(self.at)?;
            if !matches!(next, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(next);
            }
            self.at += 1;
        }
    }

    #[inline(always)]
    pub(super) fn pass(&mut self, byte: u8) -> bool {
        match self.json.as_bytes().get(self.at) {
            Some(&next) if next == byte => {
                self.at += 1;
                true
            }
            Some(&next) if next > b' ' => false,
            _ => self.pass_behind_blanks(byte),
        }
    }

    #[cold]
    fn pass_behind_blanks(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8) -> Option<()> {
        self.pass(byte).then_some(())
    }

    pub(super) fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// Reads an object; `member` reads each member, from behind the first quote of its name to the end of its value.
    #[inline]
    pub(super) fn object(&mut self, mut member: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.pass(b'}') {
            return Some(());
        }
        loop {
            self.expect(b'"')?;
            member(self)?;
            if !self.pass(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Reads a list; `element` reads each element.
    #[inline]
    pub(super) fn list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.pass(b']') {
            return Some(());
        }
        loop {
            element(self)?;
            if !self.pass(b',') {
                return self.expect(b']');
            }
        }
    }

    /// Reads the name of a member, from behind its first quote, if it is this one. Members come in the same order in every span,
    /// so the processor predicts the branch, and knows where the value begins before it has looked for the name's end.
    #[inline(always)]
    pub(super) fn named(&mut self, name: &'static str) -> bool {
        let rest = &self.json.as_bytes()[self.at..];
        let is_next = rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&b'"');
        if is_next {
            self.at += name.len() + 1;
        }
        is_next && self.pass(b':')
    }

    /// Reads a string that is an id. Nearly always it has sixteen digits, so its end is first looked for there.
    #[inline(always)]
    pub(super) fn id(&mut self) -> Option<&'a str> {
        const USUAL: usize = 16;
        self.expect(b'"')?;
        let rest = &self.json.as_bytes()[self.at..];
        match rest.split_at_checked(USUAL) {
            Some((digits, [b'"', ..])) if unquoted_length(digits) == USUAL => {
                let id = self.json.get(self.at..self.at + USUAL);
                self.at += USUAL + 1;
                id
            }
            _ => self.unquoted(),
        }
    }

    /// A string in which nothing is escaped.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        self.unquoted()
    }

    /// The same, behind its first quote.
    #[inline(always)]
    pub(super) fn unquoted(&mut self) -> Option<&'a str> {
        let start = self.at;
        let rest = &self.json.as_bytes()[start..];
        self.at += if self.is_plain { unquoted_length(rest) } else { plain_length(rest) };
        let string = &self.json[start..self.at];
        // The string may also have ended at an escape, or at a control character, which is not allowed.
        (self.json.as_bytes().get(self.at) == Some(&b'"')).then(|| {
            self.at += 1;
            string
        })
    }

    /// A whole number of at most 18 digits, which any i64 can hold.
    #[inline(always)]
    pub(super) fn number(&mut self) -> Option<i64> {
        let negative = self.pass(b'-');
        let start = self.at;
        let mut number = 0;
        // Times have sixteen digits.
        while self.at - start < 16
            && let Some(eight) = self.json.as_bytes()[self.at..].first_chunk().and_then(eight_digits)
        {
            number = number * 100_000_000 + eight;
            self.at += 8;
        }
        while let Some(digit @ b'0'..=b'9') = self.json.as_bytes().get(self.at) {
            if self.at - start == 18 {
                return None;
            }
            number = number * 10 + i64::from(digit - b'0');
            self.at += 1;
        }
        match (self.json.as_bytes().get(start)?, self.at - start) {
            // No digit at all. Leading zeros and a negative zero are not plain numbers either.
            (_, 0) => None,
            (b'0', length) if length > 1 || negative => None,
            _ if negative => Some(-number),
            _ => Some(number),
        }
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        let flag = self.peek()? == b't';
        let word = if flag { "true" } else { "false" };
        self.json.as_bytes()[self.at..].starts_with(word.as_bytes()).then(|| {
            self.at += word.len();
            flag
        })
    }
}

/// Reads eight digits as one word: neighbours are combined to numbers of two, then four, then eight digits.
#[inline]
fn eight_digits(bytes: &[u8; 8]) -> Option<i64> {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let worth = u64::from_le_bytes(*bytes) ^ (EACH * u64::from(b'0'));
    // Every byte must be at most nine. No byte of this sum carries into another.
    if (worth | ((worth & (EACH * 0x7f)) + EACH * (0x7f - 9))) & (EACH << 7) != 0 {
        return None;
    }
    let twos = (worth.wrapping_mul(10) + (worth >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos.wrapping_mul(100) + (twos >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours.wrapping_mul(10_000) + (fours >> 32)) as i64 & 0xffff_ffff)
}

/// Whether there is neither a backslash nor a control character.
fn is_plain(bytes: &[u8]) -> bool {
    // Without an early end within a part, the compiler looks at many bytes at once.
    let is_plain =
        |part: &[u8]| part.iter().fold(true, |plain, &byte| plain & (byte >= b' ') & (byte != b'\\'));
    bytes.chunks(1024).all(is_plain)
}

/// How many bytes come before the first quote; eight bytes are examined at a time.
#[inline]
fn unquoted_length(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let quote = u64::from_le_bytes(*chunk) ^ (EACH * u64::from(b'"'));
        // Only a zero byte borrows from its highest bit while that bit is clear. Bytes above the first such byte may be wrong,
        // but they do not matter.
        let ends = quote.wrapping_sub(EACH) & !quote & (EACH << 7);
        if ends != 0 {
            return at * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    chunks.len() * 8 + rest.iter().position(|&byte| byte == b'"').unwrap_or(rest.len())
}

/// How many bytes come before the first quote, backslash or control character. Eight bytes are examined at a time: if a byte
/// below 128 is less than the one subtracted from it, it borrows from its highest bit. The borrow may make bytes further up
/// wrong; they do not matter, because only the first such byte counts.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let below = |word: u64, bound: u64| word.wrapping_sub(EACH * bound);
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let (quote, backslash) = (word ^ (EACH * u64::from(b'"')), word ^ (EACH * u64::from(b'\\')));
        let ends = (below(word, b' '.into()) | below(quote, 1) | below(backslash, 1)) & !word & (EACH << 7);
        if ends != 0 {
            return at * 8 + ends.trailing_zeros() as usize / 8;
        }
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
    chunks.len() * 8 + rest.iter().position(is_end).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_are_a_number_only_if_all_are_digits() {
        for at in 0..8 {
            for byte in 0..=255_u8 {
                let mut digits = *b"98765432";
                digits[at] = byte;
                let all = digits.iter().all(u8::is_ascii_digit);
                let number = all.then(|| str::from_utf8(&digits).unwrap().parse().unwrap());
                assert_eq!(eight_digits(&digits), number, "{byte} at {at}");
            }
        }
        assert_eq!(eight_digits(b"99999999"), Some(99_999_999));
    }

    #[test]
    fn a_byte_not_allowed_in_strings_is_found_anywhere() {
        for at in [0, 1, 1023, 1024, 2999] {
            for byte in 0..=255_u8 {
                let mut bytes = vec![b'a'; 3000];
                bytes[at] = byte;
                assert_eq!(is_plain(&bytes), byte >= b' ' && byte != b'\\', "{byte} at {at}");
            }
        }
    }

    #[test]
    fn a_string_ends_at_the_first_byte_not_allowed_in_it() {
        for length in 0..40 {
            for end in 0..=255_u8 {
                for filler in [b'a', b'!', b'#', b'[', b']', b' ', 0x7f, 0x80, 0xff] {
                    let bytes = [&vec![filler; length][..], &[end, b'"'], &[filler; 9]].concat();
                    let ends = matches!(end, b'"' | b'\\' | 0..=0x1f);
                    assert_eq!(plain_length(&bytes), length + usize::from(!ends), "{length} {end} {filler}");
                    let unquoted = length + usize::from(end != b'"');
                    assert_eq!(unquoted_length(&bytes), unquoted, "{length} {end} {filler}");
                }
            }
        }
    }
}
