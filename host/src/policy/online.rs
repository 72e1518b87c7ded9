//! Online placement: asks a policy about each op when it becomes ready.

use placewright_guest::{Completion, DeviceChange, NONE, PlaceError, ReadyTask};
use tracing::{debug_span, field, trace_span};

use super::engine::CallKind;
use super::error::{PolicyError, PolicyErrorKind};
use super::loaded::LoadedPolicy;
use super::messages::Messages;
use super::telemetry;
use super::telemetry::OnlineCalls;
use super::ticker::Ticking;
use super::v0_1::TaskBuffer;
use super::view::View;
use crate::candidates::Candidates;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::trace::targets;

/// A run of an online policy, between `begin` and `end`.
///
/// The first error of the policy ends the run: the policy's state is lost with its instance, or
/// cannot be trusted.
#[derive(Debug)]
pub struct OnlineSession<'a> {
    policy: &'a mut LoadedPolicy,
    candidates: Candidates,
    run: u32,
    buffer: TaskBuffer,
    is_over: bool,
    calls: OnlineCalls,
    _ticking: Option<Ticking>,
}

impl LoadedPolicy {
    /// Starts a run. `run` is any number; the tasks that are passed to the policy contain it.
    ///
    /// # Errors
    /// [`PolicyError`]: [`PolicyErrorKind::MissingExport`] if the policy does not place online.
    pub fn begin(
        &mut self,
        run: u32,
        candidates: &Candidates,
        seed: u64,
    ) -> Result<OnlineSession<'_>, PolicyError> {
        let span = debug_span!(
            target: targets::POLICY,
            "call",
            policy = self.name(),
            call = "begin",
            is_native = false,
            nodes = candidates.graph().n_nodes(),
            outcome = field::Empty,
        );
        let _entered = span.enter();
        let ticking = self.call_begin(run, candidates, seed);
        telemetry::call_ended(&span, "begin", &ticking);
        Ok(OnlineSession {
            candidates: candidates.clone(),
            run,
            buffer: TaskBuffer::default(),
            is_over: false,
            calls: OnlineCalls::default(),
            _ticking: ticking?,
            policy: self,
        })
    }

    fn call_begin(
        &mut self,
        run: u32,
        candidates: &Candidates,
        seed: u64,
    ) -> Result<Option<Ticking>, PolicyError> {
        if !self.is_online() {
            return Err(self.error(PolicyErrorKind::MissingExport { export: "online" }));
        }
        let ticking = self.template.engine.ticking();
        let view = View::new(candidates.clone(), self.template.engine.limits());
        let begun = self.call("begin", CallKind::Place, |live| {
            live.exports.begin(&mut live.store, run, view, seed)
        })?;
        begun.map_err(|error| {
            self.error(match error {
                PlaceError::Declined(reason) => PolicyErrorKind::Declined(reason),
                PlaceError::Failed(reason) => PolicyErrorKind::Failed(reason),
            })
        })?;
        Ok(ticking)
    }
}

impl OnlineSession<'_> {
    /// Returns the device for a task whose inputs are ready, or `None` if the policy has no
    /// opinion.
    ///
    /// # Errors
    /// [`PolicyError`]: [`PolicyErrorKind::InvalidAnswer`] if the device is not a candidate of the
    /// node; [`PolicyErrorKind::InvalidTask`], which does not end the run, if the task does not
    /// belong to this graph.
    pub fn pick(&mut self, task: &ReadyTask) -> Result<Option<DeviceId>, PolicyError> {
        self.check_task("pick", task)?;
        let device = self.call("pick", |live, _| live.exports.pick(&mut live.store, task))?;
        self.checked("pick", task, device)
    }

    /// Does the same for tasks that became ready together. Appends the answers to `devices`, in the
    /// order of the tasks.
    ///
    /// # Errors
    /// As [`Self::pick`]; also if the number of answers is not the number of tasks. `devices` is
    /// then unchanged.
    pub fn pick_batch(
        &mut self,
        tasks: &[ReadyTask],
        devices: &mut Vec<Option<DeviceId>>,
    ) -> Result<(), PolicyError> {
        for task in tasks {
            self.check_task("pick-batch", task)?;
        }
        let answers = self.call("pick-batch", |live, buffer| {
            live.exports.pick_batch(&mut live.store, tasks, buffer)
        })?;
        if answers.len() != tasks.len() {
            let what = format!("{} devices for {} tasks", answers.len(), tasks.len());
            let call = "pick-batch";
            return Err(self.invalid(call, what));
        }
        let n_before = devices.len();
        devices.reserve(tasks.len());
        for (task, device) in tasks.iter().zip(answers) {
            match self.checked("pick-batch", task, device) {
                Ok(device) => devices.push(device),
                Err(error) => {
                    devices.truncate(n_before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Notifies the policy of completions and changes since the last call.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn observe(
        &mut self,
        done: &[Completion],
        changes: &[DeviceChange],
    ) -> Result<(), PolicyError> {
        self.call("observe", |live, _| {
            live.exports.observe(&mut live.store, done, changes)
        })
    }

    /// Ends the run. Returns the messages that the policy logged in it.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn end(mut self) -> Result<Messages, PolicyError> {
        let run = self.run;
        self.call("end", |live, _| live.exports.end(&mut live.store, run))?;
        self.is_over = true;
        Ok(self.policy.take_messages())
    }

    fn call<T: Send>(
        &mut self,
        name: &'static str,
        call: impl FnOnce(&mut super::loaded::Live, &mut TaskBuffer) -> wasmtime::Result<T> + Send,
    ) -> Result<T, PolicyError> {
        if self.is_over {
            // A fresh instance does not have the run.
            let over = "the run is over: an earlier call failed".to_owned();
            return Err(self.policy.error(PolicyErrorKind::Failed(over)));
        }
        let span = trace_span!(
            target: targets::POLICY,
            "online",
            policy = self.policy.name(),
            call = name,
            outcome = field::Empty,
        );
        let _entered = span.enter();
        let buffer = &mut self.buffer;
        let outcome = self
            .policy
            .call(name, CallKind::Pick, |live| call(live, buffer));
        self.is_over = outcome.is_err();
        match &outcome {
            Ok(_) => self.calls.add(name),
            Err(_) => telemetry::call_ended(&span, name, &outcome),
        }
        outcome
    }

    /// Checks a task of the app, because the policy and the columns here are indexed with it.
    fn check_task(&self, call: &'static str, task: &ReadyTask) -> Result<(), PolicyError> {
        let nodes = self.candidates.nodes();
        let node = task.node as usize;
        let is_of_node = nodes.candidate_set.get(node) == Some(&task.candidate_set)
            && nodes.cost_row.get(node) == Some(&task.cost_row);
        if is_of_node {
            return Ok(());
        }
        let graph = self.candidates.graph();
        let what = if node >= graph.n_nodes() {
            let n_nodes = graph.n_nodes();
            format!("node {node}, but the graph has {n_nodes} nodes")
        } else {
            format!(
                "node `{}` with candidate set {} and cost row {}, but they are {} and {}",
                graph.node_name(NodeId(task.node)),
                task.candidate_set,
                task.cost_row,
                nodes.candidate_set[node],
                nodes.cost_row[node]
            )
        };
        Err(self
            .policy
            .error(PolicyErrorKind::InvalidTask { call, what }))
    }

    fn checked(
        &mut self,
        call: &'static str,
        task: &ReadyTask,
        device: u32,
    ) -> Result<Option<DeviceId>, PolicyError> {
        if device == NONE {
            return Ok(None);
        }
        let node = NodeId(task.node);
        if self.candidates.of_node(node).contains(&device) {
            return Ok(Some(DeviceId(device)));
        }
        let name = self.candidates.graph().node_name(node);
        let what = if (device as usize) < self.candidates.n_devices() {
            let device = self.candidates.device_name(device);
            format!("{device} for node `{name}`, but {device} is not a candidate for it")
        } else {
            let n_devices = self.candidates.n_devices();
            format!("device {device} for node `{name}`, but there are {n_devices} devices")
        };
        Err(self.invalid(call, what))
    }

    fn invalid(&mut self, call: &'static str, what: String) -> PolicyError {
        self.is_over = true;
        let error = self
            .policy
            .error(PolicyErrorKind::InvalidAnswer { call, what });
        telemetry::failed(call, &error);
        error
    }
}
