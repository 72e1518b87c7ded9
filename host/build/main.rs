//! Builds the shipped policies for wasm32 and embeds them in the host: `OUT_DIR/policies.rs`.
//!
//! In the workspace they are built from `guest/policies`. A packaged crate contains them prebuilt,
//! in `policies/`, so crates that depend on it need neither the wasm target nor the sources.

#![expect(
    clippy::print_stdout,
    reason = "the interface of build scripts to cargo"
)]

mod guests;

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use guests::GuestBuild;

/// The shipped policies; the crate of each is `policy-NAME`.
const SHIPPED: [&str; 17] = [
    "auto",
    "cpop",
    "dmda",
    "dmdas",
    "hbmct",
    "heft",
    "layers",
    "lookahead",
    "lws",
    "m-etf",
    "m-sct",
    "m-topo",
    "peft",
    "pipeline",
    "priority",
    "round-robin",
    "search",
];

/// Those that contain others. Each is built alone: in one build, cargo would turn on the wasm
/// exports of the policies that it contains, and a module has one set of exports.
const COMBINED: [&str; 3] = ["auto", "dmdas", "search"];

fn main() {
    guests::run_or_exit(build);
}

fn build() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let mut table = String::from(
        "/// The shipped policies as core modules: name and bytes.\npub(crate) static SHIPPED_WASM: &[(&str, &[u8])] = &[\n",
    );
    let built = built_policies(&manifest_dir)?;
    for (name, from) in SHIPPED.iter().zip(built) {
        let to = out_dir.join(format!("{name}.wasm"));
        let bytes = fs::read(&from).map_err(|error| {
            format!(
                "{}: {error}; package this crate with `.ci/package`",
                from.display()
            )
        })?;
        guests::write_if_changed(&to, &bytes)?;
        writeln!(table, "    ({name:?}, include_bytes!({to:?})),")?;
    }
    table.push_str("];\n");
    guests::write_if_changed(&out_dir.join("policies.rs"), table.as_bytes())?;
    Ok(())
}

/// Returns the paths of the built policies, in the order of [`SHIPPED`].
fn built_policies(manifest_dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let workspace = manifest_dir.parent().unwrap_or(manifest_dir);
    if workspace.join("guest/sdk/Cargo.toml").is_file() {
        let package = |name: &&str| format!("policy-{name}");
        let (combined, simple): (Vec<&str>, Vec<&str>) =
            SHIPPED.iter().partition(|name| COMBINED.contains(name));
        let mut builds = vec![simple.iter().map(package).collect::<Vec<_>>()];
        builds.extend(combined.iter().map(|name| vec![package(name)]));
        for path in [
            "guest/sdk",
            "guest/policies",
            "wit",
            "Cargo.toml",
            "Cargo.lock",
        ] {
            println!("cargo::rerun-if-changed={}", workspace.join(path).display());
        }
        println!("cargo::rerun-if-changed=build");
        let mut folder = PathBuf::new();
        for packages in &builds {
            let build = GuestBuild {
                workspace,
                packages,
                profile_changes: &[],
            };
            folder = build.run()?;
        }
        let built = |name: &&str| folder.join(guests::file_name(&package(name)));
        Ok(SHIPPED.iter().map(built).collect())
    } else {
        println!("cargo::rerun-if-changed=policies");
        println!("cargo::rerun-if-changed=build");
        let carried = manifest_dir.join("policies");
        Ok(SHIPPED
            .iter()
            .map(|name| carried.join(format!("{name}.wasm")))
            .collect())
    }
}
