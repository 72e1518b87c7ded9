//! A run moves exactly the tensors that the placement reports.

use placewright::device::DeviceOptions;
use placewright::execute::RunOptions;
use placewright::graph::BodyId;
use placewright::graph::Graph;
use placewright::graph::NONE;
use placewright::graph::NodeId;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;

use placewright::session::Session;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use crate::hard_requests::Model;
use crate::hard_requests::models;
use crate::hard_requests::with_requests;
use crate::sample::Random;

/// Random placements over two to four CPU devices.
#[test]
fn runs_of_whole_models_make_the_transfers_that_their_placements_report() {
    let mut random = Random::new(20_261_123);
    let (mut n_all, mut n_once) = (0, 0);
    for name in models() {
        // A branch that is not taken moves nothing, and a loop moves in each iteration.
        if name.starts_with("cf_") || name == "tiny_control_dep" {
            continue;
        }
        let model = Model::read(&name);
        for n_devices in [2, 3, 4, 4] {
            let what = format!("{name} on {n_devices}");
            let session = session(&model, n_devices, &mut random);
            let moved = moved_by_a_run(&session, &model, &what);

            let summary = session.placement().summary();
            let n_moved = summary.n_transfers + summary.n_signals;
            assert_eq!(n_moved, moved.len() as u64, "{what}");
            if summary.n_transfers_of_unknown_size == 0 {
                assert_eq!(summary.transfer_bytes, moved.iter().sum::<u64>(), "{what}");
            }
            let transfers = session.placement().run_transfers();
            assert_eq!(transfers.len(), moved.len(), "{what}");
            let graph = session.graph();
            let (feeds, fetches, targets) = whole_run(&graph);
            let plan = session.plan(&feeds, &fetches, &targets).unwrap();
            assert_eq!(plan.run_transfers().count(), moved.len(), "{what}");
            n_all += plan.transfers().len();
            n_once += plan.transfers().len() - moved.len();
        }
    }
    // Weights are transferred, and stay.
    assert!(n_once > 100 && n_all > 2 * n_once, "{n_once} of {n_all}");
}

/// Every node requests a random device.
fn session(model: &Model, n_devices: u32, random: &mut Random) -> Session {
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), n_devices);
    options.device_count.insert("SYCL".to_owned(), 0);
    options.device_count.insert("GPU".to_owned(), 0);
    let graph_def = with_requests(&model.graph_def, |_| {
        Some(format!("/device:CPU:{}", random.below(n_devices as usize)))
    });
    let policy = ShippedPolicy::find("priority").unwrap();
    Session::builder()
        .with_graph_def(graph_def)
        .with_device_options(options)
        .with_policy(PolicyRequest::new(policy).with_strict(true))
        .with_recorder(Recorder::on())
        .build()
        .unwrap()
}

/// Returns placeholders, unread outputs, and nodes without outputs that nothing waits for.
fn whole_run(graph: &Graph) -> (Vec<&str>, Vec<&str>, Vec<&str>) {
    let (mut feeds, mut fetches, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for node in graph.nodes() {
        let name = graph.node_name(node);
        if graph.op(node) == "Placeholder" {
            feeds.push(name);
        } else if graph.successors().row(node.index()).is_empty() && always_runs(graph, node) {
            match graph.output_range(node).len() {
                0 => targets.push(name),
                // Fetching its first output makes it run.
                _ => fetches.push(name),
            }
        }
    }
    (feeds, fetches, targets)
}

/// Checks that a node is in no branch and in no loop.
fn always_runs(graph: &Graph, node: NodeId) -> bool {
    let bodies = graph.bodies().unwrap();
    bodies.of_node(node) == BodyId::OUTERMOST
        && bodies.guard_of(node) == NONE
        && !graph.op(node).ends_with("Switch")
}

/// Returns the bytes of each transfer that a run recorded.
fn moved_by_a_run(session: &Session, model: &Model, what: &str) -> Vec<u64> {
    let graph = session.graph();
    let (names, fetches, targets) = whole_run(&graph);
    let of_model = |name: &str| -> Option<Tensor> {
        let mut fed = model.fed.iter();
        let (_, tensor) = fed.find(|(fed, _)| fed.trim_end_matches(":0") == name)?;
        Some(tensor.clone())
    };
    let feeds: Vec<(&str, Tensor)> = names
        .iter()
        .map(|&name| (name, of_model(name).expect("models feed all placeholders")))
        .collect();
    let options = RunOptions::default();
    let outputs = session.run_with(&feeds, &fetches, &targets, &options);
    outputs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let events = session.trace().events.into_iter();
    let moved = events.filter_map(|event| match event.kind {
        EventKind::Transfer { bytes, .. } => Some(bytes),
        _ => None,
    });
    moved.collect()
}
