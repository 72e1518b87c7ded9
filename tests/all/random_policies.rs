//! Policies of random code: each ends with a legal plan or an error of its own, within the limits.

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use placewright::candidates::CandidatesBuilder;
use placewright::candidates::synthetic;
use placewright::policy::CompilerProcess;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright_random_policies::Kind;
use placewright_random_policies::RandomPolicy;

use crate::drive::drive;

const N_NODES: u32 = 24;
const N_DEVICES: u32 = 4;

/// If this passes, a test fails rather than hangs. Nothing here is slow; the rest is patience with
/// a busy machine.
const WATCHDOG: Duration = Duration::from_secs(60);

/// `PROPTEST_CASES` sets another number of cases, as for other random tests.
fn n_cases() -> u64 {
    let asked = env::var("PROPTEST_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(100)
}

fn limits() -> PolicyLimits {
    let short = Duration::from_millis(20);
    PolicyLimits::default()
        .with_memory_bytes(64 << 20)
        .with_place_deadline(short)
        .with_configure_deadline(short)
}

#[test]
fn random_policies_end_in_a_plan_or_an_error() {
    let graph = synthetic::graph(N_NODES, 1);
    let devices = Arc::new(synthetic::devices(N_DEVICES));
    let candidates = CandidatesBuilder::new(&graph, &devices).build().unwrap();
    let by_time = PolicyEngine::new(limits()).unwrap();
    let by_fuel = PolicyEngine::new(limits().with_fuel(Some(1_000_000))).unwrap();
    let program = CompilerProcess::new(env!("CARGO_BIN_EXE_placewright"));
    let in_process = PolicyEngine::new(limits()).unwrap().with_compiler(program);
    let (mut n_valid, mut n_loaded) = (0, 0);
    let mut outcomes = BTreeMap::<String, u64>::new();
    // The last error of each kind, for work on the generator.
    let mut said = BTreeMap::new();
    for seed in 0..n_cases() {
        let RandomPolicy { kind, bytes } = RandomPolicy::of_seed(seed, N_NODES, N_DEVICES);
        let engine = match seed % 16 {
            0 => &in_process,
            n if n % 2 == 0 => &by_time,
            _ => &by_fuel,
        };
        let started = Instant::now();
        let name = format!("random {seed}");
        let driven = drive(engine, &name, &bytes, &candidates);
        assert!(started.elapsed() < WATCHDOG, "seed {seed}: {driven:?}");
        if engine.limits().fuel.is_some() {
            assert_eq!(
                driven,
                drive(engine, &name, &bytes, &candidates),
                "seed {seed}"
            );
        }
        if matches!(kind, Kind::Module | Kind::Component) {
            n_valid += 1;
            n_loaded += u64::from(driven.is_loaded);
            if let Some(last) = driven.outcomes.last() {
                said.insert(last.clone(), driven.said);
            }
        }
        for outcome in driven.outcomes {
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    // Otherwise the generator only tests how files are rejected.
    assert!(
        n_loaded * 2 > n_valid,
        "{n_loaded} of {n_valid}: {outcomes:?}: {said:#?}"
    );
    assert!(outcomes["placed"] * 10 > n_valid, "{outcomes:?}: {said:#?}");
}
