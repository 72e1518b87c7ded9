//! `placewright inspect`: what a graph or a SavedModel consists of.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::args::ModelArgs;
use super::open::is_task_graph;
use super::open::name_of;
use super::output::Output;
use super::saved_model::GraphPath;
use super::table::Table;
use super::units::count;
use super::units::show_bytes;
use crate::device::DeviceSet;
use crate::files;
use crate::functions::is_call;
use crate::graph::Argument;
use crate::graph::Signature;
use crate::import::ImportOptions;
use crate::optimize::GraphSize;
use crate::registry::Registry;
use crate::saved_model::GraphSummary;
use crate::saved_model::SavedModel;
use crate::saved_model::SavedModelError;
use crate::saved_model::SavedModelOptions;
use crate::saved_model::VariableInfo;
use crate::session::Session;

#[derive(Debug, Args)]
pub(super) struct InspectCommand {
    /// A frozen TensorFlow GraphDef (.pb), or the folder of a SavedModel.
    #[arg(value_hint = ValueHint::AnyPath)]
    graph: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Show what each pass of the optimizer changes.
    #[arg(long)]
    passes: bool,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    /// Of a SavedModel.
    model: Option<ModelRow>,
    n_nodes: usize,
    variables: Vec<VariableRow>,
    functions: Vec<FunctionRow>,
    ops: Vec<OpRow>,
    /// With `--passes`.
    passes: Option<Vec<PassRow>>,
}

/// What a pass of the optimizer changes.
#[derive(Debug, Serialize)]
struct PassRow {
    pass: &'static str,
    before: SizeRow,
    after: SizeRow,
}

#[derive(Debug, Serialize)]
struct SizeRow {
    n_nodes: usize,
    flops: f64,
    traffic_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ModelRow {
    /// The tags of each graph.
    tag_sets: Vec<Vec<String>>,
    tensorflow_version: String,
    signatures: Vec<SignatureRow>,
    /// The signature whose nodes are counted.
    signature: String,
}

#[derive(Debug, Serialize)]
struct SignatureRow {
    name: String,
    inputs: Vec<ArgumentRow>,
    outputs: Vec<ArgumentRow>,
}

#[derive(Debug, Serialize)]
struct ArgumentRow {
    name: String,
    dtype: &'static str,
    /// As text: `[?,3]`, or `<unknown>` for an unknown rank.
    shape: String,
    tensor: String,
}

#[derive(Debug, Serialize)]
struct VariableRow {
    name: String,
    dtype: &'static str,
    shape: String,
    bytes: Option<u64>,
    is_constant: bool,
    restored_from: Option<String>,
}

#[derive(Debug, Serialize)]
struct FunctionRow {
    name: String,
    n_nodes: usize,
}

#[derive(Debug, Serialize)]
struct OpRow {
    op: String,
    n_nodes: usize,
    /// Whether the op has a definition; a graph with one that has none cannot be placed.
    is_known: bool,
    /// Device types with a kernel for the op, for some of its types.
    kernels: Vec<String>,
    /// False for calls, which are replaced by what they call, and for what is fed.
    needs_kernel: bool,
}

/// Runs the command.
pub(super) fn run(
    command: &InspectCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    if is_task_graph(&command.graph) {
        let problem = "a task graph has no ops; `place` shows its tasks";
        return Err(UsageError(problem.to_owned()).into());
    }
    let path = GraphPath::of(&command.graph)?;
    path.check_flags(&command.model)?;
    let import_options = ImportOptions::default();
    let (summary, model) = match path {
        GraphPath::GraphDef => {
            let context = || command.graph.display().to_string();
            let limit = import_options.size_bytes_max;
            let bytes = files::read(&command.graph, limit, "pass a smaller graph");
            let bytes = bytes.with_context(context)?;
            let summary = GraphSummary::of_graph_def(bytes, &import_options);
            (summary.with_context(context)?, None)
        }
        GraphPath::SavedModel(folder) => {
            let model = SavedModel::open(folder)?;
            let (summary, row) = of_model(&model, command, &import_options)?;
            (summary, Some(row))
        }
    };
    let functions = summary.functions.iter();
    let passes = command.passes.then(|| pass_rows(command, registry));
    let report = Report {
        name: name_of(&command.graph),
        model,
        n_nodes: summary.n_nodes,
        variables: summary.variables.iter().map(variable_row).collect(),
        ops: op_rows(&summary, registry),
        functions: functions
            .map(|(name, n_nodes)| FunctionRow {
                name: name.clone(),
                n_nodes: *n_nodes,
            })
            .collect(),
        passes: passes.transpose()?,
    };
    report.show(output)?;
    output.json(&report)?;
    Ok(Outcome::Done)
}

/// Reads a SavedModel. Without a default signature, the nodes of the first one are counted.
fn of_model(
    model: &SavedModel,
    command: &InspectCommand,
    import_options: &ImportOptions,
) -> Result<(GraphSummary, ModelRow)> {
    let options = command.model.to_options();
    let signatures = model.signatures(&options.tags)?;
    let summarize = |options: &SavedModelOptions| {
        let summary = model.summary(options, import_options)?;
        Ok::<_, SavedModelError>((summary, model.selected(options)?))
    };
    let (summary, selected) = match (summarize(&options), signatures.first()) {
        (Err(SavedModelError::NoSuchSignature { .. }), Some(first))
            if options.signature.is_none() =>
        {
            summarize(&options.with_signature(&first.name))?
        }
        (result, _) => result?,
    };
    let row = ModelRow {
        tag_sets: model.tags(),
        tensorflow_version: model.tensorflow_version(&command.model.tag_set)?.to_owned(),
        signatures: signatures.iter().map(signature_row).collect(),
        signature: selected.name,
    };
    Ok((summary, row))
}

fn signature_row(signature: &Signature) -> SignatureRow {
    let rows = |arguments: &[Argument]| {
        let rows = arguments.iter().map(|argument| ArgumentRow {
            name: argument.name.clone(),
            dtype: argument.dtype.name(),
            shape: argument.shape.to_string(),
            tensor: argument.tensor.clone(),
        });
        rows.collect()
    };
    SignatureRow {
        name: signature.name.clone(),
        inputs: rows(&signature.inputs),
        outputs: rows(&signature.outputs),
    }
}

fn variable_row(variable: &VariableInfo) -> VariableRow {
    VariableRow {
        name: variable.name.clone(),
        dtype: variable.dtype.name(),
        shape: variable.shape.to_string(),
        bytes: variable.size_bytes(),
        is_constant: variable.is_constant,
        restored_from: variable.restored_from.clone(),
    }
}

/// Returns a row per op that is no function of the graph.
fn op_rows(summary: &GraphSummary, registry: &Registry) -> Vec<OpRow> {
    let functions = summary.functions.iter().map(|(name, _)| name.as_str());
    let functions: BTreeSet<&str> = functions.collect();
    let kernels = registry.kernels();
    let ops = summary.ops.iter();
    let ops = ops.filter(|(op, _)| !functions.contains(op.as_str()));
    ops.map(|(op, &n_nodes)| {
        let types = kernels.of_op(op).iter();
        let types: BTreeSet<String> = types.map(|kernel| kernel.device_type.clone()).collect();
        OpRow {
            op: op.clone(),
            n_nodes,
            is_known: registry.ops().get(op).is_some(),
            kernels: types.into_iter().collect(),
            needs_kernel: !is_call(op) && !PLACEHOLDERS.contains(&op.as_str()),
        }
    })
    .collect()
}

/// Applies the passes to the graph, as `place` and `run` do. They need no device.
fn pass_rows(command: &InspectCommand, registry: &Registry) -> Result<Vec<PassRow>> {
    let builder = Session::builder()
        .with_registry(registry.clone())
        .with_devices(DeviceSet::default());
    let builder = match GraphPath::of(&command.graph)? {
        GraphPath::GraphDef => builder.with_graph_def_file(&command.graph),
        GraphPath::SavedModel(folder) => {
            builder.with_saved_model(folder, command.model.to_options())
        }
    };
    let size = |size: GraphSize| SizeRow {
        n_nodes: size.n_nodes,
        flops: size.flops,
        traffic_bytes: size.traffic_bytes,
    };
    let reports = builder.pass_reports()?.into_iter();
    let rows = reports.map(|report| PassRow {
        pass: report.pass.name(),
        before: size(report.before),
        after: size(report.after),
    });
    Ok(rows.collect())
}

/// Ops whose outputs are fed.
const PLACEHOLDERS: [&str; 2] = ["Placeholder", "PlaceholderV2"];

impl Report {
    fn show(&self, output: &mut Output) -> Result<()> {
        if let Some(model) = &self.model {
            model.show(output)?;
        }
        self.show_variables(output)?;
        output.line(format_args!(
            "\n{} and {}",
            count(self.n_nodes, "node"),
            count(self.functions.len(), "function")
        ))?;
        let types: BTreeSet<&String> = self.ops.iter().flat_map(|row| &row.kernels).collect();
        let mut table = Table::new(["op", "nodes", "no kernel on"]).with_numbers(&[1]);
        for row in &self.ops {
            let lacking = types
                .iter()
                .filter(|device_type| !row.kernels.contains(device_type));
            let lacking: Vec<&str> = lacking.map(|device_type| device_type.as_str()).collect();
            let lacking = match (row.is_known, row.needs_kernel) {
                (false, _) => "unknown op".to_owned(),
                (_, false) => String::new(),
                _ => lacking.join(", "),
            };
            table.add_row([row.op.clone(), row.n_nodes.to_string(), lacking]);
        }
        output.table(&table)?;
        match &self.passes {
            Some(passes) => show_passes(passes, output),
            None => Ok(()),
        }
    }

    fn show_variables(&self, output: &mut Output) -> Result<()> {
        if self.variables.is_empty() {
            return output.line("no variables");
        }
        let bytes: u64 = self.variables.iter().filter_map(|row| row.bytes).sum();
        output.line(format_args!(
            "{}, {}",
            count(self.variables.len(), "variable"),
            show_bytes(bytes)
        ))?;
        let head = ["variable", "type", "shape", "bytes", "loaded as", "from"];
        let mut table = Table::new(head).with_numbers(&[3]);
        for row in &self.variables {
            let loaded = if row.is_constant {
                "constant"
            } else {
                "variable"
            };
            table.add_row([
                row.name.clone(),
                row.dtype.to_owned(),
                row.shape.clone(),
                row.bytes.map_or("?".to_owned(), |bytes| bytes.to_string()),
                loaded.to_owned(),
                row.restored_from.clone().unwrap_or_default(),
            ]);
        }
        output.table(&table)
    }
}

fn show_passes(passes: &[PassRow], output: &mut Output) -> Result<()> {
    if passes.is_empty() {
        return output.line("\nno pass of the optimizer changes the graph");
    }
    output.line("\nthe optimizer, pass by pass:")?;
    let head = ["pass", "nodes", "FLOP", "bytes read and written"];
    let mut table = Table::new(head).with_numbers(&[1, 2, 3]);
    let change = |before: String, after: String| format!("{before} -> {after}");
    for PassRow {
        pass,
        before,
        after,
    } in passes
    {
        table.add_row([
            (*pass).to_owned(),
            change(before.n_nodes.to_string(), after.n_nodes.to_string()),
            change(
                format!("{:.4e}", before.flops),
                format!("{:.4e}", after.flops),
            ),
            change(
                show_bytes(before.traffic_bytes),
                show_bytes(after.traffic_bytes),
            ),
        ]);
    }
    output.table(&table)
}

impl ModelRow {
    fn show(&self, output: &mut Output) -> Result<()> {
        let tags: Vec<String> = self.tag_sets.iter().map(|tags| tags.join(",")).collect();
        output.line(format_args!(
            "SavedModel of TensorFlow {}; tag sets: {}",
            self.tensorflow_version,
            tags.join("; ")
        ))?;
        let mut table = Table::new(["signature", "argument", "name", "type", "shape", "tensor"]);
        for signature in &self.signatures {
            let inputs = signature.inputs.iter().map(|row| ("input", row));
            let outputs = signature.outputs.iter().map(|row| ("output", row));
            for (kind, row) in inputs.chain(outputs) {
                table.add_row([
                    signature.name.clone(),
                    kind.to_owned(),
                    row.name.clone(),
                    row.dtype.to_owned(),
                    row.shape.clone(),
                    row.tensor.clone(),
                ]);
            }
        }
        output.table(&table)?;
        output.line(format_args!("\nwhat signature `{}` needs:", self.signature))
    }
}
