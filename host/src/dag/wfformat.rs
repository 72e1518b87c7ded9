//! Reads workflows in WfFormat 1.5 and 1.6, the format of WfCommons.
//!
//! Unknown properties are allowed, as in its schema.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::draft::Draft;
use super::draft::DraftData;
use super::draft::DraftTask;
use super::draft::Duration;
use super::draft::checked_bytes;
use super::draft::checked_ns;
use super::draft::to_u32;
use super::error::TaskGraphError;
use super::names::Names;
use super::own::TASK_OP;
use super::own::is_reserved;
use super::text::Name;
use super::text::Shown;
use super::text::parse;

/// The versions that are read.
const VERSIONS: [&str; 2] = ["1.5", "1.6"];

const NS_PER_S: f64 = 1e9;

/// What tells a workflow from a task graph in our own format.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marks<'f> {
    #[serde(default, borrow)]
    schema_version: Option<Name<'f>>,
    #[serde(default)]
    workflow: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Instance<'f> {
    #[serde(borrow)]
    name: Name<'f>,
    #[serde(borrow)]
    workflow: Workflow<'f>,
}

#[derive(Debug, Deserialize)]
struct Workflow<'f> {
    #[serde(borrow)]
    specification: Specification<'f>,
    #[serde(default, borrow)]
    execution: Option<Execution<'f>>,
}

#[derive(Debug, Deserialize)]
struct Specification<'f> {
    #[serde(borrow)]
    tasks: Vec<SpecifiedTask<'f>>,
    #[serde(default, borrow)]
    files: Vec<WorkflowFile<'f>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecifiedTask<'f> {
    #[serde(borrow)]
    id: Name<'f>,
    #[serde(borrow)]
    name: Name<'f>,
    #[serde(borrow)]
    parents: Vec<Name<'f>>,
    #[serde(borrow)]
    children: Vec<Name<'f>>,
    #[serde(default, borrow)]
    input_files: Vec<Name<'f>>,
    #[serde(default, borrow)]
    output_files: Vec<Name<'f>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowFile<'f> {
    #[serde(borrow)]
    id: Name<'f>,
    size_in_bytes: f64,
}

#[derive(Debug, Deserialize)]
struct Execution<'f> {
    #[serde(borrow)]
    tasks: Vec<ExecutedTask<'f>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecutedTask<'f> {
    #[serde(borrow)]
    id: Name<'f>,
    runtime_in_seconds: f64,
    #[serde(default)]
    memory_in_bytes: f64,
    #[serde(default)]
    priority: f64,
    #[serde(default, borrow)]
    command: Option<Command<'f>>,
}

#[derive(Debug, Deserialize)]
struct Command<'f> {
    #[serde(default, borrow)]
    program: Option<Name<'f>>,
}

/// Returns whether a file is in this format.
///
/// # Errors
/// If it is no JSON object, or of another version of the format.
pub(super) fn is_workflow(file: &str) -> Result<bool, TaskGraphError> {
    let marks: Marks<'_> = parse(file)?;
    match marks.schema_version {
        Some(version) if !VERSIONS.contains(&&*version) => {
            let problem = format!(
                "WfFormat {} is not supported, only 1.5 and 1.6 are; WfCommons has a program that \
                 migrates older files",
                Shown(&version)
            );
            Err(version.invalid(file, problem))
        }
        version => Ok(version.is_some() || marks.workflow.is_some()),
    }
}

/// Reads a file.
pub(super) fn read(file: &str) -> Result<Draft<'_>, TaskGraphError> {
    let instance: Instance<'_> = parse(file)?;
    let Specification { tasks, files } = instance.workflow.specification;
    let Some(execution) = instance.workflow.execution else {
        let problem = "the workflow has no `execution`, which tells how long its tasks take";
        return Err(instance.name.invalid(file, problem));
    };
    let mut task_ids = Names::new(file, "task");
    for (index, task) in tasks.iter().enumerate() {
        task_ids.add(&task.id, to_u32(index))?;
    }
    let mut file_ids = Names::new(file, "file");
    let mut data = Vec::with_capacity(files.len());
    for (index, of) in files.iter().enumerate() {
        file_ids.add(&of.id, to_u32(index))?;
        data.push(DraftData {
            name: of.id.clone(),
            bytes: checked_bytes(file, &of.id, of.size_in_bytes)?,
            writer: None,
            request: None,
        });
    }
    let mut executed: Vec<Option<&ExecutedTask<'_>>> = vec![None; tasks.len()];
    for of in &execution.tasks {
        let Some(index) = task_ids.get(&of.id) else {
            let problem = format!(
                "task {} was executed, but `specification` does not have it",
                Shown(&of.id)
            );
            return Err(of.id.invalid(file, problem));
        };
        if executed[index as usize].replace(of).is_some() {
            let problem = format!("task {} was executed twice", Shown(&of.id));
            return Err(of.id.invalid(file, problem));
        }
    }
    check_children(file, &tasks, &task_ids)?;
    let mut drafts = Vec::with_capacity(tasks.len());
    for (index, (task, executed)) in tasks.iter().zip(executed).enumerate() {
        let Some(executed) = executed else {
            let problem = format!("task {} has no time in `execution`", Shown(&task.id));
            return Err(task.id.invalid(file, problem));
        };
        let find = |names: &Names<'_>, of: &[Name<'_>]| {
            let found = of.iter().map(|name| names.find(name, &task.id));
            found.collect::<Result<Vec<u32>, _>>()
        };
        let mut writes = find(&file_ids, &task.output_files)?;
        for (&written, name) in writes.iter().zip(&task.output_files) {
            let item = &mut data[written as usize];
            match item.writer.replace(to_u32(index)) {
                Some(first) if first as usize != index => {
                    let problem = format!(
                        "tasks {} and {} both write file {}",
                        Shown(&tasks[first as usize].id),
                        Shown(&task.id),
                        Shown(name)
                    );
                    return Err(name.invalid(file, problem));
                }
                _ => {}
            }
        }
        writes.sort_unstable();
        writes.dedup();
        let seconds = executed.runtime_in_seconds;
        let ns = checked_ns(file, &executed.id, seconds * NS_PER_S)?;
        drafts.push(DraftTask {
            name: task.id.clone(),
            op: op(task, executed),
            duration: Duration::OfReference(ns),
            memory_bytes: checked_bytes(file, &executed.id, executed.memory_in_bytes)?,
            reads: find(&file_ids, &task.input_files)?,
            writes,
            after: find(&task_ids, &task.parents)?,
            colocated: Vec::new(),
            request: None,
            priority: priority(executed.priority),
        });
    }
    Ok(Draft {
        file,
        name: instance.name.to_string(),
        tasks: drafts,
        data,
        device_types: Vec::new(),
        requests: Vec::new(),
    })
}

/// Returns the program that a task executes, else the name of the task.
fn op<'f>(task: &SpecifiedTask<'f>, executed: &ExecutedTask<'f>) -> Cow<'f, str> {
    let program = executed.command.as_ref().and_then(|it| it.program.as_ref());
    let op = program.unwrap_or(&task.name).clone().into_inner();
    let is_usable = |op: &str| !op.is_empty() && !op.chars().any(char::is_control);
    match is_usable(&op) && !is_reserved(&op) {
        true => op,
        false => Cow::Borrowed(TASK_OP),
    }
}

/// Returns an integer, as the format documents it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` returns the nearest integer"
)]
fn priority(number: f64) -> i32 {
    number.round() as i32
}

/// Checks that each parent has its child, and each child its parent.
fn check_children(
    file: &str,
    tasks: &[SpecifiedTask<'_>],
    ids: &Names<'_>,
) -> Result<(), TaskGraphError> {
    let mut of_parents: Vec<(u32, u32)> = Vec::new();
    let mut of_children: Vec<(u32, u32)> = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        for parent in &task.parents {
            of_parents.push((ids.find(parent, &task.id)?, to_u32(index)));
        }
        for child in &task.children {
            of_children.push((to_u32(index), ids.find(child, &task.id)?));
        }
    }
    for pairs in [&mut of_parents, &mut of_children] {
        pairs.sort_unstable();
        pairs.dedup();
    }
    let lacks = |pairs: &[(u32, u32)], others: &[(u32, u32)]| {
        let mut pairs = pairs.iter();
        pairs
            .find(|&pair| others.binary_search(pair).is_err())
            .copied()
    };
    let id = |task: u32| &tasks[task as usize].id;
    if let Some((parent, child)) = lacks(&of_parents, &of_children) {
        let (parent, child) = (id(parent), id(child));
        let problem = format!(
            "task {} has the parent {}, which does not have it as a child",
            Shown(child),
            Shown(parent)
        );
        return Err(child.invalid(file, problem));
    }
    if let Some((parent, child)) = lacks(&of_children, &of_parents) {
        let (parent, child) = (id(parent), id(child));
        let problem = format!(
            "task {} has the child {}, which does not have it as a parent",
            Shown(parent),
            Shown(child)
        );
        return Err(parent.invalid(file, problem));
    }
    Ok(())
}
