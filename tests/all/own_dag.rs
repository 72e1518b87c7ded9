//! The examples of services that execute elsewhere: one graph placed as a whole, and one placed
//! task by task. Compiles and passes without default features.

#[path = "../../host/examples/own_dag.rs"]
mod example;
#[path = "../../host/examples/online.rs"]
mod online;

#[test]
fn a_service_places_its_own_graph_on_its_own_devices() {
    let outcome = example::run().unwrap();
    assert_eq!(outcome.devices.len(), 16);
    let n_tasks: u64 = outcome.devices.iter().map(|row| row.n_tasks).sum();
    assert_eq!(n_tasks, 5_000);
    // Training needs an accelerator, and there are more transforms than accelerators alone can do.
    let n_used = outcome.devices.iter().filter(|row| row.n_tasks > 0).count();
    assert!(n_used > 4, "{n_used} devices have tasks");
    for row in &outcome.devices {
        assert!(row.work_ns.is_finite(), "{} runs what it cannot", row.name);
        assert!(row.work_ns <= outcome.expected_ns, "{}", row.name);
    }
    assert!(outcome.n_transfers > 0 && outcome.transfer_bytes > 0);
    let (expected_ns, single_ns) = (outcome.expected_ns, outcome.single_device_ns);
    assert!(
        single_ns.is_finite() && expected_ns < single_ns / 4.0,
        "{expected_ns} against {single_ns}"
    );
    assert!(!outcome.elapsed.is_zero());
}

#[test]
fn an_event_loop_places_tasks_as_they_become_ready_and_survives_a_lost_device() {
    let outcome = online::run().unwrap();
    assert_eq!(outcome.n_tasks.iter().sum::<usize>(), 200);
    assert!(outcome.n_tasks.iter().all(|&n_tasks| n_tasks > 0));
    // It was lost during its work, and received none afterwards.
    assert!(outcome.n_restarted > 0);
    assert!(outcome.n_overruled > 0);
    assert_eq!(outcome.n_started_on_lost, 0);
    let others = [0, 1, 3].map(|worker| outcome.n_tasks[worker]);
    assert!(others.iter().all(|&n_tasks| n_tasks > outcome.n_tasks[2]));
    assert!(outcome.finished_ns > 60_000_000);
}
