//! Tables without borders, as wide as the terminal allows.
//!
//! Numbers are never wrapped: if a table is wider than the terminal, its columns of names and
//! sentences share the space that the numbers leave. If even that is too little, lines are longer
//! than the terminal, which wraps them itself.

use std::fmt;

use unicode_width::UnicodeWidthChar;
use unicode_width::UnicodeWidthStr;

use super::output::cut;
use super::output::plain;

/// Characters of one line of a cell: names of nodes have a hundred, names that are long on
/// purpose have millions.
const CELL_CHARS_MAX: usize = 256;

/// Characters of a cell of several lines.
const CELL_TEXT_CHARS_MAX: usize = 16 << 10;

/// Blanks between columns.
const GAP: usize = 2;

/// A column of names is not wrapped below this width.
const WRAPPED_WIDTH_MIN: usize = 16;

/// Rows of strings, some of which come from graphs and policies: they are cut, and shown without
/// acting on the terminal.
#[derive(Debug)]
pub(super) struct Table {
    /// The head, then the rows; a cell is one line or several.
    rows: Vec<Vec<String>>,
    /// Per column, whether it holds numbers.
    is_number: Vec<bool>,
}

impl Table {
    /// A table with this head, and no rows yet.
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.iter().map(cell).collect()],
            is_number: vec![false; N],
        }
    }

    /// Aligns columns of numbers to the right.
    #[must_use]
    pub(super) fn with_numbers(mut self, columns: &[usize]) -> Self {
        for &column in columns {
            if let Some(is_number) = self.is_number.get_mut(column) {
                *is_number = true;
            }
        }
        self
    }

    /// Adds a row; a line break in a cell begins a line of the cell.
    pub(super) fn add_row<T: fmt::Display>(&mut self, row: impl IntoIterator<Item = T>) {
        let mut row: Vec<String> = row.into_iter().map(|text| cell(&text)).collect();
        row.resize(self.is_number.len(), String::new());
        self.rows.push(row);
    }

    /// The lines of the head and those of the rows, without blanks at their ends.
    pub(super) fn lines(&self, width: Option<usize>) -> (Vec<String>, Vec<String>) {
        let widths = self.widths(width);
        let mut lines = self.rows.iter().map(|row| self.row_lines(row, &widths));
        let head = lines.next().unwrap_or_default();
        (head, lines.flatten().collect())
    }

    fn widths(&self, width: Option<usize>) -> Vec<usize> {
        let natural: Vec<usize> = (0..self.is_number.len())
            .map(|column| {
                let lines = self.rows.iter().flat_map(|row| row[column].split('\n'));
                lines.map(UnicodeWidthStr::width).max().unwrap_or(0)
            })
            .collect();
        let gaps = GAP * natural.len().saturating_sub(1);
        let Some(width) = width.filter(|&width| natural.iter().sum::<usize>() + gaps > width)
        else {
            return natural;
        };
        let numbers = natural.iter().zip(&self.is_number);
        let taken: usize = numbers.filter(|(_, is)| **is).map(|(width, _)| width).sum();
        let mut widths = natural;
        let mut left = width.saturating_sub(gaps + taken);
        // The narrow ones have what they need, the others equal shares of the rest.
        let mut wrapped: Vec<usize> = (0..widths.len())
            .filter(|&at| !self.is_number[at])
            .collect();
        wrapped.sort_by_key(|&column| widths[column]);
        for (index, &column) in wrapped.iter().enumerate() {
            let share = left / (wrapped.len() - index);
            widths[column] = widths[column].min(share.max(WRAPPED_WIDTH_MIN));
            left = left.saturating_sub(widths[column]);
        }
        widths
    }

    fn row_lines(&self, row: &[String], widths: &[usize]) -> Vec<String> {
        let cells: Vec<Vec<&str>> = row
            .iter()
            .zip(widths)
            .map(|(cell, &width)| {
                cell.split('\n')
                    .flat_map(|line| wrap(line, width))
                    .collect()
            })
            .collect();
        let n_lines = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line = |index: usize| {
            let mut line = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let text = cell.get(index).copied().unwrap_or_default();
                let padding = widths[column].saturating_sub(text.width());
                let gap = if column == 0 { 0 } else { GAP };
                if self.is_number[column] {
                    line.push_str(&" ".repeat(gap + padding));
                    line.push_str(text);
                } else {
                    line.push_str(&" ".repeat(gap));
                    line.push_str(text);
                    line.push_str(&" ".repeat(padding));
                }
            }
            // Padding at the end of lines is noise in diffs and logs.
            line.truncate(line.trim_end().len());
            line
        };
        (0..n_lines).map(line).collect()
    }
}

fn cell(text: &impl fmt::Display) -> String {
    let text = text.to_string();
    let lines: Vec<_> = text
        .split('\n')
        .map(|line| cut(line, CELL_CHARS_MAX))
        .collect();
    plain(&cut(&lines.join("\n"), CELL_TEXT_CHARS_MAX)).into_owned()
}

/// Splits a line into pieces of a width: after a blank, else after a character that separates parts
/// of a name, else anywhere.
fn wrap(line: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while rest.width() > width {
        let (mut used, mut blank, mut separator, mut end) = (0, None, None, rest.len());
        for (at, c) in rest.char_indices() {
            used += c.width().unwrap_or(0);
            // One character is taken in any case, so that this ends.
            if used > width && at > 0 {
                end = at;
                // A blank that no longer fits ends a piece as well.
                if c == ' ' {
                    blank = Some(at);
                }
                break;
            }
            match c {
                ' ' => blank = Some(at + 1),
                '/' | ';' | ',' => separator = Some(at + 1),
                _ => {}
            }
        }
        let end = blank.or(separator).unwrap_or(end);
        pieces.push(rest[..end].trim_end());
        rest = rest[end..].trim_start();
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["device", "nodes", "why"]).with_numbers(&[1]);
        table.add_row([
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "12",
            "the cheapest device that can run it",
        ]);
        table.add_row(["CPU:1", "3", ""]);
        table
    }

    fn text(width: Option<usize>) -> String {
        let (head, rows) = table().lines(width);
        [head, rows].concat().join("\n")
    }

    #[test]
    fn without_a_width_each_row_is_a_line() {
        let expected = "\
device                                        nodes  why
/job:localhost/replica:0/task:0/device:CPU:0     12  the cheapest device that can run it
CPU:1                                             3";
        assert_eq!(text(None), expected);
        assert_eq!(text(Some(90)), expected);
    }

    #[test]
    fn names_are_wrapped_to_the_width_and_numbers_are_not() {
        let expected = "\
device                      nodes  why
/job:localhost/replica:0/      12  the cheapest device that
task:0/device:CPU:0                can run it
CPU:1                           3";
        assert_eq!(text(Some(60)), expected);
    }

    #[test]
    fn what_cannot_fit_keeps_a_width_that_can_be_read() {
        let found = text(Some(5));
        let longest = found.lines().map(UnicodeWidthStr::width).max();
        // The longest piece, "device that can ", ends with a blank, which is not printed.
        assert_eq!(longest, Some(2 * WRAPPED_WIDTH_MIN + 5 + 2 * GAP - 1));
    }

    #[test]
    fn lines_break_at_blanks_then_at_separators_then_anywhere() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 6), ["one", "two", "three"]);
        assert_eq!(wrap("layer/dense/kernel", 12), ["layer/dense/", "kernel"]);
        assert_eq!(wrap("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(
            wrap("\u{4f60}\u{4f60}\u{4f60}", 4),
            ["\u{4f60}\u{4f60}", "\u{4f60}"]
        );
        assert_eq!(wrap("\u{4f60}", 1), ["\u{4f60}"]);
        assert_eq!(wrap("", 4), [""]);
    }

    /// Other tables take time in the square of a cell's length: minutes for this one.
    #[test]
    fn a_cell_of_megabytes_is_cut_at_once() {
        let name = "x".repeat(20 << 20);
        let started = std::time::Instant::now();
        let mut table = Table::new(["name", "value"]);
        table.add_row([name.as_str(), "1\n2\u{9b}"]);
        let (_, rows) = table.lines(None);
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
        assert!(
            rows[0].contains("xx.. [20971264 bytes more]  1"),
            "{rows:?}"
        );
        assert!(rows[1].contains(r"2\u{9b}"), "{rows:?}");
    }
}
