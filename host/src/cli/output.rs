//! The only module that writes to the terminal: text or JSON to standard output, notes and errors
//! to standard error.
//!
//! A reader that closes the pipe early (`| head`) ends the printing but not the work. It is not an
//! error.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::io::Write;

use anyhow::Context;
use anyhow::Result;
use clap::ColorChoice;
use clap::builder::styling::AnsiColor;
use clap::builder::styling::Style;
use serde::Serialize;

use super::UsageError;
use super::table::Table;
use super::terminal;
use super::terminal::is_colored;
use crate::error::Error;

/// How results are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Tables and sentences.
    Human,
    /// One JSON document on standard output.
    Json,
}

/// Heads of tables.
const HEAD: Style = Style::new().bold();

/// Errors, and results that differ.
const ALERT: Style = AnsiColor::Red.on_default().bold();

/// Notes.
const NOTE: Style = AnsiColor::Cyan.on_default().bold();

/// The string between the escape sequences of the style, if colour is wanted.
fn paint(style: Style, text: &str, is_colored: bool) -> Cow<'_, str> {
    if is_colored && !text.is_empty() {
        format!("{style}{text}{style:#}").into()
    } else {
        text.into()
    }
}

/// Standard output and standard error of one command.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    color: ColorChoice,
    closed: bool,
    /// Whether the JSON document was printed. A second one would make the output invalid.
    has_document: bool,
}

/// What `--json` prints instead of a result.
#[derive(Debug, Serialize)]
struct ErrorDocument<'a> {
    error: &'a str,
    exit_status: u8,
}

impl Output {
    /// The output of one command.
    pub(super) fn new(format: Format, color: ColorChoice) -> Self {
        Self {
            format,
            color,
            closed: false,
            has_document: false,
        }
    }

    /// Whether people read it.
    pub(super) fn is_human(&self) -> bool {
        self.format == Format::Human
    }

    /// Prints a line for people; nothing under `--json`. Line breaks in a string of a policy are
    /// indented, so that it cannot pass for lines of the program.
    pub(super) fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        self.alert("", line)
    }

    /// Prints such a line that begins with a label of alarm, such as `FAILED`.
    pub(super) fn alert(&mut self, label: &str, line: impl fmt::Display) -> Result<()> {
        if self.is_human() {
            let line = line.to_string();
            let line = cut(&line, TEXT_CHARS_MAX);
            let label = paint(ALERT, label, is_colored(self.color, &io::stdout()));
            let line = plain(&line).replace('\n', "\n    ");
            self.write(format_args!("{label}{line}\n"))?;
        }
        Ok(())
    }

    /// Prints a table for people; nothing under `--json`.
    pub(super) fn table(&mut self, table: &Table) -> Result<()> {
        if self.is_human() {
            let (head, rows) = table.lines(terminal::width());
            let is_colored = is_colored(self.color, &io::stdout());
            for line in head {
                let line = paint(HEAD, &line, is_colored);
                self.write(format_args!("{line}\n"))?;
            }
            let rows: String = rows.iter().flat_map(|row| [row, "\n"]).collect();
            self.write(format_args!("{rows}"))?;
        }
        Ok(())
    }

    /// Prints a document that is neither a table nor a result, such as a man page, as it is.
    pub(super) fn document(&mut self, text: &str) -> Result<()> {
        self.write(format_args!("{text}"))
    }

    /// Prints the whole result as JSON; nothing without `--json`.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        if self.format == Format::Json {
            let text = serde_json::to_string_pretty(value).context("formatting the result")?;
            self.has_document = true;
            self.write(format_args!("{}\n", plain_json(&text)))?;
        }
        Ok(())
    }

    /// Prints an error as JSON, unless the result was printed; nothing without `--json`.
    pub(super) fn json_error(&mut self, error: &str, exit_status: u8) {
        if !self.has_document {
            // Standard error has the message, too.
            let _ = self.json(&ErrorDocument { error, exit_status });
        }
    }

    /// Prints one line of JSON in either format: an answer of a protocol, not a result.
    pub(super) fn json_line(&mut self, value: &serde_json::Value) -> Result<()> {
        self.write(format_args!("{value}\n"))
    }

    /// Prints a remark beside the result to standard error, in either format.
    pub(super) fn note(&self, note: impl fmt::Display) {
        let note = note.to_string();
        let label = paint(NOTE, "note:", is_colored(self.color, &io::stderr()));
        // If standard error is closed, nobody reads the message.
        let _ = writeln!(
            io::stderr(),
            "{label} {}",
            plain(&cut(&note, TEXT_CHARS_MAX))
        );
    }

    /// Prints a line of a log to standard error, in either format.
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

/// Prints one `error:` line with the whole chain of causes. The error of a policy keeps its line
/// breaks: it may be a traceback. As in [`Output::line`], they are indented.
pub(super) fn print_error(error: &anyhow::Error, color: ColorChoice) {
    let text = if is_of_policy(error) {
        in_lines(error)
    } else {
        chain(error)
    };
    let label = paint(ALERT, "error:", is_colored(color, &io::stderr()));
    let _ = writeln!(
        io::stderr(),
        "{label} {}",
        plain(&cut(&text, TEXT_CHARS_MAX))
    );
}

/// Escapes what acts on a terminal. Graphs and policies are untrusted: a control character in a
/// name could move the cursor or change the title, and one that changes the direction of writing
/// could hide what follows.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
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

/// Escapes, as JSON does, the characters that act on a terminal and that JSON leaves as they are.
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

/// Limits a string to so many characters, and says how much was cut off.
pub(super) fn cut(text: &str, n_chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(n_chars_max) {
        None => text.into(),
        Some((end, _)) => {
            let left_out = text.len() - end;
            format!("{}.. [{left_out} bytes more]", &text[..end]).into()
        }
    }
}

/// Characters of a line, a note or an error.
const TEXT_CHARS_MAX: usize = 16 << 10;

/// The chain of causes in one line, whatever a parser or a policy put into its message.
pub(super) fn chain(error: &anyhow::Error) -> String {
    causes(error)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// The chain of causes with its line breaks, indented.
fn in_lines(error: &anyhow::Error) -> String {
    causes(error)
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n    ")
}

/// The chain of causes. A cause that its effect has quoted already is not repeated.
fn causes(error: &anyhow::Error) -> String {
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
    text
}

/// Whether the message is one of a policy. That a policy refuses its configuration is an error of
/// the command line.
fn is_of_policy(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let is_policy = matches!(
            cause.downcast_ref(),
            Some(Error::Policy(_) | Error::Ladder(_))
        );
        is_policy || cause.is::<UsageError>()
    })
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

    #[test]
    fn a_style_is_shown_only_where_colour_is_wanted() {
        assert_eq!(paint(ALERT, "error:", false), "error:");
        assert_eq!(
            paint(ALERT, "error:", true),
            "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m"
        );
        assert_eq!(paint(HEAD, "", true), "");
    }

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        let error = anyhow!("first\n  second")
            .context("reading x")
            .context("reading x: first");
        assert_eq!(chain(&error), "reading x: first: first; second");
        assert!(!is_of_policy(&error));
        let error = anyhow!("no such file").context("opening a.pb: no such file");
        assert_eq!(chain(&error), "opening a.pb: no such file");
    }

    #[test]
    fn the_error_of_a_policy_keeps_its_lines() {
        let error = anyhow::Error::new(UsageError("it failed: a\n  b\n\nc\n".to_owned()));
        assert!(is_of_policy(&error));
        assert_eq!(in_lines(&error), "it failed: a\n      b\n    c");
    }
}
