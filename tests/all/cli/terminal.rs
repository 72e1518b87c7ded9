//! Output on terminals: width, colour, completions and man pages.

use std::process::Command;

use super::args;
use super::model;
use super::placewright;

/// Returns standard output and standard error of the program, which are not terminals, with these
/// environment variables.
fn with_environment(line: &str, paths: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_placewright"));
    command
        .args(args(line, paths))
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .env("OCL_ICD_VENDORS", super::NO_OPENCL);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output();
    let output = output.expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr))
}

const ESCAPE: char = '\u{1b}';

#[test]
fn tables_are_as_wide_as_the_terminal() {
    let graph = model("lenet.pb");
    let line = "place {} --nodes --device-count CPU=2 --policy round-robin";
    let longest = |text: &str| text.lines().map(str::len).max();
    let (wide, _) = with_environment(line, &[&graph], &[]);
    assert!(longest(&wide) > Some(100), "{wide}");
    let (narrow, _) = with_environment(line, &[&graph], &[("COLUMNS", "100")]);
    let rows = narrow.lines().filter(|line| !line.contains("transfers, "));
    let rows: Vec<&str> = rows.collect();
    assert!(rows.iter().all(|row| row.len() <= 100), "{narrow}");
    // The same table: nothing is lost.
    let characters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).count();
    assert_eq!(characters(&narrow) / 100, characters(&wide) / 100);
}

#[test]
fn colour_is_for_terminals_or_on_request() {
    let graph = model("tiny_add.pb");
    let line = |flags: &str| format!("place {{}} {flags}");
    let colored = |flags: &str, variables: &[(&str, &str)]| {
        let (stdout, _) = with_environment(&line(flags), &[&graph], variables);
        assert!(stdout.contains("expected peak"), "{stdout}");
        stdout.contains(ESCAPE)
    };
    assert!(!colored("", &[]), "standard output is a pipe");
    assert!(colored("--color always", &[]));
    assert!(colored("--color=always", &[("NO_COLOR", "1")]));
    assert!(!colored("--color never", &[("CLICOLOR_FORCE", "1")]));
    assert!(colored("", &[("CLICOLOR_FORCE", "1")]));
    assert!(!colored("", &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    // JSON and output for parsing stay plain.
    let (json, _) = with_environment("place {} --color always --json", &[&graph], &[]);
    assert!(!json.contains(ESCAPE), "{json}");

    let (_, plain) = with_environment("place absent.pb", &[], &[]);
    assert!(plain.starts_with("error: "), "{plain}");
    let (_, colored) = with_environment("place absent.pb --color always", &[], &[]);
    assert!(
        colored.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "),
        "{colored}"
    );
    // Help and usage errors follow the flag as well.
    let (help, _) = with_environment("--help --color always", &[], &[]);
    assert!(help.contains(ESCAPE), "{help}");
    let (_, usage) = with_environment("dance --color always", &[], &[]);
    assert!(usage.contains(ESCAPE), "{usage}");
    let (_, usage) = with_environment("dance", &[], &[]);
    assert!(!usage.contains(ESCAPE), "{usage}");
    placewright(["devices", "--color", "green"]).expect(2);
}

#[test]
fn completions_and_man_pages_list_the_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = placewright(["completions", shell]).expect(0).stdout;
        for part in ["placewright", "policy-deadline-ms", "completions"] {
            assert!(script.contains(part), "{shell}: no `{part}`");
        }
    }
    placewright(["completions", "cmd"]).expect(2);
    let page = placewright(["man"]).expect(0).stdout;
    for part in [
        ".TH placewright",
        "placewright\\-run(1)",
        "EXIT STATUS",
        "NO_COLOR",
    ] {
        assert!(page.contains(part), "no `{part}` in\n{page}");
    }
    let page = placewright(["man", "run"]).expect(0).stdout;
    for part in ["placewright\\-run", "policy\\-deadline\\-ms", "\\-\\-color"] {
        assert!(page.contains(part), "no `{part}` in\n{page}");
    }
    placewright(["man", "dance"]).expect_error(2, &["`dance`", "devices"]);
}

/// README has no table of flags: the help is the reference.
#[test]
fn help_explains_flags_by_heading_with_environment_and_exit_status() {
    for command in ["run", "place"] {
        let help = placewright([command, "--help"]).expect(0).stdout;
        for part in [
            "\nDevices:",
            "\nPlacement:",
            "\nPolicy:",
            "\nExecution:",
            "\nGPU:",
            "\nOutput:",
            "\nExit status:",
            "\nEnvironment variables:",
            "PLACEWRIGHT_CACHE_DIR",
            "TF_ENABLED_DEVICE_TYPES",
            "[default: 30000]",
            "[default: auto]",
        ] {
            assert!(help.contains(part), "{command}: no `{part}` in\n{help}");
        }
    }
    let help = placewright(["completions", "--help"]).expect(0).stdout;
    assert!(help.contains("bash-completion"), "{help}");
    let help = placewright(["man", "--help"]).expect(0).stdout;
    assert!(help.contains("man -l -"), "{help}");
}

/// The defaults in the help are those of the library.
#[test]
fn documented_defaults_of_limits_are_those_of_the_library() {
    let limits = placewright::policy::PolicyLimits::default();
    assert_eq!(limits.place_deadline.as_millis(), 30_000);
    assert_eq!(limits.compile_deadline.as_millis(), 60_000);
    assert_eq!(limits.configure_deadline.as_millis(), 1_000);
    assert_eq!(limits.memory_bytes, 1 << 30);
    assert_eq!(limits.compile_memory_bytes, 2 << 30);
    let help = placewright(["run", "--help"]).expect(0).stdout;
    for (flag, default) in [
        ("--policy-deadline-ms", "30000"),
        ("--policy-compile-deadline-ms", "60000"),
        ("--policy-configure-deadline-ms", "1000"),
        ("--policy-memory", "1GiB"),
        ("--policy-compile-memory", "2GiB"),
    ] {
        let start = help.find(&format!("{flag} <")).expect("the flag");
        let text = help[start..].split("\n      --").next().expect("its text");
        let expected = format!("[default: {default}]");
        assert!(text.contains(&expected), "{flag}: {text}");
    }
}
