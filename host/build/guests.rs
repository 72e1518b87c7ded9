//! Builds packages of this workspace for wasm32 from a build script. Shared by the build scripts of
//! `host` and `tests/fixtures`.
//!
//! The inner cargo has its own target directory, or it would wait for the outer one forever. The
//! variables that the outer cargo sets, and flags for the host (and clippy), are removed so that
//! they do not reach the guests.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The profile of the workspace's manifest.
const PROFILE: &str = "guest";

/// A build of guest packages.
pub(crate) struct GuestBuild<'a> {
    /// Root of the workspace.
    pub(crate) workspace: &'a Path,
    /// Packages, each a `cdylib`.
    pub(crate) packages: &'a [String],
    /// Changes to the profile, as `KEY=VALUE`. All builds share the profile itself, so that the
    /// bindings' generator is built once.
    pub(crate) profile_changes: &'a [&'a str],
}

impl GuestBuild<'_> {
    /// Builds the packages and returns the folder with the `.wasm` files. If nothing has changed,
    /// this costs one run of cargo, about 0.1 s.
    pub(crate) fn run(&self) -> Result<PathBuf, Box<dyn Error>> {
        let target_dir = target_dir()?.join("guests");
        fs::create_dir_all(&target_dir)?;
        ensure_wasm_target(&target_dir)?;
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        for (name, _) in env::vars_os() {
            if is_of_outer_build(&name) {
                cargo.env_remove(name);
            }
        }
        cargo
            .current_dir(self.workspace)
            .args(["build", "--locked", "--lib", "--target", WASM_TARGET])
            .args(["--profile", PROFILE])
            .arg("--target-dir")
            .arg(&target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", self.rustflags()?);
        for package in self.packages {
            cargo.args(["--package", package]);
        }
        for change in self.profile_changes {
            cargo.args(["--config", &format!("profile.{PROFILE}.{change}")]);
        }
        let output = cargo.output()?;
        if !output.status.success() {
            let packages = self.packages.join(" ");
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{stderr}\nbuilding {packages} for {WASM_TARGET} failed").into());
        }
        Ok(target_dir.join(WASM_TARGET).join(PROFILE))
    }

    /// Returns the flags: `simd128` (1.25x instead of 1.6x native), and no path of this machine in
    /// the output.
    fn rustflags(&self) -> Result<OsString, Box<dyn Error>> {
        let mut flags = OsString::from("-Ctarget-feature=+simd128");
        let mut remap = |from: &Path, to: &str| {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        };
        remap(self.workspace, "/placewright");
        if let Some(cargo_home) = cargo_home() {
            remap(&cargo_home, "/cargo");
        }
        // With the component rust-src, rustc names the library's sources by their path on this
        // machine.
        let verbose = rustc(&["-vV"])?;
        let commit = verbose
            .lines()
            .find_map(|line| line.strip_prefix("commit-hash: "));
        if let Some(commit) = commit {
            let sources = Path::new(&rustc(&["--print", "sysroot"])?).join("lib/rustlib/src/rust");
            remap(&sources, &format!("/rustc/{commit}"));
        }
        Ok(flags)
    }
}

/// Runs a build script. An error is printed as it is, not in its `Debug` form on one line.
#[expect(clippy::print_stderr, reason = "cargo shows it when the build fails")]
pub(crate) fn run_or_exit(build: impl FnOnce() -> Result<(), Box<dyn Error>>) {
    if let Err(error) = build() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Returns the name of the file that a package builds to.
pub(crate) fn file_name(package: &str) -> String {
    format!("{}.wasm", package.replace('-', "_"))
}

/// Writes a file unless it already has these bytes, so that a new time stamp does not cause a
/// rebuild.
pub(crate) fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::read(path) {
        Ok(present) if present == bytes => Ok(()),
        _ => fs::write(path, bytes),
    }
}

/// Returns whether cargo, clippy or a wrapper set a variable for the outer build. Variables with
/// the locations of crates are kept.
fn is_of_outer_build(name: &OsString) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    let is_source_of_crates = name == "CARGO_HOME"
        || [
            "CARGO_HTTP_",
            "CARGO_NET_",
            "CARGO_REGISTR",
            "CARGO_SOURCE_",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let is_outer = ["CARGO", "RUSTC", "RUSTDOC", "CLIPPY"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    (is_outer && !is_source_of_crates) || name == "RUSTFLAGS" || name == "__CARGO_FIX_PLZ"
}

/// Returns the outer build's target directory: `OUT_DIR` is
/// `TARGET_DIR[/TRIPLE]/PROFILE/build/PACKAGE/out`.
fn target_dir() -> Result<PathBuf, Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let above_profile = out_dir
        .ancestors()
        .nth(4)
        .ok_or("OUT_DIR is not below a target directory")?;
    let is_triple = above_profile.file_name() == env::var_os("TARGET").as_deref();
    match above_profile.parent() {
        Some(parent) if is_triple => Ok(parent.to_owned()),
        _ => Ok(above_profile.to_owned()),
    }
}

/// Installs the standard library for wasm32 if it is missing and rustup is available.
fn ensure_wasm_target(target_dir: &Path) -> Result<(), Box<dyn Error>> {
    // Two build scripts may find it missing at once, and rustup installs one thing at a time.
    let lock = fs::File::create(target_dir.join(".rustup-lock"))?;
    lock.lock()?;
    let library = rustc(&["--print", "target-libdir", "--target", WASM_TARGET])?;
    if Path::new(&library).is_dir() {
        return Ok(());
    }
    let Ok(toolchain) = env::var("RUSTUP_TOOLCHAIN") else {
        return Err(format!(
            "the guests need Rust's standard library for {WASM_TARGET}, which is not in {library}; with rustup, run \
             `rustup target add {WASM_TARGET}`, else install your distribution's package for it"
        )
        .into());
    };
    let arguments = ["target", "add", "--toolchain", &toolchain, WASM_TARGET];
    let added = Command::new("rustup").args(arguments).output();
    if matches!(&added, Ok(output) if output.status.success()) {
        return Ok(());
    }
    let why = match added {
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let command = arguments.join(" ");
    Err(format!(
        "the guests need {WASM_TARGET}; run `rustup {command}` with network access ({why})"
    )
    .into())
}

fn rustc(arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn cargo_home() -> Option<PathBuf> {
    let default = || Some(env::home_dir()?.join(".cargo"));
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(default)
}
