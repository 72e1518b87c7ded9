//! `placewright policy`: lists the shipped policies, and inspects policy files.

use anyhow::Result;
use clap::Subcommand;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::cache;
use super::output::Output;
use super::progress::Progress;
use super::sandbox::SandboxArgs;
use super::table::Table;
use super::units::show_bytes;
use crate::policy::CONTRACT_VERSION;
use crate::policy::PolicyEngine;
use crate::policy::PolicyInspection;
use crate::policy::PolicyLimits;
use crate::policy::PolicySource;
use crate::policy::ShippedPolicy;
use crate::policy::inspect;

/// Number of imports, and of exports, that are shown to people: a core module may export each of
/// its functions.
const NAMES_SHOWN_MAX: usize = 50;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// List the shipped policies and their settings.
    List,
    /// Inspect a policy: imports, exports, contract, size, and whether it can be used.
    ///
    /// The exit status is 1 if it cannot be used.
    Check {
        /// A .wasm file, a core module or a component; or the name of a shipped policy.
        #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
        policy: String,
        #[command(flatten)]
        sandbox: SandboxArgs,
    },
}

/// A policy as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    form: String,
    size_bytes: usize,
    /// Version of the contract that the file names; `null` if it names none.
    contract: Option<String>,
    host_contract: String,
    sdk: Option<String>,
    imports: Vec<String>,
    exports: Vec<String>,
    is_whole_graph: bool,
    is_online: bool,
    usable: bool,
    /// Why it cannot be used.
    error: Option<String>,
    version: Option<String>,
    description: Option<String>,
    settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    kind: String,
    default: String,
    description: String,
}

impl Report {
    fn new(name: &str, inspection: PolicyInspection) -> Self {
        let (info, settings, error) = match inspection.verdict {
            Ok(loaded) => (Some(loaded.info), loaded.settings, None),
            Err(err) => (None, Vec::new(), Some(err.to_string())),
        };
        Self {
            name: info
                .as_ref()
                .map_or(name.to_owned(), |info| info.name.clone()),
            form: inspection.form.to_string(),
            size_bytes: inspection.size_bytes,
            contract: inspection
                .contract_version
                .map(|version| version.to_string()),
            host_contract: CONTRACT_VERSION.to_string(),
            sdk: inspection.sdk_version,
            imports: inspection.imports,
            exports: inspection.exports,
            is_whole_graph: inspection.is_whole_graph,
            is_online: inspection.is_online,
            usable: error.is_none(),
            error,
            version: info.as_ref().map(|info| info.version.clone()),
            description: info.map(|info| info.description),
            settings: settings
                .into_iter()
                .map(|setting| Setting {
                    key: setting.key,
                    kind: setting.kind,
                    default: setting.default,
                    description: setting.description,
                })
                .collect(),
        }
    }

    /// Whether it can be used, and for what.
    fn usability(&self) -> String {
        match &self.error {
            Some(error) => format!("not usable: {error}"),
            None if self.is_whole_graph => "usable".to_owned(),
            None => "usable from the library only (OnlineSession); `run` and `place` need a policy that places whole graphs"
                .to_owned(),
        }
    }

    /// The kinds of placement that it offers.
    fn kinds(&self) -> String {
        let mut kinds = Vec::new();
        if self.is_whole_graph {
            kinds.push("whole graph");
        }
        if self.is_online {
            kinds.push("online");
        }
        kinds.join(", ")
    }
}

/// Runs the command.
pub(super) fn run(command: &PolicyCommand, output: &mut Output) -> Result<Outcome> {
    // Inspecting needs no cache; if there is one, it saves the compilation.
    let cache = cache::open().ok().flatten();
    match command {
        PolicyCommand::List => {
            // Shipped policies are trusted: compiling them needs no deadline.
            let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache)?;
            list(&engine, output)
        }
        PolicyCommand::Check { policy, sandbox } => {
            let engine = sandbox.engine(PolicyLimits::default(), cache)?;
            let source = PolicySource::parse(policy).map_err(|err| UsageError(err.to_string()))?;
            let bytes = source.read(engine.limits())?;
            let progress = Progress::spinner(format!("compiling {policy}"));
            let inspection = inspect(&engine, policy, &bytes)?;
            drop(progress);
            let report = Report::new(policy, inspection);
            show(&report, output)?;
            output.json(&report)?;
            Ok(if report.usable {
                Outcome::Done
            } else {
                Outcome::Negative
            })
        }
    }
}

fn list(engine: &PolicyEngine, output: &mut Output) -> Result<Outcome> {
    let progress = Progress::spinner("compiling the shipped policies");
    let mut reports = Vec::new();
    for policy in ShippedPolicy::all() {
        let inspection = inspect(engine, policy.name(), policy.wasm())?;
        reports.push(Report::new(policy.name(), inspection));
    }
    drop(progress);
    let mut table =
        Table::new(["policy", "version", "places", "size", "what it does"]).with_numbers(&[3]);
    for report in &reports {
        table.add_row([
            report.name.clone(),
            report.version.clone().unwrap_or_default(),
            report.kinds(),
            show_bytes(report.size_bytes as u64),
            report.description.clone().unwrap_or_default(),
        ]);
    }
    output.table(&table)?;
    for report in &reports {
        show_settings(report, output)?;
    }
    output.json(&reports)?;
    Ok(Outcome::Done)
}

fn show(report: &Report, output: &mut Output) -> Result<()> {
    let mut table = Table::new(["policy", &report.name]);
    let list = |names: &[String]| match names.split_at_checked(NAMES_SHOWN_MAX) {
        _ if names.is_empty() => "none".to_owned(),
        Some((shown, rest)) if !rest.is_empty() => {
            format!("{}\nand {} more", shown.join("\n"), rest.len())
        }
        _ => names.join("\n"),
    };
    let none = || "not stated".to_owned();
    for (key, value) in [
        ("version", report.version.clone().unwrap_or_else(none)),
        (
            "description",
            report.description.clone().unwrap_or_else(none),
        ),
        (
            "file",
            format!("{}, {}", report.form, show_bytes(report.size_bytes as u64)),
        ),
        (
            "contract",
            format!(
                "{}; this host implements {}",
                report.contract.clone().unwrap_or_else(none),
                report.host_contract
            ),
        ),
        ("SDK", report.sdk.clone().unwrap_or_else(none)),
        ("places", report.kinds()),
        ("imports", list(&report.imports)),
        ("exports", list(&report.exports)),
        ("result", report.usability()),
    ] {
        table.add_row([key.to_owned(), value]);
    }
    output.table(&table)?;
    show_settings(report, output)
}

fn show_settings(report: &Report, output: &mut Output) -> Result<()> {
    if report.settings.is_empty() {
        return Ok(());
    }
    output.line("")?;
    let head = format!("setting of {}", report.name);
    let mut table = Table::new([head.as_str(), "kind", "default", "what it does"]);
    for setting in &report.settings {
        table.add_row([
            &setting.key,
            &setting.kind,
            &setting.default,
            &setting.description,
        ]);
    }
    output.table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_places_online_only_is_for_the_library() {
        let shipped = ShippedPolicy::find("round-robin").expect("shipped");
        let engine = PolicyEngine::new(PolicyLimits::default()).expect("an engine");
        let inspection = inspect(&engine, "mine", shipped.wasm()).expect("WebAssembly");
        let mut report = Report::new("mine", inspection);
        assert_eq!(report.usability(), "usable");
        report.is_whole_graph = false;
        assert!(
            report.usability().contains("library only"),
            "{}",
            report.usability()
        );
        report.error = Some("too old".to_owned());
        assert_eq!(report.usability(), "not usable: too old");
    }
}
