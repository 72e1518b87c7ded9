//! Models whose nodes are sent to devices by name, and their results.

use std::sync::Arc;

use placewright::device::DeviceSet;
use placewright::graph::NodeId;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::tensor::Tensor;

use crate::hard_requests::Model;
use crate::hard_requests::assert_agree;
use crate::hard_requests::models;
use crate::hard_requests::with_requests;
use crate::sample::Random;
use crate::sample::seed;

/// Models whose nodes all have kernels on devices that compile.
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

/// Statistics of random placements.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    pub(crate) n: usize,
    /// Number of nodes on devices of the requested type.
    pub(crate) n_nodes: usize,
}

/// Places every model at random over `devices`, whose names are `names`, several times. Checks that
/// the results equal those on CPU:0 and TensorFlow's numbers.
pub(crate) fn place_at_random(
    devices: &Arc<DeviceSet>,
    names: &[&str],
    counted_type: &str,
    n_each: usize,
) -> Placements {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut placements = Placements::default();
    for name in models() {
        let model = Model::read(&name);
        let on_cpu = |_: Option<&str>| Some("/device:CPU:0".to_owned());
        let (alone, _) = outputs(&model, devices, counted_type, on_cpu, &name);
        for placement in 0..n_each {
            let what = format!("{name}, placement {placement} of seed {seed}");
            let request = |_: Option<&str>| Some(names[random.below(names.len())].to_owned());
            let (found, n_nodes) = outputs(&model, devices, counted_type, request, &what);
            placements.n_nodes += n_nodes;
            for ((found, alone), (output, expected)) in
                found.iter().zip(&alone).zip(&model.expected)
            {
                let what = format!("{what}: {output}");
                assert_agree(found, alone, &what);
                assert_agree(found, expected, &what);
            }
            placements.n += 1;
        }
    }
    placements
}

/// Checks that models run on one device only, and give TensorFlow's numbers there.
pub(crate) fn stand_wholly_on(devices: &Arc<DeviceSet>, name: &str, of_type: &str) {
    // In tiny_dtypes, nodes of type `double` stay on the CPU.
    for model_name in WHOLE.into_iter().chain(["tiny_dtypes"]) {
        let model = Model::read(model_name);
        let request = |_: Option<&str>| Some(name.to_owned());
        let session = session(&model, devices, request, model_name);
        let graph = session.graph();
        let elsewhere = graph
            .nodes()
            .filter(|&node| device_type(&session, node) != of_type)
            .map(|node| graph.node_name(node).to_owned());
        let elsewhere: Vec<String> = elsewhere.collect();
        assert_eq!(
            elsewhere.is_empty(),
            model_name != "tiny_dtypes",
            "{model_name}: {elsewhere:?}"
        );
        assert!(elsewhere.len() <= 6, "{model_name}: {elsewhere:?}");
        let found = run(&session, &model, model_name);
        for (found, (output, expected)) in found.iter().zip(&model.expected) {
            assert_agree(found, expected, &format!("{model_name}: {output}"));
        }
    }
}

/// Returns the outputs of a model, and the number of nodes on devices of a type. Nodes without a
/// kernel on the requested device run elsewhere.
fn outputs(
    model: &Model,
    devices: &Arc<DeviceSet>,
    counted_type: &str,
    request: impl FnMut(Option<&str>) -> Option<String>,
    what: &str,
) -> (Vec<Tensor>, usize) {
    let session = session(model, devices, request, what);
    let graph = session.graph();
    let counted = graph
        .nodes()
        .filter(|&node| device_type(&session, node) == counted_type);
    (run(&session, model, what), counted.count())
}

fn session(
    model: &Model,
    devices: &Arc<DeviceSet>,
    request: impl FnMut(Option<&str>) -> Option<String>,
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
    let devices = session.devices();
    let device = devices.get(session.placement().device(node));
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
