//! `placewright man`: man pages, made of the same descriptions as `--help`.

use anyhow::Result;
use clap::Args;
use clap::Command;
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::Roff;
use clap_mangen::roff::roman;

use super::Cli;
use super::Outcome;
use super::UsageError;
use super::help::ENVIRONMENT;
use super::help::EXIT_STATUS;
use super::output::Output;

/// How the pages are read and installed.
pub(super) const HELP: &str = "\
Read it, or install it:
  placewright man | man -l -
  placewright man run > /usr/local/share/man/man1/placewright-run.1";

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The command, such as `run` or `bench models`; by default the program.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command.
pub(super) fn run(args: &ManArgs, output: &mut Output) -> Result<Outcome> {
    output.document(&page(&args.command)?)?;
    Ok(Outcome::Done)
}

fn page(path: &[String]) -> Result<String> {
    let mut root = Cli::command();
    // Flags of the program become flags of its commands.
    root.build();
    let mut command: &Command = &root;
    let mut name = root.get_name().to_owned();
    for part in path {
        let found = command.find_subcommand(part);
        command = found.ok_or_else(|| {
            let known: Vec<&str> = command
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(Command::get_name)
                .collect();
            UsageError(match known.is_empty() {
                true => format!("`{name}` has no commands, and `{part}` is none"),
                false => format!(
                    "`{name}` has no command `{part}`; expected one of {}",
                    known.join(", ")
                ),
            })
        })?;
        name = format!("{name} {part}");
    }
    // Its sections have their own heads here.
    let command = command
        .clone()
        .display_name(name.replace(' ', "-"))
        .bin_name(name)
        .after_help(None::<&str>)
        .after_long_help(None::<&str>);
    let man = Man::new(command.clone());
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut bytes)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut bytes)?;
    }
    let mut roff = Roff::new();
    for (title, rows) in [
        ("EXIT STATUS", &EXIT_STATUS[..]),
        ("ENVIRONMENT", &ENVIRONMENT),
    ] {
        roff.control("SH", [title]);
        for (name, meaning) in rows {
            roff.control("TP", []);
            roff.text([roman(*name)]);
            roff.text([roman(*meaning)]);
        }
    }
    roff.to_writer(&mut bytes)?;
    // Commands have the version of the program, and the renderer expects one.
    if command.get_version().is_some() {
        man.render_version_section(&mut bytes)?;
    }
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_sections_flags_and_a_name() {
        let page = page(&["bench".to_owned(), "models".to_owned()]).expect("a command");
        for part in [
            ".TH placewright-bench-models",
            ".SH SYNOPSIS",
            r"\-\-seconds",
            ".SH \"EXIT STATUS\"",
            "TF_ENABLED_DEVICE_TYPES",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn a_command_that_does_not_exist_is_refused_with_those_that_do() {
        let error = page(&["bench".to_owned(), "speed".to_owned()]).expect_err("no command");
        let text = error.to_string();
        assert!(
            text.contains("`speed`") && text.contains("models"),
            "{text}"
        );
        assert!(!text.contains("worker"), "{text}");
    }
}
