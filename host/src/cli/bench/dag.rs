//! Graphs of scalar additions, which cost nothing but their dispatch, for `bench dispatch` and
//! `bench worker`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::work::Work;
use crate::candidates::Proposal;
use crate::cli::timing::timed;
use crate::device::DeviceOptions;
use crate::device::KernelDef;
use crate::execute::RunOptions;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output as NodeOutput;
use crate::graph::Work as NodeWork;
use crate::session::Session;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Nodes of a layer of the layered graph.
const WIDTH: u32 = 100;

/// The edges of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Case {
    /// Each node reads the one before.
    Chain,
    /// All nodes read the feed only.
    Independent,
    /// Each node reads two of the layer before.
    Layered,
}

impl Case {
    pub(super) const ALL: [Self; 3] = [Self::Chain, Self::Independent, Self::Layered];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Independent => "independent",
            Self::Layered => "layered",
        }
    }

    /// Tasks that can run concurrently.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Chain => 1,
            Self::Independent => usize::MAX,
            Self::Layered => WIDTH as usize,
        }
    }

    /// Most nodes whose sum can be checked: sums double from layer to layer.
    pub(super) fn n_nodes_max(self) -> u32 {
        match self {
            Self::Chain | Self::Independent => u32::MAX,
            Self::Layered => 120 * WIDTH,
        }
    }
}

/// A graph of additions, ready to run.
pub(super) struct Additions {
    session: Session,
    case: Case,
    n_nodes: u32,
    /// Name of the last node.
    last: String,
}

impl Additions {
    /// Opens a session in which one run may use `threads` threads.
    ///
    /// # Errors
    /// If the sum of so many nodes is not finite.
    pub(super) fn open(case: Case, n_nodes: u32, threads: usize) -> Result<Self> {
        anyhow::ensure!(
            n_nodes <= case.n_nodes_max(),
            "the sum of {n_nodes} nodes in layers is infinite; at most {} nodes are possible",
            case.n_nodes_max()
        );
        Ok(Self {
            session: session(graph(case, n_nodes, "AddV2"), threads, &[])?,
            case,
            n_nodes,
            last: format!("a{}", n_nodes - 1),
        })
    }

    pub(super) fn graph(&self) -> Arc<Graph> {
        self.session.graph()
    }

    /// Runs all nodes, and returns the time without checking the sum.
    pub(super) fn run_with(&self, x: f32, options: &RunOptions) -> Result<Duration> {
        let (sum, time) = timed(|| -> Result<f32> {
            let fed = Tensor::from_values(Shape::scalar(), &[x])?;
            let feeds = [("x", fed)];
            let fetched = self
                .session
                .run_with(&feeds, &[&self.last], &["done"], options)?;
            Ok(fetched[0].as_slice::<f32>()?[0])
        });
        let (sum, expected) = (sum?, expected(self.case, self.n_nodes, x));
        anyhow::ensure!(
            sum == expected,
            "{} graph of {} additions, fed {x}: the sum is {sum}, expected {expected}",
            self.case.name(),
            self.n_nodes
        );
        Ok(time)
    }
}

impl Work for Additions {
    fn run(&self, number: u64) -> Result<Duration> {
        #[expect(clippy::cast_precision_loss, reason = "below 8")]
        let x = (number % 8) as f32;
        self.run_with(x, &RunOptions::default())
    }
}

/// Returns the exact value of the last node: sums of small integers.
fn expected(case: Case, n_nodes: u32, x: f32) -> f32 {
    match case {
        Case::Chain => (1..=n_nodes).fold(x, |sum, _| sum + x),
        Case::Independent => x + x,
        Case::Layered => (0..n_nodes.div_ceil(WIDTH)).fold(x, |sum, _| sum + sum),
    }
}

/// Options for one CPU device with a number of threads, and no other device.
pub(super) fn only_cpu(threads: usize) -> DeviceOptions {
    DeviceOptions {
        device_count: [("SYCL".to_owned(), 0)].into(),
        intra_op_parallelism_threads: threads,
        ..DeviceOptions::default()
    }
}

/// Opens a session on one CPU device, without a policy.
pub(super) fn session(graph: Graph, threads: usize, kernels: &[KernelDef]) -> Result<Session> {
    let proposal = Proposal {
        devices: vec![0; graph.n_nodes()],
        ..Proposal::default()
    };
    Ok(Session::builder()
        .with_graph(graph)
        .with_kernels(kernels.iter().cloned())
        .with_proposal(proposal)
        .with_device_options(only_cpu(threads))
        .with_inter_op_parallelism_threads(threads)
        .build()?)
}

/// Builds `x`, then nodes `a0`, `a1`, .. of two inputs, then `done` after all that no node reads.
pub(super) fn graph(case: Case, n_nodes: u32, op: &str) -> Graph {
    let mut assembler = GraphAssembler::new(case.name());
    let scalar = [NodeOutput {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::scalar(),
    }];
    let number = AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let attr = |name: &str| AttrSet::new([(name.into(), number.clone())]);
    let mut add = |name: &str, op: &str, inputs: &[Input], attrs, outputs: &[NodeOutput]| {
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device: "",
            attrs,
            outputs,
            stateful: false,
            work: NodeWork::default(),
        };
        assembler.add_node(&spec).expect("the graph is well made")
    };
    let x = add("x", "Placeholder", &[], attr("dtype"), &scalar);
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut last_layer = 0;
    for index in 0..n_nodes {
        let data = |node: NodeId| Input::Data { node, slot: 0 };
        let inputs = match case {
            Case::Chain => [data(nodes.last().copied().unwrap_or(x)), data(x)],
            Case::Independent => [data(x), data(x)],
            Case::Layered if index < WIDTH => [data(x), data(x)],
            Case::Layered => {
                let (layer, place) = (index / WIDTH - 1, index % WIDTH);
                let of_layer = |place: u32| nodes[(layer * WIDTH + place % WIDTH) as usize];
                // Neighbours that change from layer to layer.
                [data(of_layer(place)), data(of_layer(place + 1 + layer % 7))]
            }
        };
        let name = format!("a{index}");
        nodes.push(add(&name, op, &inputs, attr("T"), &scalar));
        if index % WIDTH == 0 {
            last_layer = nodes.len() - 1;
        }
    }
    let first_unread = match case {
        Case::Chain => nodes.len() - 1,
        Case::Independent => 0,
        Case::Layered => last_layer.saturating_sub(WIDTH as usize),
    };
    let controls: Vec<Input> = nodes[first_unread..]
        .iter()
        .map(|&node| Input::Control(node))
        .collect();
    add("done", "NoOp", &controls, AttrSet::default(), &[]);
    assembler.finish()
}
