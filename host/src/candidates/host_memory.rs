//! Host-memory arguments of kernels, and the edges that are therefore read in host memory.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::candidates::options::OpArguments;
use crate::candidates::support::COMPILED_ATTR;
use crate::candidates::types::TypeTable;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::ops::CallOp;
use crate::tensor::DType;

/// Host-memory arguments by node and device (TensorFlow `MemoryTypesForNode`). Strings and
/// resources are not included: they are in host memory for every node.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostMemory {
    type_of_device: Vec<u32>,
    /// By class of nodes a row of `rules`; empty if there are no rules.
    row_of_class: Vec<u32>,
    /// Numbers of kernels (`Supports::kernels_of_class`) x device types: the rule, if some
    /// argument may be in host memory. None for types whose own memory is host memory.
    rules: Vec<Option<Rule>>,
    n_types: usize,
    /// By class the slots that the nodes' own attributes put in host memory.
    by_attrs: HashMap<u32, Slots>,
    arguments: Option<Arc<dyn OpArguments>>,
}

/// The arguments of a node that are in host memory.
#[derive(Debug, Clone)]
enum Rule {
    /// Those that the kernel lists.
    Kernel(Arc<KernelDef>),
    /// Those of dtype `int32`, the default for shapes and indices.
    Int32,
}

/// Attributes `_input_hostmem` and `_output_hostmem`.
#[derive(Debug, Clone, Default)]
struct Slots {
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl HostMemory {
    /// Collects the nodes' own attributes, without kernels, for candidates that an app has stated.
    pub(super) fn of_nodes(graph: &Graph) -> Self {
        let classes = (0u32..).zip(graph.classes());
        let by_attrs = classes.filter_map(|(id, class)| {
            let slots = Slots {
                inputs: slots_of(&class.attrs, "_input_hostmem"),
                outputs: slots_of(&class.attrs, "_output_hostmem"),
            };
            let is_empty = slots.inputs.is_empty() && slots.outputs.is_empty();
            (!is_empty).then_some((id, slots))
        });
        Self {
            by_attrs: by_attrs.collect(),
            ..Self::default()
        }
    }

    /// Adds the arguments that kernels list, looked up once per device type for classes with the
    /// same kernels (`Supports::kernels_of_class`).
    pub(super) fn of(
        graph: &Graph,
        types: &TypeTable,
        registry: &KernelRegistry,
        arguments: Option<&Arc<dyn OpArguments>>,
        kernels_of_class: Vec<u32>,
    ) -> Self {
        let mut rules = Vec::new();
        for (class, &row) in graph.classes().iter().zip(&kernels_of_class) {
            // Rows are numbered in the order of the first class of each.
            if (row as usize) * types.names.len() < rules.len() {
                continue;
            }
            let op = &graph.op_names()[class.op as usize];
            let names = types.names.iter();
            rules.extend(
                names
                    .zip(&types.has_one_memory)
                    .map(|(device_type, &has_one_memory)| match has_one_memory {
                        true => None,
                        false => rule(op, device_type, &class.attrs, registry),
                    }),
            );
        }
        let is_ruled = rules.iter().any(Option::is_some);
        Self {
            type_of_device: types.of_device.clone(),
            row_of_class: if is_ruled {
                kernels_of_class
            } else {
                Vec::new()
            },
            rules,
            n_types: types.names.len(),
            arguments: arguments.map(Arc::clone),
            ..Self::of_nodes(graph)
        }
    }

    /// Whether data input `slot` of a node is in host memory when the node runs on a device.
    pub(crate) fn has_input(
        &self,
        graph: &Graph,
        node: NodeId,
        device: DeviceId,
        slot: usize,
    ) -> bool {
        if let Some(slots) = self.slots(graph, node)
            && slots.inputs.contains(&slot)
        {
            return true;
        }
        let tensor = || graph.data_inputs(node).nth(slot);
        let kernel = match self.rule(graph, node, device) {
            None => return false,
            Some(Rule::Int32) => return is_int32(graph, tensor()),
            Some(Rule::Kernel(kernel)) => kernel,
        };
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        let known = self.arguments.as_deref();
        match known.and_then(|known| known.input(op, attrs, slot)) {
            Some(argument) => keeps_on_host(kernel, argument.name),
            // Without names: the arguments that kernels keep in host memory are shapes, axes and
            // permutations.
            None => is_int32(graph, tensor()),
        }
    }

    /// Whether output `slot` of a node is in host memory when the node runs on a device.
    pub(crate) fn has_output(
        &self,
        graph: &Graph,
        node: NodeId,
        device: DeviceId,
        slot: usize,
    ) -> bool {
        if let Some(slots) = self.slots(graph, node)
            && slots.outputs.contains(&slot)
        {
            return true;
        }
        let tensor = || graph.output(node, slot);
        let kernel = match self.rule(graph, node, device) {
            None => return false,
            Some(Rule::Int32) => return is_int32(graph, tensor()),
            Some(Rule::Kernel(kernel)) => kernel,
        };
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        let known = self.arguments.as_deref();
        match known.and_then(|known| known.output(op, attrs, slot)) {
            Some(argument) => keeps_on_host(kernel, argument.name),
            // Without argument names, the `int32` inputs of the kernel are assumed, if it has any.
            None => {
                let mut inputs = graph.data_inputs(node);
                is_int32(graph, tensor()) && !inputs.any(|input| is_int32(graph, Some(input)))
            }
        }
    }

    /// Whether a node on a device reads the tensor of data input `slot` in host memory, because of
    /// its kernel or the tensor's dtype. For a device with one memory, host memory is the device's
    /// memory.
    pub(crate) fn reads_on_host(
        &self,
        graph: &Graph,
        node: NodeId,
        device: DeviceId,
        slot: usize,
        tensor: TensorId,
    ) -> bool {
        self.has_input(graph, node, device, slot) || is_host_only(graph, tensor)
    }

    /// Whether the producer of a tensor, on a device, writes it to host memory.
    pub(crate) fn writes_on_host(&self, graph: &Graph, device: DeviceId, tensor: TensorId) -> bool {
        let (node, slot) = graph.producer(tensor);
        self.has_output(graph, node, device, slot) || is_host_only(graph, tensor)
    }

    /// Whether every argument of every node is in the memory of the node's device.
    pub(super) fn is_empty(&self) -> bool {
        self.row_of_class.is_empty() && self.by_attrs.is_empty()
    }

    /// Whether some argument of a node on a device may be in host memory.
    pub(super) fn concerns(&self, graph: &Graph, node: NodeId, device: DeviceId) -> bool {
        self.rule(graph, node, device).is_some() || self.slots(graph, node).is_some()
    }

    fn slots(&self, graph: &Graph, node: NodeId) -> Option<&Slots> {
        if self.by_attrs.is_empty() {
            return None;
        }
        self.by_attrs.get(&graph.class_ids()[node.index()])
    }

    fn rule(&self, graph: &Graph, node: NodeId, device: DeviceId) -> Option<&Rule> {
        let class = graph.class_ids()[node.index()] as usize;
        let row = *self.row_of_class.get(class)? as usize;
        let device_type = *self.type_of_device.get(device.index())? as usize;
        self.rules[row * self.n_types + device_type].as_ref()
    }
}

/// `None`: everything is in the device's memory.
fn rule(op: &str, device_type: &str, attrs: &AttrSet, registry: &KernelRegistry) -> Option<Rule> {
    // Failed look-ups have been reported earlier.
    let kernel = registry.find(op, device_type, attrs).ok().flatten();
    let is_of_function = CallOp::of(op).is_some_and(CallOp::has_arguments_of_function);
    match kernel {
        Some(kernel) if !is_of_function => {
            (!kernel.host_memory_args.is_empty()).then_some(Rule::Kernel(kernel))
        }
        // Compilers keep integers in the same memory as everything else.
        _ if device_type == "TPU" || attrs.bool(COMPILED_ATTR) == Some(true) => None,
        _ => Some(Rule::Int32),
    }
}

/// Returns the slots in a `list(int)` attribute, without values that are not slot numbers.
fn slots_of(attrs: &AttrSet, attr: &str) -> Vec<usize> {
    let slots = attrs.list(attr).unwrap_or_default().iter();
    slots
        .filter_map(|slot| match slot {
            AttrValue::Int(slot) => usize::try_from(*slot).ok(),
            _ => None,
        })
        .collect()
}

fn keeps_on_host(kernel: &KernelDef, argument: &str) -> bool {
    kernel.host_memory_args.iter().any(|name| name == argument)
}

/// Whether a dtype is in host memory on every device, as strings and resource handles are
/// (TensorFlow `MTypeFromDType`).
fn is_host_only(graph: &Graph, tensor: TensorId) -> bool {
    let dtype = graph.tensor_dtypes()[tensor.index()];
    matches!(dtype, DType::String | DType::Resource)
}

fn is_int32(graph: &Graph, tensor: Option<TensorId>) -> bool {
    tensor.is_some_and(|tensor| graph.tensor_dtypes()[tensor.index()] == DType::I32)
}
