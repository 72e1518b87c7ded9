//! The program `placewright`.

use std::process::ExitCode;

fn main() -> ExitCode {
    placewright::cli::main()
}
