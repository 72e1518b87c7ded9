//! Random graphs with random requests, groups, kernels, reference edges and pins, checked by an
//! oracle that implements the rules independently: see `oracle.rs`. `PROPTEST_CASES` sets the
//! number of graphs, 2,000 by default.

mod case;
mod oracle;

use std::cell::Cell;
use std::cell::RefCell;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesError;
use placewright::graph::NodeId;
use placewright::partition::RunRequest;
use placewright::placement::Placement;
use placewright::placement::check;
use placewright::plan::ExecutionPlan;
use placewright::policy::LoadedPolicy;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::ShippedPolicy;
use placewright::store::CacheFolder;
use proptest::test_runner::Config as ProptestConfig;
use proptest::test_runner::TestCaseError;
use proptest::test_runner::TestRunner;

use case::Case;
use oracle::Rules;

use crate::sample;

/// Checks every policy, and every rejection.
#[test]
fn placements_of_random_graphs_obey_every_rule_or_none_is_possible() {
    let policies = RefCell::new(policies());
    let (n_placed, n_refused) = (Cell::new(0), Cell::new(0));
    let mut config = ProptestConfig {
        // Without proptest's macro, the path of the file is unknown.
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 2000;
    }
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&case::arbitrary(), |case| {
        match case.candidates() {
            Ok(candidates) => {
                n_placed.set(n_placed.get() + 1);
                check_candidates(&case, &candidates)?;
                for policy in policies.borrow_mut().iter_mut() {
                    check_policy(&case, &candidates, policy)?;
                }
            }
            Err(error) => {
                n_refused.set(n_refused.get() + 1);
                check_refusal(&case, &error)?;
            }
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    // Minimum shares, so that the test covers both outcomes.
    let (n_placed, n_refused) = (n_placed.get(), n_refused.get());
    let fewest = (n_placed + n_refused) / 10;
    assert!(
        n_placed >= fewest && n_refused >= fewest,
        "{n_placed} placed, {n_refused} refused"
    );
}

/// If requests can be met, the candidate sets are exactly what the rules allow, in order of
/// preference.
fn check_candidates(case: &Case, candidates: &Candidates) -> Result<(), TestCaseError> {
    let rules = match Rules::of(case) {
        Ok(rules) => rules,
        Err(_) if case.soft => return Ok(()),
        Err(why) => return Err(fail(case, &format!("listed, although {why}"))),
    };
    for node in candidates.graph().nodes() {
        let found = candidates.of_node(node);
        let expected = rules.legal(node.index());
        if found != expected {
            let name = candidates.graph().node_name(node);
            let what = format!("{name} may be on {found:?}, the rules say {expected:?}");
            return Err(fail(case, &what));
        }
    }
    Ok(())
}

fn check_policy(
    case: &Case,
    candidates: &Candidates,
    policy: &mut LoadedPolicy,
) -> Result<(), TestCaseError> {
    let by = |what: &str| fail(case, what);
    let answer = policy.place(candidates, &PlaceOptions::default());
    let answer = answer.map_err(|error| by(&error.to_string()))?;
    let placement = check(candidates, answer.proposal).map_err(|error| by(&error.to_string()))?;
    let (counted, cut) = (placement.summary(), whole_run(&placement));
    let of_run = (cut.run_transfers().count() as u64, cut.transfer_bytes().0);
    let n_transfers = counted.n_transfers + counted.n_signals;
    if (n_transfers, counted.transfer_bytes) != of_run {
        return Err(by(&format!("counts {counted:?}, a run makes {of_run:?}")));
    }
    if let Some(what) = oracle::broken_rule(case, placement.devices()) {
        return Err(by(&what));
    }
    if policy.name() == "priority"
        && let Ok(rules) = Rules::of(case)
        && rules.tensorflows_choice() != placement.devices()
    {
        let (found, expected) = (placement.devices(), rules.tensorflows_choice());
        return Err(by(&format!("chose {found:?}, TensorFlow {expected:?}")));
    }
    Ok(())
}

/// Plans a run that fetches all unread outputs, and hence executes every node.
fn whole_run(placement: &Placement) -> ExecutionPlan {
    let graph = placement.graph();
    let is_last = |node: &NodeId| graph.successors().row(node.index()).is_empty();
    let fetches = graph
        .nodes()
        .filter(is_last)
        .filter_map(|node| graph.output(node, 0));
    let request = RunRequest {
        fetches: fetches.collect(),
        ..RunRequest::default()
    };
    placement.partition(&request).expect("nothing is fed")
}

/// A rejection is correct if some group has no device left: graphs with soft placement are rejected
/// only if they are with hard placement.
fn check_refusal(case: &Case, error: &CandidatesError) -> Result<(), TestCaseError> {
    match Rules::of(case) {
        Err(_) => Ok(()),
        Ok(_) => Err(fail(case, &format!("refused, but possible: {error}"))),
    }
}

fn fail(case: &Case, what: &str) -> TestCaseError {
    TestCaseError::fail(format!("{what}\n{case}"))
}

/// Returns the shipped policies, in the sandbox.
fn policies() -> Vec<LoadedPolicy> {
    let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/policies")).ok();
    let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache).unwrap();
    let load = |policy: ShippedPolicy| {
        let settings = sample::quick(policy, 5_000);
        engine
            .load(policy.name(), policy.wasm(), &settings)
            .unwrap()
    };
    ShippedPolicy::all().map(load).collect()
}
