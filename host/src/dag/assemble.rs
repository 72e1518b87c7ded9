//! Makes a graph of a file's tasks and data.

use std::path::Path;
use std::sync::Arc;

use super::cycle;
use super::draft::Draft;
use super::draft::DraftTask;
use super::draft::Duration;
use super::error::TaskGraphError;
use super::names::Names;
use super::own;
use super::text::Lines;
use super::text::Name;
use super::text::Shown;
use super::wfformat;
use crate::cluster::Place;
use crate::files;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::GraphError;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::names::DeviceName;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

/// Larger files are not read: workflows of 100,000 tasks have 200 MB.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// The name of an input's node begins with it.
const INPUT_PREFIX: &str = "input/";

/// The op of inputs that are on some devices only.
const INPUT_OP: &str = "Input";

/// At most so many tasks of a cycle are named.
const CYCLE_SHOWN_MAX: usize = 8;

/// Tasks, data and dependencies on paper.
///
/// Each task is a node of [`Self::graph`], with its name. What it writes are its outputs, of
/// [`DType::U8`] and one dimension: its bytes. What a task reads is a data edge, and another
/// dependency is a control edge. Data that no task writes are *inputs*. Each input that a task
/// reads is a node `input/NAME`. An input for which the file states no device is on every device
/// from the start: it is a constant, which takes memory wherever it is read. Other inputs are on
/// one of the stated devices, and their readers elsewhere wait for a transfer. Nodes of inputs take
/// no time.
#[derive(Debug, Clone)]
pub struct TaskGraph {
    pub(super) graph: Arc<Graph>,
    n_tasks: usize,
    n_data: usize,
    data_bytes: u64,
    /// Per node.
    pub(super) durations: Vec<Option<Duration>>,
    /// Per node its line; 0 if it is unknown.
    pub(super) lines: Vec<u32>,
    pub(super) device_types: Vec<String>,
    pub(super) requests: Vec<Request>,
    pub(super) colocated: Vec<(NodeId, NodeId)>,
    pub(super) priorities: Vec<(NodeId, i32)>,
}

/// A request for devices.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) name: DeviceName,
    /// Where it is first.
    pub(super) place: Place,
    pub(super) nodes: Vec<NodeId>,
}

impl TaskGraph {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TaskGraphError`]; add the path to its message.
    pub fn read(path: &Path) -> Result<Self, TaskGraphError> {
        let remedy = "divide the task graph";
        Self::parse(&files::read_text(path, FILE_BYTES_MAX, remedy)?)
    }

    /// Parses the text of a file: WfFormat if it has a `schemaVersion` or `workflow`, otherwise our
    /// own format.
    ///
    /// # Errors
    /// [`TaskGraphError::Invalid`], which names the line if it is known.
    pub fn parse(text: &str) -> Result<Self, TaskGraphError> {
        if !text.trim_start().starts_with('{') {
            return Err(TaskGraphError::Invalid {
                place: Place::of(text, Some(0..0)),
                problem: "a task graph is a JSON object, which begins with `{`".to_owned(),
            });
        }
        let draft = match wfformat::is_workflow(text)? {
            true => wfformat::read(text)?,
            false => own::read(text)?,
        };
        assemble(draft)
    }

    /// Returns the name that the file states; `tasks` if it states none.
    pub fn name(&self) -> &str {
        self.graph.name()
    }

    /// Returns the number of tasks.
    pub fn n_tasks(&self) -> usize {
        self.n_tasks
    }

    /// Returns the number of data items: what tasks write, and inputs that tasks read.
    pub fn n_data(&self) -> usize {
        self.n_data
    }

    /// Returns the bytes of all data items.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the graph. Ids of nodes are topological; of the tasks that could be next, the first
    /// one of the file is.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }
}

fn assemble(mut draft: Draft<'_>) -> Result<TaskGraph, TaskGraphError> {
    check_input_names(&draft)?;
    let order = order(&mut draft)?;
    let Draft {
        file,
        name,
        tasks,
        data,
        device_types,
        requests,
    } = draft;
    let mut made = Made {
        file,
        lines: Lines::new(file),
        assembler: GraphAssembler::new(name),
        node_lines: Vec::new(),
        durations: Vec::new(),
        requests: requests
            .into_iter()
            .map(|(name, at)| Request {
                place: Place::of(file, at.offset(file).map(|start| start..start + at.len())),
                name,
                nodes: Vec::new(),
            })
            .collect(),
    };
    let mut is_read = vec![false; data.len()];
    for &item in tasks.iter().flat_map(|task| &task.reads) {
        is_read[item as usize] = true;
    }
    // Per item its node and output.
    let mut outputs: Vec<Option<(NodeId, u32)>> = vec![None; data.len()];
    let (mut n_data, mut data_bytes) = (0, 0u64);
    for ((item, output), is_read) in data.iter().zip(&mut outputs).zip(is_read) {
        if item.writer.is_some() || is_read {
            n_data += 1;
            data_bytes = data_bytes.saturating_add(item.bytes);
        }
        if item.writer.is_none() && is_read {
            let node = made.add_input(&item.name, item.bytes, item.request)?;
            *output = Some((node, 0));
        }
    }
    let lines = made.lines_of(&tasks);
    let mut nodes: Vec<NodeId> = vec![NodeId(0); tasks.len()];
    let mut inputs: Vec<Input> = Vec::new();
    let mut shapes: Vec<Output> = Vec::new();
    for &index in &order {
        let task = &tasks[index as usize];
        inputs.clear();
        let read = task.reads.iter().filter_map(|&item| outputs[item as usize]);
        inputs.extend(read.map(|(node, slot)| Input::Data { node, slot }));
        let after = task.after.iter().map(|&before| nodes[before as usize]);
        inputs.extend(after.map(Input::Control));
        shapes.clear();
        for &item in &task.writes {
            shapes.push(output_of(made.file, &task.name, data[item as usize].bytes)?);
        }
        let node = made.add_task(task, &inputs, &shapes, lines[index as usize])?;
        nodes[index as usize] = node;
        for (slot, &item) in (0u32..).zip(&task.writes) {
            outputs[item as usize] = Some((node, slot));
        }
    }
    let of_tasks = || tasks.iter().zip(&nodes);
    let colocated = of_tasks().flat_map(|(task, &node)| {
        let others = task.colocated.iter();
        others.map(move |&other| (node, other))
    });
    let colocated = colocated.map(|(node, other)| (node, nodes[other as usize]));
    let priorities = of_tasks().filter(|(task, _)| task.priority != 0);
    Ok(TaskGraph {
        n_tasks: tasks.len(),
        n_data,
        data_bytes,
        colocated: colocated.collect(),
        priorities: priorities
            .map(|(task, &node)| (node, task.priority))
            .collect(),
        graph: Arc::new(made.assembler.finish()),
        durations: made.durations,
        lines: made.node_lines,
        device_types,
        requests: made.requests,
    })
}

/// Checks that no task has the name of an input's node.
fn check_input_names(draft: &Draft<'_>) -> Result<(), TaskGraphError> {
    let mut inputs = Names::new(draft.file, "input");
    for item in draft.data.iter().filter(|item| item.writer.is_none()) {
        inputs.add(&item.name, 0)?;
    }
    let taken = draft.tasks.iter().find_map(|task| {
        let name = task.name.strip_prefix(INPUT_PREFIX)?;
        inputs.get(name).map(|_| &task.name)
    });
    match taken {
        None => Ok(()),
        Some(name) => {
            let problem = format!(
                "task {} has the name that the node of an input gets; rename it",
                Shown(name)
            );
            Err(name.invalid(draft.file, problem))
        }
    }
}

/// Removes repeated dependencies, and sorts the tasks.
fn order(draft: &mut Draft<'_>) -> Result<Vec<u32>, TaskGraphError> {
    let mut reader_of: Vec<Option<usize>> = vec![None; draft.data.len()];
    let mut waiter_of: Vec<Option<usize>> = vec![None; draft.tasks.len()];
    let mut predecessors: Vec<Vec<u32>> = Vec::with_capacity(draft.tasks.len());
    for (index, task) in draft.tasks.iter_mut().enumerate() {
        let is_new = |seen: &mut Vec<Option<usize>>, of: u32| {
            seen[of as usize].replace(index) != Some(index)
        };
        task.reads.retain(|&item| is_new(&mut reader_of, item));
        let read = task.reads.iter();
        let mut own: Vec<u32> = read
            .filter_map(|&item| draft.data[item as usize].writer)
            .filter(|&writer| is_new(&mut waiter_of, writer))
            .collect();
        // What it reads from another task is a dependency already.
        task.after.retain(|&before| is_new(&mut waiter_of, before));
        own.extend_from_slice(&task.after);
        predecessors.push(own);
    }
    cycle::sort(&predecessors).map_err(|cycle| {
        let names = || cycle.iter().map(|&task| &draft.tasks[task as usize].name);
        let mut shown: Vec<String> = names()
            .take(CYCLE_SHOWN_MAX)
            .map(|name| Shown(name).to_string())
            .collect();
        let left_out = cycle.len() - shown.len();
        if left_out > 0 {
            shown.push(format!("{left_out} more"));
        }
        shown.extend(names().next().map(|name| Shown(name).to_string()));
        let problem = format!("tasks wait for each other: {}", shown.join(", then "));
        match names().next() {
            Some(name) => name.invalid(draft.file, problem),
            None => TaskGraphError::Invalid {
                place: Place::default(),
                problem,
            },
        }
    })
}

/// Returns an output of so many bytes.
fn output_of(file: &str, of: &Name<'_>, bytes: u64) -> Result<Output, TaskGraphError> {
    let size = usize::try_from(bytes).map_err(|_| {
        let problem = format!(
            "{} writes more bytes than this machine can address",
            Shown(of)
        );
        of.invalid(file, problem)
    })?;
    Ok(Output {
        dtype: DType::U8,
        is_ref: false,
        shape: PartialShape::new(&[Some(size)]),
    })
}

/// A graph that is being made.
struct Made<'f> {
    file: &'f str,
    lines: Lines<'f>,
    assembler: GraphAssembler,
    node_lines: Vec<u32>,
    durations: Vec<Option<Duration>>,
    requests: Vec<Request>,
}

impl Made<'_> {
    fn lines_of(&mut self, tasks: &[DraftTask<'_>]) -> Vec<u32> {
        tasks.iter().map(|task| self.lines.of(&task.name)).collect()
    }

    fn add_input(
        &mut self,
        name: &Name<'_>,
        bytes: u64,
        request: Option<u32>,
    ) -> Result<NodeId, TaskGraphError> {
        let output = output_of(self.file, name, bytes)?;
        let is_everywhere = request.is_none();
        let attrs = match is_everywhere {
            true => constant_attrs(self.file, name, &output)?,
            false => AttrSet::default(),
        };
        let line = self.lines.of(name);
        let spec = NodeSpec {
            name: &format!("{INPUT_PREFIX}{}", &**name),
            op: match is_everywhere {
                true => "Const",
                false => INPUT_OP,
            },
            inputs: &[],
            requested_device: "",
            attrs,
            outputs: std::slice::from_ref(&output),
            stateful: false,
            work: Work {
                resident_bytes: match is_everywhere {
                    true => bytes,
                    false => 0,
                },
                ..Work::default()
            },
        };
        self.add(name, &spec, request, line, None)
    }

    fn add_task(
        &mut self,
        task: &DraftTask<'_>,
        inputs: &[Input],
        outputs: &[Output],
        line: u32,
    ) -> Result<NodeId, TaskGraphError> {
        let mut work = Work {
            workspace_bytes: task.memory_bytes,
            ..Work::default()
        };
        if let Duration::Work {
            flops,
            traffic_bytes,
        } = task.duration
        {
            (work.flops, work.traffic_bytes) = (flops, traffic_bytes);
        }
        let spec = NodeSpec {
            name: &task.name,
            op: &task.op,
            inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs,
            stateful: false,
            work,
        };
        let duration = Some(task.duration.clone());
        self.add(&task.name, &spec, task.request, line, duration)
    }

    fn add(
        &mut self,
        name: &Name<'_>,
        spec: &NodeSpec<'_>,
        request: Option<u32>,
        line: u32,
        duration: Option<Duration>,
    ) -> Result<NodeId, TaskGraphError> {
        let request = request.and_then(|request| self.requests.get_mut(request as usize));
        let text = request.as_ref().map(|request| request.name.request_text());
        let added = self.assembler.add_node(&NodeSpec {
            requested_device: text.as_deref().unwrap_or_default(),
            ..spec.clone()
        });
        let node = added.map_err(|error: GraphError| name.invalid(self.file, error.to_string()))?;
        if let Some(request) = request {
            request.nodes.push(node);
        }
        self.node_lines.push(line);
        self.durations.push(duration);
        Ok(node)
    }
}

/// Returns the attributes of a constant that is never read: all of its bytes are 0.
fn constant_attrs(file: &str, name: &Name<'_>, output: &Output) -> Result<AttrSet, TaskGraphError> {
    let invalid = |error: &dyn std::error::Error| name.invalid(file, error.to_string());
    let dims = output.shape.to_shape();
    let shape = dims.unwrap_or_else(|| Shape::new(&[]));
    let zeros = LiteralData::RepeatLast(Arc::new([0u8; 0]));
    let literal = Literal::new(DType::U8, shape, zeros).map_err(|error| invalid(&error))?;
    Ok(AttrSet::new([
        ("dtype".into(), AttrValue::from(DType::U8)),
        ("value".into(), AttrValue::Tensor(Arc::new(literal))),
    ]))
}
