//! Relative links of pages lead to existing files and headings.

use std::collections::BTreeSet;

use super::Source;
use super::files_under;
use super::root;

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

/// Returns relative links to missing files, and to headings that the page lacks.
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

/// Returns the anchor that Markdown viewers give a heading.
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

/// The rule above, on samples that break it and samples that obey it.
mod rules {
    use super::*;

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
}
