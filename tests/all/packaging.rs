//! The crates, packaged together, serve an app outside the workspace that has no wasm target.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use placewright::policy::ShippedPolicy;

/// The packages that go out together.
const PACKAGES: [&str; 5] = [
    "placewright-guest",
    "policy-heft",
    "policy-priority",
    "policy-round-robin",
    "placewright",
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

#[test]
fn packaged_crates_serve_an_app_without_the_wasm_target() {
    let workspace = workspace();
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("packaging");
    // What the app was built from last time may stay: only the packages are new.
    let _ = fs::remove_dir_all(scratch.join("package"));
    let packages = package(&workspace, &scratch);

    for shipped in ShippedPolicy::all() {
        let carried = packages.join(format!("placewright-{}/policies", version()));
        let carried = fs::read(carried.join(format!("{}.wasm", shipped.name()))).unwrap();
        assert!(
            carried == shipped.wasm(),
            "{} is not the one built",
            shipped.name()
        );
    }

    let app = scratch.join("app");
    write_app(&workspace, &packages, &app);
    // Here the build script of the host builds guests, where it does.
    let guests = scratch.join("target/guests");
    let _ = fs::remove_dir_all(&guests);
    let output = cargo()
        .args(["check", "--offline", "--quiet"])
        .current_dir(&app)
        // Not the workspace's: libraries that are a cdylib too have no hash in their file names and
        // would replace its own.
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!guests.exists(), "the app's build made guests");
}

/// Packages the crates with the built policies and unpacks them; returns the folder that holds
/// them.
fn package(workspace: &Path, scratch: &Path) -> PathBuf {
    let carried = workspace.join("host/policies");
    fs::create_dir_all(&carried).unwrap();
    for shipped in ShippedPolicy::all() {
        fs::write(
            carried.join(format!("{}.wasm", shipped.name())),
            shipped.wasm(),
        )
        .unwrap();
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
         [dependencies]\nplacewright = {{ version = \"{}\", default-features = false }}\n\n[patch.crates-io]\n",
        version()
    );
    for name in PACKAGES {
        let path = packages.join(format!("{name}-{}", version()));
        manifest.push_str(&format!("{name} = {{ path = {path:?} }}\n"));
    }
    fs::create_dir_all(app.join("src")).unwrap();
    fs::write(app.join("Cargo.toml"), manifest).unwrap();
    fs::write(app.join("src/main.rs"), APP).unwrap();
    // The versions that are there, so that nothing has to be downloaded; cargo drops what the app
    // does not need.
    fs::copy(workspace.join("Cargo.lock"), app.join("Cargo.lock")).unwrap();
    fs::copy(
        workspace.join("rust-toolchain.toml"),
        app.join("rust-toolchain.toml"),
    )
    .unwrap();
}

/// The cargo that runs this test, without what it sets for tests.
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
