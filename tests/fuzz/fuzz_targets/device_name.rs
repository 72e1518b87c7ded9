//! Fuzzes names of devices and of transfers: every accepted name is printed so that it parses back
//! to itself.
//!
//! The input is up to three lines: a name, another one to merge with it, and a key.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placewright::names::DeviceName;
use placewright::names::DeviceSpec;
use placewright::names::MergeMode;
use placewright::names::RendezvousKey;

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n');
    let (first, second) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let key = lines.next().unwrap_or("");
    for text in [first, second, key] {
        if let Ok(key) = RendezvousKey::parse(text) {
            assert_eq!(key.as_str(), text);
            assert!(DeviceName::parse_full(key.source()).is_ok());
            assert!(DeviceName::parse_full(key.destination()).is_ok());
            assert!(!key.edge_name().is_empty() && !key.frame_iteration().is_empty());
        }
        if let Ok(spec) = DeviceSpec::parse(text, &[]) {
            let printed = spec.to_string();
            // Jobs of specifications may be any string; what parses back prints the same.
            if let Ok(again) = DeviceSpec::parse(&printed, &[]) {
                assert_eq!(again.to_string(), printed);
            }
        }
        let local = DeviceName::parse_local(text);
        let either = DeviceName::parse_full_or_local(text);
        match (DeviceName::parse_full(text), &local) {
            (Ok(full), local) => {
                assert!(local.is_err(), "no string is valid in both grammars");
                assert_eq!(either, Ok(full.clone()));
                reads_back(&full);
            }
            (Err(_), Ok(local)) => {
                assert_eq!(either.as_ref(), Ok(local));
                reads_back(local);
            }
            (Err(error), Err(_)) => {
                assert!(error.to_string().contains(text));
                assert!(either.is_err());
            }
        }
    }
    if let (Ok(a), Ok(b)) = (
        DeviceName::parse_full(first),
        DeviceName::parse_full(second),
    ) {
        merges(&a, &b);
    }
    let canonical = DeviceName::canonicalize(first, second);
    if let Ok(name) = canonical {
        assert!(name.is_fully_specified());
        assert_eq!(DeviceName::parse_full(&name.to_string()), Ok(name));
    }
});

/// Checks that a name parses back. An index without a type is not printed; everything else is.
fn reads_back(name: &DeviceName) {
    let mut printed = name.clone();
    if printed.device_type.is_none() {
        printed.index = None;
    }
    assert_eq!(DeviceName::parse_full(&name.to_string()), Ok(printed));
    // The short form of a device of such a type means something else, as in TensorFlow: `task:2` is
    // a task.
    let is_keyword = |device_type: &str| {
        let keywords = ["device", "job", "replica", "task"];
        keywords.contains(&&*device_type.to_ascii_lowercase())
    };
    if name.device_type.as_deref().is_some_and(is_keyword) {
        return;
    }
    for spelling in name.mapping_names() {
        let parsed = DeviceName::parse_full(&spelling);
        if let Ok(parsed) = parsed {
            assert_eq!(parsed.address_space(), name.address_space());
            assert_eq!(parsed.index, name.index);
        }
    }
}

fn merges(a: &DeviceName, b: &DeviceName) {
    let merged = |mode| {
        let mut target = a.clone();
        let result = target.merge(b, mode);
        assert!(
            result.is_ok() || target == *a,
            "a failed merge changes nothing"
        );
        result.map(|()| target)
    };
    let hard = merged(MergeMode::Hard);
    assert_eq!(hard.is_ok(), a.is_compatible_with(b));
    if let Ok(hard) = hard {
        assert!(hard.is_specification_of(a) && hard.is_specification_of(b));
        assert_eq!(merged(MergeMode::Soft), Ok(hard.clone()));
        assert_eq!(merged(MergeMode::Override), Ok(hard));
    }
    if let Ok(overridden) = merged(MergeMode::Override) {
        assert!(overridden.is_specification_of(b));
    }
}
