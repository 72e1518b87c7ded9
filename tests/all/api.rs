//! Checks what every user of a Rust API expects: the main types can be shared and sent between
//! threads, reports can be serialized, the prelude suffices for common tasks, and all types that
//! the API returns can be named.

use std::sync::Arc;

use placewright::policy;
use placewright::prelude::*;
use serde::Serialize;
use serde_json::Value;

use crate::sample;

/// Checked by the compiler.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Session>();
    is_shared::<SessionBuilder>();
    is_shared::<Callable>();
    is_shared::<placewright::session::Outputs>();
    is_shared::<placewright::session::SessionGroup>();
    is_shared::<placewright::session::SessionReport>();
    is_shared::<Error>();
    is_shared::<Graph>();
    is_shared::<GraphAssembler>();
    is_shared::<placewright::ops::OpRegistry>();
    is_shared::<Registry>();
    is_shared::<DeviceSet>();
    is_shared::<Arc<dyn placewright::device::Device>>();
    is_shared::<placewright::device::DeviceManager>();
    is_shared::<placewright::device::FactoryRegistry>();
    is_shared::<placewright::device::KernelRegistry>();
    is_shared::<placewright::device::ResourceManager>();
    is_shared::<placewright::device::CancelToken>();
    is_shared::<DeviceOptions>();
    is_shared::<Candidates>();
    is_shared::<CandidatesBuilder>();
    is_shared::<PlacementOptions>();
    is_shared::<Placement>();
    is_shared::<SavedPlacement>();
    is_shared::<placewright::placement::Evaluator>();
    is_shared::<placewright::plan::ExecutionPlan>();
    is_shared::<placewright::execute::Executor>();
    is_shared::<placewright::execute::PreparedPlan>();
    is_shared::<placewright::execute::InterOpPool>();
    is_shared::<RunOptions>();
    is_shared::<PolicyEngine>();
    // Each call changes the sandbox, so only one thread at a time may use it.
    is_sent::<LoadedPolicy>();
    is_sent::<OnlineSession<'static>>();
    is_shared::<PolicyRequest>();
    is_shared::<policy::PlacementCache>();
    is_shared::<policy::PolicyError>();
    is_shared::<policy::PolicyReport>();
    is_shared::<Tensor>();
    is_shared::<Recorder>();
    is_shared::<placewright::trace::Trace>();
    #[cfg(feature = "graphdef")]
    is_shared::<placewright::import::ImportOptions>();
};

/// Checked by the compiler: these can be printed as JSON.
const _: () = {
    const fn is_serialized<T: Serialize>() {}
    is_serialized::<placewright::session::SessionReport>();
    is_serialized::<policy::PolicyReport>();
    is_serialized::<policy::PolicyAnswer>();
    is_serialized::<policy::PolicyInspection>();
    is_serialized::<policy::LoadReport>();
    is_serialized::<policy::PolicyError>();
    is_serialized::<placewright::placement::PlacementSummary>();
    is_serialized::<placewright::placement::PlacementIdentity>();
    is_serialized::<placewright::placement::PlacementDiff>();
    is_serialized::<placewright::placement::Replacement>();
    is_serialized::<placewright::trace::TraceSummary>();
    is_serialized::<placewright::candidates::Conflict>();
    is_serialized::<placewright::candidates::UnsupportedNode>();
    is_serialized::<placewright::execute::MemoryPlan>();
    is_serialized::<placewright::device::DeviceAttributes>();
};

/// Types of the SDK that the API shows are those of `placewright::policy`.
#[test]
fn types_of_the_sdk_are_reexported() {
    fn is_same<T>(_: fn(T), _: fn(T)) {}
    is_same(
        |_: policy::ReadyTask| {},
        |_: placewright_guest::ReadyTask| {},
    );
    is_same(
        |_: policy::Completion| {},
        |_: placewright_guest::Completion| {},
    );
    is_same(
        |_: policy::DeviceChange| {},
        |_: placewright_guest::DeviceChange| {},
    );
    let level = PolicyLimits::default()
        .with_log_level(policy::LogLevel::Warn)
        .log_level;
    assert_eq!(level, placewright_guest::source::LogLevel::Warn);
    let native: Box<dyn policy::NativePolicy> = ShippedPolicy::find("heft").unwrap().native();
    drop(native);
    assert_eq!(policy::NONE, placewright_guest::NONE);
}

fn json(report: &impl Serialize) -> Value {
    serde_json::to_value(report).unwrap()
}

#[test]
fn a_report_has_policies_failures_and_times_as_json() {
    let broken = PolicySource::Bytes("mine".to_owned(), b"\x7fELF".to_vec());
    let candidates = sample::sample(60, 3);
    let session = Session::builder()
        .with_candidates(candidates)
        .with_policy(PolicyRequest::new(broken))
        .build()
        .unwrap();
    let report = json(&*session.report());
    let policy = &report["placed_by"]["policy"];
    assert_eq!(policy["answered_by"], "heft (native)", "{report:#}");
    let failed = &policy["failed"][0];
    assert_eq!(failed["rung"], "mine");
    assert_eq!(failed["call"], "load");
    assert!(failed["elapsed_ns"].is_u64());
    assert_eq!(failed["error"]["policy"], "mine");
    assert_eq!(failed["error"]["fault"], "policy", "{failed:#}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("mine"), "{message}");
    let answer = &policy["answer"];
    assert!(answer["elapsed_ns"].is_u64() && answer["n_offers"].as_u64() > Some(0));
    assert_eq!(answer["cut_off"], Value::Null);
    assert_eq!(answer["messages"]["dropped"], 0);
    let stages = report["stages"].as_array().unwrap();
    let names: Vec<_> = stages.iter().map(|stage| &stage["name"]).collect();
    assert!(names.contains(&&Value::from("place")), "{names:?}");
    assert!(stages.iter().all(|stage| stage["elapsed_ns"].is_u64()));
    assert_eq!(report["replacement"], Value::Null);
}

#[test]
fn an_inspection_is_serializable() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let heft = ShippedPolicy::find("heft").unwrap();
    let found = json(&policy::inspect(&engine, "heft", heft.wasm()).unwrap());
    assert_eq!(found["is_whole_graph"], true, "{found:#}");
    assert_eq!(found["contract_version"], "0.1.0");
    let text = found.to_string();
    assert!(
        text.contains("compile_ns") && text.contains("\"heft\""),
        "{text}"
    );
}
