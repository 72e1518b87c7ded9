//! Sessions whose devices are replaced.

use std::sync::Arc;

use placewright::candidates::PlacementOptions;
use placewright::candidates::Proposal;
use placewright::device::Device;
use placewright::device::DeviceSet;
use placewright::error::Error;
use placewright::graph::NodeId;
use placewright::names::DeviceId;
use placewright::placement::MoveReason;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::PlacedBy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use super::COUNTER;
use super::Line;
use super::PREFIX;
use super::counter_on;
use super::devices;
use super::graph;
use super::lost_device::Mortal;
use super::read;
use super::run;
use crate::sample::varied_policies;

/// Returns these of the devices, in this order.
fn only(devices: &DeviceSet, indices: &[u32]) -> Arc<DeviceSet> {
    let some = indices.iter().map(|&index| {
        let device = devices.get(DeviceId(index)).expect("it is one of the set");
        Arc::clone(device) as Arc<dyn Device>
    });
    Arc::new(DeviceSet::new(some).with_type_priorities_of(devices))
}

fn name_of(session: &Session, node: &str) -> String {
    let node = session.graph().find_node(node).expect("a node");
    let device = session.placement().device(node);
    let devices = session.devices();
    let device = devices.get(device).expect("a device");
    device.attributes().name.clone()
}

/// The counter on this device, and other nodes.
fn lines(device: &'static str) -> Vec<Line<'static>> {
    let mut lines = COUNTER.to_vec();
    lines[1].3 = device;
    lines.push(("n", "Neg", &["read"], "", Some(DType::F32), false));
    lines.push(("m", "Neg", &["n"], "", Some(DType::F32), false));
    lines
}

fn under(policy: ShippedPolicy, lines: &[Line<'_>], devices: &Arc<DeviceSet>) -> SessionBuilder {
    Session::builder()
        .with_graph(graph(lines))
        .with_devices(Arc::clone(devices))
        .with_policy(PolicyRequest::new(policy).with_strict(true))
}

#[test]
fn variables_keep_values_and_devices_when_another_device_is_lost_or_added() {
    for policy in varied_policies() {
        let all = devices(3);
        let lines = lines("/device:CPU:1");
        let session = under(policy, &lines, &all).build().unwrap();
        run(&session, "init", 1.0);
        run(&session, "add", 2.0);
        let v = format!("{PREFIX}/device:CPU:1");
        assert_eq!(name_of(&session, "v"), v);
        // CPU:0 is lost, and CPU:1 has another number.
        let replacement = session.replace_devices(only(&all, &[2, 1])).unwrap();
        assert!(
            replacement
                .moved
                .iter()
                .all(|moved| moved.reason == MoveReason::DeviceLost)
        );
        assert!(
            replacement
                .moved
                .iter()
                .all(|moved| moved.from.ends_with("CPU:0"))
        );
        assert!(!replacement.moved.iter().any(|moved| moved.is_stateful));
        assert_eq!(name_of(&session, "v"), v);
        assert_eq!(read(&session).unwrap(), 3.0);
        run(&session, "add", 2.0);
        let fetched = session.run(&[], &["m"]).unwrap();
        assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [5.0, 5.0]);
        // The device is back.
        let places = |session: &Session| {
            let names = session.graph().nodes();
            let names = names.map(|node| session.graph().node_name(node).to_owned());
            names
                .map(|name| name_of(session, &name))
                .collect::<Vec<_>>()
        };
        let before = places(&session);
        let replacement = session.replace_devices(Arc::clone(&all)).unwrap();
        assert!(replacement.moved.is_empty() && replacement.n_kept == lines.len());
        assert_eq!(places(&session), before);
        assert_eq!(read(&session).unwrap(), 5.0);
    }
}

#[test]
fn variables_move_with_their_nodes() {
    let all = devices(2);
    let recorder = Recorder::on();
    let session = counter_on(&all).with_recorder(recorder.clone());
    let session = session.build().unwrap();
    run(&session, "init", 1.0);
    let replacement = session.replace_devices(only(&all, &[1])).unwrap();
    let v = session.graph().find_node("v").unwrap();
    for moved in replacement.moved.iter().filter(|moved| moved.is_stateful) {
        let expected = (moved.node == v).then_some(8);
        assert_eq!(moved.moved_state_bytes, expected);
    }
    let details = recorder.events().into_iter().filter_map(|event| {
        let EventKind::Device {
            call: "move_state",
            node,
            detail,
            ..
        } = event.kind
        else {
            return None;
        };
        assert_eq!(node, Some(v));
        Some(detail.into_string())
    });
    let expected = format!("8 bytes from {PREFIX}/device:CPU:0");
    assert_eq!(details.collect::<Vec<_>>(), [expected]);
    assert_eq!(read(&session).unwrap(), 1.0);
    run(&session, "add", 2.0);
    assert_eq!(read(&session).unwrap(), 3.0);
    // Back again, to a device that still has the value from before.
    session.replace_devices(only(&all, &[0])).unwrap();
    assert_eq!(read(&session).unwrap(), 3.0);
}

#[test]
fn state_of_a_lost_device_is_lost_and_reported() {
    let lost = Arc::new(Mortal::new(&format!("{PREFIX}/device:CPU:0")));
    let second = Arc::clone(devices(2).get(DeviceId(1)).unwrap());
    let all = DeviceSet::new([Arc::clone(&lost) as Arc<dyn Device>, second]);
    let all = Arc::new(all);
    let session = counter_on(&all).build().unwrap();
    run(&session, "init", 1.0);
    lost.lose();
    let replacement = session.replace_devices(only(&all, &[1])).unwrap();
    let mut moved = replacement.moved.iter();
    assert!(moved.all(|moved| moved.moved_state_bytes.is_none()));
    let stateful = replacement.moved.iter().filter(|moved| moved.is_stateful);
    assert_eq!(stateful.count(), 4);
    let error = read(&session).unwrap_err().to_string();
    assert!(error.contains("not initialized"), "{error}");
    run(&session, "init", 7.0);
    assert_eq!(read(&session).unwrap(), 7.0);
}

#[test]
fn a_request_for_the_lost_device_is_an_error_and_the_session_stays() {
    let all = devices(2);
    let policy = ShippedPolicy::find("priority").unwrap();
    let session = under(policy, &lines("/device:CPU:1"), &all)
        .build()
        .unwrap();
    run(&session, "init", 4.0);
    let error = session.replace_devices(only(&all, &[0])).unwrap_err();
    assert!(matches!(error, Error::Candidates(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains('v') && text.contains("CPU:1") && text.contains("CPU:0"),
        "{text}"
    );
    assert_eq!(read(&session).unwrap(), 4.0);
    assert_eq!(session.devices().len(), 2);
}

#[test]
fn pins_follow_their_devices_and_a_pin_to_a_lost_one_is_an_error() {
    let all = devices(3);
    let policy = ShippedPolicy::find("priority").unwrap();
    let pinned = |device| {
        let options = PlacementOptions::default()
            .with_pin(NodeId(5), DeviceId(device))
            .with_default_local_device(DeviceId(0));
        let builder = under(policy, &lines(""), &all).with_placement_options(options);
        builder.build().unwrap()
    };
    let session = pinned(2);
    session.replace_devices(only(&all, &[2, 0])).unwrap();
    assert_eq!(name_of(&session, "n"), format!("{PREFIX}/device:CPU:2"));
    // The pin also applies later.
    session.replace_devices(only(&all, &[0, 1, 2])).unwrap();
    assert_eq!(name_of(&session, "n"), format!("{PREFIX}/device:CPU:2"));
    let error = session
        .replace_devices(only(&all, &[0, 1]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`n` is pinned to") && error.contains("CPU:2"),
        "{error}"
    );
    let error = session
        .replace_devices(only(&all, &[2]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("default local device"), "{error}");
    assert_eq!(session.devices().len(), 3);
}

#[test]
fn a_placed_graph_continues_whatever_placed_it_and_can_be_extended() {
    let all = devices(2);
    let proposal = Proposal {
        devices: vec![1; COUNTER.len()],
        ..Proposal::default()
    };
    let session = counter_on(&all).with_proposal(proposal).build().unwrap();
    run(&session, "init", 2.0);
    session.replace_devices(only(&all, &[1])).unwrap();
    assert!(matches!(session.report().placed_by, PlacedBy::Policy(_)));
    assert_eq!(session.placement_identity().policy, None);
    assert_eq!(read(&session).unwrap(), 2.0);
    session.extend(graph(&lines(""))).unwrap();
    assert!(session.report().replacement.is_none());
    assert_eq!(read(&session).unwrap(), 2.0);
    let fetched: Vec<Tensor> = session.run(&[], &["n"]).unwrap();
    assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [-2.0, -2.0]);
}

#[test]
fn closed_sessions_and_those_with_stated_candidates_are_rejected() {
    let all = devices(2);
    let session = counter_on(&all).build().unwrap();
    session.close();
    let error = session.replace_devices(Arc::clone(&all)).unwrap_err();
    assert!(matches!(error, Error::CannotReplace(_)), "{error}");
    let counter = Arc::new(graph(&COUNTER));
    let made = placewright::candidates::CandidatesBuilder::new(&counter, &all);
    let builder = Session::builder().with_candidates(made.build().unwrap());
    let error = builder.build().unwrap().replace_devices(all).unwrap_err();
    assert!(error.to_string().contains("candidates"), "{error}");
}

#[test]
fn events_of_renumbered_devices_are_dropped_from_the_trace() {
    let all = devices(2);
    let session = counter_on(&all)
        .with_recorder(Recorder::on())
        .build()
        .unwrap();
    run(&session, "init", 1.0);
    let n_events = session.trace().events.len();
    session.replace_devices(Arc::clone(&all)).unwrap();
    assert!(
        session.trace().events.len() >= n_events,
        "all have their numbers"
    );
    session.replace_devices(only(&all, &[1, 0])).unwrap();
    assert!(session.trace().events.len() < n_events);
}
