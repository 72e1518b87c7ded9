//! Rules that the compiler does not hold: the order of modules, documentation at the head of files,
//! sizes, links, the reason of each dependency, and that tests test. Reads sources as text; each
//! rule is a function of sources, tried on bad samples below.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

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

/// Ways to ask the system for memory without hearing its answer.
const ALLOCATIONS: [&str; 8] = [
    "vec![",
    "with_capacity(",
    ".resize(",
    "from_elem(",
    ".reserve(",
    ".to_vec()",
    ".repeat(",
    "Vec<",
];

/// Where kernels may do so: file, a part of the line, and why it stays small whatever comes from
/// outside.
const BOUNDED: [(&str, &str, &str); 32] = [
    ("", "rank)", "a tensor has 254 dimensions at most"),
    ("", ".rank())", "a tensor has 254 dimensions at most"),
    ("", "dims.len())", "a tensor has 254 dimensions at most"),
    ("", "axes.len())", "a tensor has 254 dimensions at most"),
    ("", "rank() - axis)", "a tensor has 254 dimensions at most"),
    (
        "",
        "scratch::list(",
        "memory that is asked for with an answer",
    ),
    (
        "kernels/fill.rs",
        "Result<Vec<Arc<[u8]>>, KernelError>",
        "made by `scratch::list`",
    ),
    ("kernels/fill.rs", "spread.repeat(", "a copy into an output"),
    ("kernels/image.rs", "sizes: Vec<usize>", "one per dimension"),
    (
        "kernels/image.rs",
        "margins: Vec<(usize, usize)>",
        "one per dimension",
    ),
    (
        "kernels/image.rs",
        "collect::<Result<Vec<_>, _>>()",
        "one per dimension",
    ),
    ("kernels/image.rs", "space.to_vec()", "one per dimension"),
    ("kernels/image.rs", "batched.to_vec()", "one per dimension"),
    (
        "kernels/slice.rs",
        "input.dims().to_vec()",
        "one per dimension",
    ),
    (
        "kernels/variable.rs",
        "Result<Vec<T>, _>",
        "one per dimension",
    ),
    ("kernels/variable.rs", "vec![(dtype,", "one element"),
    (
        "kernels/nn.rs",
        "let sizes: Vec<usize>",
        "an attribute of the node",
    ),
    (
        "kernels/mod.rs",
        "Result<Vec<i64>, KernelError>",
        "an attribute, or a list that was asked for",
    ),
    (
        "kernels/mod.rs",
        "default.to_vec()",
        "a default of an attribute",
    ),
    ("kernels/mod.rs", "-> Vec<DType>", "element types"),
    ("kernels/math.rs", "REALS.to_vec()", "element types"),
    (
        "kernels/pack.rs",
        "collect::<Result<Vec<_>, _>>()",
        "one per input of the node",
    ),
    (
        "kernels/concat.rs",
        "from_elem(whole / n, n)",
        "one per output of the node",
    ),
    ("kernels/einsum.rs", "Vec<u8>", "letters of an attribute"),
    ("kernels/einsum.rs", "Vec<Term>", "operands of an equation"),
    (
        "kernels/einsum.rs",
        "collect::<Result<Vec<_>, _>>()",
        "operands of an equation",
    ),
    ("kernels/spread.rs", "Vec<String>", "shapes of an error"),
    (
        "kernels/reduce.rs",
        "vec![R::START; n_parts]",
        "one for 32,768 elements of an input",
    ),
    (
        "kernels/epilogue.rs",
        "bias.repeat(",
        "fewer than 192 elements",
    ),
    (
        "kernels/epilogue.rs",
        "let repeated: Vec<T>",
        "fewer than 192 elements",
    ),
    (
        "kernels/parallel.rs",
        "Vec<Mutex<&mut [T]>>",
        "some per thread",
    ),
    ("kernels/scratch.rs", "Vec<T>", "what this rule leads to"),
];

/// Strings with a meaning on one machine only. Written in pieces, or this file would contain
/// them.
const FORBIDDEN: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("../sha", "red"),
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("registry.npm", "js"),
];

#[test]
fn modules_name_only_earlier_modules() {
    let sources = rust_files("host/src");
    let lib = read("host/src/lib.rs");
    assert!(module_order(&lib).len() > 10, "lib.rs lists its modules");
    assert_eq!(module_problems(&lib, &sources), Vec::<String>::new());
}

#[test]
fn files_say_what_they_are() {
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

#[test]
fn links_lead_somewhere() {
    let pages = files_under("", &|path| path.ends_with(".md"));
    assert!(
        pages.iter().any(|page| page.path == "README.md"),
        "README.md is read"
    );
    let root = root();
    let problems: Vec<String> = pages
        .iter()
        .flat_map(|page| link_problems(page, &|path| root.join(path).exists()))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn dependencies_say_why() {
    let problems: Vec<String> = files_under("", &|path| path.ends_with("Cargo.toml"))
        .iter()
        .flat_map(dependency_problems)
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn no_test_passes_without_testing() {
    let problems: Vec<String> = ["host", "guest", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .flat_map(|source| early_ends(&source))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn kernels_ask_for_memory_in_one_place() {
    let sources = [
        rust_files("host/src/kernels"),
        rust_files("host/src/backend/cpu/kernels"),
    ];
    let sources: Vec<Source> = sources.into_iter().flatten().collect();
    let problems: Vec<String> = sources.iter().flat_map(allocation_problems).collect();
    assert_eq!(problems, Vec::<String>::new());
    for (path, text, reason) in BOUNDED {
        let is_there = |source: &Source| source.path.ends_with(path) && source.text.contains(text);
        assert!(
            sources.iter().any(is_there),
            "{path}: `{text}` ({reason}) is gone"
        );
    }
}

/// Module names in the order of their declarations.
fn module_order(lib: &str) -> Vec<&str> {
    lib.lines()
        .filter_map(|line| line.strip_prefix("pub mod ").or(line.strip_prefix("mod ")))
        .filter_map(|rest| rest.strip_suffix(';'))
        .collect()
}

/// Modules that name later ones, and the spellings that would hide it.
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

/// Whether `line` has the path `head::name`, both as whole segments.
fn names_path(line: &str, head: &str, name: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    let path = format!("{head}::{name}");
    line.match_indices(&path).any(|(start, _)| {
        !line[..start].ends_with(is_ident) && !line[start + path.len()..].starts_with(is_ident)
    })
}

/// Lines of code with their numbers: comments cut off, `#[cfg(test)]` modules left out. Relies on
/// rustfmt: the brace that closes a module stands where the module's line starts.
fn code_lines(text: &str) -> Vec<(usize, String)> {
    let mut result = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // Other attributes may stand between the condition and the module.
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
            // `//` after a colon is an address in a text.
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

/// Memory that is asked for past `kernels::scratch`.
fn allocation_problems(source: &Source) -> Vec<String> {
    let is_bounded = |line: &str| {
        let mut bounded = BOUNDED.iter();
        bounded.any(|(path, text, _)| source.path.ends_with(path) && line.contains(text))
    };
    code_lines(&source.text)
        .into_iter()
        .filter(|(_, line)| !line.contains("SmallVec<") || line.contains("from_elem("))
        .filter(|(_, line)| ALLOCATIONS.iter().any(|text| line.contains(text)))
        .filter(|(_, line)| !is_bounded(line))
        .map(|(number, line)| {
            format!(
                "{}:{number}: `{}` asks for memory without an answer; take it from `Threads::scratch` or `scratch::list`",
                source.path,
                line.trim()
            )
        })
        .collect()
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

/// The file that decides whether what a test needs is here.
const NEEDS: &str = "tests/support/needs.rs";

/// Tests that may end before they have tested anything, and other places that decide about absence.
/// Relies on rustfmt: the brace that closes a function stands where its line starts.
fn early_ends(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    // The line that closes the test, and whether the test gives a `Result`. A case of proptest,
    // which does not say so, may be of no interest.
    let mut test: Option<(String, bool)> = None;
    let mut is_announced = false;
    for (index, line) in source.text.lines().enumerate() {
        let mut report = |what: &str| {
            problems.push(format!("{}:{}: {what}", source.path, index + 1));
        };
        let code = line.trim();
        if code.starts_with("//") {
            continue;
        }
        if line.contains("PLACEWRIGHT_REQUIRE\"") && source.path != NEEDS {
            report("what is required is read in tests/support/needs.rs alone");
        }
        if code == "#[test]" {
            is_announced = true;
        } else if is_announced && code.starts_with("fn ") {
            is_announced = false;
            let indent = &line[..line.len() - line.trim_start().len()];
            test = (!line.ends_with('}')).then(|| (format!("{indent}}}"), line.contains("->")));
        } else if let Some((end, gives_result)) = &test {
            if code == "return;" || (*gives_result && code == "return Ok(());") {
                report(
                    "a test that ends early passes; say what it needs with `#[needs(..)]` in tests/all",
                );
            }
            if line == end {
                test = None;
            }
        }
    }
    problems
}

/// Relative links to files that are not there, and to headings that the page lacks.
fn link_problems(page: &Source, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let headings: BTreeSet<String> = page
        .text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    let mut problems = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for (start, _) in line.match_indices("](") {
            let Some((target, _)) = line[start + 2..].split_once(')') else {
                continue;
            };
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let is_there = if path.is_empty() {
                headings.contains(heading)
            } else if folder.is_empty() {
                exists(path)
            } else {
                exists(&format!("{folder}/{path}"))
            };
            if !is_there {
                problems.push(format!(
                    "{}:{}: `{target}` leads nowhere",
                    page.path,
                    index + 1
                ));
            }
        }
    }
    problems
}

/// The anchor that Markdown viewers give a heading.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// Dependencies without a comment on their line. The workspace's own table only fixes versions.
fn dependency_problems(manifest: &Source) -> Vec<String> {
    let mut in_dependencies = false;
    let mut problems = Vec::new();
    for (index, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies")
                && !line.starts_with("[workspace");
        } else if in_dependencies && !line.trim().is_empty() && !line.starts_with('#') {
            let has_reason = line
                .rsplit_once('#')
                .is_some_and(|(_, reason)| !reason.trim().is_empty() && !reason.contains('"'));
            if !has_reason {
                problems.push(format!(
                    "{}:{}: a dependency without a reason: {line}",
                    manifest.path,
                    index + 1
                ));
            }
        }
    }
    problems
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

/// Files of the repository below `folder` whose path is `wanted`. Build output and other hidden
/// folders are left out, and links are not followed: what they lead to is read where it stands.
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
                if name == ".ci" || !(name == "target" || name.starts_with('.')) {
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

/// The rules above, each on a text that breaks it.
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
    fn memory_that_grows_with_shapes_is_found() {
        let problems =
            |text: &str| allocation_problems(&Source::new("host/src/kernels/x.rs", text));
        for text in [
            "let sums = vec![0.0; channels];\n",
            "let mut all = Vec::with_capacity(n);\n",
            "let copy: Vec<f32> = row.iter().copied().collect();\n",
            "padded.resize(n, 0.0);\n",
        ] {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
        for text in [
            "let dims: SmallVec<[usize; 4]> = SmallVec::from_elem(1, rank);\n",
            "let sums = threads.scratch::<f32>(channels)?;\n",
            "#[cfg(test)]\nmod tests {\n    let x = vec![0; n];\n}\n",
        ] {
            assert_eq!(problems(text), Vec::<String>::new(), "{text}");
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

    #[test]
    fn heads_lengths_and_words_are_held() {
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

    #[test]
    fn tests_that_end_early_are_found() {
        let problems = |text: &str| early_ends(&Source::new("a.rs", text)).len();
        let test = |signature: &str, body: &str| {
            problems(&format!(
                "mod tests {{\n    #[test]\n    #[expect(x)]\n    fn t(){signature} {{\n{body}\n    }}\n}}\n"
            ))
        };
        let gate = |end: &str| format!("        if absent() {{\n            {end}\n        }}");
        assert_eq!(test("", &gate("return;")), 1);
        assert_eq!(test(" -> Result<(), E>", &gate("return Ok(());")), 1);
        assert_eq!(test("", &gate("panic!();")), 0);
        // What is no test may, and what comes after one.
        let helper = "fn h() {\n    return;\n}\n";
        assert_eq!(problems(helper), 0);
        let after = format!("#[test]\nfn t() {{\n}}\n{helper}#[test]\nfn u() {{}}\n{helper}");
        assert_eq!(problems(&after), 0);
        let reads = concat!("let r = env::var(\"PLACEWRIGHT_REQ", "UIRE\");\n");
        assert_eq!(problems(reads), 1);
        assert_eq!(early_ends(&Source::new(NEEDS, reads)), [""; 0]);
    }

    #[test]
    fn dead_links_are_found() {
        let page = Source::new(
            "guest/README.md",
            "# Write a policy!\n[a](b.rs) [c](d.md#part) [top](#write-a-policy) [web](https://e.f/g)\n[x](#nowhere)\n",
        );
        let exists = |path: &str| path == "guest/b.rs";
        assert_eq!(
            link_problems(&page, &exists),
            [
                "guest/README.md:2: `d.md#part` leads nowhere",
                "guest/README.md:3: `#nowhere` leads nowhere",
            ]
        );
    }

    #[test]
    fn dependencies_without_a_reason_are_found() {
        let manifest = Source::new(
            "Cargo.toml",
            "[workspace.dependencies]\na = \"1\"\n[dependencies]\n# all of it\nb = \"1\" # because\nc = \"1\"\n\
             [target.'cfg(unix)'.dev-dependencies]\nd = { git = \"x#y\" }\n[features]\ne = []\n",
        );
        let problems = dependency_problems(&manifest);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("Cargo.toml:6") && problems[1].contains("Cargo.toml:8"));
    }
}
