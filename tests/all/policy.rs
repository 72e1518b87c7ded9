//! Policies that behave: sandboxed and native builds agree, plans are reproducible, and policies
//! compose and explain.

use std::time::Duration;

use placewright::candidates::{Candidates, CandidatesBuilder};
use placewright::graph::NodeId;
use placewright::placement::check;
use placewright::policy::{
    Fault, LadderError, LoadedPolicy, PlaceOptions, PolicyEngine, PolicyErrorKind, PolicyLimits,
    PolicyRequest, PolicySource, Rung, ShippedPolicy, place_natively, place_with_ladder,
};
use placewright::store::CacheFolder;

use crate::sample;

/// Enough for a search of 2,000 nodes, the largest sample.
const EFFORT: u32 = 300_000;

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
fn sandboxed_and_native_builds_give_the_same_plan() {
    let limits = PolicyLimits::default();
    let engine = PolicyEngine::new(limits.clone()).unwrap();
    let options = PlaceOptions::default().with_seed(7);
    for shipped in ShippedPolicy::all() {
        let settings = sample::quick(shipped, EFFORT);
        let mut sandboxed = engine
            .load(shipped.name(), shipped.wasm(), &settings)
            .unwrap();
        for candidates in samples() {
            let wasm = sandboxed.place(&candidates, &options).unwrap();
            let native =
                place_natively(shipped, &settings, &candidates, &options, &limits).unwrap();
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
        let settings = sample::quick(shipped, EFFORT);
        for is_cached in [false, true] {
            let engine = engine();
            let mut policy = engine
                .load(shipped.name(), shipped.wasm(), &settings)
                .unwrap();
            assert_eq!(policy.load_report().is_cached, is_cached);
            for _ in 0..2 {
                plans.push(policy.place(&candidates, &PlaceOptions::default()).unwrap());
            }
        }
        for plan in &plans {
            assert_eq!(plan.proposal, plans[0].proposal, "{}", shipped.name());
            assert_eq!(plan.cut_off, None);
        }
        // The first call of a new instance may initialize state; the same call of two instances
        // uses the same fuel.
        assert_eq!(plans[0].fuel_used, plans[2].fuel_used);
        assert_eq!(plans[1].fuel_used, plans[3].fuel_used);
        assert!(plans[0].fuel_used > Some(0));
        for plan in &plans {
            assert_eq!(plan.host_fuel_used, plans[0].host_fuel_used);
            assert!(plan.host_fuel_used > Some(0));
        }
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
    // An engine keeps the compiled code of shipped policies in memory, but not that of copies.
    let bytes = shipped.wasm().to_vec();
    let load = || engine.load("priority", &bytes, &[]).unwrap();
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

/// Even if the policy is in the cache, because larger limits allowed it.
#[test]
fn a_policy_that_a_limit_rejects_is_not_taken_from_the_cache() {
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
            let settings = sample::quick(shipped, EFFORT);
            let mut policy = engine.load(shipped.name(), bytes, &settings).unwrap();
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
fn a_shipped_policy_that_runs_out_of_fuel_is_answered_by_its_native_build() {
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
fn unknown_names_are_rejected_with_the_shipped_ones() {
    let error = PolicySource::parse("hefty").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`priority`, `round-robin` and `search`")
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
    let candidates = sample::sample(200, 8);
    let tasks: Vec<_> = candidates
        .graph()
        .nodes()
        .map(|node| sample::ready_task(&candidates, node.0))
        .collect();
    let mut online = Vec::new();
    for shipped in ShippedPolicy::all() {
        let name = shipped.name();
        let mut policy = engine.load(name, shipped.wasm(), &[]).unwrap();
        if !policy.is_online() {
            continue;
        }
        online.push(name);
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
        // Within a batch, `dmdas` decides by priority.
        if name != "dmdas" {
            assert_eq!(single, batch, "{name}");
        }
        for (task, device) in tasks.iter().chain(&tasks).zip(single.iter().chain(&batch)) {
            let device = device.unwrap_or_else(|| panic!("{name} has no opinion"));
            let legal = candidates.of_node(NodeId(task.node));
            assert!(legal.contains(&device.0), "{name}");
        }
    }
    assert_eq!(online, ["dmda", "dmdas", "lws", "round-robin"]);
}

#[test]
fn a_foreign_task_is_rejected_before_the_policy_sees_it() {
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
    // The run continues.
    session.pick(&task).unwrap();
    session.end().unwrap();
}

#[test]
fn a_policy_without_online_placement_is_an_error() {
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
    // The policy still works.
    policy
        .place(&sample::sample(3, 1), &PlaceOptions::default())
        .unwrap();
}

fn fixture(engine: &PolicyEngine, name: &str, config: &[(&str, &str)]) -> LoadedPolicy {
    let config: Vec<_> = config
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let wasm = placewright_fixtures::wasm(name);
    engine.load(name, wasm, &config).unwrap()
}

#[test]
fn a_policy_that_depends_on_a_shipped_one_places() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let candidates = sample::constrained();
    let options = PlaceOptions::default();
    let place = |config: &[(&str, &str)]| {
        let mut policy = fixture(&engine, "wraps-heft", config);
        policy.place(&candidates, &options)
    };
    let shipped = ShippedPolicy::find("heft").unwrap();
    let mut heft = engine.load("heft", shipped.wasm(), &[]).unwrap();
    let of_heft = heft.place(&candidates, &options).unwrap();
    let wrapped = place(&[]).unwrap();
    assert_eq!(wrapped.proposal, of_heft.proposal);

    // The outer policy changes the inner one's offer.
    let used = of_heft.proposal.devices.iter().copied().find(|&device| {
        candidates.graph().nodes().any(|node| {
            of_heft.proposal.devices[node.0 as usize] == device
                && candidates.of_node(node).len() > 1
        })
    });
    let avoided = used.expect("a node that has a choice");
    let changed = place(&[("avoid", &avoided.to_string())]).unwrap();
    check(&candidates, changed.proposal.clone()).unwrap();
    for node in candidates.graph().nodes() {
        let device = changed.proposal.devices[node.0 as usize];
        let is_pinned = candidates.nodes().pinned[node.0 as usize] != u32::MAX;
        let has_choice = candidates.of_node(node).len() > 1 && !is_pinned;
        assert!(!has_choice || device != avoided, "{node:?} is on {device}");
    }

    // The outer policy refuses the offer, and the inner policy reports why.
    let error = place(&[("refuse", "true")]).unwrap_err();
    assert!(error.to_string().contains("`veto`"), "{error}");
    assert!(
        matches!(&*error.kind, PolicyErrorKind::Failed(_)),
        "{error}"
    );

    // The inner policy has the user's settings.
    let config = [("insertion".to_owned(), "perhaps".to_owned())];
    let wasm = placewright_fixtures::wasm("wraps-heft");
    let error = engine.load("wraps-heft", wasm, &config).unwrap_err();
    assert!(error.to_string().contains("insertion"), "{error}");
}

#[test]
fn policies_read_their_budget_and_their_own_plan() {
    let candidates = sample::constrained();
    let metrics = |limits: PolicyLimits| {
        let engine = PolicyEngine::new(limits).unwrap();
        let mut policy = fixture(&engine, "reads-budget", &[]);
        let answer = policy.place(&candidates, &PlaceOptions::default()).unwrap();
        let metric = |name: &str| {
            let mut metrics = answer.proposal.metrics.iter();
            metrics.find(|(known, _)| known == name).unwrap().1
        };
        assert_eq!(metric("n_devices_unset"), 0.0);
        assert_eq!(metric("is_read_back"), 1.0);
        let [unit, start, end] = ["unit", "at_start", "at_end"].map(metric);
        (unit, start, end, answer)
    };

    let limit = 1_000_000_000;
    let (unit, start, end, answer) = metrics(PolicyLimits::default().with_fuel(Some(limit)));
    assert_eq!(unit, 1.0);
    assert!(end < start && start < 1e9, "{start} {end}");
    let (wasm, host) = (answer.fuel_used.unwrap(), answer.host_fuel_used.unwrap());
    // The reported budget is what the policy saw: the host calls used more.
    assert!(host > wasm, "{host} {wasm}");
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let left = (limit - host) as f64;
    assert!(left <= end && end - left < 1_000.0, "{left} {end}");

    let deadline = Duration::from_secs(600);
    let (unit, start, end, answer) = metrics(PolicyLimits::default().with_place_deadline(deadline));
    assert_eq!(unit, 2.0);
    assert!(end <= start && start <= 6e11, "{start} {end}");
    assert!(end > 0.0);
    assert_eq!((answer.fuel_used, answer.host_fuel_used), (None, None));

    let (unit, start, ..) = metrics(PolicyLimits::default().with_place_deadline(Duration::MAX));
    #[expect(clippy::cast_precision_loss, reason = "as the policy rounds it")]
    let unlimited = u64::MAX as f64;
    assert_eq!((unit, start), (0.0, unlimited));
}

#[test]
fn shipped_policies_explain_every_node_if_asked() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let limits = PolicyLimits::default();
    for shipped in ShippedPolicy::all() {
        let settings = sample::quick(shipped, EFFORT);
        let mut policy = engine
            .load(shipped.name(), shipped.wasm(), &settings)
            .unwrap();
        for candidates in [sample::constrained(), sample::sample(300, 3)] {
            let place = |policy: &mut LoadedPolicy, is_wanted| {
                let options = PlaceOptions::default().with_explain_wanted(is_wanted);
                policy.place(&candidates, &options).unwrap()
            };
            let explained = place(&mut policy, true);
            assert_eq!(explained.dropped.explanations, 0);
            let mut n_reasons = vec![0; candidates.graph().n_nodes()];
            for explanation in &explained.proposal.explanations {
                assert!(!explanation.reason.is_empty());
                for &node in &explanation.nodes {
                    n_reasons[node as usize] += 1;
                }
            }
            assert!(n_reasons.iter().all(|&n| n == 1), "{n_reasons:?}");
            // Reasons change nothing else, and are not built unless requested.
            let plain = place(&mut policy, false);
            assert!(plain.proposal.explanations.is_empty());
            assert_eq!(plain.proposal.devices, explained.proposal.devices);
            let options = PlaceOptions::default().with_explain_wanted(true);
            let native =
                place_natively(shipped, &settings, &candidates, &options, &limits).unwrap();
            assert_eq!(native.proposal, explained.proposal);
        }
    }
}

#[test]
fn reasons_for_a_million_nodes_are_within_the_limit() {
    // A fifth of both, for speed.
    let n_nodes = 200_000;
    let graph = sample::layered_graph(n_nodes, 3);
    let devices = sample::devices(2, 2);
    let mut builder = CandidatesBuilder::new(&graph, &devices);
    for (device, _) in devices.iter() {
        builder = builder.with_memory_capacity_bytes(device, 1 << 50);
    }
    let candidates = builder.build().unwrap();
    let options = PlaceOptions::default().with_explain_wanted(true);
    let limits = PolicyLimits::default();
    let bytes = limits.explanation_bytes / 5;
    let limits = limits.with_explanation_bytes(bytes);
    for shipped in ShippedPolicy::all() {
        let answer = place_natively(shipped, &[], &candidates, &options, &limits).unwrap();
        let explanations = &answer.proposal.explanations;
        let n_explained: usize = explanations.iter().map(|why| why.nodes.len()).sum();
        assert_eq!(n_explained, n_nodes, "{}", shipped.name());
        assert_eq!(answer.dropped.explanations, 0, "{}", shipped.name());
    }
}
