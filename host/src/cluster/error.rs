//! Errors of cluster files and task graphs.

use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;

/// Why a cluster file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterSpecError {
    /// The file cannot be read.
    #[error("the cluster file cannot be read: {0}")]
    Read(io::Error),
    /// Something in the text is wrong.
    #[error("{place}{}", OneLine(problem))]
    Invalid {
        /// The line, if it is known.
        place: Place,
        /// What is wrong, and what is possible.
        problem: String,
    },
    /// A change names a device that does not exist, or changes what cannot be changed.
    #[error("{0}")]
    Change(String),
}

impl From<io::Error> for ClusterSpecError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// A line of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 1; 0 if it is unknown.
    pub line: usize,
    /// Its text, without spaces around it; of a long line, a part.
    pub text: String,
}

impl Place {
    /// Returns the line of a range of bytes.
    pub(crate) fn of(file: &str, span: Option<Range<usize>>) -> Self {
        let Some(before) = span.and_then(|span| file.get(..span.start)) else {
            return Self::default();
        };
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = file[start..].lines().next().unwrap_or_default();
        // Of a long line, what the range begins with.
        let offset = before.len() - start;
        let shown = match line.len() > TEXT_MAX && offset > TEXT_MAX / 2 {
            true => line.get(offset..).unwrap_or(line),
            false => line,
        };
        Self {
            line: before.matches('\n').count() + 1,
            text: shown.trim().chars().take(TEXT_MAX).collect(),
        }
    }
}

/// More of a line is not shown.
const TEXT_MAX: usize = 80;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { line: 0, .. } => Ok(()),
            Self { line, text } if text.is_empty() => write!(f, "line {line}: "),
            Self { line, text } => write!(f, "line {line}, `{}`: ", OneLine(text)),
        }
    }
}

/// Shows text that may be a stranger's: without control characters, which could act on a terminal
/// or look like another message.
pub(crate) struct OneLine<'a>(pub(crate) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\t' => f.write_char(' '),
            char if char.is_control() => write!(f, "{}", char.escape_debug()),
            char => f.write_char(char),
        })
    }
}
