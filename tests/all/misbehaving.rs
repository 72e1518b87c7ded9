//! Policies that misbehave: each ends with its own typed error, within its time, and the host
//! continues.
//!
//! A fixture that exceeds a limit behaves if the limit is raised, or the amount lowered: its second
//! row checks this.

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

/// If this passes, a test fails rather than hangs. Nothing here is slow; the rest is patience with
/// a busy machine.
const WATCHDOG: Duration = Duration::from_secs(30);

/// One test per row: its name, the fixture, its configuration, changed limits, and the expected
/// result.
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
        => (Err(K::OutOfFuel { call: "place", fuel: 10_000_000, in_host_calls: false }));
    evaluations_use_up_the_fuel_of_host_calls: "reads-budget", {"evaluations-before-offer": "1000000"}, |limits| limits.with_fuel(Some(10_000_000))
        => (Err(K::OutOfFuel { call: "place", in_host_calls: true, .. }));
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

    a_spinning_configuration_is_stopped_at_its_deadline: "spins", {"in": "configure"}, |limits| limits.with_configure_deadline(SHORT)
        => (Err(K::Deadline { call: "configure", .. }));
    a_long_configuration_ends_within_its_deadline: "spins", {"in": "configure", "rounds": "1000000"}, |limits| limits.with_configure_deadline(Duration::from_secs(20))
        => (Ok(answer) if answer.cut_off.is_none());

    an_offer_survives_an_error_after_it: "ends-after-offer", {"how": "fail"}, |limits| limits
        => (Ok(answer) if answer.cut_off == Some(CutOff::Failed("no better plan".to_owned())));
    an_offer_survives_the_memory_limit: "ends-after-offer", {"how": "hoard"}, |limits| limits.with_memory_bytes(64 << 20)
        => (Ok(answer) if answer.cut_off == Some(CutOff::Memory));
    an_offer_survives_the_stack_limit: "ends-after-offer", {"how": "recurse"}, |limits| limits
        => (Ok(answer) if answer.cut_off == Some(CutOff::Stack));
    an_offer_does_not_survive_a_trap: "ends-after-offer", {"how": "panic"}, |limits| limits
        => (Err(K::Trap { call: "place", .. }));
    an_offer_does_not_survive_declining: "ends-after-offer", {"how": "decline"}, |limits| limits
        => (Err(K::Declined(_)));
    an_offer_is_the_answer_of_who_returns: "ends-after-offer", {}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none() && answer.n_offers == 1);

    the_least_preferred_devices_may_lack_memory: "takes-last", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "memory");
    item_0_of_every_set_is_a_plan: "ignores-hints", {}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none() && answer.n_offers == 1);

    a_policy_that_wraps_another_behaves: "wraps-heft", {}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none() && answer.n_offers == 1);
    a_policy_that_reads_its_budget_behaves: "reads-budget", {}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none() && answer.n_offers == 1);

    a_hoarding_policy_meets_its_memory_limit: "hoards-memory", {}, |limits| limits.with_memory_bytes(64 << 20)
        => (Err(K::MemoryLimit { limit_bytes: 0x400_0000, requested_bytes }) if *requested_bytes > 64 << 20);
    a_hoard_meets_a_limit_below_it: "hoards-memory", {"bytes": "33554432"}, |limits| limits.with_memory_bytes(16 << 20)
        => (Err(K::MemoryLimit { .. }));
    // It keeps its memory, and is called twice.
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
    // The guest's own stack lies at the start of its linear memory.
    large_frames_leave_the_guests_memory_and_the_error_says_why: "recurses", {"large-frames": "true"}, |limits| limits
        => (Err(kind @ K::Trap { trap, .. }) if trap.contains("out of bounds memory access") && kind.to_string().contains("probably deep recursion: link the policy with `-C link-arg=-zstack-size=N`"));
    few_large_frames_fit_on_the_guests_stack: "recurses", {"large-frames": "true", "depth": "100"}, |limits| limits
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

    explanations_beyond_their_bytes_are_counted: "explains-too-much", {"explanations": "10"}, |limits| limits.with_explanation_bytes(5000)
        => (Ok(answer) if answer.proposal.explanations.len() == 4 && answer.dropped.explanations == 6);
    explanations_within_raised_bytes_are_kept: "explains-too-much", {"explanations": "10"}, |limits| limits.with_explanation_bytes(50_000)
        => (Ok(answer) if answer.proposal.explanations.len() == 10 && answer.dropped.explanations == 0);
    an_explanation_costs_its_bytes_for_each_node: "explains-too-much", {"explanations": "10", "times": "3"}, |limits| limits.with_explanation_bytes(10_000)
        => (Ok(answer) if answer.proposal.explanations.len() == 3 && answer.dropped.explanations == 7);
    // If shown, it would be three gigabytes.
    an_explanation_of_one_node_a_million_times_is_dropped: "explains-too-much", {"explanations": "1", "times": "3000000"}, |limits| limits
        => (Ok(answer) if answer.proposal.explanations.is_empty() && answer.dropped.explanations == 1);
    more_settings_than_their_number_are_refused: "explains-too-much", {}, |limits| limits.with_settings(2)
        => (Err(K::InvalidAnswer { call: "settings", what }) if what.contains("3 settings") && what.contains("--policy-limit settings=N"));
    metrics_beyond_their_number_are_counted: "explains-too-much", {"metrics": "100"}, |limits| limits
        => (Ok(answer) if answer.proposal.metrics.len() == 64 && answer.dropped.metrics == 36);
    metrics_within_a_raised_number_are_kept: "explains-too-much", {"metrics": "100"}, |limits| limits.with_metrics(100)
        => (Ok(answer) if answer.proposal.metrics.len() == 100 && answer.dropped.metrics == 0);
    a_policy_that_errs_online_places_whole_graphs: "errs-online", {"how": "spin"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());

    a_plan_of_wrong_length_is_refused: "answers-wrong-length", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "length");
    a_plan_of_right_length_is_taken: "answers-wrong-length", {"extra": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_device_out_of_range_is_refused: "answers-unknown-device", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "device" && violation.to_string().contains("`node23`"));
    an_undecided_node_is_named_without_a_device: "answers-unknown-device", {"undecided": "true"}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "device" && violation.to_string().starts_with("node `node23`: it has no device; candidates are "));
    devices_in_range_are_taken: "answers-unknown-device", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_device_outside_the_candidates_is_refused: "answers-non-candidate", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "candidate");
    candidates_are_taken: "answers-non-candidate", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_torn_group_is_refused: "breaks-group", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "group" && violation.to_string().contains("node0"));
    whole_groups_are_taken: "breaks-group", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_moved_pin_is_refused: "breaks-pin", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "pinned" && violation.node().0 == 3);
    kept_pins_are_taken: "breaks-pin", {"nodes": "0"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());
    a_full_memory_is_refused: "breaks-memory", {}, |limits| limits
        => (Err(K::InvalidProposal { violation }) if violation.rule() == "memory");
    what_fits_is_taken: "breaks-memory", {"crowd": "false"}, |limits| limits
        => (Ok(answer) if answer.cut_off.is_none());

    a_legal_offer_survives_an_illegal_one: "offers-illegal-last", {}, |limits| limits
        => (Ok(answer) if answer.n_offers == 1);
    a_plan_that_was_never_offered_is_no_answer: "never-offers", {}, |limits| limits
        => (Err(K::NoOffer));
    declining_is_told_apart_from_failing: "declines", {"reason": "no GPUs"}, |limits| limits
        => (Err(K::Declined(reason)) if reason == "no GPUs");
    a_reason_counts_more_than_an_earlier_refused_offer: "fails", {"reason": "no plan", "offers-illegal": "true"}, |limits| limits
        => (Err(K::Failed(reason)) if reason == "no plan");
    failing_says_why: "fails", {"reason": "no plan"}, |limits| limits
        => (Err(K::Failed(reason)) if reason == "no plan");
    // Another test checks that they do differ.
    different_plans_each_time_are_still_checked: "nondeterministic", {}, |limits| limits
        => (Ok(_) | Err(K::InvalidProposal { .. }));

    a_refused_configuration_is_the_users_fault: "refuses-config", {"mood": "sour"}, |limits| limits
        => (Err(kind @ K::Config(text)) if text.contains("mood") && kind.fault() == Fault::User);
    refused_defaults_are_the_policys_fault: "refuses-config", {}, |limits| limits
        => (Err(kind @ K::Failed(reason)) if reason.contains("mood") && kind.fault() == Fault::Guest);
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

/// Limits that wasmtime counts itself, exceeded by a policy that behaves.
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

/// Tests an instance that keeps state: the host promises that plans are checked, not that they are
/// equal.
#[test]
fn an_instance_keeps_its_state_between_calls() {
    let engine = engine(limits());
    let wasm = placewright_fixtures::wasm("nondeterministic");
    let mut policy = engine.load("nondeterministic", wasm, &[]).unwrap();
    let candidates = sample::sample(40, 3);
    let mut place = || policy.place(&candidates, &PlaceOptions::default()).unwrap();
    let (first, second) = (place(), place());
    assert_ne!(first.proposal.devices, second.proposal.devices);
    assert_eq!(policy.n_restarts(), 0);
}

#[test]
fn messages_of_a_policys_start_do_not_belong_to_its_first_placement() {
    let engine = engine(limits());
    let config = [("messages", "1"), ("at-start", "2")];
    let config = config.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let wasm = placewright_fixtures::wasm("floods-log");
    let mut policy = engine.load("floods-log", wasm, &config).unwrap();
    assert_eq!(policy.load_report().messages.kept.len(), 2);
    let candidates = sample::constrained();
    let answer = policy.place(&candidates, &PlaceOptions::default()).unwrap();
    assert_eq!(answer.messages.kept.len(), 1);
}

/// The stack of the calling thread does not bound the guest's; otherwise a guest could end the
/// process.
#[test]
fn recursion_on_a_small_thread_meets_its_own_limit() {
    let engine = engine(limits());
    let wasm = placewright_fixtures::wasm("recurses");
    let mut policy = engine.load("recurses", wasm, &[]).unwrap();
    let candidates = sample::constrained();
    let small = thread::Builder::new().stack_size(128 << 10);
    let asked = small
        .spawn(move || policy.place(&candidates, &PlaceOptions::default()))
        .unwrap();
    let error = asked.join().unwrap().unwrap_err();
    assert!(
        matches!(
            *error.kind,
            K::StackOverflow {
                limit_bytes: 0x8_0000,
                ..
            }
        ),
        "{error}"
    );
}

/// Makes one pick, and a batch of two, with the fixture that misbehaves online.
fn pick(
    limits: PolicyLimits,
    config: &[(&str, &str)],
) -> (Result<usize, PolicyError>, Result<usize, PolicyError>) {
    let engine = engine(limits);
    let config: Vec<_> = config
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let wasm = placewright_fixtures::wasm("errs-online");
    let mut policy = engine.load("errs-online", wasm, &config).unwrap();
    let candidates = sample::constrained();
    let tasks = [0, 1].map(|node| sample::ready_task(&candidates, node));
    let mut session = policy.begin(1, &candidates, 0).unwrap();
    let one = session
        .pick(&tasks[0])
        .map(|device| usize::from(device.is_some()));
    if one.is_err() {
        let error = session.pick(&tasks[0]).unwrap_err();
        assert!(error.to_string().contains("the run is over"), "{error}");
    }
    drop(session);
    let mut session = policy.begin(2, &candidates, 0).unwrap();
    let mut devices = Vec::new();
    let batch = session.pick_batch(&tasks, &mut devices);
    if batch.is_err() {
        assert!(devices.is_empty());
        let error = session.observe(&[], &[]).unwrap_err();
        assert!(error.to_string().contains("the run is over"), "{error}");
    }
    (one, batch.map(|()| devices.len()))
}

#[test]
fn a_spinning_pick_is_stopped_at_its_deadline() {
    let rows = |rounds| [("how", "spin"), ("rounds", rounds)];
    under_watchdog(move || {
        let (one, batch) = pick(limits().with_pick_deadline(SHORT), &rows("0"));
        let (one, batch) = (one.unwrap_err(), batch.unwrap_err());
        assert!(
            matches!(*one.kind, K::Deadline { call: "pick", .. }),
            "{one}"
        );
        assert!(
            matches!(
                *batch.kind,
                K::Deadline {
                    call: "pick-batch",
                    ..
                }
            ),
            "{batch}"
        );
        let patient = limits().with_pick_deadline(Duration::from_secs(20));
        let (one, batch) = pick(patient, &rows("1000000"));
        assert_eq!((one.unwrap(), batch.unwrap()), (1, 2));
    });
}

#[test]
fn the_first_invalid_answer_ends_the_run() {
    let (one, batch) = pick(limits(), &[("how", "foreign")]);
    for error in [one.unwrap_err(), batch.unwrap_err()] {
        assert!(matches!(*error.kind, K::InvalidAnswer { .. }), "{error}");
    }
    let (one, batch) = pick(limits(), &[("how", "few")]);
    assert_eq!(one.unwrap(), 1);
    let error = batch.unwrap_err();
    assert!(
        matches!(&*error.kind, K::InvalidAnswer { what, .. } if what == "1 devices for 2 tasks"),
        "{error}"
    );
    let (one, batch) = pick(limits(), &[]);
    assert_eq!((one.unwrap(), batch.unwrap()), (1, 2));
}

/// Shorter than the watchdog.
fn limits() -> PolicyLimits {
    PolicyLimits::default().with_place_deadline(Duration::from_secs(20))
}

/// Used up by guests that do not terminate.
const SHORT: Duration = Duration::from_millis(100);

fn engine(limits: PolicyLimits) -> PolicyEngine {
    // Compiled guests are cached between runs; without the folder the tests are only slower.
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
        let options = PlaceOptions::default().with_explain_wanted(true);
        let loaded = engine.load(fixture, placewright_fixtures::wasm(fixture), &config);
        match loaded {
            Err(error) => expect(fixture, Err(error), is_expected),
            Ok(mut policy) => {
                // Twice, because a fault must not change the policy's state.
                for _ in 0..2 {
                    let answer = policy.place(&candidates, &options);
                    if let Ok(answer) = &answer {
                        check(&candidates, answer.proposal.clone()).unwrap();
                    }
                    expect(fixture, answer, is_expected);
                }
            }
        }
        // The same engine, if its limits suffice for a policy that behaves.
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
        // Nobody receives it after the watchdog has expired.
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
