//! Where a node runs does not matter: every model, placed at random over two CPU devices and up to two SYCL devices, gives what
//! it gives on one CPU, and TensorFlow's numbers.
//!
//! `PLACEWRIGHT_SEED` draws other placements.

use std::sync::Arc;

use placewright::device::DeviceSet;
use placewright::graph::NodeId;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::tensor::Tensor;

use super::n_devices;
use super::open;
use super::options;
use crate::hard_requests::Model;
use crate::hard_requests::assert_agree;
use crate::hard_requests::models;
use crate::hard_requests::with_requests;
use crate::sample::Random;

/// Placements of each model: with 18 models, more than 200.
const N_PLACEMENTS: usize = 12;

#[test]
fn outputs_do_not_depend_on_where_nodes_run() {
    let n_sycl = n_devices().min(2);
    if n_sycl == 0 {
        return;
    }
    let seed = std::env::var("PLACEWRIGHT_SEED");
    let seed = seed.map_or(20_261_122, |seed| seed.parse().unwrap());
    let mut random = Random::new(seed);
    // Shared by all sessions: programs are compiled once.
    let mut wanted = options(2);
    let n = u32::try_from(n_sycl).unwrap();
    wanted.device_count.insert("SYCL".to_owned(), n);
    let devices = open(&wanted);
    let mut names = vec!["/device:CPU:0".to_owned(), "/device:CPU:1".to_owned()];
    names.extend((0..n_sycl).map(|index| format!("/device:SYCL:{index}")));
    let (mut n_placements, mut n_on_sycl) = (0, 0);
    for name in models() {
        let model = Model::read(&name);
        let (alone, _) = outputs(
            &model,
            &devices,
            |_| Some("/device:CPU:0".to_owned()),
            &name,
        );
        for placement in 0..N_PLACEMENTS {
            let what = format!("{name}, placement {placement} of seed {seed}");
            let request = |_: &str| Some(names[random.below(names.len())].clone());
            let (found, on_sycl) = outputs(&model, &devices, request, &what);
            n_on_sycl += on_sycl;
            for ((found, alone), (output, expected)) in
                found.iter().zip(&alone).zip(&model.expected)
            {
                let what = format!("{what}: {output}");
                assert_agree(found, alone, &what);
                assert_agree(found, expected, &what);
            }
            n_placements += 1;
        }
    }
    assert!(n_placements >= 200, "{n_placements}");
    // Half of the nodes ask for a SYCL device, and most have kernels there.
    assert!(n_on_sycl > 2_000, "{n_on_sycl}");
}

/// Models that stand on a SYCL device as a whole.
const WHOLE: [&str; 14] = [
    "bert_tiny",
    "lenet",
    "mlp",
    "mlp_b64",
    "small_cnn_fbn",
    "tiny_add",
    "tiny_broadcast",
    "tiny_embedding",
    "tiny_intbool",
    "tiny_matmul_variants",
    "tiny_reduce",
    "tiny_slices",
    "tiny_unary",
    "wide_branch",
];

#[test]
fn models_run_wholly_on_a_sycl_device() {
    if n_devices() == 0 {
        return;
    }
    let devices = open(&options(1));
    // Of tiny_dtypes what has to do with `double` stays on the CPU.
    for name in WHOLE.into_iter().chain(["tiny_dtypes"]) {
        let model = Model::read(name);
        let request = |_: &str| Some("/device:SYCL:0".to_owned());
        let session = session(&model, &devices, request, name);
        let graph = session.graph();
        let elsewhere = graph
            .nodes()
            .filter(|&node| device_type(&session, node) != "SYCL")
            .map(|node| graph.node_name(node).to_owned());
        let elsewhere: Vec<String> = elsewhere.collect();
        assert_eq!(
            elsewhere.is_empty(),
            name != "tiny_dtypes",
            "{name}: {elsewhere:?}"
        );
        assert!(elsewhere.len() <= 6, "{name}: {elsewhere:?}");
        let found = run(&session, &model, name);
        for (found, (output, expected)) in found.iter().zip(&model.expected) {
            assert_agree(found, expected, &format!("{name}: {output}"));
        }
    }
}

/// What a model gives, and how many nodes were on SYCL devices. Nodes without a kernel where they are sent go elsewhere.
fn outputs(
    model: &Model,
    devices: &Arc<DeviceSet>,
    request: impl FnMut(&str) -> Option<String>,
    what: &str,
) -> (Vec<Tensor>, usize) {
    let session = session(model, devices, request, what);
    let graph = session.graph();
    let on_sycl = graph
        .nodes()
        .filter(|&node| device_type(&session, node) == "SYCL");
    (run(&session, model, what), on_sycl.count())
}

fn session(
    model: &Model,
    devices: &Arc<DeviceSet>,
    request: impl FnMut(&str) -> Option<String>,
    what: &str,
) -> Session {
    Session::builder()
        .with_graph_def(with_requests(&model.graph_def, request))
        .with_devices(Arc::clone(devices))
        .with_soft_placement(true)
        .with_policy(PolicyRequest::new(ShippedPolicy::find("priority").unwrap()).with_strict(true))
        .build()
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn device_type(session: &Session, node: NodeId) -> String {
    let device = session.devices().get(session.placement().device(node));
    device.unwrap().attributes().device_type.clone()
}

fn run(session: &Session, model: &Model, what: &str) -> Vec<Tensor> {
    let fed = model.fed.iter();
    let feeds: Vec<(&str, Tensor)> = fed
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect();
    let fetches: Vec<&str> = model.expected.iter().map(|(name, _)| &**name).collect();
    let found = session.run(&feeds, &fetches);
    found.unwrap_or_else(|error| panic!("{what}: {error}"))
}
