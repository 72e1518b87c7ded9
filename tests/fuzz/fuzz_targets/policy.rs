//! Fuzzes untrusted policies: a file gives either valid plans or errors of its own.
//!
//! The input is either a file, or the choices of a generator of valid modules, so that more than
//! half of the inputs reach `place`.

#![no_main]

#[path = "../../support/drive.rs"]
mod drive;

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Unstructured;
use libfuzzer_sys::Corpus;
use libfuzzer_sys::fuzz_target;
use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::synthetic;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright_random_policies::RandomPolicy;

const N_NODES: u32 = 24;
const N_DEVICES: u32 = 4;

static CANDIDATES: LazyLock<Candidates> = LazyLock::new(|| {
    let graph = synthetic::graph(N_NODES, 1);
    let devices = Arc::new(synthetic::devices(N_DEVICES));
    CandidatesBuilder::new(&graph, &devices)
        .build()
        .expect("every node runs on some device")
});

/// Limited by fuel, so that an input always behaves the same.
static ENGINE: LazyLock<PolicyEngine> = LazyLock::new(|| {
    let limits = PolicyLimits::default()
        .with_memory_bytes(16 << 20)
        .with_configure_deadline(Duration::from_secs(1))
        .with_fuel(Some(1_000_000));
    PolicyEngine::new(limits).expect("the limits are possible")
});

fuzz_target!(
    // The host catches the encoder's panics and turns them into errors; libFuzzer's hook would end
    // the process first. Other panics still reach libFuzzer.
    init: drop(std::panic::take_hook()),
    |data: &[u8]| -> Corpus {
        if data.starts_with(b"\0asm") {
            drive::drive(&ENGINE, "fuzz", data, &CANDIDATES);
            return Corpus::Keep;
        }
        let Ok(policy) = RandomPolicy::new(&mut Unstructured::new(data), N_NODES, N_DEVICES) else {
            return Corpus::Reject;
        };
        drive::drive(&ENGINE, "fuzz", &policy.bytes, &CANDIDATES);
        Corpus::Keep
    }
);
