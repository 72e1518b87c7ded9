//! Tests the cache of compiled policies like a user.

use std::fs;
use std::path::Path;

use super::args;
use super::folder;
use super::model;
use super::run_with_cache;

#[test]
fn compiled_policies_are_kept_until_the_cache_is_cleared() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let graph = model("tiny_add.pb");
    let is_cached = || {
        let report = run_with_cache(args("place {} --json", &[&graph]), &cache)
            .expect(0)
            .json();
        report["placement"]["policy"]["load"]["is_cached"].clone()
    };
    let usage = || {
        run_with_cache(["cache", "usage", "--json"], &cache)
            .expect(0)
            .json()
    };
    assert_eq!(is_cached(), false);
    assert_eq!(is_cached(), true);
    assert_eq!(usage()["kept"]["n_entries"], 1);
    let cleared = run_with_cache(["cache", "clear"], &cache).expect(0);
    assert!(
        cleared.stdout.contains("removed 1 file"),
        "{}",
        cleared.stdout
    );
    assert_eq!(usage()["kept"]["n_entries"], 0);
    assert_eq!(is_cached(), false);

    let off = run_with_cache(args("place {} --json", &[&graph]), Path::new(""))
        .expect(0)
        .json();
    assert_eq!(off["placement"]["policy"]["load"]["is_cached"], false);
    let off = run_with_cache(["cache", "path"], Path::new("")).expect(0);
    assert!(off.stdout.contains("no cache"), "{}", off.stdout);
}

#[test]
fn a_cache_that_others_may_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let cache = folder.path().join("open");
    fs::create_dir(&cache).expect("made");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("set");
    let ran = run_with_cache(args("place {} --json", &[&model("tiny_add.pb")]), &cache).expect(0);
    assert!(
        ran.stderr.contains("note: ") && ran.stderr.contains("open"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        ran.json()["placement"]["policy"]["load"]["is_cached"],
        false
    );
    run_with_cache(["cache", "clear"], &cache).expect_error(1, &["open"]);
}
