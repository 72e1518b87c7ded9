//! Every dependency has a comment with its reason.

use super::Source;
use super::files_under;

#[test]
fn dependencies_have_reasons() {
    let problems: Vec<String> = files_under("", &|path| path.ends_with("Cargo.toml"))
        .iter()
        .flat_map(dependency_problems)
        .collect();
    assert_eq!(problems, Vec::<String>::new());
}

/// Returns dependencies without a comment on their line. The workspace's own table only fixes
/// versions.
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

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

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
