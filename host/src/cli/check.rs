//! `--check`: compares fetched arrays with the expected ones.

use anyhow::Context;
use anyhow::Result;
use serde::Serialize;

use super::allclose::Comparison;
use super::allclose::Tolerance;
use super::allclose::compare;
use super::feeds::Feeds;
use super::output::Output;
use super::table::Table;
use crate::tensor::Tensor;

/// The result of a check.
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
    /// Compares fetched tensors, by name, with the expected ones. Fetches without an expected array
    /// are left out.
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

    /// Describes where the first fetch that does not match differs most; `None` if all match.
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

    /// Prints it for people.
    pub(super) fn show(&self, output: &mut Output) -> Result<()> {
        let mut table = Table::new(["check", "largest error", "relative", "at", "result"])
            .with_numbers(&[1, 2]);
        for FetchReport { name, comparison } in &self.fetches {
            let result = match &comparison.incomparable {
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
                result,
            ]);
        }
        output.table(&table)?;
        let tolerance = format!(" (atol {:e}, rtol {:e})", self.atol, self.rtol);
        match self.matches {
            true => output.line(format_args!("all fetches match{tolerance}")),
            false => output.alert("MISMATCH", tolerance),
        }
    }
}
