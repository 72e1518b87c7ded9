//! Reads a file without compiling it: module or component, its imports and exports, its version of
//! the contract.

use std::collections::HashSet;
use std::fmt;

use wasmparser::{BinaryReaderError, Encoding, Import, Imports, Parser, Payload};
use wasmtime::Engine;

use super::error::PolicyErrorKind;
use super::limits::PolicyLimits;
use super::messages::truncate;
use super::structure::{n_definitions, too_many_definitions};

/// The package of the contract.
const PACKAGE: &str = "placewright:policy";
/// The version of the contract that this host supports. A policy for a later 0.1.z loads if it does
/// not call the additions.
pub const CONTRACT_VERSION: ContractVersion = ContractVersion {
    major: 0,
    minor: 1,
    patch: 0,
};
/// The interfaces that a policy may import.
const IMPORTS: [&str; 5] = ["types", "devices", "graphs", "planning", "log"];
/// The custom section with the version of the SDK.
const SDK_SECTION: &str = "placewright:sdk";
/// Bytes kept of it.
const SDK_VERSION_BYTES_MAX: usize = 64;

/// A version of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "semantic versioning")]
pub struct ContractVersion {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
}

impl ContractVersion {
    fn parse(text: &str) -> Option<Self> {
        // The part after the patch number does not matter for compatibility.
        let text = text.split(['-', '+']).next()?;
        let mut parts = text.split('.').map(str::parse);
        let mut part = || parts.next()?.ok();
        Some(Self {
            major: part()?,
            minor: part()?,
            patch: part()?,
        })
    }

    /// Returns whether one may call the other, as long as neither uses what the other lacks.
    fn is_compatible(self, other: Self) -> bool {
        self.major == other.major && (self.major > 0 || self.minor == other.minor)
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The form of a policy's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WasmForm {
    /// A core module, the output of compilers for `wasm32-unknown-unknown`. The host wraps it as a
    /// component.
    Module,
    /// A component.
    Component,
}

impl fmt::Display for WasmForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Module => "core module",
            Self::Component => "component",
        })
    }
}

/// The contents of the file, read without compiling it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) form: WasmForm,
    /// Interfaces and, for a core module, also single functions; without duplicates.
    pub(super) imports: Vec<String>,
    pub(super) exports: Vec<String>,
    /// The version of the SDK, if the policy was built with it.
    pub(super) sdk_version: Option<String>,
}

impl Facts {
    /// Reads the bytes of a policy.
    ///
    /// # Errors
    /// [`PolicyErrorKind::NotWasm`] if they are not WebAssembly, [`PolicyErrorKind::TooLarge`]
    /// or [`PolicyErrorKind::TooComplex`] if reading or compiling them would take too long.
    pub(super) fn read(bytes: &[u8], limits: &PolicyLimits) -> Result<Self, PolicyErrorKind> {
        let form = form_of(bytes)?;
        at_most("wasm_bytes", bytes.len(), limits.wasm_bytes)?;
        let mut facts = Self {
            form,
            imports: Vec::new(),
            exports: Vec::new(),
            sdk_version: None,
        };
        facts.walk(bytes, limits)?;
        Ok(facts)
    }

    /// Refuses policies that cannot work, before they are compiled.
    ///
    /// # Errors
    /// [`PolicyErrorKind::Incompatible`], [`PolicyErrorKind::UnknownImport`] or
    /// [`PolicyErrorKind::MissingExport`].
    pub(super) fn check(&self) -> Result<(), PolicyErrorKind> {
        let names = || self.imports.iter().chain(&self.exports);
        // Check the version first: a policy for another version may import and export other
        // interfaces too.
        if let Some(version) = self.contract_version()
            && let Some(name) = names().find(|name| {
                contract_part(name)
                    .and_then(|(_, version)| version)
                    .is_some_and(|version| !version.is_compatible(CONTRACT_VERSION))
            })
        {
            return Err(incompatible(version, format!("it names `{name}`")));
        }
        let unknown: Vec<_> = self
            .imports
            .iter()
            .filter(|name| contract_part(name).is_none())
            .cloned()
            .collect();
        if !unknown.is_empty() {
            return Err(PolicyErrorKind::UnknownImport { names: unknown });
        }
        if let Some(name) = self
            .imports
            .iter()
            .find(|name| contract_part(name).is_some_and(|(part, _)| !IMPORTS.contains(&part)))
        {
            let version = self.contract_version().unwrap_or(CONTRACT_VERSION);
            return Err(incompatible(
                version,
                format!("it imports `{name}`, which this host does not provide"),
            ));
        }
        if !self.has_export("lifecycle") {
            return Err(PolicyErrorKind::MissingExport {
                export: "lifecycle",
            });
        }
        if !self.has_export("whole-graph") && !self.has_export("online") {
            return Err(PolicyErrorKind::MissingExport {
                export: "whole-graph",
            });
        }
        Ok(())
    }

    /// Returns whether an interface of the contract is exported.
    pub(super) fn has_export(&self, interface: &str) -> bool {
        self.exports
            .iter()
            .any(|name| contract_part(name).is_some_and(|(part, _)| part == interface))
    }

    /// Returns the newest version of the contract that the policy names.
    pub(super) fn contract_version(&self) -> Option<ContractVersion> {
        self.imports
            .iter()
            .chain(&self.exports)
            .filter_map(|name| contract_part(name)?.1)
            .max()
    }

    /// Reads the file, up to the limits.
    fn walk(&mut self, bytes: &[u8], limits: &PolicyLimits) -> Result<(), PolicyErrorKind> {
        let mut names = Names::default();
        let mut n_functions = 0_usize;
        let mut n_items = 0_u64;
        // A component satisfies the imports of its inner modules and components itself: only the
        // outermost count.
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(|error| damaged(&error))?;
            n_items += n_definitions(&payload);
            if n_items > limits.items as u64 {
                return Err(too_many_definitions(n_items, limits));
            }
            match payload {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::CustomSection(section) if section.name() == SDK_SECTION => {
                    let version = String::from_utf8_lossy(section.data());
                    self.sdk_version = Some(truncate(&version, SDK_VERSION_BYTES_MAX).to_owned());
                }
                Payload::CodeSectionStart { count, .. } => {
                    n_functions = n_functions.saturating_add(count as usize);
                    at_most("functions", n_functions, limits.functions)?;
                }
                Payload::ImportSection(section) => {
                    for group in section {
                        let group = group.map_err(|error| damaged(&error))?;
                        let import = single(&group)?;
                        if depth == 0 {
                            names.import(import);
                        }
                    }
                }
                payload if depth == 0 => {
                    names.read(payload).map_err(|error| damaged(&error))?;
                }
                _ => {}
            }
        }
        self.imports = names.imports.listed;
        self.exports = names.exports.listed;
        Ok(())
    }
}

/// Returns the import in the only form that the engine supports. A group names its module once for
/// all its members, so a list of full names could be far longer than the file.
fn single<'a>(group: &Imports<'a>) -> Result<Import<'a>, PolicyErrorKind> {
    match group {
        Imports::Single(_, import) => Ok(*import),
        Imports::Compact1 { .. } | Imports::Compact2 { .. } => Err(not_a_policy(
            "WebAssembly with compact imports, a proposal that this host does not support",
            "build it for Wasm 2.0",
        )),
    }
}

/// The names of the imports and exports of the outermost component or module.
#[derive(Debug, Default)]
struct Names {
    imports: Distinct,
    exports: Distinct,
}

impl Names {
    fn import(&mut self, import: Import<'_>) {
        if import.module.contains('/') {
            self.imports.push(import.module);
        } else {
            self.imports
                .push(&format!("{}.{}", import.module, import.name));
        }
    }

    fn read(&mut self, payload: Payload<'_>) -> Result<(), BinaryReaderError> {
        match payload {
            Payload::ExportSection(section) => {
                for export in section {
                    // The interface of an exported function is the part before the `#`.
                    let name = export?.name.split('#').next().unwrap_or_default();
                    self.exports.push(name);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    self.imports.push(import?.name.name);
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    self.exports.push(export?.name.name);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Names without duplicates, in order.
#[derive(Debug, Default)]
struct Distinct {
    listed: Vec<String>,
    /// The same names for lookups: a file may have a hundred thousand.
    seen: HashSet<String>,
}

impl Distinct {
    fn push(&mut self, name: &str) {
        if !self.seen.contains(name) {
            self.seen.insert(name.to_owned());
            self.listed.push(name.to_owned());
        }
    }
}

/// Returns the error for bytes that cannot be parsed.
pub(super) fn damaged(error: &BinaryReaderError) -> PolicyErrorKind {
    not_a_policy(
        format!("damaged WebAssembly: {error}"),
        "build it again, or copy it again",
    )
}

/// Returns the error for a policy that is incompatible with this host's version, or violates it.
pub(super) fn incompatible(policy: ContractVersion, detail: String) -> PolicyErrorKind {
    if policy == CONTRACT_VERSION {
        return not_a_policy(
            format!("it names contract {policy} and violates it: {detail}"),
            "build it with the SDK or another bindings generator",
        );
    }
    PolicyErrorKind::Incompatible {
        policy: policy.to_string(),
        host: CONTRACT_VERSION.to_string(),
        detail,
    }
}

fn not_a_policy(what: impl Into<String>, remedy: &'static str) -> PolicyErrorKind {
    PolicyErrorKind::NotAPolicy {
        what: what.into(),
        remedy,
    }
}

fn form_of(bytes: &[u8]) -> Result<WasmForm, PolicyErrorKind> {
    if Parser::is_core_wasm(bytes) {
        return Ok(WasmForm::Module);
    }
    if Parser::is_component(bytes) {
        return Ok(WasmForm::Component);
    }
    let build =
        "pass a .wasm file, such as `cargo build --release --target wasm32-unknown-unknown` writes";
    let (what, remedy) = if bytes.is_empty() {
        ("it is empty", build)
    } else if Engine::detect_precompiled(bytes).is_some() {
        // Native code of unknown origin would run outside the sandbox.
        (
            "it is a precompiled policy, which cannot be trusted",
            "pass the .wasm file that it was compiled from",
        )
    } else if bytes.trim_ascii_start().starts_with(b"(") {
        (
            "it is WebAssembly text",
            "convert it to a binary with `wasm-tools parse`",
        )
    } else if bytes.starts_with(b"\0asm") {
        let encoding = match bytes.get(6) {
            Some(0) => Encoding::Module,
            _ => Encoding::Component,
        };
        return Err(not_a_policy(
            format!("WebAssembly of an unknown version ({encoding:?})"),
            "use a current compiler",
        ));
    } else {
        ("it does not begin with `\\0asm`", build)
    };
    Err(PolicyErrorKind::NotWasm { what, remedy })
}

/// Returns the interface and version of a name such as `placewright:policy/graphs@0.1.0`, or `None`
/// for another package.
fn contract_part(name: &str) -> Option<(&str, Option<ContractVersion>)> {
    let part = name.strip_prefix(PACKAGE)?.strip_prefix('/')?;
    Some(match part.split_once('@') {
        Some((interface, version)) => (interface, ContractVersion::parse(version)),
        None => (part, None),
    })
}

fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), PolicyErrorKind> {
    if found > limit {
        return Err(PolicyErrorKind::TooLarge { what, found, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(wat: &str) -> Facts {
        Facts::read(&wat::parse_str(wat).unwrap(), &PolicyLimits::default()).unwrap()
    }

    #[test]
    fn bytes_and_functions_are_limited_before_a_compiler_sees_them() {
        let text = r#"(component
            (core module (func) (func))
            (component (core module (func))))"#;
        let bytes = wat::parse_str(text).unwrap();
        let n_bytes = bytes.len();
        let read = |wasm_bytes, functions| {
            let limits = PolicyLimits::default()
                .with_wasm_bytes(wasm_bytes)
                .with_functions(functions);
            Facts::read(&bytes, &limits)
        };
        read(n_bytes, 3).unwrap();
        let error = read(n_bytes - 1, 3).unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::TooLarge { what: "wasm_bytes", found, .. } if *found == n_bytes),
            "{error}"
        );
        let error = read(n_bytes, 2).unwrap_err();
        assert!(
            matches!(
                &error,
                PolicyErrorKind::TooLarge {
                    what: "functions",
                    found: 3,
                    limit: 2
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("`PolicyLimits::functions`"));
    }

    #[test]
    fn names_are_told_apart_and_limited() {
        use std::fmt::Write;

        let exports = |n: usize| {
            let mut text = String::from("(module (func $f)");
            for index in 0..n {
                write!(text, "(export \"e{index}\" (func $f))").unwrap();
            }
            text.push(')');
            wat::parse_str(text).unwrap()
        };
        let limits = PolicyLimits::default();
        // With the function's type.
        let facts = Facts::read(&exports(limits.items - 1), &limits).unwrap();
        assert_eq!(facts.exports.len(), limits.items - 1);
        let error = Facts::read(&exports(limits.items), &limits).unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::TooComplex { what: "items", .. }),
            "{error}"
        );
    }

    /// A few bytes for each of thousands of imports from a module with a long name.
    #[test]
    fn compact_imports_are_refused_before_names_are_made_of_them() {
        let module = "m".repeat(60);
        let mut section = vec![1, 60];
        section.extend(module.bytes());
        // No name, the mark of a group with one type, a function's type, two names.
        section.extend([0, 0x7e, 0, 0, 2, 1, b'a', 1, b'b']);
        let mut bytes = wat::parse_str("(module (type (func)))").unwrap();
        bytes.push(2);
        bytes.push(u8::try_from(section.len()).unwrap());
        bytes.extend(section);
        let error = Facts::read(&bytes, &PolicyLimits::default()).unwrap_err();
        assert!(error.to_string().contains("compact imports"), "{error}");
    }

    #[test]
    fn versions_within_a_minor_of_zero_go_together() {
        let version = |text| ContractVersion::parse(text).unwrap();
        assert!(version("0.1.7").is_compatible(version("0.1.0")));
        assert!(!version("0.2.0").is_compatible(version("0.1.0")));
        assert!(version("1.2.0").is_compatible(version("1.0.3-rc.1")));
        assert!(!version("1.0.0").is_compatible(version("0.1.0")));
        assert_eq!(ContractVersion::parse("0.1"), None);
        assert_eq!(ContractVersion::parse("latest"), None);
    }

    #[test]
    fn only_the_outermost_imports_and_exports_count() {
        let facts = facts(
            r#"(component
                (core module (import "inner" "f" (func)) (export "g" (func 0)))
                (import "placewright:policy/log@0.1.2" (instance))
                (component (import "nested" (func)))
                (instance $i)
                (export "placewright:policy/lifecycle@0.1.0" (instance $i)))"#,
        );
        assert_eq!(facts.form, WasmForm::Component);
        assert_eq!(facts.imports, ["placewright:policy/log@0.1.2"]);
        assert_eq!(facts.exports, ["placewright:policy/lifecycle@0.1.0"]);
        assert_eq!(facts.contract_version().unwrap().to_string(), "0.1.2");
    }

    #[test]
    fn a_module_names_interfaces_and_functions() {
        let facts = facts(
            r#"(module
                (import "placewright:policy/log@0.1.0" "threshold" (func (result i32)))
                (import "placewright:policy/log@0.1.0" "emit" (func))
                (import "env" "clock" (func))
                (func $f)
                (export "placewright:policy/lifecycle@0.1.0#describe" (func $f))
                (@custom "placewright:sdk" "0.1.3"))"#,
        );
        assert_eq!(facts.form, WasmForm::Module);
        assert_eq!(facts.imports, ["placewright:policy/log@0.1.0", "env.clock"]);
        assert!(facts.has_export("lifecycle"));
        assert_eq!(facts.sdk_version.as_deref(), Some("0.1.3"));
        let error = facts.check().unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::UnknownImport { names } if names == &["env.clock"]),
            "{error}"
        );
    }

    #[test]
    fn each_kind_of_wrong_file_gets_its_own_words() {
        for (bytes, words) in [
            (&b""[..], "empty"),
            (b"(module)", "text"),
            (b"  (component)", "text"),
            (b"\x7fELF", "not a WebAssembly file"),
            (b"\0asm\x09\0\0\0", "unknown version"),
            (b"\0asm\x01\0\0\0\x01\x7f", "damaged WebAssembly"),
        ] {
            let error = Facts::read(bytes, &PolicyLimits::default())
                .unwrap_err()
                .to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn versions_and_parts_are_checked() {
        let component = |imports: &str, exports: &[&str]| {
            let exports: String = exports
                .iter()
                .map(|name| format!("(export \"placewright:policy/{name}\" (instance $i))"))
                .collect();
            facts(&format!("(component {imports} (instance $i) {exports})")).check()
        };
        let both = ["lifecycle@0.1.0", "whole-graph@0.1.0"];
        component("", &both).unwrap();
        component("", &["lifecycle@0.1.4", "online@0.1.4"]).unwrap();
        let error = component("", &["lifecycle@0.2.0", "whole-graph@0.2.0"]).unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::Incompatible { policy, host, .. } if policy == "0.2.0" && host == "0.1.0"),
            "{error}"
        );
        let newer = r#"(import "placewright:policy/telemetry@0.1.5" (instance))"#;
        let error = component(newer, &both).unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::Incompatible { policy, detail, .. } if policy == "0.1.5" && detail.contains("telemetry")),
            "{error}"
        );
        let wasi = r#"(import "wasi:io/poll@0.2.6" (instance)) (import "wasi:cli/stdin@0.2.6" (instance))"#;
        let error = component(wasi, &both).unwrap_err();
        assert!(
            matches!(&error, PolicyErrorKind::UnknownImport { names } if names.len() == 2),
            "{error}"
        );
        assert!(error.to_string().contains("wasm32-unknown-unknown"));
        for (exports, missing) in [
            (&["whole-graph@0.1.0"][..], "lifecycle"),
            (&["lifecycle@0.1.0"], "whole-graph"),
            (&[], "lifecycle"),
        ] {
            let error = component("", exports).unwrap_err();
            assert!(
                matches!(&error, PolicyErrorKind::MissingExport { export } if *export == missing),
                "{error}"
            );
        }
    }
}
