//! The only place that writes to the terminal: text or JSON on standard output, notes and errors on standard error.
//!
//! A reader that closes the pipe early (`| head`) ends the printing, never the work, and is no error.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::io::IsTerminal;
use std::io::Write;

use anyhow::Context;
use anyhow::Result;
use comfy_table::CellAlignment;
use comfy_table::Table;
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

    /// A line for people; nothing under `--json`. Line breaks in a guest's text are indented, so that it cannot pass for
    /// lines of ours.
    pub(super) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        if self.is_human() {
            let line = line.to_string();
            self.write(format_args!("{}\n", plain(&line).replace('\n', "\n    ")))?;
        }
        Ok(())
    }

    /// A table for people; nothing under `--json`.
    pub(super) fn table(&mut self, table: &Table) -> Result<()> {
        if self.is_human() {
            // Padding at the end of lines is noise in diffs and logs.
            let lines: Vec<String> = table
                .lines()
                .map(|line| plain(line.trim_end()).into_owned())
                .collect();
            self.write(format_args!("{}\n", lines.join("\n")))?;
        }
        Ok(())
    }

    /// The whole result as JSON; nothing without `--json`.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        if self.format == Format::Json {
            let text = serde_json::to_string_pretty(value).context("formatting the result")?;
            self.write(format_args!("{text}\n"))?;
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
        let _ = writeln!(io::stderr(), "note: {}", plain(&note.to_string()));
    }

    /// A line of a log, on standard error in either format.
    #[expect(clippy::unused_self, reason = "printing goes through this type")]
    pub(super) fn log(&self, line: impl fmt::Display) {
        let _ = writeln!(io::stderr(), "{}", plain(&line.to_string()));
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
    let _ = writeln!(io::stderr(), "error: {}", plain(&chain(error)));
}

/// A text that a terminal shows as it is. Graphs and policies are not ours: a control character in a name could move the
/// cursor or change the title, one that turns the direction of writing could hide what follows.
fn plain(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
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

/// A borderless table with this head.
pub(super) fn new_table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(head);
    // Columns start at the edge and stand two blanks apart.
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Aligns columns of numbers to the right.
pub(super) fn align_right(table: &mut Table, columns: &[usize]) {
    for &column in columns {
        if let Some(column) = table.column_mut(column) {
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
