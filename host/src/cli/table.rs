//! Tables without borders, as wide as the terminal allows: `comfy-table` with the rules of this
//! program. Rows of strings come in, lines go out; colour and standard output are the caller's.
//!
//! Numbers are never wrapped: if a table is wider than the terminal, its columns of names and
//! sentences share the space that the numbers leave. If even that is too little, lines are longer
//! than the terminal, which wraps them itself.

use std::fmt;

use comfy_table::CellAlignment;
use comfy_table::ColumnConstraint;
use comfy_table::ContentArrangement;
use comfy_table::TableComponent;
use comfy_table::Width;
use comfy_table::presets;

use super::output::cut;
use super::output::plain;

/// Characters of one line of a cell: names of nodes have a hundred, names that are long on
/// purpose have millions, and `comfy-table` takes time in the square of a cell's length.
const CELL_CHARS_MAX: usize = 256;

/// Characters of a cell of several lines.
const CELL_TEXT_CHARS_MAX: usize = 16 << 10;

/// Blanks between columns.
const GAP: u16 = 2;

/// A column of names is not wrapped below this width.
const WRAPPED_WIDTH_MIN: u16 = 16;

/// Fills the line between the head and the rows. No cell contains it: [`plain`] escapes control
/// characters.
const DIVIDER: char = '\u{1}';

/// Rows of strings, some of which come from graphs and policies: they are cut, and shown without
/// acting on the terminal.
#[derive(Debug)]
pub(super) struct Table {
    table: comfy_table::Table,
    /// Per column, whether it holds numbers.
    is_number: Vec<bool>,
}

impl Table {
    /// A table with this head, and no rows yet.
    pub(super) fn new<'a>(head: impl AsRef<[&'a str]>) -> Self {
        let head = head.as_ref();
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        table.set_style(TableComponent::HeaderLines, DIVIDER);
        table.set_header(head.iter().map(cell));
        for column in table.column_iter_mut().skip(1) {
            column.set_padding((GAP, 0));
        }
        if let Some(column) = table.column_mut(0) {
            column.set_padding((0, 0));
        }
        Self {
            table,
            is_number: vec![false; head.len()],
        }
    }

    /// Aligns columns of numbers to the right.
    #[must_use]
    pub(super) fn with_numbers(mut self, columns: &[usize]) -> Self {
        for &column in columns {
            if let Some(is_number) = self.is_number.get_mut(column) {
                *is_number = true;
            }
            if let Some(column) = self.table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    /// Adds a row; a line break in a cell begins a line of the cell.
    pub(super) fn add_row<T: fmt::Display>(&mut self, row: impl IntoIterator<Item = T>) {
        self.table.add_row(row.into_iter().map(|text| cell(&text)));
    }

    /// The lines of the head and those of the rows, without blanks at their ends.
    pub(super) fn lines(&self, width: Option<usize>) -> (Vec<String>, Vec<String>) {
        let mut table = self.table.clone();
        if let Some(width) = width {
            table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        let widths = table.column_max_content_widths();
        let columns = table.column_iter_mut().zip(&self.is_number).zip(widths);
        for ((column, is_number), width) in columns {
            column.set_constraint(if *is_number || width <= WRAPPED_WIDTH_MIN {
                ColumnConstraint::ContentWidth
            } else {
                // Boundaries include the gap.
                let least = WRAPPED_WIDTH_MIN + column.padding_width();
                ColumnConstraint::LowerBoundary(Width::Fixed(least))
            });
        }
        // Padding at the end of lines is noise in diffs and logs.
        let mut lines = table.lines().map(|line| line.trim_end().to_owned());
        let head = lines
            .by_ref()
            .take_while(|line| !line.contains(DIVIDER))
            .collect();
        (head, lines.collect())
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
        assert_eq!(text(Some(88)), expected);
    }

    #[test]
    fn names_are_wrapped_to_the_width_and_numbers_are_not() {
        let expected = "\
device                      nodes  why
/job:localhost/replica:0/t     12  the cheapest device that
ask:0/device:CPU:0                 can run it
CPU:1                           3";
        assert_eq!(text(Some(60)), expected);
    }

    #[test]
    fn what_cannot_fit_keeps_a_width_that_can_be_read() {
        for width in [1, 5, 40] {
            let found = text(Some(width));
            let longest = found.lines().map(str::len).max();
            let widest = usize::from(2 * WRAPPED_WIDTH_MIN + 2 * GAP) + "nodes".len();
            assert!(
                longest > Some(widest - 3) && longest <= Some(widest),
                "{found}"
            );
        }
    }

    #[test]
    fn lines_break_at_blanks_else_anywhere() {
        let lines = |cell: &str| {
            let mut table = Table::new([""]);
            table.add_row([cell]);
            table.lines(Some(WRAPPED_WIDTH_MIN.into())).1
        };
        assert_eq!(lines("one two three four"), ["one two three", "four"]);
        assert_eq!(lines("abcdefghijklmnopqr"), ["abcdefghijklmnop", "qr"]);
        let wide = "\u{4f60}".repeat(9);
        assert_eq!(lines(&wide), [&wide[..24], &wide[24..]]);
        assert_eq!(lines(""), [""]);
    }

    #[test]
    fn heads_of_several_lines_are_told_from_rows() {
        let mut table = Table::new(["a head that is longer than sixteen", "n"]);
        table.add_row(["x", "1"]);
        let (head, rows) = table.lines(Some(20));
        assert_eq!(head.len(), 3, "{head:?}");
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(
            Table::new(["only", "a head"]).lines(None).0,
            ["only  a head"]
        );
        assert!(Table::new(["only", "a head"]).lines(Some(40)).1.is_empty());
    }

    /// The library takes time in the square of a cell's length: minutes for this one.
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
