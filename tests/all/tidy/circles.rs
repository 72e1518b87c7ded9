//! The files of a module of the library form no circle: none refers to a file that refers back to
//! it, directly or through others.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Source;
use super::code_lines;
use super::rust_files;

/// Modules whose files are in such an order. The types of the others refer to each other.
const ORDERED: [&str; 15] = [
    "backend",
    "builder",
    "candidates",
    "cost",
    "graph",
    "import",
    "kernels",
    "memory",
    "names",
    "partition",
    "placement",
    "plan",
    "store",
    "tensor",
    "trace",
];

#[test]
fn files_of_a_module_form_no_circle() {
    for module in ORDERED {
        let sources = rust_files(&format!("host/src/{module}"));
        assert!(!sources.is_empty(), "{module} is gone");
        assert_eq!(circle(module, &sources), Vec::<String>::new(), "{module}");
    }
}

/// Returns the files and folders of a module that are in circles, or between two circles. `mod.rs`
/// does not count: it declares the others, and they may use what it defines.
fn circle(module: &str, sources: &[Source]) -> Vec<String> {
    let folder = format!("host/src/{module}/");
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix(&folder) else {
            continue;
        };
        let own = first_name(inside);
        if own == "mod" {
            continue;
        }
        let mut heads = vec![format!("crate::{module}::")];
        if !inside.contains('/') {
            heads.push("super::".to_owned());
        }
        let named = uses.entry(own.to_owned()).or_default();
        for (_, line) in code_lines(&source.text) {
            for head in &heads {
                let paths = line.match_indices(head.as_str());
                let names = paths.map(|(start, _)| first_name(&line[start + head.len()..]));
                named.extend(names.filter(|&name| name != own).map(str::to_owned));
            }
        }
    }
    // Files that use no other file, or that no other file uses, are in no circle.
    loop {
        let n_before = uses.len();
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        let known: BTreeSet<String> = uses.keys().cloned().collect();
        uses.retain(|own, named| {
            named.retain(|name| known.contains(name));
            used.contains(own) && !named.is_empty()
        });
        if uses.len() == n_before {
            return uses.into_keys().collect();
        }
    }
}

/// Returns the part of a path before the first separator.
fn first_name(path: &str) -> &str {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    path.split(|c| !is_ident(c)).next().unwrap_or(path)
}

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(name, text): &(&str, &str)| Source::new(&format!("host/src/m/{name}"), text);
        let sources: Vec<Source> = files.iter().map(source).collect();
        circle("m", &sources)
    }

    #[test]
    fn circles_are_found_and_their_neighbours_are_not() {
        let files = [
            ("a.rs", "use crate::m::b::B;\n"),
            ("b.rs", "use super::c::C;\n"),
            ("c/mod.rs", "use crate::m::a::A;\n"),
            ("before.rs", "use crate::m::a::A;\n"),
            ("after.rs", "pub struct After;\n"),
        ];
        assert_eq!(found(&files), ["a", "b", "c"]);
        assert_eq!(found(&files[..2]), Vec::<String>::new());
    }

    #[test]
    fn submodules_comments_tests_and_the_root_are_no_problem() {
        let files = [
            ("a.rs", "use crate::m::b::B;\nuse super::A;\n"),
            ("a/part.rs", "use super::b::Part;\nuse crate::m::a::A;\n"),
            (
                "b.rs",
                "/// See [`crate::m::a`].\n#[cfg(test)]\nmod tests {\n    use crate::m::a::A;\n}\n",
            ),
            ("mod.rs", "use crate::m::a::A;\n"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
