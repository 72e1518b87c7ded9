//! The crates, packaged together, work in an app outside the workspace that has no wasm target.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use placewright::policy::ShippedPolicy;

/// The packages that are published together.
const PACKAGES: [&str; 20] = [
    "placewright-guest",
    "policy-auto",
    "policy-cpop",
    "policy-dmda",
    "policy-dmdas",
    "policy-hbmct",
    "policy-heft",
    "policy-layers",
    "policy-lookahead",
    "policy-lws",
    "policy-m-etf",
    "policy-m-sct",
    "policy-m-topo",
    "policy-peft",
    "policy-pipeline",
    "policy-priority",
    "policy-round-robin",
    "policy-search",
    "placewright",
    "placewright-fixtures",
];

const APP: &str = r#"
use placewright::policy::{PolicyEngine, PolicyLimits, ShippedPolicy};

fn main() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    for shipped in ShippedPolicy::all() {
        engine.load(shipped.name(), shipped.wasm(), &[]).unwrap();
    }
}
"#;

/// A test of the app. It compiles only if the package contains all fixtures.
const APP_TEST: &str = r#"
use placewright::policy::{PolicyEngine, PolicyErrorKind, PolicyLimits};

const _: () = assert!(placewright_fixtures::ALL.len() == N_FIXTURES);

#[test]
fn a_policy_of_another_contract_is_refused() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let wasm = placewright_fixtures::wasm("old-contract");
    let error = engine.load("old-contract", wasm, &[]).unwrap_err();
    assert!(matches!(*error.kind, PolicyErrorKind::Incompatible { .. }), "{error}");
}
"#;

#[test]
fn packaged_crates_serve_an_app_without_the_wasm_target() {
    let workspace = workspace();
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packaging");
    // The app's earlier build may stay: only the packages are new.
    let _ = fs::remove_dir_all(scratch.join("package"));
    let packages = package(&workspace, &scratch);

    for (package, folder, name, wasm) in prebuilt() {
        let file = format!("{package}-{}/{folder}/{name}.wasm", version());
        let carried = fs::read(packages.join(&file)).unwrap();
        assert!(carried == wasm, "{file} is not the one built");
    }

    let app = scratch.join("app");
    write_app(&workspace, &packages, &app);
    // All files in packages have one date, by which cargo would find nothing new in them.
    for built in fs::read_dir(scratch.join("target/debug/.fingerprint"))
        .into_iter()
        .flatten()
    {
        let built = built.unwrap();
        let name = built.file_name().into_string().unwrap();
        if name.starts_with("placewright") || name.starts_with("policy-") {
            fs::remove_dir_all(built.path()).unwrap();
        }
    }
    // If a build script builds guests, it does so here.
    let guests = scratch.join("target/guests");
    let _ = fs::remove_dir_all(&guests);
    let output = cargo()
        .args(["check", "--all-targets", "--offline", "--quiet"])
        .current_dir(&app)
        // Not the workspace's folder: libraries that are also cdylibs have no hash in their file
        // names, and would replace its own.
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!guests.exists(), "the app's build made guests");
}

/// Returns what packages contain prebuilt: package, folder in it, name and core module.
fn prebuilt() -> Vec<(&'static str, &'static str, &'static str, &'static [u8])> {
    let shipped = ShippedPolicy::all()
        .map(|shipped| ("placewright", "policies", shipped.name(), shipped.wasm()));
    let example = ("branches", placewright_fixtures::README_POLICY);
    let fixtures = placewright_fixtures::ALL
        .iter()
        .chain([&example])
        .map(|(name, wasm)| ("placewright-fixtures", "prebuilt", *name, *wasm));
    shipped.chain(fixtures).collect()
}

/// Packages the crates with what they contain prebuilt, and unpacks them; returns the folder that
/// contains them.
fn package(workspace: &Path, scratch: &Path) -> PathBuf {
    let carried = [
        ("placewright", workspace.join("host/policies")),
        (
            "placewright-fixtures",
            workspace.join("tests/fixtures/prebuilt"),
        ),
    ];
    for (package, folder) in &carried {
        // Without the files of fixtures that were renamed since.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
        for (_, _, name, wasm) in prebuilt().iter().filter(|file| file.0 == *package) {
            fs::write(folder.join(format!("{name}.wasm")), wasm).unwrap();
        }
    }
    let mut command = cargo();
    command
        .args([
            "package",
            "--offline",
            "--no-verify",
            "--allow-dirty",
            "--quiet",
        ])
        .arg("--target-dir")
        .arg(scratch)
        .current_dir(workspace);
    for name in PACKAGES {
        command.args(["--package", name]);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let folder = scratch.join("package");
    for name in PACKAGES {
        let archive = format!("{name}-{}.crate", version());
        let unpacked = Command::new("tar")
            .args(["-xzf", &archive])
            .current_dir(&folder)
            .status();
        assert!(unpacked.unwrap().success(), "{archive}");
    }
    folder
}

fn write_app(workspace: &Path, packages: &Path, app: &Path) {
    let mut manifest = format!(
        "[package]\nname = \"app\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nplacewright = {{ version = \"{0}\", default-features = false }}\n\n\
         [dev-dependencies]\nplacewright-fixtures = \"{0}\"\n\n[patch.crates-io]\n",
        version()
    );
    for name in PACKAGES {
        let path = packages.join(format!("{name}-{}", version()));
        manifest.push_str(&format!("{name} = {{ path = {path:?} }}\n"));
    }
    fs::create_dir_all(app.join("src")).unwrap();
    fs::write(app.join("Cargo.toml"), manifest).unwrap();
    fs::write(app.join("src/main.rs"), APP).unwrap();
    let n_fixtures = placewright_fixtures::ALL.len().to_string();
    fs::create_dir_all(app.join("tests")).unwrap();
    fs::write(
        app.join("tests/misbehaving.rs"),
        APP_TEST.replace("N_FIXTURES", &n_fixtures),
    )
    .unwrap();
    // The versions in use, so that nothing has to be downloaded; cargo drops what the app does not
    // need.
    fs::copy(workspace.join("Cargo.lock"), app.join("Cargo.lock")).unwrap();
    fs::copy(
        workspace.join("rust-toolchain.toml"),
        app.join("rust-toolchain.toml"),
    )
    .unwrap();
}

/// Returns the cargo that runs this test, without the variables that it sets for tests.
fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let is_of_package = name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_"));
        if is_of_package || name == "CARGO_MANIFEST_DIR" || name == "RUSTFLAGS" {
            command.env_remove(name);
        }
    }
    command
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}
