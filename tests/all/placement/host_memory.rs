//! Host-memory arguments: inputs and outputs, by the kernel of the device on which a node is
//! placed.

use std::sync::Arc;

use placewright::candidates::Argument;
use placewright::candidates::Candidates;
use placewright::candidates::OpArguments;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::partition::RunRequest;
use placewright::placement::check;
use placewright::plan::ExecutionPlan;
use placewright::plan::MemorySpace;
use placewright::plan::StepKind;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;

use super::Builder;
use super::CPU0;
use super::GPU0;
use super::devices;
use super::propose;

/// `Shape(input) -> output`, `Reshape(tensor, shape) -> output`.
#[derive(Debug)]
struct Names;

impl OpArguments for Names {
    fn is_known(&self, op: &str) -> bool {
        !matches!(op, "Any" | "Undefined")
    }

    fn input(&self, op: &str, _: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let names: &[&'static str] = match op {
            "Shape" => &["input"],
            "Reshape" => &["tensor", "shape"],
            _ => &[],
        };
        let name = names.get(slot)?;
        Some(Argument {
            name,
            is_ref: false,
        })
    }

    fn output(&self, op: &str, _: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let is_known = matches!(op, "Shape" | "Reshape") && slot == 0;
        is_known.then_some(Argument {
            name: "output",
            is_ref: false,
        })
    }
}

/// GPU kernels keep shapes on the host. A CPU is preferred for `Shape` and `Reshape`.
fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    for (op, on_host) in [
        ("Any", None),
        ("Shape", Some("output")),
        ("Reshape", Some("shape")),
    ] {
        kernels.register(KernelDef::new(op, "CPU").with_priority(1));
        let on_gpu = KernelDef::new(op, "GPU");
        kernels.register(match on_host {
            Some(argument) => on_gpu.with_host_memory(argument),
            None => on_gpu,
        });
    }
    kernels
}

/// Plans all nodes with this placement.
fn plan(found: &Candidates, placed: &[u32]) -> ExecutionPlan {
    let placement = check(found, propose(placed)).unwrap();
    let request = RunRequest {
        targets: placement.graph().nodes().collect(),
        ..RunRequest::default()
    };
    placement.partition(&request).unwrap()
}

/// Returns the memory of a value: `d` for the device's memory, `h` for the host's.
fn letter(plan: &ExecutionPlan, value: usize) -> char {
    match plan.values()[value].space {
        MemorySpace::Device => 'd',
        MemorySpace::Host => 'h',
    }
}

/// Returns `op: inputs -> outputs` per node, each as `d` (in the device's memory) or `h` (in the
/// host's); and the number of transfers within a device.
fn spaces(placed: [u32; 3], arguments: Option<Arc<dyn OpArguments>>) -> (Vec<String>, usize) {
    let mut builder = Builder::new();
    let value = builder.node("value", "Any", &[]);
    let shape = builder.node("shape", "Shape", &[value]);
    builder.node("reshape", "Reshape", &[value, shape]);
    let graph = builder.finish();
    let mut options = PlacementOptions::default();
    options.op_arguments = arguments;
    let found = enumerate(&graph, &devices(), &kernels(), &options).unwrap();
    let plan = plan(&found, &placed);
    let letter = |value: usize| letter(&plan, value);
    let steps = plan.steps().iter().filter_map(|step| {
        let StepKind::Execute(node) = step.kind else {
            return None;
        };
        let inputs: String = step
            .inputs
            .iter()
            .map(|value| letter(value.index()))
            .collect();
        let outputs: String = step.output_range().map(letter).collect();
        Some(format!("{}: {inputs} -> {outputs}", graph.op(node)))
    });
    let within = plan
        .transfers()
        .iter()
        .filter(|transfer| transfer.source == transfer.destination)
        .count();
    (steps.collect(), within)
}

#[test]
fn the_kernel_of_the_placed_device_decides_for_inputs_and_outputs() {
    for arguments in [Some(Arc::new(Names) as Arc<dyn OpArguments>), None] {
        // The preferred candidates are CPUs, which have one memory; the nodes are placed on GPUs
        // nevertheless.
        let (steps, within) = spaces([GPU0; 3], arguments.clone());
        assert_eq!(
            steps,
            ["Any:  -> d", "Shape: d -> h", "Reshape: dh -> d"],
            "{arguments:?}"
        );
        assert_eq!(within, 0, "the shape stays on the host");
        let (steps, _) = spaces([CPU0; 3], arguments.clone());
        assert_eq!(steps, ["Any:  -> d", "Shape: d -> d", "Reshape: dd -> d"]);
        let (steps, _) = spaces([GPU0, CPU0, GPU0], arguments);
        assert_eq!(steps, ["Any:  -> d", "Shape: d -> d", "Reshape: dh -> d"]);
    }
}

/// Returns whether each data input and each output of node `n` is in host memory (`h`) or the
/// device's (`d`), on a GPU.
fn of_node(op: &str, attrs: &[(&str, AttrValue)], inputs: &[DType], outputs: &[DType]) -> String {
    let mut assembler = GraphAssembler::new("one node");
    let mut add = |name: &str, op: &str, inputs: &[Input], attrs: AttrSet, dtypes: &[DType]| {
        let outputs: Vec<Output> = dtypes
            .iter()
            .map(|&dtype| Output {
                dtype,
                is_ref: false,
                shape: PartialShape::scalar(),
            })
            .collect();
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device: "",
            attrs,
            outputs: &outputs,
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let source = add("source", "Any", &[], AttrSet::default(), inputs);
    let inputs: Vec<Input> = (0..)
        .take(inputs.len())
        .map(|slot| Input::Data { node: source, slot })
        .collect();
    let attrs = attrs
        .iter()
        .map(|(name, value)| ((*name).into(), value.clone()));
    let node = add("n", op, &inputs, AttrSet::new(attrs), outputs);
    let graph = Arc::new(assembler.finish());
    let mut kernels = kernels();
    kernels.register(KernelDef::new("While", "GPU").with_host_memory("input"));
    let options = PlacementOptions::default().with_op_arguments(Arc::new(Names));
    let found = enumerate(&graph, &devices(), &kernels, &options).unwrap();
    let plan = plan(&found, &[GPU0, GPU0]);
    let letter = |value: usize| letter(&plan, value);
    let mut steps = plan.steps().iter();
    let step = steps
        .find(|step| matches!(step.kind, StepKind::Execute(other) if other == node))
        .unwrap();
    let inputs = step.inputs.iter().map(|value| letter(value.index()));
    let outputs = step.output_range().map(letter);
    inputs.chain(['-', '>']).chain(outputs).collect()
}

#[test]
fn integers_stay_on_the_host_unless_a_kernel_decides_otherwise() {
    let (float, int) = (DType::F32, DType::I32);
    // A kernel without host-memory arguments has everything on the device.
    assert_eq!(of_node("Any", &[], &[float, int], &[int]), "dd->d");
    // An op without a kernel, because it may be a function or exist elsewhere; and ops that call
    // functions, whatever their kernels.
    for op in ["Undefined", "While"] {
        assert_eq!(of_node(op, &[], &[float, int], &[int, float]), "dh->hd");
    }
    let compiled = [("_XlaMustCompile", AttrValue::Bool(true))];
    assert_eq!(of_node("Undefined", &compiled, &[int], &[int]), "d->d");
    let not_compiled = [("_XlaMustCompile", AttrValue::Bool(false))];
    assert_eq!(of_node("Undefined", &not_compiled, &[int], &[int]), "h->h");
}

#[test]
fn strings_and_resources_stay_on_the_host() {
    let dtypes = [DType::String, DType::Resource, DType::F32];
    assert_eq!(of_node("Any", &[], &dtypes, &dtypes), "hhd->hhd");
}

#[test]
fn a_node_may_list_its_slots_and_those_out_of_range_are_ignored() {
    let slots = |slots: &[i64]| {
        let slots = slots.iter().map(|&slot| AttrValue::Int(slot));
        AttrValue::List(slots.collect())
    };
    let attrs = [
        ("_input_hostmem", slots(&[1, 7, -1])),
        ("_output_hostmem", slots(&[0])),
    ];
    let floats = [DType::F32; 2];
    assert_eq!(of_node("Any", &attrs, &floats, &floats), "dh->hd");
    // An attribute that is not a list of numbers lists nothing.
    let text = [("_input_hostmem", AttrValue::Bytes(b"1".as_slice().into()))];
    assert_eq!(of_node("Any", &text, &floats, &floats), "dd->dd");
}
