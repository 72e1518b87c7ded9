//! Policies that behave: sandboxed and native twins agree, plans are reproducible, cut-offs keep
//! what was offered.

use placewright::candidates::Candidates;
use placewright::graph::NodeId;
use placewright::placement::check;
use placewright::policy::{
    Fault, LadderError, PlaceOptions, PolicyEngine, PolicyErrorKind, PolicyLimits, PolicyRequest,
    PolicySource, Rung, ShippedPolicy, place_natively, place_with_ladder,
};
use placewright::store::CacheFolder;

use crate::sample;

fn samples() -> Vec<Candidates> {
    let devices = |n_cpus, n_gpus| sample::devices(n_cpus, n_gpus);
    let graph = sample::layered_graph;
    vec![
        sample::candidates(&graph(1, 1), &devices(1, 0)),
        sample::candidates(&graph(40, 2), &devices(4, 0)),
        sample::candidates(&graph(300, 3), &devices(2, 2)),
        sample::candidates(&graph(2000, 4), &devices(3, 5)),
    ]
}

#[test]
fn sandboxed_and_native_twins_give_the_same_plan() {
    let limits = PolicyLimits::default();
    let engine = PolicyEngine::new(limits.clone()).unwrap();
    let options = PlaceOptions::default().with_seed(7);
    for shipped in ShippedPolicy::all() {
        let mut sandboxed = engine.load(shipped.name(), shipped.wasm(), &[]).unwrap();
        for candidates in samples() {
            let wasm = sandboxed.place(&candidates, &options).unwrap();
            let native = place_natively(shipped, &[], &candidates, &options, &limits).unwrap();
            assert_eq!(
                wasm.proposal,
                native.proposal,
                "{} on {}",
                shipped.name(),
                candidates.graph().name()
            );
            assert!(wasm.n_offers > 0);
            assert!(wasm.peak_memory_bytes > Some(0));
            check(&candidates, wasm.proposal).unwrap();
        }
        assert_eq!(sandboxed.n_restarts(), 0);
    }
}

#[test]
fn plans_under_fuel_are_byte_equal_across_runs_and_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let engine = || {
        let cache = CacheFolder::open(folder.path().join("cache")).unwrap();
        let limits = PolicyLimits::default().with_fuel(Some(10_000_000_000));
        PolicyEngine::with_cache(limits, Some(cache)).unwrap()
    };
    let candidates = sample::sample(1000, 5);
    for shipped in ShippedPolicy::all() {
        let mut plans = Vec::new();
        for is_cached in [false, true] {
            let engine = engine();
            let mut policy = engine.load(shipped.name(), shipped.wasm(), &[]).unwrap();
            assert_eq!(policy.load_report().is_cached, is_cached);
            for _ in 0..2 {
                plans.push(policy.place(&candidates, &PlaceOptions::default()).unwrap());
            }
        }
        for plan in &plans {
            assert_eq!(plan.proposal, plans[0].proposal, "{}", shipped.name());
            assert_eq!(plan.cut_off, None);
        }
        // The first call of a fresh instance may set things up; the same call of two instances uses
        // the same fuel.
        assert_eq!(plans[0].fuel_used, plans[2].fuel_used);
        assert_eq!(plans[1].fuel_used, plans[3].fuel_used);
        assert!(plans[0].fuel_used > Some(0));
    }
}

#[test]
fn a_damaged_cache_entry_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let engine = PolicyEngine::with_cache(
        PolicyLimits::default(),
        Some(CacheFolder::open(&path).unwrap()),
    )
    .unwrap();
    let shipped = ShippedPolicy::find("priority").unwrap();
    let load = || engine.load("priority", shipped.wasm(), &[]).unwrap();
    assert!(!load().load_report().is_cached);
    assert!(load().load_report().is_cached);
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap().path();
        let mut bytes = std::fs::read(&entry).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        std::fs::write(&entry, bytes).unwrap();
    }
    let mut policy = load();
    assert!(!policy.load_report().is_cached);
    let candidates = sample::sample(50, 1);
    policy.place(&candidates, &PlaceOptions::default()).unwrap();
    assert!(load().load_report().is_cached);
}

#[test]
fn engines_of_other_settings_do_not_share_compiled_code() {
    let folder = tempfile::tempdir().unwrap();
    let engine = |limits| {
        let cache = CacheFolder::open(folder.path().join("cache")).unwrap();
        PolicyEngine::with_cache(limits, Some(cache)).unwrap()
    };
    let shipped = ShippedPolicy::find("priority").unwrap();
    for limits in [
        PolicyLimits::default(),
        PolicyLimits::default().with_fuel(Some(1_000_000_000)),
    ] {
        let policy = engine(limits)
            .load("priority", shipped.wasm(), &[])
            .unwrap();
        assert!(!policy.load_report().is_cached);
    }
}

/// What is refused is refused, also where somebody with larger limits has had it compiled.
#[test]
fn what_a_limit_refuses_is_not_taken_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let load = |limits| {
        let cache = CacheFolder::open(folder.path().join("cache")).unwrap();
        let engine = PolicyEngine::with_cache(limits, Some(cache)).unwrap();
        let shipped = ShippedPolicy::find("priority").unwrap();
        engine.load("priority", shipped.wasm(), &[]).map(drop)
    };
    load(PolicyLimits::default()).unwrap();
    for (limits, reason) in [
        (PolicyLimits::default().with_functions(1), "too-large"),
        (PolicyLimits::default().with_wasm_bytes(1000), "too-large"),
        (PolicyLimits::default().with_effort(10), "too-complex"),
        (PolicyLimits::default().with_items(1), "too-complex"),
    ] {
        let error = load(limits).unwrap_err();
        assert_eq!(error.kind.reason(), reason, "{error}");
    }
}

#[test]
fn modules_and_components_both_load() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let candidates = sample::sample(100, 9);
    for shipped in ShippedPolicy::all() {
        let component = wit_component::ComponentEncoder::default()
            .module(shipped.wasm())
            .unwrap()
            .encode()
            .unwrap();
        let plans = [shipped.wasm(), &component].map(|bytes| {
            let mut policy = engine.load(shipped.name(), bytes, &[]).unwrap();
            let answer = policy.place(&candidates, &PlaceOptions::default()).unwrap();
            answer.proposal
        });
        assert_eq!(plans[0], plans[1]);
    }
}

#[test]
fn unknown_settings_are_refused_with_the_known_ones() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let heft = ShippedPolicy::find("heft").unwrap();
    let config = [("insertionn".to_owned(), "false".to_owned())];
    let error = engine.load("heft", heft.wasm(), &config).unwrap_err();
    assert!(
        matches!(&*error.kind, PolicyErrorKind::UnknownSetting { key, known } if key == "insertionn" && known.contains(&"insertion".to_owned())),
        "{error}"
    );
    let request = PolicyRequest::new(heft).with_setting("insertionn", "false");
    let error = place_with_ladder(&engine, &sample::sample(10, 1), &request).unwrap_err();
    assert!(matches!(error, LadderError::Request(_)), "{error}");
    let request = PolicyRequest::new(heft).with_setting("insertion", "false");
    place_with_ladder(&engine, &sample::sample(10, 1), &request).unwrap();
}

#[test]
fn the_ladder_goes_down_visibly_unless_it_is_strict() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let candidates = sample::sample(60, 3);
    let broken = PolicySource::Bytes("mine".to_owned(), b"\x7fELF".to_vec());
    let request = PolicyRequest::new(broken).with_setting("k", "v");
    let (placement, report) = place_with_ladder(&engine, &candidates, &request).unwrap();
    assert_eq!(report.answered_by, Rung::Native("heft"));
    assert!(report.is_fallback());
    assert_eq!(report.failed[0].rung, Rung::Sandboxed("mine".to_owned()));
    let heft = ShippedPolicy::find("heft").unwrap();
    let (expected, direct) =
        place_with_ladder(&engine, &candidates, &PolicyRequest::new(heft)).unwrap();
    assert_eq!(placement.devices(), expected.devices());
    assert_eq!(direct.answered_by, Rung::Sandboxed("heft".to_owned()));
    assert!(!direct.is_fallback());
    let error = place_with_ladder(&engine, &candidates, &request.with_strict(true)).unwrap_err();
    assert!(matches!(error, LadderError::Strict(_)), "{error}");
}

#[test]
fn a_shipped_policy_that_runs_out_of_fuel_is_answered_by_its_twin() {
    let limits = PolicyLimits::default().with_fuel(Some(1_000_000));
    let engine = PolicyEngine::new(limits).unwrap();
    let candidates = sample::sample(20_000, 3);
    let heft = ShippedPolicy::find("heft").unwrap();
    let (_, report) = place_with_ladder(&engine, &candidates, &PolicyRequest::new(heft)).unwrap();
    assert_eq!(report.answered_by, Rung::Native("heft"));
    let kind = &*report.failed[0].error.kind;
    assert!(
        matches!(kind, PolicyErrorKind::OutOfFuel { call: "place", .. }),
        "{kind}"
    );
}

#[test]
fn names_that_mean_nothing_are_answered_with_the_shipped_ones() {
    let error = PolicySource::parse("hefty").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`heft`, `priority` and `round-robin`")
    );
    assert!(matches!(
        PolicySource::parse("heft"),
        Ok(PolicySource::Shipped(_))
    ));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    assert!(matches!(
        PolicySource::parse(path),
        Ok(PolicySource::File(_))
    ));
}

#[test]
fn online_picks_are_legal_and_batches_agree_with_single_ones() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let shipped = ShippedPolicy::find("round-robin").unwrap();
    let candidates = sample::sample(200, 8);
    let tasks: Vec<_> = candidates
        .graph()
        .nodes()
        .map(|node| sample::ready_task(&candidates, node.0))
        .collect();
    let mut policy = engine.load("round-robin", shipped.wasm(), &[]).unwrap();
    let mut session = policy.begin(5, &candidates, 0).unwrap();
    let single: Vec<_> = tasks
        .iter()
        .map(|task| session.pick(task).unwrap())
        .collect();
    session.end().unwrap();
    let mut session = policy.begin(5, &candidates, 0).unwrap();
    let mut batch = Vec::new();
    for tasks in tasks.chunks(64) {
        session.pick_batch(tasks, &mut batch).unwrap();
    }
    session.observe(&[], &[]).unwrap();
    session.end().unwrap();
    assert_eq!(single, batch);
    for (task, device) in tasks.iter().zip(single) {
        let device = device.expect("round-robin has an opinion on every task");
        assert!(candidates.of_node(NodeId(task.node)).contains(&device.0));
    }
}

#[test]
fn a_task_that_is_none_of_the_graph_is_refused_before_the_policy_sees_it() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let shipped = ShippedPolicy::find("round-robin").unwrap();
    let candidates = sample::constrained();
    let mut policy = engine.load("round-robin", shipped.wasm(), &[]).unwrap();
    let mut session = policy.begin(5, &candidates, 0).unwrap();
    let task = sample::ready_task(&candidates, 0);
    let mut beyond = task;
    beyond.node = u32::try_from(candidates.graph().n_nodes()).unwrap();
    // Node 7 runs on CPUs only, node 0 anywhere.
    let mut foreign_set = sample::ready_task(&candidates, 7);
    foreign_set.candidate_set = task.candidate_set;
    for (bad, words) in [(beyond, "24 nodes"), (foreign_set, "`node7`")] {
        let single = session.pick(&bad).unwrap_err();
        let mut devices = Vec::new();
        let batch = session.pick_batch(&[task, bad], &mut devices).unwrap_err();
        for error in [single, batch] {
            assert!(
                matches!(&*error.kind, PolicyErrorKind::InvalidTask { what, .. } if what.contains(words)),
                "{error}"
            );
            assert_eq!(error.fault(), Fault::User);
        }
        assert!(devices.is_empty());
    }
    // The run goes on.
    session.pick(&task).unwrap();
    session.end().unwrap();
}

#[test]
fn a_policy_without_online_placement_says_so() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let shipped = ShippedPolicy::find("priority").unwrap();
    let mut policy = engine.load("priority", shipped.wasm(), &[]).unwrap();
    let error = policy.begin(0, &sample::sample(3, 1), 0).unwrap_err();
    assert!(
        matches!(
            &*error.kind,
            PolicyErrorKind::MissingExport { export: "online" }
        ),
        "{error}"
    );
    // The policy is none the worse for it.
    policy
        .place(&sample::sample(3, 1), &PlaceOptions::default())
        .unwrap();
}
