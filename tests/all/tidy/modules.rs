//! Modules of the library refer only to modules that `lib.rs` lists before them, and backends to no
//! other backend.

use std::collections::BTreeSet;

use super::Source;
use super::code_lines;
use super::read;
use super::rust_files;

#[test]
fn modules_refer_only_to_earlier_modules() {
    let sources = rust_files("host/src");
    let lib = read("host/src/lib.rs");
    assert!(module_order(&lib).len() > 10, "lib.rs lists its modules");
    assert_eq!(module_problems(&lib, &sources), Vec::<String>::new());
}

#[test]
fn backends_refer_to_no_other_backend() {
    let sources = rust_files("host/src/backend");
    for folder in BACKENDS.into_iter().chain(BACKEND_PARTS) {
        let path = format!("host/src/backend/{folder}");
        let has_folder = |source: &Source| source.path.starts_with(&path);
        assert!(sources.iter().any(has_folder), "{path} is gone");
    }
    assert_eq!(backend_problems(&sources), Vec::<String>::new());
}

/// The backends.
const BACKENDS: [&str; 3] = ["cpu", "cuda", "opencl"];

/// What backends share; it serves all of them, so it names none.
const BACKEND_PARTS: [&str; 5] = ["fuse", "host_kernels", "plan", "source", "types"];

/// Returns backends, and parts that they share, that refer to another backend.
fn backend_problems(sources: &[Source]) -> Vec<String> {
    let test_files = test_files(sources);
    let mut problems = Vec::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix("host/src/backend/") else {
            continue;
        };
        let own = inside.split(['/', '.']).next().unwrap_or(inside);
        let is_ruled = BACKENDS.contains(&own) || BACKEND_PARTS.contains(&own);
        if !is_ruled || test_files.contains(&source.path) {
            continue;
        }
        for (number, line) in code_lines(&source.text) {
            for other in BACKENDS.iter().filter(|&&other| other != own) {
                if names_path(&line, "backend", other) || names_path(&line, "super", other) {
                    problems.push(format!("{}:{number}: `{own}` names `{other}`", source.path));
                }
            }
        }
    }
    problems
}

/// Returns module names in the order of their declarations.
fn module_order(lib: &str) -> Vec<&str> {
    lib.lines()
        .filter_map(|line| line.strip_prefix("pub mod ").or(line.strip_prefix("mod ")))
        .filter_map(|rest| rest.strip_suffix(';'))
        .collect()
}

/// Returns modules that refer to later ones, and spellings that would hide it.
fn module_problems(lib: &str, sources: &[Source]) -> Vec<String> {
    let order = module_order(lib);
    let test_files = test_files(sources);
    let mut problems = Vec::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix("host/src/") else {
            continue;
        };
        if matches!(inside, "lib.rs" | "main.rs") || test_files.contains(&source.path) {
            continue;
        }
        let module = inside.split(['/', '.']).next().unwrap_or(inside);
        let Some(position) = order.iter().position(|name| *name == module) else {
            problems.push(format!(
                "{}: module `{module}` is not listed in lib.rs",
                source.path
            ));
            continue;
        };
        // In the root file of a module, `super` is the crate.
        let is_root = inside == format!("{module}.rs") || inside == format!("{module}/mod.rs");
        for (number, line) in code_lines(&source.text) {
            let mut report = |what: &str| {
                problems.push(format!("{}:{number}: {what}", source.path));
            };
            if line.contains("use crate::{") {
                report("`use crate::{` hides modules; write one path per line");
            }
            if line.contains("super::super") {
                report("`super::super` hides modules; write the path from `crate`");
            }
            for later in &order[position + 1..] {
                if names_path(&line, "crate", later)
                    || (is_root && names_path(&line, "super", later))
                {
                    report(&format!(
                        "`{module}` names `{later}`, which stands later in lib.rs"
                    ));
                }
            }
        }
    }
    problems
}

/// Returns whether `line` has the path `head::name`, both as whole segments.
fn names_path(line: &str, head: &str, name: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    let path = format!("{head}::{name}");
    line.match_indices(&path).any(|(start, _)| {
        !line[..start].ends_with(is_ident) && !line[start + path.len()..].starts_with(is_ident)
    })
}

/// Files declared by `#[cfg(test)] mod name;`.
fn test_files(sources: &[Source]) -> BTreeSet<String> {
    let mut result = BTreeSet::new();
    for source in sources {
        let lines: Vec<&str> = source.text.lines().collect();
        for pair in lines.windows(2) {
            let name = pair[1].trim_start_matches("pub ").strip_prefix("mod ");
            let Some(name) = name.and_then(|rest| rest.strip_suffix(';')) else {
                continue;
            };
            if pair[0].trim() == "#[cfg(test)]" {
                let folder = match source.path.strip_suffix("/mod.rs") {
                    Some(folder) => folder,
                    None => source.path.trim_end_matches(".rs"),
                };
                result.insert(format!("{folder}/{name}.rs"));
            }
        }
    }
    result
}

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

    const LIB: &str =
        "//! Lib.\n\npub mod tensor;\n\n#[cfg(feature = \"x\")]\npub mod graph;\n\npub mod run;\n";

    fn modules(path: &str, text: &str) -> Vec<String> {
        module_problems(LIB, &[Source::new(path, text)])
    }

    #[test]
    fn a_module_that_names_a_later_one_is_found() {
        assert_eq!(
            modules(
                "host/src/tensor/shape.rs",
                "//! Shape.\nuse crate::run::Run;\n"
            ),
            ["host/src/tensor/shape.rs:2: `tensor` names `run`, which stands later in lib.rs"]
        );
        assert_eq!(
            modules("host/src/graph.rs", "fn f() -> super::run::Run {}\n").len(),
            1
        );
        assert_eq!(
            modules("host/src/graph/mod.rs", "    $crate::run!();\n").len(),
            1
        );
        assert_eq!(
            modules("host/src/graph/mod.rs", "let x = crate::run;\n").len(),
            1
        );
    }

    #[test]
    fn earlier_modules_longer_names_comments_and_tests_are_no_problem() {
        for (path, text) in [
            (
                "host/src/run.rs",
                "use crate::tensor::Shape;\nuse crate::graph::Graph;\n",
            ),
            (
                "host/src/tensor/mod.rs",
                "use crate::runner::X;\nuse mycrate::run::Y;\n",
            ),
            (
                "host/src/tensor/mod.rs",
                "/// See [`crate::run`].\nlet a = 1; // as crate::run does\n",
            ),
            ("host/src/tensor/a.rs", "use super::run::of_tensor;\n"),
            (
                "host/src/tensor/mod.rs",
                "#[cfg(test)]\n#[expect(x)]\nmod tests {\n    mod inner {\n    }\n    use crate::run::Run;\n}\n",
            ),
        ] {
            assert_eq!(modules(path, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn code_after_a_test_module_is_read() {
        let text = "#[cfg(test)]\nmod tests {\n}\nuse crate::run::Run;\n#[cfg(test)]\nuse crate::run::X;\n";
        assert_eq!(
            modules("host/src/tensor/mod.rs", text),
            [
                "host/src/tensor/mod.rs:4: `tensor` names `run`, which stands later in lib.rs",
                "host/src/tensor/mod.rs:6: `tensor` names `run`, which stands later in lib.rs",
            ]
        );
    }

    #[test]
    fn files_of_test_modules_may_name_all() {
        let sources = [
            Source::new("host/src/tensor/mod.rs", "#[cfg(test)]\nmod tests;\n"),
            Source::new("host/src/tensor/tests.rs", "use crate::run::Run;\n"),
        ];
        assert_eq!(module_problems(LIB, &sources), Vec::<String>::new());
    }

    #[test]
    fn a_backend_that_names_another_one_is_found() {
        let found = |path: &str, text: &str| backend_problems(&[Source::new(path, text)]);
        assert_eq!(
            found(
                "host/src/backend/source/call.rs",
                "use crate::backend::cpu::kernels::nn;\n"
            ),
            ["host/src/backend/source/call.rs:1: `source` names `cpu`"]
        );
        assert_eq!(
            found("host/src/backend/fuse.rs", "use super::cpu::X;\n").len(),
            1
        );
        for (path, text) in [
            ("host/src/backend/mod.rs", "pub mod cpu;\nuse cpu::X;\n"),
            (
                "host/src/backend/cpu/mod.rs",
                "use crate::backend::cpu::X;\n",
            ),
            (
                "host/src/backend/cuda/a.rs",
                "use crate::backend::plan::X;\n",
            ),
        ] {
            assert_eq!(found(path, text), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn spellings_that_hide_modules_are_found() {
        assert_eq!(
            modules("host/src/run.rs", "use crate::{graph, tensor};\n").len(),
            1
        );
        assert_eq!(
            modules("host/src/run/a.rs", "use super::super::graph;\n").len(),
            1
        );
        assert_eq!(modules("host/src/other.rs", "").len(), 1);
    }
}
