//! Rules on the wording of comments, docs, names and messages: no retired words, and lines of at
//! most 100 columns. Each rule is a function of a source, tried on bad samples below.

use super::Source;
use super::files_under;

/// Maximum width of comments and of prose in Markdown.
const COLUMNS_MAX: usize = 100;

/// The file with the table, which contains the words.
const TABLE: &str = "tests/all/tidy/words.rs";

/// Retired words, what to write instead, and words that make a use legitimate if they follow.
///
/// Identifiers count as their words (`is_attended` is "is attended"), and case does not matter. A
/// pattern of several words matches across line breaks, but not across punctuation.
const RETIRED: &[(&str, &str, &[&str])] = &[
    ("packed", "prepacked; for the layout: panel", &[]),
    ("packer", "prepack", &[]),
    ("pack weights", "prepack weights", &[]),
    (
        "turned",
        "transposed",
        &["back", "down", "into", "off", "on", "out", "up"],
    ),
    ("turned matrix", "transposed matrix", &[]),
    ("matrix product", "matmul", &[]),
    ("matrix products", "matmuls", &[]),
    ("product of matrices", "matmul", &[]),
    ("products of matrices", "matmuls", &[]),
    ("multiply matrices", "matmul", &[]),
    ("multiplies matrices in", "matmul", &[]),
    ("open products", "open matmuls", &[]),
    ("in words", "as text", &[]),
    ("words of memory", "bytes or u32 elements", &[]),
    ("short float", "f16 and bf16", &[]),
    ("short floats", "f16 and bf16", &[]),
    ("texts", "strings, messages, names or source", &[]),
    ("attend", "spin", &[]),
    ("attends", "spins", &[]),
    ("attended", "spinning", &[]),
    ("attendance", "spin time", &[]),
    ("attendant", "spinning worker", &[]),
    ("attendants", "spinning workers", &[]),
    ("crew", "execution mode", &[]),
    ("crews", "execution modes", &[]),
    ("deserted", "no worker joined", &[]),
    ("silicon", "chip", &[]),
    ("joins nodes", "fuses nodes", &[]),
    ("joined nodes", "fused nodes", &[]),
    ("workshop", "kernel cache", &[]),
    ("is heard", "is honoured, is notified of, records", &[]),
    ("are heard", "are honoured, are notified of, record", &[]),
    ("hears of", "is notified of, records", &[]),
    ("cannot be had", "is unavailable", &[]),
    ("native twin", "native build", &[]),
    ("plain twin", "reference implementation", &[]),
    ("clash", "conflict", &[]),
    ("clashes", "conflicts", &[]),
    ("wish", "request", &[]),
    ("wishes", "requests", &[]),
    ("yardstick", "reference", &[]),
    ("reckon", "account for, compute with", &[]),
    ("reckons", "accounts for, computes with", &[]),
    ("reckoned", "accounted for, computed with", &[]),
    ("no room", "not enough memory", &[]),
    ("without room", "if there is not enough memory", &[]),
    ("which is no", "which is not a", &["longer", "more"]),
    ("is no candidate", "is not a candidate", &[]),
    ("whoever", "a caller that", &[]),
    ("lends", "passes, provides", &[]),
];

/// Other meanings of retired words: file, word, and the meaning.
const OTHER_MEANINGS: &[(&str, &str, &str)] = &[(
    "tests/gpu/graph_def.py",
    "packed",
    "packed repeated fields of protobuf",
)];

#[test]
fn retired_words_are_gone() {
    let problems: Vec<String> = text_files().iter().flat_map(retired_words).collect();
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn comments_and_prose_are_narrow() {
    let problems: Vec<String> = text_files().iter().flat_map(wide_lines).collect();
    assert_eq!(problems, Vec::<String>::new());
}

/// Texts that people write: sources, scripts and pages, without data.
fn text_files() -> Vec<Source> {
    files_under("", &|path| {
        let is_text = path.starts_with(".ci/")
            || [".rs", ".md", ".wit", ".c", ".h", ".py", ".toml"]
                .iter()
                .any(|end| path.ends_with(end));
        let is_data = path.starts_with("tests/conformance/") && !path.ends_with(".rs");
        is_text && !is_data && path != TABLE
    })
}

/// A word in lower case: its line, and whether only blanks, line breaks and comment marks separate
/// it from the word before.
struct Word {
    line: usize,
    text: String,
    follows: bool,
}

/// The words of a text; identifiers are split at `_` and before capitals.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut follows = false;
    for (index, line) in text.lines().enumerate() {
        let body = line.trim_start().trim_start_matches(['/', '!', '#', '*']);
        follows &= !body.trim().is_empty();
        let mut before = ' ';
        for c in body.chars() {
            if c.is_alphanumeric() {
                if !before.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase()) {
                    words.push(Word {
                        line: index + 1,
                        text: String::new(),
                        follows,
                    });
                    follows = true;
                }
                if let Some(word) = words.last_mut() {
                    word.text.extend(c.to_lowercase());
                }
            } else {
                follows &= c.is_whitespace() || c == '_' || c == '-';
            }
            before = c;
        }
    }
    words
}

/// Uses of retired words, with what to write instead.
fn retired_words(source: &Source) -> Vec<String> {
    let words = words(&source.text);
    let mut problems = Vec::new();
    for (pattern, instead, exceptions) in RETIRED {
        let mut meanings = OTHER_MEANINGS.iter();
        if meanings.any(|(path, word, _)| source.path == *path && word == pattern) {
            continue;
        }
        let pattern_words: Vec<&str> = pattern.split(' ').collect();
        for (index, window) in words.windows(pattern_words.len()).enumerate() {
            let is_match = window
                .iter()
                .zip(&pattern_words)
                .all(|(word, expected)| word.text == *expected)
                && window[1..].iter().all(|word| word.follows);
            let next = words.get(index + pattern_words.len());
            let is_exception =
                next.is_some_and(|next| next.follows && exceptions.contains(&&*next.text));
            if is_match && !is_exception {
                problems.push(format!(
                    "{}:{}: `{pattern}` is retired; write: {instead}",
                    source.path, window[0].line
                ));
            }
        }
    }
    problems
}

/// Comments, and prose of pages, wider than [`COLUMNS_MAX`]. Tables, targets of links, code blocks
/// and lines that cannot be broken may be wider.
fn wide_lines(source: &Source) -> Vec<String> {
    let is_page = source.path.ends_with(".md");
    let marks: &[&str] = if is_page {
        &[]
    } else if [".rs", ".wit", ".c", ".h"]
        .iter()
        .any(|end| source.path.ends_with(end))
    {
        &["//", "/*", "* "]
    } else {
        &["# "]
    };
    let mut problems = Vec::new();
    let mut in_code = false;
    for (index, line) in source.text.lines().enumerate() {
        let is_comment = marks.iter().any(|mark| line.trim_start().starts_with(mark));
        if !is_page && !is_comment {
            in_code = false;
            continue;
        }
        let body = line.trim_start().trim_start_matches(['/', '!', '*']).trim();
        if body.starts_with("```") {
            in_code = !in_code;
        }
        let is_heading = is_page && body.starts_with('#');
        if in_code || is_heading || body.starts_with('|') {
            continue;
        }
        let width = without_targets(line).chars().count();
        let can_break = body.contains(' ') && !body.contains("://");
        if width > COLUMNS_MAX && can_break {
            problems.push(format!(
                "{}:{}: {width} columns; wrap at {COLUMNS_MAX}",
                source.path,
                index + 1
            ));
        }
    }
    problems
}

/// A line whose links have no targets: `[text](target)` is `[text]`.
fn without_targets(line: &str) -> String {
    let mut result = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        result.push_str(before);
        result.push(']');
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    result + rest
}

/// The rules above, each on a text that breaks it.
mod rules {
    use super::*;

    fn retired(text: &str) -> Vec<String> {
        retired_words(&Source::new("a.rs", text))
    }

    #[test]
    fn every_retired_word_is_found_wherever_it_is_used() {
        for (pattern, instead, _) in RETIRED {
            let name = pattern.replace(' ', "_");
            for text in [
                format!("/// First.\n/// It {pattern}.\n"),
                format!("let x = {name};\n//\n"),
                format!("println!(\"{pattern}\");\n//\n"),
                format!("fn the_{name}_one() {{}}\n\n"),
                format!("# {}\n\n", pattern.to_uppercase().replace(' ', "\n# ")),
            ] {
                let problems = retired(&text);
                let expected = format!("`{pattern}` is retired; write: {instead}");
                assert!(
                    problems.iter().any(|problem| problem.ends_with(&expected)),
                    "{text}: {problems:?}"
                );
            }
        }
        assert_eq!(
            retired("//! A.\n\n/// The short\n/// floats.\nstruct IsAttended;\n"),
            [
                "a.rs:3: `short floats` is retired; write: f16 and bf16",
                "a.rs:5: `attended` is retired; write: spinning",
            ]
        );
    }

    #[test]
    fn similar_words_and_other_sentences_are_no_problem() {
        for (path, word, _) in OTHER_MEANINGS {
            let source = Source::new(path, &format!("# It is {word}.\n"));
            assert_eq!(retired_words(&source), Vec::<String>::new(), "{path}");
        }
        for text in [
            "It is prepacked, unpacked or `Pack`; packages are returned.\n",
            "An attention layer; the dot product of numbers; a context.\n",
            "The layout is turned into panels, and the option is turned on.\n",
            "They are ready in. Words follow.\n",
            "The dtype is short\n\nfloats are not.\n",
            "a queue, which is no longer used\n",
            "let in_progress = words;\n",
        ] {
            assert_eq!(retired(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn wide_comments_and_prose_are_found() {
        let prose = "word ".repeat(21);
        let wide = |path: &str, text: &str| wide_lines(&Source::new(path, text)).len();
        for (path, text) in [
            ("a.rs", format!("fn f() {{\n    // {prose}\n}}\n")),
            (
                "a.rs",
                format!("/// ```\n/// {prose}\n/// ```\n/// {prose}\n"),
            ),
            ("a.py", format!("x = 1\n# {prose}\n")),
            ("a.c", format!("/* {prose} */\n")),
            ("a.md", format!("# A\n\n{prose}\n")),
            ("a.md", format!("[{prose}](b.md)\n")),
        ] {
            assert_eq!(wide(path, &text), 1, "{path}: {text}");
        }
        for (path, text) in [
            ("a.rs", format!("let x = \"{prose}\";\n")),
            ("a.rs", format!("// {}\n", "x".repeat(120))),
            (
                "a.md",
                format!("| {prose} |\n\n```\n{prose}\n```\n\n## {prose}\n"),
            ),
            ("a.md", format!("See [here]({}.md).\n", "x".repeat(120))),
            ("a.toml", format!("why = \"{prose}\"\n")),
            ("a.md", "word ".repeat(20).trim_end().to_owned()),
        ] {
            assert_eq!(wide(path, &text), 0, "{path}: {text}");
        }
    }
}
