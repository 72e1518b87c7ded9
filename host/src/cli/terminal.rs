//! What the terminals of this process are like: their width, and whether colour is wanted on them.

use std::env;
use std::ffi::OsString;
use std::io;
use std::io::IsTerminal;

use clap::ValueEnum;

/// When output is coloured, as Cargo has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum ColorWhen {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl ColorWhen {
    /// Reads `--color` before the command line is parsed: help and usage errors follow it too. A
    /// wrong value is left to the parser.
    pub(super) fn of_args(args: &[OsString]) -> Self {
        let mut args = args.iter().skip(1).filter_map(|arg| arg.to_str());
        let mut when = Self::default();
        while let Some(arg) = args.next() {
            let value = match arg.split_once('=') {
                _ if arg == "--" => break,
                _ if arg == "--color" => args.next(),
                Some(("--color", value)) => Some(value),
                _ => None,
            };
            if let Some(value) = value
                && let Ok(found) = Self::from_str(value, false)
            {
                when = found;
            }
        }
        when
    }

    /// Whether standard output is coloured.
    pub(super) fn on_stdout(self) -> bool {
        self.decide(&|name| env::var_os(name), io::stdout().is_terminal())
    }

    /// Whether standard error is coloured.
    pub(super) fn on_stderr(self) -> bool {
        self.decide(&|name| env::var_os(name), io::stderr().is_terminal())
    }

    /// The rules of <https://no-color.org> and <https://bixense.com/clicolors>, which clap follows
    /// for help and usage errors.
    fn decide(self, variable: &dyn Fn(&str) -> Option<OsString>, is_terminal: bool) -> bool {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto if set("NO_COLOR").is_some() => false,
            Self::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            Self::Auto if set("CLICOLOR").is_some_and(|value| value == "0") => false,
            Self::Auto => is_terminal && set("TERM").is_none_or(|value| value != "dumb"),
        }
    }
}

impl From<ColorWhen> for clap::ColorChoice {
    fn from(when: ColorWhen) -> Self {
        match when {
            ColorWhen::Auto => Self::Auto,
            ColorWhen::Always => Self::Always,
            ColorWhen::Never => Self::Never,
        }
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
    fn color_follows_flag_environment_and_terminal_in_this_order() {
        use ColorWhen::Always;
        use ColorWhen::Auto;
        use ColorWhen::Never;
        for (when, variables, is_terminal, expected) in [
            (Auto, &[][..], true, true),
            (Auto, &[], false, false),
            (Auto, &[("NO_COLOR", "1")], true, false),
            (Auto, &[("NO_COLOR", "")], true, true),
            (Auto, &[("CLICOLOR", "0")], true, false),
            (Auto, &[("CLICOLOR", "1")], false, false),
            (Auto, &[("CLICOLOR_FORCE", "1")], false, true),
            (Auto, &[("CLICOLOR_FORCE", "0")], false, false),
            (
                Auto,
                &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")],
                true,
                false,
            ),
            (Auto, &[("TERM", "dumb")], true, false),
            (Always, &[("NO_COLOR", "1")], false, true),
            (Never, &[("CLICOLOR_FORCE", "1")], true, false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let found = when.decide(&variable, is_terminal);
            assert_eq!(found, expected, "{when:?} {variables:?} {is_terminal}");
        }
    }

    #[test]
    fn the_flag_is_found_before_parsing() {
        for (line, expected) in [
            ("placewright devices", ColorWhen::Auto),
            ("placewright --color always devices", ColorWhen::Always),
            ("placewright devices --color=never", ColorWhen::Never),
            ("placewright devices -- --color=never", ColorWhen::Auto),
            ("placewright devices --color=green", ColorWhen::Auto),
            ("placewright devices --color", ColorWhen::Auto),
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(ColorWhen::of_args(&args), expected, "{line}");
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
