//! `--check`: expected arrays against fetched ones, fetch by fetch.

use anyhow::Context;
use anyhow::Result;
use serde::Serialize;

use super::compare::Comparison;
use super::compare::Tolerance;
use super::compare::compare;
use super::feeds::Feeds;
use super::output::Output;
use super::output::align_right;
use super::output::new_table;
use crate::tensor::Tensor;

/// What came out of a check.
#[derive(Debug, Serialize)]
pub(super) struct CheckReport {
    /// Whether every fetch matches.
    pub(super) matches: bool,
    atol: f64,
    rtol: f64,
    fetches: Vec<FetchReport>,
}

#[derive(Debug, Serialize)]
struct FetchReport {
    name: String,
    #[serde(flatten)]
    comparison: Comparison,
}

impl CheckReport {
    /// Compares what was fetched, (name, tensor) in order, with what is expected of it. Fetches of
    /// which nothing is expected are left out.
    pub(super) fn new(
        fetched: &[(String, Tensor)],
        expected: &Feeds,
        tolerance: Tolerance,
    ) -> Result<Self> {
        let mut fetches = Vec::new();
        for (name, found) in fetched {
            let Some(expected) = expected.get(name) else {
                continue;
            };
            let comparison = compare(found, expected, tolerance)
                .with_context(|| format!("comparing `{name}`"))?;
            fetches.push(FetchReport {
                name: name.clone(),
                comparison,
            });
        }
        Ok(Self {
            matches: fetches.iter().all(|fetch| fetch.comparison.matches),
            atol: tolerance.atol,
            rtol: tolerance.rtol,
            fetches,
        })
    }

    /// Where the first fetch that does not match differs most, in words; `None` if all match.
    pub(super) fn first_mismatch(&self) -> Option<String> {
        let fetch = self
            .fetches
            .iter()
            .find(|fetch| !fetch.comparison.matches)?;
        let FetchReport { name, comparison } = fetch;
        if let Some(reason) = &comparison.incomparable {
            return Some(format!("`{name}` differs: {reason}"));
        }
        let place = comparison.worst.as_ref().map_or_else(String::new, |worst| {
            format!(
                ", most at {:?}: {}, expected {}",
                worst.index, worst.found, worst.expected
            )
        });
        Some(format!(
            "`{name}` differs in {} of {} elements{place} (atol {:e}, rtol {:e})",
            comparison.n_mismatches, comparison.n_elements, self.atol, self.rtol
        ))
    }

    /// For people.
    pub(super) fn show(&self, output: &mut Output) -> Result<()> {
        let mut table = new_table(["check", "largest error", "relative", "where", "verdict"]);
        align_right(&mut table, &[1, 2]);
        for FetchReport { name, comparison } in &self.fetches {
            let verdict = match &comparison.incomparable {
                Some(reason) => format!("differs: {reason}"),
                None if comparison.matches => "ok".to_owned(),
                None => format!(
                    "differs in {} of {} elements",
                    comparison.n_mismatches, comparison.n_elements
                ),
            };
            let place = comparison.worst.as_ref().map_or_else(String::new, |worst| {
                if comparison.max_abs_error == 0.0 {
                    return String::new();
                }
                format!(
                    "{:?}: {}, expected {}",
                    worst.index, worst.found, worst.expected
                )
            });
            table.add_row([
                name.clone(),
                format!("{:.2e}", comparison.max_abs_error),
                format!("{:.2e}", comparison.max_rel_error),
                place,
                verdict,
            ]);
        }
        output.table(&table)?;
        output.line(format_args!(
            "{} (atol {:e}, rtol {:e})",
            if self.matches {
                "all fetches match"
            } else {
                "MISMATCH"
            },
            self.atol,
            self.rtol
        ))
    }
}
