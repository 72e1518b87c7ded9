//! Rules on the repository that the compiler does not check. Each rule reads sources as text, is a
//! function of sources, and is tested on samples that break it. This file contains the rules that
//! need few lines: files begin with their documentation, are short, and do not refer to a
//! particular machine.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

mod allocations;
mod circles;
mod dependencies;
mod early_ends;
mod links;
mod modules;
mod words;

/// A source file: path relative to the root of the repository, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }
}

const LINES_MAX: usize = 800;

/// Strings that are meaningful on one machine only. They are written in pieces, because otherwise
/// this file would contain them.
const FORBIDDEN: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("../sha", "red"),
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("registry.npm", "js"),
];

#[test]
fn files_begin_with_documentation() {
    let problems: Vec<String> = ["host", "guest", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .filter_map(|source| head_problem(&source))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn files_are_short() {
    let problems: Vec<String> = ["host", "guest", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .filter_map(|source| length_problem(&source))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn nothing_refers_to_one_machine() {
    let problems: Vec<String> = text_files().iter().flat_map(word_problems).collect();
    assert_eq!(problems, Vec::<String>::new());
}

fn head_problem(source: &Source) -> Option<String> {
    let first = source.text.lines().next().unwrap_or_default();
    let is_told = first
        .strip_prefix("//!")
        .is_some_and(|text| !text.trim().is_empty());
    (!is_told).then(|| format!("{}: does not open with `//! what it is`", source.path))
}

fn length_problem(source: &Source) -> Option<String> {
    let n_lines = source.text.lines().count();
    (n_lines > LINES_MAX).then(|| {
        format!(
            "{}: {n_lines} lines; what is the second idea in it?",
            source.path
        )
    })
}

fn word_problems(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for word in FORBIDDEN {
            if line.contains(word) {
                problems.push(format!("{}:{}: refers to `{word}`", source.path, index + 1));
            }
        }
    }
    problems
}

/// Returns lines of code with their numbers: without comments and `#[cfg(test)]` modules. Relies on
/// rustfmt: the closing brace of a module has the same indentation as its first line.
fn code_lines(text: &str) -> Vec<(usize, String)> {
    let mut result = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // Other attributes may be between the condition and the module.
            while lines
                .next_if(|(_, next)| next.trim_start().starts_with("#["))
                .is_some()
            {}
            if let Some((_, opening)) = lines.next_if(|(_, next)| opens_module(next)) {
                let indent = &opening[..opening.len() - opening.trim_start().len()];
                let closing = format!("{indent}}}");
                for (_, line) in lines.by_ref() {
                    if line == closing {
                        break;
                    }
                }
            }
            continue;
        }
        let code = match line.find("//") {
            // `//` after a colon is part of an address.
            Some(start) if !line[..start].ends_with(':') => &line[..start],
            _ => line,
        };
        result.push((index + 1, code.to_owned()));
    }
    result
}

fn opens_module(line: &str) -> bool {
    line.trim_start()
        .trim_start_matches("pub ")
        .starts_with("mod ")
        && line.ends_with('{')
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

fn rust_files(folder: &str) -> Vec<Source> {
    files_under(folder, &|path| path.ends_with(".rs"))
}

fn text_files() -> Vec<Source> {
    files_under("", &|path| {
        path == ".ci/run"
            || [
                ".rs", ".md", ".toml", ".wit", ".wat", ".sh", ".py", ".json", ".txt",
            ]
            .iter()
            .any(|end| path.ends_with(end))
    })
}

/// Generated from the contract.
const GENERATED: &str = "guest/sdk/src/wasm/bindings";

/// Returns the files of the repository below `folder` whose path is `wanted`. Build output,
/// generated files and hidden folders are skipped, and links are not followed: their targets are
/// read in place.
fn files_under(folder: &str, wanted: &dyn Fn(&str) -> bool) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        let entries =
            fs::read_dir(root().join(&folder)).unwrap_or_else(|err| panic!("{folder}: {err}"));
        for entry in entries {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = if folder.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{name}")
            };
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                let is_read = name != "target" && !name.starts_with('.') && path != GENERATED;
                if is_read || name == ".ci" {
                    pending.push(path);
                }
            } else if kind.is_file() && wanted(&path) {
                sources.push(Source {
                    text: read(&path),
                    path,
                });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// The rules above, on samples that break them and samples that obey them.
mod rules {
    use super::*;

    #[test]
    fn heads_lengths_and_strings_are_checked() {
        assert!(head_problem(&Source::new("a.rs", "//! A.\n")).is_none());
        assert!(head_problem(&Source::new("a.rs", "//!\nfn f() {}\n")).is_some());
        assert!(head_problem(&Source::new("a.rs", "use a::b;\n//! A.\n")).is_some());
        assert!(length_problem(&Source::new("a.rs", &"\n".repeat(LINES_MAX))).is_none());
        assert!(length_problem(&Source::new("a.rs", &"\n".repeat(LINES_MAX + 1))).is_some());
        for word in FORBIDDEN {
            let text = format!("first\nsee {word}x\n");
            assert_eq!(
                word_problems(&Source::new("a.md", &text)).len(),
                1,
                "{word}"
            );
        }
    }
}
