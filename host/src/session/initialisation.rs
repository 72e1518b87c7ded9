//! What a session runs once before anything else: the nodes that initialise variables and tables
//! ([`Graph::init`](crate::graph::Graph::init)).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use super::placed::Placed;
use crate::error::Error;
use crate::execute::ExecuteError;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::trace::Recorder;

/// How often a run that waits for another one's initialisation looks at its token.
const POLL: Duration = Duration::from_millis(5);

/// The initialisation of a state.
#[derive(Debug)]
pub(super) struct Initialisation {
    is_done: AtomicBool,
    /// In this order. States that have the same state on their devices share a part.
    parts: Vec<Arc<Part>>,
}

/// Nodes that are initialised together.
#[derive(Debug)]
struct Part {
    /// Targets by name: one run per list.
    runs: Vec<Vec<String>>,
    progress: Mutex<Progress>,
    has_ended: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Due,
    Running,
    Done,
}

impl Initialisation {
    /// Returns the initialisation of a graph whose variables and tables are empty.
    pub(super) fn of(graph: &Graph) -> Self {
        Self::new(Part::new(graph.init().to_vec()).into_iter())
    }

    fn new(parts: impl Iterator<Item = Arc<Part>>) -> Self {
        let parts: Vec<_> = parts.collect();
        Self {
            is_done: AtomicBool::new(parts.is_empty()),
            parts,
        }
    }

    /// Returns the initialisation of the same graph after these nodes have lost their state: what
    /// other nodes have is not initialised again.
    fn after_loss(&self, graph: &Graph, lost: &[NodeId]) -> Self {
        let again = runs_that_write(graph, lost);
        Self::new(self.parts.iter().cloned().chain(Part::new(again)))
    }
}

impl Part {
    fn new(runs: Vec<Vec<String>>) -> Option<Arc<Self>> {
        (!runs.is_empty()).then(|| {
            Arc::new(Self {
                runs,
                progress: Mutex::new(Progress::Due),
                has_ended: Condvar::new(),
            })
        })
    }

    /// Runs the nodes by `run`, unless that has been done. Waits while another thread does it.
    fn complete(
        &self,
        is_interrupted: impl Fn() -> Result<(), Error>,
        run: impl Fn(&[String]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let lock = || self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let mut progress = lock();
        while *progress == Progress::Running {
            is_interrupted()?;
            let waited = self.has_ended.wait_timeout(progress, POLL);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if *progress == Progress::Done {
            return Ok(());
        }
        *progress = Progress::Running;
        drop(progress);
        // Also after a panic: the next run tries again.
        let mut ended = Ended {
            part: self,
            progress: Progress::Due,
        };
        self.runs.iter().try_for_each(|targets| run(targets))?;
        ended.progress = Progress::Done;
        Ok(())
    }
}

/// Says how an attempt has ended when it is dropped.
struct Ended<'p> {
    part: &'p Part,
    progress: Progress,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let progress = &self.part.progress;
        *progress.lock().unwrap_or_else(PoisonError::into_inner) = self.progress;
        self.part.has_ended.notify_all();
    }
}

impl Placed {
    /// Runs the nodes that initialise variables and tables, unless that has been done. Returns the
    /// options of a run that follows: initialisation is part of the caller's time.
    ///
    /// # Errors
    /// As those of a run. The next call tries again.
    pub(super) fn initialise<'o>(
        &self,
        options: &'o RunOptions,
    ) -> Result<Cow<'o, RunOptions>, Error> {
        let initialisation = &self.initialisation;
        if initialisation.is_done.load(Ordering::Acquire) {
            return Ok(Cow::Borrowed(options));
        }
        let started = Instant::now();
        let left = || {
            let left = |limit: Duration| limit.saturating_sub(started.elapsed());
            options.timeout.map(left)
        };
        let is_interrupted = || {
            let is_cancelled = options.cancel.as_ref().is_some_and(|it| it.is_cancelled());
            match (is_cancelled, options.timeout, left()) {
                (true, ..) => Err(ExecuteError::Cancelled.into()),
                (_, Some(limit), Some(Duration::ZERO)) => Err(ExecuteError::TimedOut(limit).into()),
                _ => Ok(()),
            }
        };
        let run = |targets: &[String]| {
            let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
            let prepared = self.prepare(self.request([].into_iter(), &[], &targets)?)?;
            let mut options = options.clone().with_recorder(Recorder::off());
            options.timeout = left();
            self.executor.run_owned(&prepared, Vec::new(), &options)?;
            Ok(())
        };
        for part in &initialisation.parts {
            part.complete(is_interrupted, run)?;
        }
        initialisation.is_done.store(true, Ordering::Release);
        let mut rest = options.clone();
        rest.timeout = left();
        Ok(Cow::Owned(rest))
    }

    /// Returns the initialisation of a state that has the same graph after this one, but has lost
    /// the state of these nodes: others are not initialised again.
    pub(super) fn initialisation_after(&self, lost: &[NodeId]) -> Arc<Initialisation> {
        match lost.is_empty() {
            true => Arc::clone(&self.initialisation),
            false => Arc::new(self.initialisation.after_loss(self.graph(), lost)),
        }
    }
}

/// Returns the nodes of [`Graph::init`] that write to these variables or tables, by name: one run
/// per list.
fn runs_that_write(graph: &Graph, owners: &[NodeId]) -> Vec<Vec<String>> {
    let is_writer = writers(graph, owners);
    let writers_of = |targets: &Vec<String>| {
        let mut is_seen = vec![false; graph.n_nodes()];
        let found = targets.iter().filter_map(|name| graph.find_node(name));
        let mut waiting: Vec<NodeId> = found.collect();
        let mut again = Vec::new();
        while let Some(node) = waiting.pop() {
            if std::mem::replace(&mut is_seen[node.index()], true) {
                continue;
            }
            if is_writer[node.index()] {
                again.push(graph.node_name(node).to_owned());
            }
            let before = graph.predecessors().row(node.index());
            waiting.extend(before.iter().copied().map(NodeId));
        }
        again
    };
    let runs = graph.init().iter().map(writers_of);
    runs.filter(|targets| !targets.is_empty()).collect()
}

/// Returns for each node whether it takes a handle of one of the owners and passes none on.
fn writers(graph: &Graph, owners: &[NodeId]) -> Vec<bool> {
    let mut has_handle = vec![false; graph.n_nodes()];
    let mut is_writer = vec![false; graph.n_nodes()];
    let mut waiting = owners.to_vec();
    while let Some(node) = waiting.pop() {
        if std::mem::replace(&mut has_handle[node.index()], true) {
            continue;
        }
        for position in graph.successors().range(node.index()) {
            let edge = graph.successor_edges()[position] as usize;
            let tensor = graph.edge_tensors()[edge];
            if tensor == NONE || graph.tensor_dtypes()[tensor as usize] != DType::Resource {
                continue;
            }
            let user = NodeId(graph.successors().items[position]);
            let mut outputs = graph.output_range(user);
            match outputs.any(|output| graph.tensor_dtypes()[output] == DType::Resource) {
                true => waiting.push(user),
                false => is_writer[user.index()] = true,
            }
        }
    }
    is_writer
}
