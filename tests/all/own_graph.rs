//! A service's own graph and kernels: no GraphDef, and none of our kernels. Compiles and passes
//! without default features.

use std::sync::Arc;

use placewright::Error;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::device::DeviceManager;
use placewright::device::DeviceOptions;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelCreationError;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::execute::ExecuteError;
use placewright::graph::AttrSet;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use crate::sample;

/// Adds a number to every byte.
struct Shift(u8);

impl Kernel for Shift {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?.clone();
        let mut output = context.allocate_output(0, DType::U8, input.shape().clone())?;
        let target = output.as_slice_mut::<u8>().expect("the allocation is new");
        for (to, from) in target.iter_mut().zip(input.as_slice::<u8>()?) {
            *to = from.wrapping_add(self.0);
        }
        context.set_output(0, output)
    }
}

fn kernel(op: &str, by: u8) -> KernelDef {
    KernelDef::new(op, "CPU").with_factory(move |_| Ok(Box::new(Shift(by))))
}

/// camera -> brighten -> darken -> brighten -> ...
fn pipeline(n_steps: u32) -> Graph {
    let mut assembler = GraphAssembler::new("pipeline");
    let mut add = |name: &str, op: &str, inputs: &[Input]| {
        let frame = Output {
            dtype: DType::U8,
            is_ref: false,
            shape: PartialShape::new(&[None]),
        };
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[frame],
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let mut last: NodeId = add("camera", "Camera", &[]);
    for step in 0..n_steps {
        let op = if step % 2 == 0 { "Brighten" } else { "Darken" };
        let input = Input::Data {
            node: last,
            slot: 0,
        };
        last = add(&format!("step{step}"), op, &[input]);
    }
    assembler.finish()
}

#[test]
fn an_app_places_and_runs_its_own_ops() {
    let mut devices = DeviceOptions::default();
    devices.device_count.insert("CPU".to_owned(), 3);
    let policy = ShippedPolicy::find("round-robin").unwrap();
    let session = Session::builder()
        .with_graph(pipeline(4))
        .with_device_options(devices)
        .with_kernels([kernel("Brighten", 7), kernel("Darken", 255)])
        // A kernel for placement only: the camera is always fed.
        .with_kernels([KernelDef::new("Camera", "CPU")])
        .with_policy(PolicyRequest::new(policy).with_strict(true))
        .build()
        .unwrap();
    let plan = session.plan(&["camera"], &["step3"], &[]).unwrap();
    assert!(!plan.transfers().is_empty());
    let frame = Tensor::from_values([3], &[0u8, 100, 250]).unwrap();
    let fetched = session.run(&[("camera", frame)], &["step3"]).unwrap();
    assert_eq!(fetched[0].as_slice::<u8>().unwrap(), [12, 112, 6]);
    let error = session.run(&[], &["step3"]).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Execute(ExecuteError::Create { site, source })
                if site.node == "camera" && **source == KernelCreationError::PlacementOnly
        ),
        "{error}"
    );
}

#[test]
fn graph_and_devices_of_candidates_are_not_replaced_silently() {
    let (graph, devices) = (Arc::new(pipeline(2)), sample::devices(2, 0));
    let builder = || {
        let candidates = CandidatesBuilder::new(&graph, &devices).build().unwrap();
        Session::builder().with_candidates(candidates)
    };
    // Setting the same graph and devices again is no contradiction.
    let same = builder()
        .with_graph(Arc::clone(&graph))
        .with_devices(Arc::clone(&devices));
    same.build().unwrap();
    for (beside, method) in [
        (builder().with_graph(pipeline(2)), "with_graph"),
        (
            builder().with_devices(sample::devices(2, 0)),
            "with_devices",
        ),
        (
            builder().with_placement_options(PlacementOptions::default()),
            "with_placement_options",
        ),
        (builder().with_soft_placement(true), "with_soft_placement"),
        (builder().with_pin("step0", "CPU:0"), "with_pin"),
        (
            builder().with_device_manager(DeviceManager::of_set(&devices)),
            "with_device_manager",
        ),
    ] {
        let error = beside.build().unwrap_err();
        assert!(
            matches!(error, Error::BesideCandidates { call, .. } if call == method),
            "{error}"
        );
    }
}

#[test]
fn candidates_of_the_app_are_placed_and_nothing_is_executed() {
    let graph = Arc::new(pipeline(2));
    let devices = sample::devices(2, 0);
    let last = NodeId(2);
    let candidates = CandidatesBuilder::new(&graph, &devices)
        .with_cost_ns(last, DeviceId(0), f64::INFINITY)
        .build()
        .unwrap();
    let session = Session::builder()
        .with_candidates(candidates)
        .build()
        .unwrap();
    assert_eq!(session.placement().device(last), DeviceId(1));
    assert!(Arc::ptr_eq(&session.graph(), &graph));
    let error = session.run(&[], &["step1"]).unwrap_err();
    assert!(
        matches!(error, Error::Execute(ExecuteError::Create { .. })),
        "{error}"
    );
}
