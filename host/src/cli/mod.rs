//! The program: one file per subcommand.
