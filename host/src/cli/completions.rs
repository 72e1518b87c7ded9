//! `placewright completions`: scripts that let a shell complete commands, flags and files.

use anyhow::Result;
use clap::Args;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use super::Outcome;
use super::output::Output;

/// How the scripts are installed.
pub(super) const HELP: &str = "\
Install it, for example:
  bash  placewright completions bash > ~/.local/share/bash-completion/completions/placewright
  zsh   placewright completions zsh > DIR/_placewright, DIR being a folder of $fpath
  fish  placewright completions fish > ~/.config/fish/completions/placewright.fish";

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub(super) fn run(args: &CompletionsArgs, output: &mut Output) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "placewright", &mut script);
    output.document(&String::from_utf8(script)?)?;
    Ok(Outcome::Done)
}
