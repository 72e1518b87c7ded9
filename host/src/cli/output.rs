//! The only place that writes to the terminal: text or JSON on standard output, notes and errors on
//! standard error.
//!
//! A reader that closes the pipe early (`| head`) ends the printing, never the work, and is no
//! error.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::io::IsTerminal;
use std::io::Write;

use anyhow::Context;
use anyhow::Result;
use comfy_table::CellAlignment;
use comfy_table::presets;
use serde::Serialize;

/// How results are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Tables and sentences.
    Human,
    /// One JSON document on standard output.
    Json,
}

/// Standard output and standard error of one command.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    closed: bool,
}

impl Output {
    /// For one command.
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            closed: false,
        }
    }

    /// Whether people read it.
    pub(super) fn is_human(&self) -> bool {
        self.format == Format::Human
    }

    /// A line for people; nothing under `--json`. Line breaks in a guest's text are indented, so
    /// that it cannot pass for lines of ours.
    pub(super) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        if self.is_human() {
            let line = line.to_string();
            let line = cut(&line, TEXT_CHARS_MAX);
            self.write(format_args!("{}\n", plain(&line).replace('\n', "\n    ")))?;
        }
        Ok(())
    }

    /// A table for people; nothing under `--json`.
    pub(super) fn table(&mut self, table: &Table) -> Result<()> {
        if self.is_human() {
            // Padding at the end of lines is noise in diffs and logs.
            let lines: Vec<String> = table
                .0
                .lines()
                .map(|line| line.trim_end().to_owned())
                .collect();
            self.write(format_args!("{}\n", lines.join("\n")))?;
        }
        Ok(())
    }

    /// The whole result as JSON; nothing without `--json`.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        if self.format == Format::Json {
            let text = serde_json::to_string_pretty(value).context("formatting the result")?;
            self.write(format_args!("{}\n", plain_json(&text)))?;
        }
        Ok(())
    }

    /// One line of JSON, in either format: an answer of a protocol, not a result.
    pub(super) fn json_line(&mut self, value: &serde_json::Value) -> Result<()> {
        self.write(format_args!("{value}\n"))
    }

    /// A remark beside the result, on standard error in either format.
    #[expect(clippy::unused_self, reason = "printing goes through this type")]
    pub(super) fn note(&self, note: impl fmt::Display) {
        // A closed standard error leaves nobody to tell.
        let note = note.to_string();
        let _ = writeln!(io::stderr(), "note: {}", plain(&cut(&note, TEXT_CHARS_MAX)));
    }

    /// A line of a log, on standard error in either format.
    #[expect(clippy::unused_self, reason = "printing goes through this type")]
    pub(super) fn log(&self, line: impl fmt::Display) {
        let line = line.to_string();
        let _ = writeln!(io::stderr(), "{}", plain(&cut(&line, TEXT_CHARS_MAX)));
    }

    fn write(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_fmt(text).and_then(|()| stdout.flush()) {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.context("writing to standard output"),
        }
    }
}

/// One `error:` line with the whole chain of causes.
pub(super) fn print_error(error: &anyhow::Error) {
    let text = chain(error);
    let _ = writeln!(
        io::stderr(),
        "error: {}",
        plain(&cut(&text, TEXT_CHARS_MAX))
    );
}

/// A text that a terminal shows as it is. Graphs and policies are not ours: a control character in
/// a name could move the cursor or change the title, one that turns the direction of writing could
/// hide what follows.
fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// JSON that a terminal shows as it is: what the format itself lets stand is written as an escape
/// of it.
fn plain_json(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// Whether a character does something to a terminal, or to the order of those around it.
fn acts(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of so many characters at most, with how much was cut off.
pub(super) fn cut(text: &str, n_chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(n_chars_max) {
        None => text.into(),
        Some((end, _)) => {
            let left_out = text.len() - end;
            format!("{}.. [{left_out} bytes more]", &text[..end]).into()
        }
    }
}

/// Characters of one line of a cell: names of nodes have a hundred, those that somebody made to be
/// long have millions.
const CELL_CHARS_MAX: usize = 256;
/// Characters of a line, a note or an error, and of a cell of several lines.
const TEXT_CHARS_MAX: usize = 16 << 10;

/// The chain of causes in one line. A cause that its effect has quoted already is not repeated.
pub(super) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.trim();
        if text.is_empty() {
            text.push_str(cause);
        } else if !text.contains(cause) {
            text.push_str(": ");
            text.push_str(cause);
        }
    }
    // One line, whatever a parser or a guest put into its message.
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Whether progress may be drawn.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Rows of texts, some of which are not ours: they are cut, as arranging them takes time in the
/// square of their length, and shown as they are.
#[derive(Debug)]
pub(super) struct Table(comfy_table::Table);

impl Table {
    /// Adds a row; a line break in a cell begins a line of the cell.
    pub(super) fn add_row<T: fmt::Display>(&mut self, row: impl IntoIterator<Item = T>) {
        self.0.add_row(row.into_iter().map(|text| cell(&text)));
    }
}

fn cell(text: &impl fmt::Display) -> String {
    let text = text.to_string();
    let lines: Vec<Cow<'_, str>> = text
        .split('\n')
        .map(|line| cut(line, CELL_CHARS_MAX))
        .collect();
    plain(&cut(&lines.join("\n"), TEXT_CHARS_MAX)).into_owned()
}

/// A borderless table with this head.
pub(super) fn new_table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(head.map(|text| cell(&text)));
    // Columns start at the edge and stand two blanks apart.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    Table(table)
}

/// Aligns columns of numbers to the right.
pub(super) fn align_right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.0.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        assert_eq!(plain("\u{1b}[2Jx\r\ty"), r"\u{1b}[2Jx\r\ty");
        assert_eq!(plain("a\u{202e}b\u{9b}"), r"a\u{202e}b\u{9b}");
        for text in ["two\nlines", "\u{e4}\u{20ac} \u{4f60}"] {
            assert_eq!(plain(text), text);
        }
    }

    /// Serde writes escapes below 0x20 only.
    #[test]
    fn json_stays_json_and_acts_on_nothing() {
        let value = "\u{1b}[2J\u{7f}\u{9b}2J\u{202e}\n\u{e4}";
        let text = serde_json::to_string_pretty(&[value]).unwrap();
        let shown = plain_json(&text);
        assert!(!shown.contains(acts), "{shown}");
        let read: Vec<String> = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, [value]);
    }

    #[test]
    fn what_is_cut_says_how_much() {
        assert_eq!(cut("four", 4), "four");
        assert_eq!(
            cut("\u{20ac}\u{20ac}\u{20ac}", 1),
            "\u{20ac}.. [6 bytes more]"
        );
    }

    /// The table took time in the square of a cell's length: minutes for this one.
    #[test]
    fn a_cell_of_megabytes_is_cut_at_once() {
        let name = "x".repeat(20 << 20);
        let started = std::time::Instant::now();
        let mut table = new_table(["name", "value"]);
        table.add_row([name.as_str(), "1\n2\u{9b}"]);
        let text: Vec<String> = table.0.lines().collect();
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
        assert!(
            text[1].contains("xx.. [20971264 bytes more]  1"),
            "{text:?}"
        );
        assert!(text[2].contains(r"2\u{9b}"), "{text:?}");
    }

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        let error = anyhow!("first\n  second")
            .context("reading x")
            .context("reading x: first");
        assert_eq!(chain(&error), "reading x: first: first; second");
        let error = anyhow!("no such file").context("opening a.pb: no such file");
        assert_eq!(chain(&error), "opening a.pb: no such file");
    }
}
