//! Saved placements: written, read back, rejected.

use placewright::candidates::PlacementOptions;
use placewright::placement::SavedPlacement;
use placewright::placement::SavedPlacementError;
use placewright::placement::Violation;
use placewright::placement::check;

use super::Builder;
use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::GPU1;
use super::candidates;
use super::diamond;
use super::propose;
use super::soft;

#[test]
fn a_saved_placement_loads_and_mismatches_are_named() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let placement = check(&found, propose(&[CPU0, GPU0, GPU1, CPU1])).unwrap();
    let saved = SavedPlacement::new(&placement, "heft", 7, []);
    let read = SavedPlacement::from_json(&saved.to_json()).unwrap();
    assert_eq!(read, saved);
    assert_eq!(read.resolve(&found).unwrap().devices(), placement.devices());

    let mut missing = saved.clone();
    missing.devices.remove("c");
    assert_eq!(
        missing.resolve(&found).unwrap_err(),
        SavedPlacementError::MissingNode("c".to_owned())
    );
    let mut extra = saved.clone();
    extra
        .devices
        .insert("zz".to_owned(), saved.devices["a"].clone());
    assert_eq!(
        extra.resolve(&found).unwrap_err(),
        SavedPlacementError::UnknownNode("zz".to_owned())
    );
    let mut elsewhere = saved.clone();
    elsewhere
        .devices
        .insert("b".to_owned(), "/job:gone/device:CPU:0".to_owned());
    let error = elsewhere.resolve(&found).unwrap_err().to_string();
    assert!(
        error.contains("`b`") && error.contains("/job:gone"),
        "{error}"
    );
    let diff = saved.diff(&elsewhere);
    assert_eq!(diff.moved.len(), 1);
    assert_eq!(diff.moved[0].0, "b");
    assert_eq!(missing.diff(&saved).only_after, ["c"]);

    let text = saved.to_json().replace("\"version\": 2", "\"version\": 3");
    assert_eq!(
        SavedPlacement::from_json(&text),
        Err(SavedPlacementError::Version(3))
    );
    assert!(matches!(
        SavedPlacement::from_json("{}"),
        Err(SavedPlacementError::Malformed(_))
    ));
}

#[test]
fn a_saved_placement_is_checked_against_the_rules() {
    let graph = |op| {
        let mut builder = Builder::new();
        builder.node("n", op, &[]);
        builder.finish()
    };
    let options = PlacementOptions::default();
    let any = candidates(&graph("Any"), &options).unwrap();
    let saved = SavedPlacement::new(&check(&any, propose(&[GPU0])).unwrap(), "p", 0, []);
    assert!(saved.resolve(&any).is_ok());
    let cpu_only = candidates(&graph("CpuOnly"), &options).unwrap();
    match saved.resolve(&cpu_only) {
        Err(SavedPlacementError::Violation(Violation::Candidate { name, .. })) => {
            assert_eq!(name, "n")
        }
        other => panic!("expected a violation, got {other:?}"),
    }
}

#[test]
fn a_saved_placement_records_its_inputs() {
    let hard = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let placement = check(&hard, propose(&[CPU0, CPU0, CPU0, CPU0])).unwrap();
    let saved = SavedPlacement::new(&placement, "mine", 0, []);
    let again = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    assert_eq!(saved.verify(&again), Ok(()));

    let softly = candidates(&diamond(), &soft()).unwrap();
    let Err(SavedPlacementError::MadeForOther(difference)) = saved.verify(&softly) else {
        panic!("the options differ");
    };
    assert_eq!(
        (difference.graph, difference.devices, difference.options),
        (false, false, true)
    );
    // It is valid nevertheless.
    assert!(saved.resolve(&softly).is_ok());

    let text = saved.to_json().replace("\"version\": 2", "\"version\": 1");
    let mut first: serde_json::Value = serde_json::from_str(&text).unwrap();
    first.as_object_mut().unwrap().remove("identity");
    let first = SavedPlacement::from_json(&first.to_string()).unwrap();
    assert_eq!(first.verify(&again), Err(SavedPlacementError::Unidentified));
    let hash = saved.identity.unwrap().devices.to_string();
    let text = saved.to_json().replace(&hash, &hash[1..]);
    assert!(
        matches!(SavedPlacement::from_json(&text), Err(SavedPlacementError::Malformed(problem)) if problem.contains("SHA-256"))
    );
}
