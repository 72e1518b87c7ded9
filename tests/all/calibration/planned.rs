//! Plans that use measured rates.

use std::collections::BTreeMap;
use std::path::Path;

use placewright::cost::Calibration;
use placewright::cost::Calibrations;
use placewright::device::Device;
use placewright::device::DeviceRates;
use placewright::names::DeviceId;
use placewright::placement::PlacementIdentity;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;

use super::figures;
use super::in_folder;
use crate::cli::model;
use crate::sample::cpus;

fn wide_branch() -> SessionBuilder {
    let heft = ShippedPolicy::find("heft").unwrap();
    Session::builder()
        .with_graph_def_file(model("wide_branch.skel.pb"))
        .with_device_options(cpus(2))
        .with_policy(PolicyRequest::new(heft).with_strict(true))
}

/// Devices so slow that using both pays off.
fn slow(flops_per_s: f64) -> Calibration {
    Calibration {
        flops_per_s: Some(flops_per_s),
        launch_ns: Some(100.0),
        ..figures()
    }
}

/// Stores rates of the two devices, like `devices --calibrate`, and returns each node's device in a
/// session that finds them.
fn placed(folder: &Path, flops_per_s: [f64; 2]) -> BTreeMap<String, u32> {
    let devices = wide_branch().build().unwrap().devices();
    let kept = in_folder(folder);
    for ((_, device), flops_per_s) in devices.iter().zip(flops_per_s) {
        kept.keep(&**device, slow(flops_per_s)).unwrap();
    }
    let session = wide_branch()
        .with_calibrations(in_folder(folder))
        .build()
        .unwrap();
    let placement = session.placement();
    let columns = placement.candidates().devices();
    assert_eq!(columns.is_calibrated, [true, true]);
    for (id, flops_per_s) in [DeviceId(0), DeviceId(1)].into_iter().zip(flops_per_s) {
        assert_eq!(session.devices().rates(id).flops_per_s, flops_per_s);
    }
    let graph = placement.graph();
    graph
        .nodes()
        .map(|node| (graph.node_name(node).to_owned(), placement.device(node).0))
        .collect()
}

#[test]
fn halving_a_stored_rate_moves_nodes_of_wide_branch() {
    let folder = tempfile::tempdir().unwrap();
    let on = |placed: &BTreeMap<String, u32>, device: u32| {
        placed.values().filter(|&&found| found == device).count()
    };
    let first = placed(folder.path(), [2e9, 1e9]);
    assert!(on(&first, 0) > on(&first, 1), "{first:?}");
    let second = placed(folder.path(), [1e9, 2e9]);
    assert!(on(&second, 0) < on(&second, 1), "{second:?}");
    assert_eq!(first, placed(folder.path(), [2e9, 1e9]), "and back");
}

#[test]
fn a_session_plans_with_measured_rates_only_on_request() {
    let kept = Calibrations::new();
    let stated = wide_branch().build().unwrap();
    for (_, device) in stated.devices().iter() {
        kept.keep(&**device, slow(1e9)).unwrap();
    }
    let expected_ns = |session: &Session| {
        let placement = session.placement();
        let candidates = placement.candidates();
        let nodes = candidates.graph().nodes();
        nodes
            .map(|node| candidates.work_ns(node, DeviceId(0)))
            .sum::<f64>()
    };
    let again = wide_branch().build().unwrap();
    assert_eq!(expected_ns(&again), expected_ns(&stated));
    assert_eq!(
        again.placement().candidates().devices().is_calibrated,
        [false; 2]
    );
    let measured = wide_branch().with_calibrations(kept).build().unwrap();
    assert!(expected_ns(&measured) > expected_ns(&stated));
    assert!(measured.report().calibration_problems.is_empty());
    // A plan saved for other rates is rejected.
    let identity = |session: &Session| PlacementIdentity::of(session.placement().candidates());
    let difference = identity(&measured).difference(&identity(&stated)).unwrap();
    assert!(difference.devices && !difference.graph && !difference.options);
    // Rates of devices that are added later are found as well.
    let devices = again.devices();
    measured.replace_devices(devices).unwrap();
    let rates = measured.devices().rates(DeviceId(1));
    assert!(rates.is_calibrated && rates.flops_per_s == 1e9, "{rates:?}");
}

#[test]
fn other_threads_have_other_rates() {
    let kept = Calibrations::new();
    let cpus = |n_devices: u32, n_threads: usize| {
        Session::builder()
            .with_graph_def_file(model("tiny_add.pb"))
            .with_device_options(crate::sample::cpus(n_devices))
            .with_intra_op_parallelism_threads(n_threads)
    };
    let of = |n_devices, n_threads| cpus(n_devices, n_threads).build().unwrap();
    let measured = of(2, 3);
    for (_, device) in measured.devices().iter() {
        kept.keep(&**device, figures()).unwrap();
    }
    let is_known = |session: &Session| {
        let devices = session.devices();
        let first: &dyn Device = &**devices.get(DeviceId(0)).unwrap();
        kept.find(first).unwrap().is_some()
    };
    assert!(is_known(&of(2, 3)));
    assert!(!is_known(&of(2, 2)));
    assert!(is_known(&of(1, 3)), "the same threads");
    let other = cpus(1, 2).with_calibrations(kept.clone()).build().unwrap();
    let expected = DeviceRates::default_cpu(2);
    assert_eq!(other.devices().rates(DeviceId(0)), expected);
}
