//! Policies that a separate process compiles: the result equals that of this process, or the
//! process ends within its limits.

use std::time::Duration;

use placewright::policy::CompilerProcess;
use placewright::policy::Fault;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyError;
use placewright::policy::PolicyErrorKind;
use placewright::policy::PolicyLimits;
use placewright::policy::ShippedPolicy;

use crate::sample;

const PROGRAM: &str = env!("CARGO_BIN_EXE_placewright");
const ENDS_LATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/all/compile_process/ends_late"
);

fn load(program: &str, limits: PolicyLimits) -> Result<(), PolicyError> {
    let engine = PolicyEngine::new(limits)
        .unwrap()
        .with_compiler(CompilerProcess::new(program));
    let heft = ShippedPolicy::find("heft").unwrap();
    engine.load("heft", heft.wasm(), &[]).map(drop)
}

#[test]
fn it_returns_the_policy_that_this_process_would_compile() {
    let here = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let there = here.clone().with_compiler(CompilerProcess::new(PROGRAM));
    let candidates = sample::constrained();
    let [here, there] = [here, there].map(|engine| {
        let heft = ShippedPolicy::find("heft").unwrap();
        let mut policy = engine.load("heft", heft.wasm(), &[]).unwrap();
        policy
            .place(&candidates, &PlaceOptions::default())
            .unwrap()
            .proposal
    });
    assert_eq!(here, there);
}

#[test]
fn it_is_ended_at_its_deadline() {
    let limits = PolicyLimits::default().with_compile_deadline(Duration::from_millis(1));
    let error = load(PROGRAM, limits).unwrap_err();
    assert!(
        matches!(*error.kind, PolicyErrorKind::CompileDeadline { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("--policy-compile-deadline-ms"));
    assert_eq!(error.fault(), Fault::Guest);
}

#[test]
fn an_infinite_deadline_never_passes() {
    let limits = PolicyLimits::default().with_compile_deadline(Duration::MAX);
    load(PROGRAM, limits).unwrap();
}

/// With half of the memory that the program needs for itself, and with a little more than that.
#[cfg(target_os = "linux")]
#[test]
fn it_is_ended_if_its_memory_does_not_suffice() {
    for megabytes in [1, 8, 16] {
        let limits = PolicyLimits::default().with_compile_memory_bytes(megabytes << 20);
        let Err(error) = load(PROGRAM, limits) else {
            // The sufficient size depends on the machine's allocator and processors; 1 MiB never
            // suffices.
            assert_ne!(megabytes, 1);
            continue;
        };
        assert!(
            matches!(*error.kind, PolicyErrorKind::CompileMemory { .. }),
            "{megabytes} MiB: {error}"
        );
        assert!(error.to_string().contains("--policy-compile-memory"));
    }
}

#[test]
fn silent_programs_and_invalid_policies_are_different_errors() {
    // Exits at once, with and without success; prints something else; exits after its outputs.
    for (program, words) in [
        ("false", "status 1"),
        ("true", "status 0"),
        ("echo", "status 0"),
        (ENDS_LATE, "status 3"),
    ] {
        let error = load(program, PolicyLimits::default()).unwrap_err();
        assert!(
            matches!(*error.kind, PolicyErrorKind::CompilerEnded { .. }),
            "{program}: {error}"
        );
        assert!(error.to_string().contains(words), "{program}: {error}");
        // A program that succeeds without an answer is no compiler; the policy is not to blame.
        let names_the_call = error.to_string().contains("of_this_program");
        assert_eq!(names_the_call, words == "status 0", "{program}: {error}");
    }
    let error = load("/nowhere/placewright", PolicyLimits::default()).unwrap_err();
    assert_eq!(error.fault(), Fault::Host, "{error}");
    assert!(
        error.to_string().contains("/nowhere/placewright"),
        "{error}"
    );
}

#[test]
fn an_invalid_policy_is_rejected_as_in_this_process() {
    let here = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let there = here.clone().with_compiler(CompilerProcess::new(PROGRAM));
    let heft = ShippedPolicy::find("heft").unwrap().wasm();
    // A function that does not validate: the last byte of its code is changed.
    let mut damaged = heft.to_vec();
    let end = code_end(heft);
    damaged[end - 2] = 0x01;
    damaged[end - 1] = 0x01;
    let [here, there] = [here, there].map(|engine| {
        let error = engine.load("damaged", &damaged, &[]).unwrap_err();
        assert_eq!(error.kind.reason(), "not-a-policy", "{error}");
        error.to_string()
    });
    assert_eq!(here, there);
}

/// Returns the end of the code section of a core module.
fn code_end(module: &[u8]) -> usize {
    const CODE: u8 = 10;
    let mut at = 8;
    loop {
        let id = module[at];
        let (mut size, mut shift) = (0_usize, 0);
        at += 1;
        loop {
            let byte = module[at];
            at += 1;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        at += size;
        if id == CODE {
            return at;
        }
    }
}
