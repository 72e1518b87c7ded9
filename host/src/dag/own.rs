//! Reads task graphs in our own format.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::draft::Draft;
use super::draft::DraftData;
use super::draft::DraftTask;
use super::draft::Duration;
use super::draft::FLOPS_MAX;
use super::draft::checked_bytes;
use super::draft::checked_ns;
use super::draft::to_u32;
use super::error::TaskGraphError;
use super::file::InputEntry;
use super::file::OwnFile;
use super::file::TaskEntry;
use super::names::Names;
use super::text::Name;
use super::text::Shown;
use super::text::parse;
use crate::functions::is_call;
use crate::graph::is_control_flow;
use crate::names::DeviceName;
use crate::ops::CallOp;

/// The op of tasks that state none.
pub(super) const TASK_OP: &str = "Task";

/// Reads a file.
pub(super) fn read(file: &str) -> Result<Draft<'_>, TaskGraphError> {
    let OwnFile {
        name,
        inputs,
        tasks,
    } = parse(file)?;
    let references = references(file, &inputs, &tasks)?;
    let mut numbers = Numbers {
        file,
        requests: Vec::new(),
        request_ids: HashMap::new(),
        device_types: Vec::new(),
        type_ids: HashMap::new(),
    };
    let mut data = Vec::new();
    for input in inputs {
        data.push(DraftData {
            bytes: checked_bytes(file, &input.name, input.bytes.value())?,
            name: input.name,
            writer: None,
            request: numbers.request(input.device)?,
        });
    }
    let mut drafts = Vec::with_capacity(tasks.len());
    for (index, (mut task, references)) in (0u32..).zip(tasks.into_iter().zip(references)) {
        let first = to_u32(data.len());
        for item in std::mem::take(&mut task.writes) {
            data.push(DraftData {
                bytes: checked_bytes(file, &item.name, item.bytes.value())?,
                name: item.name,
                writer: Some(index),
                request: None,
            });
        }
        let References {
            reads,
            after,
            colocated,
        } = references;
        drafts.push(DraftTask {
            duration: numbers.duration(&mut task)?,
            op: op(file, &task.name, task.op)?,
            memory_bytes: checked_bytes(file, &task.name, task.memory.value())?,
            reads,
            writes: (first..to_u32(data.len())).collect(),
            after,
            colocated,
            request: numbers.request(task.device)?,
            priority: task.priority,
            name: task.name,
        });
    }
    Ok(Draft {
        file,
        name: name.map_or_else(|| "tasks".to_owned(), |name| name.to_string()),
        tasks: drafts,
        data,
        device_types: numbers.device_types,
        requests: numbers.requests,
    })
}

/// What a task names.
struct References {
    reads: Vec<u32>,
    after: Vec<u32>,
    colocated: Vec<u32>,
}

/// Finds what tasks name. Data is numbered in the order of the file, inputs first.
fn references(
    file: &str,
    inputs: &[InputEntry<'_>],
    tasks: &[TaskEntry<'_>],
) -> Result<Vec<References>, TaskGraphError> {
    let mut of_tasks = Names::new(file, "task");
    for (number, task) in (0u32..).zip(tasks) {
        of_tasks.add(&task.name, number)?;
    }
    let mut of_data = Names::new(file, "data item");
    let written = tasks.iter().flat_map(|task| &task.writes);
    let data = inputs.iter().map(|input| &input.name);
    for (number, name) in (0u32..).zip(data.chain(written.map(|item| &item.name))) {
        of_data.add(name, number)?;
    }
    let find = |task: &TaskEntry<'_>| {
        let all = |names: &Names<'_>, of: &[Name<'_>]| {
            let found = of.iter().map(|name| names.find(name, &task.name));
            found.collect::<Result<Vec<u32>, _>>()
        };
        Ok(References {
            reads: all(&of_data, &task.reads)?,
            after: all(&of_tasks, &task.after)?,
            colocated: all(&of_tasks, &task.colocate_with)?,
        })
    };
    tasks.iter().map(find).collect()
}

/// Returns the op of a task. Ops that this library knows would mean something else.
fn op<'f>(
    file: &str,
    task: &Name<'_>,
    op: Option<Name<'f>>,
) -> Result<Cow<'f, str>, TaskGraphError> {
    let Some(op) = op else {
        return Ok(Cow::Borrowed(TASK_OP));
    };
    let problem = match () {
        () if is_reserved(&op) => {
            "which has a meaning of its own in this library; choose another name"
        }
        () if op.is_empty() || op.chars().any(char::is_control) => {
            "which is empty or has control characters"
        }
        () => return Ok(op.into_inner()),
    };
    let problem = format!("task {} has op {}, {problem}", Shown(task), Shown(&op));
    Err(op.invalid(file, problem))
}

/// Returns whether an op changes how its node is treated.
pub(super) fn is_reserved(op: &str) -> bool {
    // What costs nothing, follows its producer, or is on every device.
    let known = [
        "Const",
        "Identity",
        "RefIdentity",
        "Shape",
        "Size",
        "Rank",
        "_Arg",
        "_Retval",
    ];
    known.contains(&op)
        || op.starts_with("Placeholder")
        || is_control_flow(op)
        || is_call(op)
        || CallOp::of(op).is_some()
}

/// Numbers of requests and device types.
struct Numbers<'f> {
    file: &'f str,
    requests: Vec<(DeviceName, Name<'f>)>,
    request_ids: HashMap<DeviceName, u32>,
    device_types: Vec<String>,
    type_ids: HashMap<Cow<'f, str>, u32>,
}

impl<'f> Numbers<'f> {
    fn request(&mut self, text: Option<Name<'f>>) -> Result<Option<u32>, TaskGraphError> {
        let Some(text) = text else {
            return Ok(None);
        };
        let name = DeviceName::parse_full_or_local(&text)
            .map_err(|error| text.invalid(self.file, error.to_string()))?;
        if let Some(&known) = self.request_ids.get(&name) {
            return Ok(Some(known));
        }
        let id = to_u32(self.requests.len());
        self.request_ids.insert(name.clone(), id);
        self.requests.push((name, text));
        Ok(Some(id))
    }

    fn duration(&mut self, task: &mut TaskEntry<'f>) -> Result<Duration, TaskGraphError> {
        let (file, name) = (self.file, &task.name);
        match (&task.work, task.time.take()) {
            (Some(work), None) => {
                let flops = work.flops.value();
                if flops > FLOPS_MAX {
                    let problem = format!(
                        "task {} has {flops:e} floating-point operations; the limit is {FLOPS_MAX:e}",
                        Shown(name)
                    );
                    return Err(name.invalid(file, problem));
                }
                Ok(Duration::Work {
                    flops,
                    traffic_bytes: checked_bytes(file, name, work.bytes.value())?,
                })
            }
            (None, Some(times)) => {
                let mut of_types: Vec<(u32, f64)> = Vec::with_capacity(times.0.len());
                for (device_type, ns) in times.0 {
                    let ns = checked_ns(file, name, ns.value())?;
                    of_types.push((self.type_id(device_type), ns));
                }
                of_types.sort_unstable_by_key(|&(id, _)| id);
                if let Some(pair) = of_types.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                    let device_type = &self.device_types[pair[0].0 as usize];
                    let problem = format!(
                        "task {} has two times for {}",
                        Shown(name),
                        Shown(device_type)
                    );
                    return Err(name.invalid(file, problem));
                }
                if of_types.is_empty() {
                    let problem = format!(
                        "task {} has no time, so no device can run it; add one, such as \
                         {{\"CPU\": \"12 ms\"}}",
                        Shown(name)
                    );
                    return Err(name.invalid(file, problem));
                }
                Ok(Duration::OfTypes(of_types.into_boxed_slice()))
            }
            (work, _) => {
                let has = match work {
                    Some(_) => "both `work` and `time`; leave one of them out",
                    None => "neither `work` nor `time`; add one of them",
                };
                Err(name.invalid(file, format!("task {} has {has}", Shown(name))))
            }
        }
    }

    fn type_id(&mut self, device_type: Name<'f>) -> u32 {
        let device_type = device_type.into_inner();
        if let Some(&known) = self.type_ids.get(&device_type) {
            return known;
        }
        let id = to_u32(self.device_types.len());
        self.device_types.push(device_type.to_string());
        self.type_ids.insert(device_type, id);
        id
    }
}
