//! Files that commands write: they never overwrite an input, and are written completely or not at
//! all.

use std::fs;
use std::process::Command;

use placewright::policy::ShippedPolicy;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;

#[test]
fn inputs_are_not_overwritten() {
    let folder = folder();
    let graph = path_in(&folder, "graph.pb");
    let arrays = path_in(&folder, "arrays.npz");
    fs::copy(model("lenet.pb"), &graph).unwrap();
    fs::copy(model("lenet.npz"), &arrays).unwrap();
    let policy = path_in(&folder, "policy.wasm");
    fs::write(&policy, ShippedPolicy::find("heft").unwrap().wasm()).unwrap();
    let plan = path_in(&folder, "plan.json");
    placewright(args("place {} --save-placement {}", &[&graph, &plan])).expect(0);
    let inputs = [&graph, &arrays, &policy, &plan];
    let before = inputs.map(|path| fs::read(path).unwrap());
    // The same file by other paths, too.
    let again = format!("{}/./arrays.npz", folder.path().display());
    let link = path_in(&folder, "link.npz");
    std::os::unix::fs::symlink(&arrays, &link).unwrap();
    for (line, paths, parts) in [
        (
            "run {} --output {}",
            [&graph, &graph, ""],
            ["--output", "the graph"],
        ),
        (
            "run {} --check {} --output {}",
            [&graph, &arrays, &arrays],
            ["--output", "--check"],
        ),
        (
            "run {} --feeds {} --output {}",
            [&graph, &arrays, &again],
            ["--output", "--feeds"],
        ),
        (
            "run {} --feeds {} --trace {}",
            [&graph, &arrays, &link],
            ["--trace", "--feeds"],
        ),
        (
            "place {} --save-placement {}",
            [&graph, &graph, ""],
            ["--save-placement", "the graph"],
        ),
        (
            "place {} --policy {} --save-placement {}",
            [&graph, &policy, &policy],
            ["--save-placement", "--policy"],
        ),
        (
            "run {} --placement {} --output {}",
            [&graph, &plan, &plan],
            ["--output", "--placement"],
        ),
        (
            "place {} --diff {} --save-placement {}",
            [&graph, &plan, &plan],
            ["--save-placement", "--diff"],
        ),
    ] {
        placewright(args(line, &paths)).expect_error(2, &parts);
    }
    let new = path_in(&folder, "new");
    let line = "run {} --trace {} --output {}";
    placewright(args(line, &[&graph, &new, &new])).expect_error(2, &["--output", "--trace"]);
    assert!(!fs::exists(&new).unwrap());
    assert_eq!(inputs.map(|path| fs::read(path).unwrap()), before);
    // All outputs may go to the null device.
    let nowhere = ["/dev/null"; 2];
    placewright(args(line, &[&graph, nowhere[0], nowhere[1]])).expect(0);
}

#[test]
fn a_file_that_cannot_be_written_completely_leaves_the_old_one() {
    let folder = folder();
    let output = file(&folder, "output.npz", b"of an earlier run");
    let graph = model("bert_tiny.skel.pb");
    let fetch = "--fetch layer_0/Reshape_3 --fetch layer_1/attn_out/kernel";
    // No file may be larger than a block, and the signal for it is ignored.
    let line = format!(
        "ulimit -f 1; trap '' XFSZ; exec \"$0\" run \"$1\" --device-count SYCL=0 {fetch} --output \"$2\""
    );
    let ran = Command::new("sh")
        .args([
            "-c",
            &line,
            env!("CARGO_BIN_EXE_placewright"),
            &graph,
            &output,
        ])
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(
        said.contains("error: writing") && said.contains(&output),
        "{said}"
    );
    assert!(!said.contains("ZipWriter"), "{said}");
    assert_eq!(fs::read(&output).unwrap(), b"of an earlier run");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_written_file_has_default_permissions_or_those_of_the_old_file() {
    use std::os::unix::fs::PermissionsExt;

    let folder = folder();
    let plan = path_in(&folder, "plan.json");
    let graph = model("tiny_add.pb");
    let rights = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let any = file(&folder, "any", b"");
    placewright(args("place {} --save-placement {}", &[&graph, &plan])).expect(0);
    assert_eq!(rights(&plan), rights(&any));
    fs::set_permissions(&plan, fs::Permissions::from_mode(0o640)).unwrap();
    // Overwrites the file that it reads as `--keep`.
    let line = "place {} --keep {} --save-placement {}";
    placewright(args(line, &[&graph, &plan, &plan])).expect(0);
    assert_eq!(rights(&plan), 0o640);
}

#[test]
fn a_link_stays_a_link() {
    let folder = folder();
    let [link, target, chain] = ["link", "target", "chain"].map(|name| path_in(&folder, name));
    std::os::unix::fs::symlink("target", &link).unwrap();
    std::os::unix::fs::symlink("link", &chain).unwrap();
    let graph = model("tiny_add.pb");
    // First to a path without a file, then over the file.
    for path in [&chain, &link] {
        placewright(args("place {} --save-placement {}", &[&graph, path])).expect(0);
        assert!(fs::symlink_metadata(path).unwrap().is_symlink());
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
    }
    let line = "run {} --trace {} --output {}";
    placewright(args(line, &[&graph, &chain, &link])).expect_error(2, &["--output", "--trace"]);
    // A link to itself leads nowhere.
    let circle = path_in(&folder, "circle");
    std::os::unix::fs::symlink("circle", &circle).unwrap();
    let line = "place {} --save-placement {}";
    placewright(args(line, &[&graph, &circle])).expect_error(1, &["writing", "circle"]);
}

#[test]
fn a_missing_folder_is_named() {
    let folder = folder();
    let plan = path_in(&folder, "missing/plan.json");
    let graph = model("tiny_add.pb");
    let missing = path_in(&folder, "missing");
    let parts = ["there is no folder", &missing];
    placewright(args("place {} --save-placement {}", &[&graph, &plan])).expect_error(1, &parts);
}

/// Permissions do not restrict the superuser, who may run the tests.
#[test]
fn a_read_only_file_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;

    let folder = folder();
    let plan = file(&folder, "plan.json", b"of somebody else");
    fs::set_permissions(&plan, fs::Permissions::from_mode(0o400)).unwrap();
    let is_bound = fs::File::options().write(true).open(&plan).is_err();
    let ran = placewright(args(
        "place {} --save-placement {}",
        &[&model("tiny_add.pb"), &plan],
    ));
    if is_bound {
        ran.expect_error(1, &["writing", &plan]);
        assert_eq!(fs::read(&plan).unwrap(), b"of somebody else");
    } else {
        ran.expect(0);
        let rights = fs::metadata(&plan).unwrap().permissions().mode() & 0o777;
        assert_eq!(rights, 0o400);
    }
}

#[test]
fn printed_text_is_kept_if_an_output_goes_to_the_same_file() {
    let folder = folder();
    let printed = path_in(&folder, "printed");
    let line = "exec \"$0\" run \"$1\" --device-count SYCL=0 --trace /dev/stdout >> \"$2\"";
    let graph = model("tiny_add.pb");
    let status = Command::new("sh")
        .args([
            "-c",
            line,
            env!("CARGO_BIN_EXE_placewright"),
            &graph,
            &printed,
        ])
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .status()
        .unwrap();
    assert!(status.success());
    let printed = fs::read_to_string(&printed).unwrap();
    assert!(printed.contains("first run"), "{printed}");
}
