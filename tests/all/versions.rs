//! Policies built for other versions of the contract.

use placewright::policy::{
    Fault, PlaceOptions, PolicyEngine, PolicyErrorKind, PolicyLimits, ShippedPolicy, inspect,
};

use crate::sample;

/// A shipped policy as if it were built for another version of the contract, which is part of the
/// names.
fn built_for(version: &str) -> Vec<u8> {
    let (from, to) = (b"@0.1.0", format!("@{version}"));
    assert_eq!(from.len(), to.len(), "names must keep their length");
    let mut bytes = ShippedPolicy::find("round-robin").unwrap().wasm().to_vec();
    let mut n_replaced = 0;
    for start in 0..bytes.len() - from.len() {
        if bytes[start..].starts_with(from) {
            bytes[start..start + from.len()].copy_from_slice(to.as_bytes());
            n_replaced += 1;
        }
    }
    assert!(n_replaced > 0);
    bytes
}

#[test]
fn a_policy_of_a_newer_patch_loads_as_long_as_it_calls_nothing_new() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let candidates = sample::sample(100, 1);
    let plans = ["0.1.0", "0.1.9"].map(|version| {
        let bytes = built_for(version);
        let inspection = inspect(&engine, "mine", &bytes).unwrap();
        assert_eq!(inspection.contract_version.unwrap().to_string(), version);
        inspection.verdict.unwrap();
        let mut policy = engine.load("mine", &bytes, &[]).unwrap();
        assert!(policy.is_whole_graph() && policy.is_online());
        let answer = policy.place(&candidates, &PlaceOptions::default()).unwrap();
        answer.proposal
    });
    assert_eq!(plans[0], plans[1]);
}

#[test]
fn a_policy_of_another_minor_is_refused_with_both_versions() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    for version in ["0.0.9", "0.2.0", "1.1.0"] {
        let bytes = built_for(version);
        let error = engine.load("mine", &bytes, &[]).unwrap_err();
        assert_eq!(error.fault(), Fault::Guest);
        assert!(
            matches!(&*error.kind, PolicyErrorKind::Incompatible { policy, host, .. } if policy == version && host == "0.1.0"),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(version) && text.contains("0.1.0"), "{text}");
        let inspection = inspect(&engine, "mine", &bytes).unwrap();
        assert!(inspection.verdict.is_err());
    }
}

#[test]
fn a_policy_that_calls_something_newer_is_rejected_with_what_is_missing() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let component = wat::parse_str(
        r#"(component
            (import "placewright:policy/log@0.1.6" (instance (export "flush" (func))))
            (instance $i)
            (export "placewright:policy/lifecycle@0.1.6" (instance $i))
            (export "placewright:policy/whole-graph@0.1.6" (instance $i)))"#,
    )
    .unwrap();
    let error = engine.load("mine", &component, &[]).unwrap_err();
    assert!(
        matches!(&*error.kind, PolicyErrorKind::Incompatible { policy, detail, .. } if policy == "0.1.6" && detail.contains("flush")),
        "{error}"
    );
}
