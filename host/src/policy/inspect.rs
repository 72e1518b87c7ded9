//! Inspects a policy without asking it for a placement: `placewright policy check`.

use serde::Serialize;

use super::engine::PolicyEngine;
use super::error::PolicyError;
use super::form::{ContractVersion, Facts, WasmForm};
use super::loaded::{LoadReport, LoadedPolicy};
use super::messages::Messages;
use super::v0_1::{PolicyInfo, PolicySetting};
use crate::serialize::{as_optional_string, as_string};

/// A policy's file and, if it loads, its description of itself.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct PolicyInspection {
    /// Module or component.
    #[serde(serialize_with = "as_string")]
    pub form: WasmForm,
    /// The size of the file.
    pub size_bytes: usize,
    /// Its imports.
    pub imports: Vec<String>,
    /// Its exports.
    pub exports: Vec<String>,
    /// The newest contract that it names.
    #[serde(serialize_with = "as_optional_string")]
    pub contract_version: Option<ContractVersion>,
    /// The version of the SDK that it was built with, if the file contains it.
    pub sdk_version: Option<String>,
    /// Whether it places whole graphs.
    pub is_whole_graph: bool,
    /// Whether it places ops while they run.
    pub is_online: bool,
    /// Its description and load times, or the reason why this host cannot use it.
    pub verdict: Result<LoadedInspection, PolicyError>,
}

/// A loaded policy's description of itself.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LoadedInspection {
    /// Name, version, description.
    pub info: PolicyInfo,
    /// Configuration keys.
    pub settings: Vec<PolicySetting>,
    /// How long loading took.
    pub load: LoadReport,
}

/// Inspects a policy; `name` is for messages.
///
/// # Errors
/// [`super::PolicyErrorKind::NotWasm`] if the bytes are not WebAssembly,
/// [`super::PolicyErrorKind::TooLarge`] if the file is too large to read. All other errors are in
/// [`PolicyInspection::verdict`].
pub fn inspect(
    engine: &PolicyEngine,
    name: &str,
    bytes: &[u8],
) -> Result<PolicyInspection, PolicyError> {
    let facts = Facts::read(bytes, engine.limits())
        .map_err(|kind| PolicyError::new(name, kind, Messages::default()))?;
    let verdict = engine.load(name, bytes, &[]);
    Ok(PolicyInspection {
        form: facts.form,
        size_bytes: bytes.len(),
        contract_version: facts.contract_version(),
        is_whole_graph: facts.has_export("whole-graph"),
        is_online: facts.has_export("online"),
        sdk_version: facts.sdk_version,
        imports: facts.imports,
        exports: facts.exports,
        verdict: verdict.map(|policy: LoadedPolicy| LoadedInspection {
            info: policy.info().clone(),
            settings: policy.settings().to_vec(),
            load: policy.load_report().clone(),
        }),
    })
}
