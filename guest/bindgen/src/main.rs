//! Writes the SDK's bindings of the contract, `guest/sdk/src/wasm/bindings/*.rs`. Run it after a
//! change of `wit/`: `cargo run -p placewright-bindgen`.
//!
//! wit-bindgen's macro would generate the same text in each build of a policy. Its generator takes
//! longer to compile than the policy, so the text is kept in the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use wit_bindgen_core::Files;
use wit_bindgen_core::WorldGenerator;
use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_rust::Opts;
use wit_bindgen_rust::WithOption;

/// The parts: a world of the contract, and the module and macro that export it. The first has the
/// imports' types, which the others use.
const PARTS: [(&str, &str); 3] = [
    ("lifecycle-part", "export_lifecycle"),
    ("whole-graph-part", "export_whole_graph"),
    ("online-part", "export_online"),
];

/// The interfaces that policies import.
const IMPORTS: [&str; 5] = ["types", "devices", "graphs", "planning", "log"];

fn main() -> anyhow::Result<()> {
    let folder = folder();
    for (module, text) in generate()? {
        let path = folder.join(format!("{module}.rs"));
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the folder of the generated files.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/src/wasm/bindings")
}

/// Returns the text of each module.
fn generate() -> anyhow::Result<BTreeMap<&'static str, String>> {
    let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit/v0.1");
    let types_of = PARTS[0].1;
    let mut modules = BTreeMap::new();
    for (world, module) in PARTS {
        let mut resolve = Resolve::default();
        let (package, _) = resolve
            .push_dir(&contract)
            .with_context(|| contract.display().to_string())?;
        let world = resolve.select_world(&[package], Some(world))?;
        let is_first = module == types_of;
        let with = |interface: &&str| {
            let path =
                format!("crate::wasm::bindings::{types_of}::placewright::policy::{interface}");
            (
                format!("placewright:policy/{interface}@0.1.0"),
                WithOption::Path(path),
            )
        };
        let options = Opts {
            format: true,
            generate_all: is_first,
            with: if is_first {
                Vec::new()
            } else {
                IMPORTS.iter().map(with).collect()
            },
            pub_export_macro: true,
            export_macro_name: Some(module.to_owned()),
            ..Opts::default()
        };
        let mut files = Files::default();
        options.build().generate(&mut resolve, world, &mut files)?;
        let (_, text) = files
            .iter()
            .next()
            .context("the generator returned no file")?;
        modules.insert(module, std::str::from_utf8(text)?.to_owned());
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bindings_are_those_of_the_contract() {
        for (module, text) in generate().unwrap() {
            let path = folder().join(format!("{module}.rs"));
            let present = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                present == text,
                "{}: not what the contract gives; run `cargo run -p placewright-bindgen`",
                path.display()
            );
        }
    }
}
