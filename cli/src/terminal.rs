//! What the terminal can show: its width, colours only where they are wanted, and no control characters from recorded text.

use std::ffi::OsString;
use std::io::IsTerminal;

/// Width assumed if the output is not a terminal.
const DEFAULT_COLUMNS: usize = 100;
/// Least width: the names, services and durations of a waterfall need this much; narrower terminals wrap.
const MIN_COLUMNS: usize = 40;
/// Greatest width: on wider terminals the rest stays empty.
pub const MOST_COLUMNS: usize = 1_000;

/// How to draw on standard output.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Columns of a line.
    pub columns: usize,
    /// Whether escape sequences may be written.
    pub colours: bool,
}

impl Style {
    /// The style for standard output, `COLUMNS`, `NO_COLOR` and `TERM`.
    pub fn of_stdout() -> Style {
        Style::of_stdout_or(DEFAULT_COLUMNS)
    }

    /// The same, with another width if the output is not a terminal: for lines that somebody may search.
    pub fn of_stdout_or(columns_elsewhere: usize) -> Style {
        let out = std::io::stdout();
        let given = std::env::var("COLUMNS").ok().and_then(|text| text.parse::<usize>().ok());
        let asked = || rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let columns = given.or_else(asked).filter(|columns| *columns > 0).unwrap_or(columns_elsewhere);
        let variable = |name| std::env::var_os(name);
        let colours = out.is_terminal() && wants_colours(variable("NO_COLOR"), variable("TERM"));
        Style { columns: columns.clamp(MIN_COLUMNS, MOST_COLUMNS), colours }
    }

    /// `text` in a colour, if colours are on.
    pub fn paint(&self, colour: Colour, text: &str) -> String {
        if self.colours { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }
}

/// Whether these two variables allow colours: a dumb terminal has none.
fn wants_colours(no_color: Option<OsString>, term: Option<OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty()) && term.is_none_or(|term| term != "dumb")
}

/// The few colours that carry meaning, as SGR codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Colour {
    /// Headings.
    Bold = 1,
    /// Details.
    Dim = 2,
    /// Failures.
    Red = 31,
    /// Success.
    Green = 32,
    /// Warnings.
    Yellow = 33,
    /// Bars.
    Blue = 34,
    /// Services.
    Cyan = 36,
}

/// `text` without control characters: what a traced program wrote can neither control the reader's terminal nor reorder a line.
pub fn safe(text: &str) -> String {
    text.chars().map(|c| if drives(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a terminal does something else with the character than show it.
pub(crate) fn drives(c: char) -> bool {
    c.is_control() || is_bidi_control(c)
}

/// Unicode's characters (`Bidi_Control`) that change the direction in which others are shown.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` in lines of at most `columns`, broken at spaces; a longer word gets a line of its own, unbroken.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    filled(text.split(' '), columns)
}

/// Pieces joined by spaces, in lines of at most `columns`; no piece is broken.
pub fn filled<'a>(pieces: impl IntoIterator<Item = &'a str>, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(piece) <= columns => {
                line.push(' ');
                line.push_str(piece);
            }
            _ => lines.push(piece.to_owned()),
        }
    }
    lines
}

/// Columns that `text` takes.
pub fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Columns of a character: two for East Asian characters and pictures (by blocks of Unicode's `East_Asian_Width`), none for
/// combining characters.
fn columns_of(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1f6ff}'
        | '\u{1f900}'..='\u{1f9ff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// `text` cut to `columns` with an ellipsis, or padded to it.
pub fn fit(text: &str, columns: usize) -> String {
    if let Some(left) = columns.checked_sub(width(text)) {
        return format!("{text}{}", " ".repeat(left));
    }
    // The ellipsis takes one column.
    let Some(mut left) = columns.checked_sub(1) else { return String::new() };
    let mut cut = String::new();
    for c in text.chars() {
        let Some(rest) = left.checked_sub(columns_of(c)) else { break };
        cut.push(c);
        left = rest;
    }
    format!("{cut}…{}", " ".repeat(left))
}

/// How many columns of a table, counted from the first, fit with two spaces between them.
pub fn fitting(widths: &[usize], columns: usize) -> usize {
    let ends = widths.iter().scan(0, |end, width| {
        *end += width + 2;
        Some(*end - 2)
    });
    ends.take_while(|end| *end <= columns).count()
}

/// `text` cut to `columns` with an ellipsis.
pub fn cut(text: &str, columns: usize) -> String {
    fit(text, columns).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_at_spaces_only() {
        assert_eq!(wrapped("", 10), [""]);
        assert_eq!(
            wrapped("ten letter and a /very/long/path of it", 10),
            ["ten letter", "and a", "/very/long/path", "of it"]
        );
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(safe("a\x1b[31mb\nc\u{9b}d é"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d é");
    }

    #[test]
    fn bidirectional_control_characters_are_replaced() {
        for control in
            "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}"
                .chars()
        {
            assert_eq!(safe(&format!("a{control}b")), "a\u{fffd}b", "{control:?}");
        }
        assert_eq!(safe("שלום 中\u{200d}"), "שלום 中\u{200d}");
    }

    #[test]
    fn text_is_padded_or_cut_to_its_column() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("abc", 0), "");
    }

    #[test]
    fn wide_characters_take_two_columns_and_combining_ones_none() {
        assert_eq!(fit("商店", 5), "商店 ");
        assert_eq!(fit("商店店", 5), "商店…");
        assert_eq!(fit("商店店", 4), "商… ");
        assert_eq!(fit("e\u{301}s", 3), "e\u{301}s ");
        assert_eq!(cut("商店店", 4), "商…");
        assert_eq!(wrapped("商店 商店", 8), ["商店", "商店"]);
    }

    #[test]
    fn table_columns_that_do_not_fit_are_omitted() {
        let widths = [10, 4, 4];
        for (columns, shown) in [(9, 0), (10, 1), (15, 1), (16, 2), (21, 2), (22, 3), (100, 3)] {
            assert_eq!(fitting(&widths, columns), shown, "{columns}");
        }
    }

    #[test]
    fn no_color_and_a_dumb_terminal_turn_colours_off() {
        let wants = |no_color: Option<&str>, term: Option<&str>| {
            wants_colours(no_color.map(OsString::from), term.map(OsString::from))
        };
        assert!(wants(None, None) && wants(Some(""), Some("xterm")));
        assert!(!wants(Some("1"), Some("xterm")) && !wants(None, Some("dumb")));
    }

    #[test]
    fn paint_adds_colours_only_if_they_are_on() {
        let style = Style { columns: 80, colours: false };
        assert_eq!(style.paint(Colour::Red, "x"), "x");
        assert_eq!(Style { colours: true, ..style }.paint(Colour::Red, "x"), "\x1b[31mx\x1b[0m");
    }
}
