//! What the terminals of this process are like: their width, and whether colour is wanted on them.

use std::env;
use std::ffi::OsString;
use std::io;
use std::io::IsTerminal;

use anstream::AutoStream;
use anstream::stream::RawStream;
use clap::ColorChoice;
use clap::ValueEnum;

/// Reads `--color` before the command line is parsed: help and usage errors follow it too. A wrong
/// value is left to the parser.
pub(super) fn color_of_args(args: &[OsString]) -> ColorChoice {
    let mut args = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let mut choice = ColorChoice::default();
    while let Some(arg) = args.next() {
        let value = match arg.split_once('=') {
            _ if arg == "--" => break,
            _ if arg == "--color" => args.next(),
            Some(("--color", value)) => Some(value),
            _ => None,
        };
        if let Some(value) = value
            && let Ok(found) = ColorChoice::from_str(value, false)
        {
            choice = found;
        }
    }
    choice
}

/// Whether this output is coloured. `Auto` follows the terminal and the environment as clap does
/// for help and usage errors.
pub(super) fn is_colored(choice: ColorChoice, stream: &impl RawStream) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => AutoStream::choice(stream) != anstream::ColorChoice::Never,
    }
}

/// Columns of standard output: what `COLUMNS` says, else the width of the terminal. `None` if
/// standard output is not a terminal: lines may be as long as they are.
pub(super) fn width() -> Option<usize> {
    let set = env::var("COLUMNS").ok().and_then(|text| parse_width(&text));
    set.or_else(|| {
        let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
        Some(width.0.into()).filter(|&width| width > 0)
    })
}

fn parse_width(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|&width| width > 0)
}

/// Whether progress may be drawn.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_found_before_parsing() {
        for (line, expected) in [
            ("placewright devices", ColorChoice::Auto),
            ("placewright --color always devices", ColorChoice::Always),
            ("placewright devices --color=never", ColorChoice::Never),
            ("placewright devices -- --color=never", ColorChoice::Auto),
            ("placewright devices --color=green", ColorChoice::Auto),
            ("placewright devices --color", ColorChoice::Auto),
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(color_of_args(&args), expected, "{line}");
        }
    }

    #[test]
    fn a_width_is_a_number_of_columns() {
        assert_eq!(parse_width(" 80 "), Some(80));
        for text in ["", "0", "-1", "wide"] {
            assert_eq!(parse_width(text), None, "{text}");
        }
    }
}
