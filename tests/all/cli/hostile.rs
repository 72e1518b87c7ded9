//! Files that cannot be what the user claims: each is rejected at once, whatever its size.

use std::fs::File;
use std::path::Path;

use tempfile::tempdir;

use super::args;
use super::model;
use super::path_in;
use super::placewright;

/// Commands that read a file, which is the second `{}`.
const COMMANDS: [&str; 7] = [
    "place {} --policy {} --strict-policy",
    "place {} --placement {}",
    "place {} --keep {}",
    "run {} --feeds {}",
    "run {} --check {}",
    "run {} --placement {}",
    "run {} --policy {} --strict-policy",
];

/// `policy_status`: 2 if the file cannot be read, as a wrong argument; 1 if a policy is too large.
fn is_refused(path: &str, parts: &str, policy_status: i32) {
    placewright(args("place {}", &[path])).expect_error(1, &[path, parts]);
    for command in COMMANDS {
        let ran = placewright(args(command, &[&model("tiny_add.pb"), path]));
        let status = if command.contains("--policy") {
            policy_status
        } else {
            1
        };
        ran.expect_error(status, &[path, parts]);
    }
}

#[test]
fn a_device_file_is_rejected() {
    is_refused("/dev/zero", "it is a device, and only files are read", 2);
}

#[test]
fn a_pipe_that_nobody_writes_to_is_not_waited_for() {
    let folder = tempdir().unwrap();
    let pipe = path_in(&folder, "pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    is_refused(&pipe, "it is a pipe, and only files are read", 2);
}

/// A file of 6 GiB that occupies no disk space, and must occupy no memory.
#[test]
fn a_sparse_file_is_read_no_further_than_its_limit() {
    let folder = tempdir().unwrap();
    let path = path_in(&folder, "sparse");
    File::create(Path::new(&path))
        .unwrap()
        .set_len(6 << 30)
        .unwrap();
    // For an archive, the end of the file is read, which shows that it is none.
    is_refused(&path, &path, 1);
    let parts = ["has 6442450944 bytes", " the limit is "];
    placewright(args("place {}", &[&path])).expect_error(1, &parts);
    for command in COMMANDS {
        if !command.contains("--feeds") && !command.contains("--check") {
            let ran = placewright(args(command, &[&model("tiny_add.pb"), &path]));
            ran.expect_error(1, &parts);
        }
    }
}

#[test]
fn compile_limits_are_flags() {
    let folder = tempdir().unwrap();
    let wasm = placewright::policy::ShippedPolicy::find("heft")
        .unwrap()
        .wasm();
    let policy = super::file(&folder, "policy.wasm", wasm);
    let with = |flags: &str| {
        let line = format!("place {{}} --policy {{}} --strict-policy {flags}");
        let cache = folder.path().join("no-cache");
        super::run_with_cache(args(&line, &[&model("tiny_add.pb"), &policy]), &cache)
    };
    with("--policy-compile-deadline-ms 1").expect_error(1, &["stopped at its deadline of 1 ms"]);
    with("--policy-limit effort=10")
        .expect_error(1, &["the limit is 10", "--policy-limit effort=N"]);
    with("--policy-limit nonsense=1").expect_error(2, &["there is no limit `nonsense`"]);
    with("--policy-compile-in-process --policy-compile-deadline-ms 1")
        .expect_error(2, &["cannot be used with"]);
    with("--policy-compile-in-process").expect(0);
}
