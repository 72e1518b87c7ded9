//! Policies that misbehave: each ends in its own typed error, within its time, and the host goes on.
//!
//! A fixture that breaks a limit behaves where the limit is raised, or the amount lowered: its second row says so.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use placewright::placement::check;
use placewright::policy::{
    CutOff, Fault, PlaceOptions, PolicyAnswer, PolicyEngine, PolicyError, PolicyErrorKind,
    PolicyLimits, ShippedPolicy,
};
use placewright::store::CacheFolder;

use crate::sample;

/// After this a test fails rather than hangs. Nothing here is slow; the rest is patience with a busy machine.
const WATCHDOG: Duration = Duration::from_secs(30);

/// One test per row: its name, the fixture, its configuration, what is changed of the limits, and what to expect.
macro_rules! misbehaving {
    ($($test:ident: $fixture:literal, {$($key:literal: $value:literal),*}, |$limits:ident| $changed:expr => ($pattern:pat $(if $guard:expr)?);)*) => {
        $(#[test]
        fn $test() {
            let $limits = limits();
            check_row($fixture, &[$(($key, $value)),*], $changed, |outcome| {
                matches!(view(outcome), $pattern $(if $guard)?)
            });
        })*

        const ROWS: &[&str] = &[$($fixture),*];
    };
}

misbehaving! {
    a_panic_is_a_trap_with_its_message: "traps", {}, |limits| limits
        => (Err(K::Trap { call: "place", message: Some(message), .. }) if message.contains("panicked at"));
    a_bare_trap_names_functions: "traps", {"how": "unreachable"}, |limits| limits
        => (Err(K::Trap { call: "place", message: None, trap, backtrace }) if trap.contains("unreachable") && !backtrace.is_empty());
    a_trap_in_configure_is_told_apart: "traps", {"in": "configure"}, |limits| limits
        => (Err(K::Trap { call: "configure", .. }));
    what_does_not_trap_places: "traps", {"how": "none"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());

    a_spinning_policy_is_stopped_at_its_deadline: "spins", {}, |limits| limits.with_place_deadline(SHORT)
        => (Err(K::Deadline { call: "place", .. }));
    a_spinning_policy_is_stopped_when_its_fuel_is_used_up: "spins", {}, |limits| limits.with_fuel(Some(10_000_000))
        => (Err(K::OutOfFuel { call: "place", fuel: 10_000_000 }));
    a_long_loop_ends_with_enough_fuel: "spins", {"rounds": "1000000"}, |limits| limits.with_fuel(Some(1_000_000_000))
        => (Ok(answer) if answer.cut_off.is_none());
    a_long_loop_runs_out_of_little_fuel: "spins", {"rounds": "1000000"}, |limits| limits.with_fuel(Some(100_000))
        => (Err(K::OutOfFuel { .. }));
    an_offer_survives_the_deadline: "spins-after-offer", {}, |limits| limits.with_place_deadline(SHORT)
        => (Ok(answer) if answer.cut_off == Some(CutOff::Deadline));
    an_offer_survives_the_end_of_fuel: "spins-after-offer", {}, |limits| limits.with_fuel(Some(10_000_000))
        => (Ok(answer) if answer.cut_off == Some(CutOff::Fuel));
    a_policy_that_returns_is_not_cut_off: "spins-after-offer", {"rounds": "10"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());

    a_hoarding_policy_meets_its_memory_limit: "hoards-memory", {}, |limits| limits.with_memory_bytes(64 << 20)
        => (Err(K::MemoryLimit { limit_bytes: 0x400_0000, requested_bytes }) if *requested_bytes > 64 << 20);
    a_hoard_meets_a_limit_below_it: "hoards-memory", {"bytes": "33554432"}, |limits| limits.with_memory_bytes(16 << 20)
        => (Err(K::MemoryLimit { .. }));
    // It keeps what it has, and is asked twice.
    a_hoard_fits_below_a_raised_limit: "hoards-memory", {"bytes": "33554432"}, |limits| limits.with_memory_bytes(128 << 20)
        => (Ok(answer) if answer.peak_memory_bytes > Some(32 << 20));

    a_growing_table_meets_its_limit: "grows-tables", {}, |limits| limits
        => (Err(K::TableLimit { limit: 10_000, .. }));
    a_table_meets_a_limit_below_it: "grows-tables", {"elements": "20000"}, |limits| limits
        => (Err(K::TableLimit { limit: 10_000, .. }));
    a_table_grows_below_a_raised_limit: "grows-tables", {"elements": "20000"}, |limits| limits.with_table_elements(50_000)
        => (Ok(answer) if answer.cut_off.is_none());

    endless_recursion_uses_up_the_stack: "recurses", {}, |limits| limits
        => (Err(K::StackOverflow { call: "place", limit_bytes: 0x8_0000 }));
    recursion_meets_a_low_stack_limit: "recurses", {"depth": "4000"}, |limits| limits.with_stack_bytes(64 << 10)
        => (Err(K::StackOverflow { .. }));
    recursion_fits_on_a_raised_stack: "recurses", {"depth": "4000"}, |limits| limits.with_stack_bytes(4 << 20)
        => (Ok(answer) if answer.cut_off.is_none());

    a_huge_list_is_not_taken: "hands-over-too-much", {}, |limits| limits
        => (Err(K::TransferLimit { call: "place", limit_bytes: 0x400_0000 }));
    a_list_meets_a_limit_below_it: "hands-over-too-much", {"elements": "1000000"}, |limits| limits.with_hostcall_bytes(1 << 20)
        => (Err(K::TransferLimit { .. }));
    a_list_is_taken_below_a_raised_limit: "hands-over-too-much", {"elements": "1000000"}, |limits| limits.with_hostcall_bytes(16 << 20)
        => (Ok(answer) if answer.cut_off.is_none());

    a_flood_of_messages_is_cut_and_counted: "floods-log", {"messages": "1000", "bytes": "10000"}, |limits| limits
        => (Ok(answer) if {
            let messages = &answer.messages;
            messages.kept.len() == 256
                && messages.dropped == 744
                && messages.truncated == 256
                && messages.kept.iter().all(|message| message.is_truncated && message.text.len() == 4096)
        });
    an_endless_flood_does_not_stop_the_host: "floods-log", {}, |limits| limits
        => (Ok(answer) if answer.messages.dropped == 1_000_000 - 256);
    few_messages_are_all_kept: "floods-log", {"messages": "3"}, |limits| limits
        => (Ok(answer) if answer.messages.kept.len() == 3 && answer.messages.dropped == 0);

    a_plan_of_wrong_length_is_refused: "answers-wrong-length", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "length");
    a_plan_of_right_length_is_taken: "answers-wrong-length", {"extra": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_device_out_of_range_is_refused: "answers-unknown-device", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "device" && violation.explanation.contains("`node23`"));
    devices_in_range_are_taken: "answers-unknown-device", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_device_that_is_no_candidate_is_refused: "answers-non-candidate", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "candidate");
    candidates_are_taken: "answers-non-candidate", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_torn_group_is_refused: "breaks-group", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "group" && violation.explanation.contains("node0"));
    whole_groups_are_taken: "breaks-group", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    // The only candidate of a pinned node is its pin.
    a_moved_pin_is_refused: "breaks-pin", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "candidate" && violation.node == 3);
    kept_pins_are_taken: "breaks-pin", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_full_memory_is_refused: "breaks-memory", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule == "memory");
    what_fits_is_taken: "breaks-memory", {"crowd": "false"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());

    a_legal_offer_survives_an_illegal_one: "offers-illegal-last", {}, |limits| limits
        => (Ok(answer) if answer.n_offers == 1);
    a_plan_that_was_never_offered_is_no_answer: "never-offers", {}, |limits| limits
        => (Err(K::NoOffer));
    declining_is_told_apart_from_failing: "declines", {"reason": "no GPUs"}, |limits| limits
        => (Err(K::Declined(reason)) if reason == "no GPUs");
    failing_says_why: "fails", {"reason": "no plan"}, |limits| limits
        => (Err(K::Failed(reason)) if reason == "no plan");
    different_plans_each_time_are_still_checked: "nondeterministic", {}, |limits| limits
        => (Ok(_) | Err(K::InvalidProposal { .. }));

    a_refused_configuration_is_the_users_fault: "refuses-config", {}, |limits| limits
        => (Err(kind @ K::Config(text)) if text.contains("mood") && kind.fault() == Fault::User);
    an_accepted_configuration_places: "refuses-config", {"mood": "sweet"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    an_unknown_setting_is_the_users_fault: "refuses-config", {"mod": "sweet"}, |limits| limits
        => (Err(kind @ K::UnknownSetting { key, known }) if key == "mod" && known == &["mood"] && kind.fault() == Fault::User);

    unknown_imports_are_named: "imports-unknown", {}, |limits| limits
        => (Err(K::UnknownImport { names }) if names == &["wasi:clocks/monotonic-clock@0.2.6"]);
    a_module_without_exports_is_no_policy: "exports-nothing", {}, |limits| limits
        => (Err(K::MissingExport { export: "lifecycle" }));
    another_contract_is_refused_with_both_versions: "old-contract", {}, |limits| limits
        => (Err(K::Incompatible { policy, host, .. }) if policy == "0.9.0" && host == "0.1.0");
}

use PolicyErrorKind as K;

#[test]
fn every_fixture_has_a_row() {
    for (fixture, _) in placewright_fixtures::ALL {
        assert!(
            ROWS.contains(fixture),
            "fixture `{fixture}` has no row in tests/all/misbehaving.rs"
        );
    }
}

/// Limits that wasmtime counts itself, met by a policy that behaves.
#[test]
fn counts_of_instances_tables_memories_and_handles_are_limited() {
    type Change = fn(PolicyLimits) -> PolicyLimits;
    type IsExpected = fn(&PolicyErrorKind) -> bool;
    let rows: [(Change, IsExpected); 4] = [
        (
            |limits| limits.with_instances(1),
            |kind| {
                matches!(
                    kind,
                    K::InstanceLimit {
                        what: "instances",
                        limit: 1
                    }
                )
            },
        ),
        (
            |limits| limits.with_memories(0),
            |kind| {
                matches!(
                    kind,
                    K::InstanceLimit {
                        what: "memories",
                        limit: 0
                    }
                )
            },
        ),
        (
            |limits| limits.with_tables(0),
            |kind| {
                matches!(
                    kind,
                    K::InstanceLimit {
                        what: "tables",
                        limit: 0
                    }
                )
            },
        ),
        (
            |limits| limits.with_component_handles(2),
            |kind| {
                matches!(
                    kind,
                    K::HandleLimit {
                        call: "place",
                        limit: 2
                    }
                )
            },
        ),
    ];
    for (change, is_expected) in rows {
        let error = priority(&engine(change(limits()))).unwrap_err();
        assert!(is_expected(&error.kind), "{error}");
        assert_eq!(error.fault(), Fault::Guest);
        priority(&engine(limits())).unwrap();
    }
}

/// Shorter than the watchdog.
fn limits() -> PolicyLimits {
    PolicyLimits::default().with_place_deadline(Duration::from_secs(20))
}

/// Used up by guests that do not end.
const SHORT: Duration = Duration::from_millis(100);

fn engine(limits: PolicyLimits) -> PolicyEngine {
    // Compiled guests are kept between runs; without the folder the tests are only slower.
    let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/policies")).ok();
    PolicyEngine::with_cache(limits, cache).unwrap()
}

fn priority(engine: &PolicyEngine) -> Result<PolicyAnswer, PolicyError> {
    let shipped = ShippedPolicy::find("priority").unwrap();
    let mut policy = engine.load("priority", shipped.wasm(), &[])?;
    policy.place(&sample::constrained(), &PlaceOptions::default())
}

fn view(outcome: &Result<PolicyAnswer, PolicyError>) -> Result<&PolicyAnswer, &PolicyErrorKind> {
    outcome.as_ref().map_err(|error| &*error.kind)
}

/// Runs a fixture twice in one place, and then a policy that behaves on the same engine.
fn check_row(
    fixture: &'static str,
    config: &[(&str, &str)],
    limits: PolicyLimits,
    is_expected: fn(&Result<PolicyAnswer, PolicyError>) -> bool,
) {
    let config: Vec<_> = config
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    under_watchdog(move || {
        let engine = engine(limits.clone());
        let candidates = sample::constrained();
        let options = PlaceOptions::default();
        let loaded = engine.load(fixture, placewright_fixtures::wasm(fixture), &config);
        match loaded {
            Err(error) => expect(fixture, Err(error), is_expected),
            Ok(mut policy) => {
                // A second time, because a fault must not leave the policy in a state of its own.
                for _ in 0..2 {
                    let answer = policy.place(&candidates, &options);
                    if let Ok(answer) = &answer {
                        check(&candidates, answer.proposal.clone()).unwrap();
                    }
                    expect(fixture, answer, is_expected);
                }
            }
        }
        // The same engine, but limits that a policy that behaves stays within.
        if limits.stack_bytes >= 256 << 10 && limits.fuel.is_none_or(|fuel| fuel > 1_000_000) {
            priority(&engine).unwrap();
        }
    });
}

fn expect(
    fixture: &str,
    outcome: Result<PolicyAnswer, PolicyError>,
    is_expected: fn(&Result<PolicyAnswer, PolicyError>) -> bool,
) {
    assert!(is_expected(&outcome), "{fixture} ended in {outcome:?}");
    if let Err(error) = outcome {
        let text = error.to_string();
        assert!(text.contains(fixture), "{text}");
    }
}

/// Fails rather than hangs.
fn under_watchdog(body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        body();
        // Nobody listens once the watchdog has barked.
        let _ = done.send(());
    });
    match is_done.recv_timeout(WATCHDOG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {WATCHDOG:?}"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}
