//! Which arguments kernels keep in host memory, and which edges are therefore consumed there.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::candidates::columns::NodeColumns;
use crate::candidates::options::OpArguments;
use crate::candidates::support::TypeTable;
use crate::candidates::support::to_u32;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;
use crate::tensor::DType;

/// Host-memory arguments by node and device, for whoever knows where a node was placed. Empty where there are no kernels.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostMemory {
    type_of_device: Vec<u32>,
    /// The kernels with host-memory arguments, by class of nodes and device type. Without those of type CPU, whose memory is
    /// the host's.
    kernels: HashMap<(u32, u32), Arc<KernelDef>>,
    arguments: Option<Arc<dyn OpArguments>>,
}

impl HostMemory {
    /// Looks up each class whose op has such kernels, once per device type.
    pub(super) fn of(
        graph: &Graph,
        types: &TypeTable,
        registry: &KernelRegistry,
        arguments: Option<&Arc<dyn OpArguments>>,
    ) -> Self {
        let has_host_arguments = |op: &str| {
            let mut defs = registry.of_op(op).iter();
            defs.any(|def| !def.host_memory_args.is_empty())
        };
        let of_op: Vec<bool> = graph
            .op_names()
            .iter()
            .map(|op| has_host_arguments(op))
            .collect();
        let mut kernels = HashMap::new();
        for (class_id, class) in graph.classes().iter().enumerate() {
            if !of_op[class.op as usize] {
                continue;
            }
            let op = &graph.op_names()[class.op as usize];
            for (number, device_type) in types.names.iter().enumerate() {
                if device_type != "CPU"
                    && let Ok(Some(def)) = registry.find(op, device_type, &class.attrs)
                    && !def.host_memory_args.is_empty()
                {
                    kernels.insert((to_u32(class_id), to_u32(number)), def);
                }
            }
        }
        Self {
            type_of_device: types.of_device.clone(),
            kernels,
            arguments: arguments.map(Arc::clone),
        }
    }

    /// Whether the kernel that a node has on a device takes data input `slot` in host memory.
    pub(crate) fn has_input(
        &self,
        graph: &Graph,
        node: NodeId,
        device: DeviceId,
        slot: usize,
    ) -> bool {
        let Some(kernel) = self.kernel(graph, node, device) else {
            return false;
        };
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        let known = self.arguments.as_deref();
        match known.and_then(|known| known.input(op, attrs, slot)) {
            Some(argument) => keeps_on_host(kernel, argument.name),
            // Without names: the arguments that kernels keep in host memory are shapes, axes and permutations.
            None => is_int32(graph, graph.data_inputs(node).nth(slot)),
        }
    }

    /// Whether the kernel that a node has on a device leaves output `slot` in host memory.
    pub(crate) fn has_output(
        &self,
        graph: &Graph,
        node: NodeId,
        device: DeviceId,
        slot: usize,
    ) -> bool {
        let Some(kernel) = self.kernel(graph, node, device) else {
            return false;
        };
        let (op, attrs) = (graph.op(node), graph.attrs(node));
        let known = self.arguments.as_deref();
        match known.and_then(|known| known.output(op, attrs, slot)) {
            Some(argument) => keeps_on_host(kernel, argument.name),
            // Without names the kernel means its `int32` inputs, if it has any.
            None => {
                let mut inputs = graph.data_inputs(node);
                is_int32(graph, graph.output(node, slot))
                    && !inputs.any(|input| is_int32(graph, Some(input)))
            }
        }
    }

    fn kernel(&self, graph: &Graph, node: NodeId, device: DeviceId) -> Option<&KernelDef> {
        if self.kernels.is_empty() {
            return None;
        }
        let device_type = *self.type_of_device.get(device.index())?;
        let class = graph.class_ids()[node.index()];
        self.kernels.get(&(class, device_type)).map(|def| &**def)
    }
}

fn keeps_on_host(kernel: &KernelDef, argument: &str) -> bool {
    kernel.host_memory_args.iter().any(|name| name == argument)
}

fn is_int32(graph: &Graph, tensor: Option<TensorId>) -> bool {
    tensor.is_some_and(|tensor| graph.tensor_dtypes()[tensor.index()] == DType::I32)
}

/// The graph's edge kinds, with [`EdgeKind::HOST_MEMORY`] where the consumer's kernel on its most preferred device takes the
/// argument in host memory, and for strings and resources, which never leave it. A hint for policies: what counts is the device
/// that the consumer is placed on.
pub(super) fn edge_kinds(graph: &Graph, nodes: &NodeColumns, host_memory: &HostMemory) -> Vec<u8> {
    let mut kinds = graph.edge_kinds().to_vec();
    let on_host: Vec<bool> = graph
        .tensor_dtypes()
        .iter()
        .map(|dtype| matches!(dtype, DType::String | DType::Resource))
        .collect();
    if on_host.contains(&true) {
        for (kind, &tensor) in kinds.iter_mut().zip(graph.edge_tensors()) {
            if tensor != NONE && on_host[tensor as usize] {
                *kind |= EdgeKind::HOST_MEMORY;
            }
        }
    }
    if host_memory.kernels.is_empty() {
        return kinds;
    }
    for node in graph.nodes() {
        let first = nodes.sets.row(nodes.candidate_set[node.index()] as usize)[0];
        let device = DeviceId(first);
        if host_memory.kernel(graph, node, device).is_none() {
            continue;
        }
        for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
            if graph.edge_tensors()[edge] == NONE {
                break;
            }
            if host_memory.has_input(graph, node, device, slot) {
                kinds[edge] |= EdgeKind::HOST_MEMORY;
            }
        }
    }
    kinds
}
