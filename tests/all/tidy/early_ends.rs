//! No test passes without testing: needs are declared, and the harness checks and reports them.

use super::Source;
use super::rust_files;

/// The file that decides whether a need is present.
const NEEDS: &str = "tests/support/needs.rs";

#[test]
fn no_test_passes_without_testing() {
    let problems: Vec<String> = ["host", "guest", "tests"]
        .into_iter()
        .flat_map(rust_files)
        .flat_map(|source| early_ends(&source))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

/// Returns tests that may return before they have tested anything, and other code that decides
/// about absence. Relies on rustfmt: the closing brace of a function has the same indentation as
/// its first line.
fn early_ends(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    // The last line of the test, and whether the test returns a `Result`. A proptest case, which
    // has no return type, may be irrelevant.
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

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

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
        // Other functions may, including those after a test.
        let helper = "fn h() {\n    return;\n}\n";
        assert_eq!(problems(helper), 0);
        let after = format!("#[test]\nfn t() {{\n}}\n{helper}#[test]\nfn u() {{}}\n{helper}");
        assert_eq!(problems(&after), 0);
        let reads = concat!("let r = env::var(\"PLACEWRIGHT_REQ", "UIRE\");\n");
        assert_eq!(problems(reads), 1);
        assert_eq!(early_ends(&Source::new(NEEDS, reads)), [""; 0]);
    }
}
