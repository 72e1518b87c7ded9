//! Host-memory arguments: inputs and outputs, by the kernel of the device that a node is placed on.

use std::sync::Arc;

use placewright::candidates::Argument;
use placewright::candidates::OpArguments;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::AttrSet;
use placewright::partition::RunRequest;
use placewright::partition::cut;
use placewright::placement::check;
use placewright::plan::MemorySpace;
use placewright::plan::StepKind;

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
        op != "Any"
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

/// Per node `op: inputs -> outputs`, each `d` (in the device's memory) or `h` (in the host's); transfers within a device.
fn spaces(placed: [u32; 3], arguments: Option<Arc<dyn OpArguments>>) -> (Vec<String>, usize) {
    let mut builder = Builder::new();
    let value = builder.node("value", "Any", &[]);
    let shape = builder.node("shape", "Shape", &[value]);
    builder.node("reshape", "Reshape", &[value, shape]);
    let graph = builder.finish();
    let options = PlacementOptions {
        op_arguments: arguments,
        ..PlacementOptions::default()
    };
    let found = enumerate(&graph, &devices(), &kernels(), &options).unwrap();
    let placement = check(&found, propose(&placed)).unwrap();
    let request = RunRequest {
        targets: graph.nodes().collect(),
        ..RunRequest::default()
    };
    let plan = cut(&placement, &request).unwrap();
    let letter = |value: usize| match plan.values()[value].space {
        MemorySpace::Device => 'd',
        MemorySpace::Host => 'h',
    };
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
        // The preferred candidates are CPUs, which have one memory; the nodes go to GPUs all the same.
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
