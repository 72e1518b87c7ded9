//! An event loop asks a policy where each task runs when the task becomes ready, and reports
//! completions and the loss of a device. The workers are simulated. Needs no default features, and
//! no crate but `placewright`.
//!
//! The steps: load a policy and begin a run; then, per event, report what happened (`observe`), ask
//! for the tasks that became ready (`pick_batch`), and start them. A policy may have no opinion, or
//! name a device that has just been lost; the app then uses its own default.
//!
//! ```console
//! $ cargo run --release --example online
//! ```

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use placewright::graph::GraphError;
use placewright::policy::NONE;
use placewright::prelude::*;

/// Independent chains of tasks.
const N_CHAINS: u32 = 8;
const N_TASKS_PER_CHAIN: u32 = 25;

const N_WORKERS: u32 = 4;

/// The worker that is lost, and when, in ns since the run began.
const LOST: u32 = 2;
const LOST_AT_NS: u64 = 60_000_000;

const MEMORY_BYTES: u64 = 1 << 30;

/// The number of the run. An app with concurrent runs numbers them.
const RUN: u32 = 1;

#[allow(dead_code, reason = "the tests include this file and call the rest")]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn Error>> {
    let outcome = run()?;
    println!(
        "all tasks done after {} ms",
        outcome.finished_ns / 1_000_000
    );
    for (worker, n_tasks) in outcome.n_tasks.iter().enumerate() {
        println!("  worker {worker}: {n_tasks} tasks");
    }
    println!(
        "worker {LOST} was lost after {} ms; {} tasks ran again elsewhere, {} picks were overruled",
        LOST_AT_NS / 1_000_000,
        outcome.n_restarted,
        outcome.n_overruled
    );
    Ok(())
}

/// The outcome.
pub(crate) struct Outcome {
    /// Tasks done by each worker.
    pub(crate) n_tasks: Vec<usize>,
    /// Tasks that were running on the worker when it was lost.
    pub(crate) n_restarted: usize,
    /// Picks that named the lost worker.
    pub(crate) n_overruled: usize,
    /// Tasks started on the lost worker after its loss.
    pub(crate) n_started_on_lost: usize,
    /// When the last task was done, in ns since the run began.
    pub(crate) finished_ns: u64,
}

/// Runs all tasks.
pub(crate) fn run() -> Result<Outcome, Box<dyn Error>> {
    let graph = Arc::new(graph()?);
    let devices = Arc::new(devices()?);
    let candidates = CandidatesBuilder::new(&graph, &devices).build()?;

    // The policy runs in its sandbox. Any policy that exports the online interface works.
    let engine = PolicyEngine::new(PolicyLimits::default())?;
    let shipped = ShippedPolicy::find("round-robin")?;
    let mut policy = engine.load(shipped.name(), shipped.wasm(), &[])?;
    let mut session = policy.begin(RUN, &candidates, 0)?;

    let mut workers = Workers::new(graph.n_nodes());
    let mut ready = workers.take_ready(&graph);
    let mut picks = Vec::new();
    loop {
        // Tasks that became ready together are passed in one call.
        let tasks: Vec<ReadyTask> = ready
            .iter()
            .map(|&node| workers.ready_task(&candidates, node))
            .collect();
        picks.clear();
        session.pick_batch(&tasks, &mut picks)?;
        for (&node, &pick) in ready.iter().zip(&picks) {
            workers.start(node, pick);
        }
        let Some(news) = workers.wait() else {
            break;
        };
        session.observe(&news.done, &news.changes)?;
        ready = news.restarted;
        ready.extend(workers.take_ready(&graph));
    }
    session.end()?;
    Ok(workers.outcome)
}

/// Chains of tasks: each waits for the previous one.
fn graph() -> Result<Graph, GraphError> {
    let mut assembler = GraphAssembler::new("chains");
    for chain in 0..N_CHAINS {
        let mut before = None;
        for task in 0..N_TASKS_PER_CHAIN {
            let inputs: Vec<Input> = before.map(Input::Control).into_iter().collect();
            let node = assembler.add_node(&NodeSpec {
                name: &format!("chain{chain}/task{task}"),
                op: "Task",
                inputs: &inputs,
                requested_device: "",
                attrs: AttrSet::default(),
                outputs: &[],
                stateful: false,
                work: Work::default(),
            })?;
            before = Some(node);
        }
    }
    Ok(assembler.finish())
}

fn devices() -> Result<DeviceSet, Box<dyn Error>> {
    let mut set = DeviceSet::default();
    for worker in 0..N_WORKERS {
        let name = DeviceName::full("workers", 0, worker, "CPU", 0);
        let attributes = DeviceAttributes::new(&name, "CPU", MEMORY_BYTES);
        set.add(Arc::new(SimpleDevice::new(attributes)?));
    }
    Ok(set)
}

/// The app's simulated workers: each runs its tasks one after the other.
struct Workers {
    now_ns: u64,
    is_up: Vec<bool>,
    /// When each worker has done all of its tasks.
    free_at_ns: Vec<u64>,
    /// By time of completion and node: the worker, and when the task started.
    running: BTreeMap<(u64, u32), (u32, u64)>,
    is_started: Vec<bool>,
    done: BTreeSet<u32>,
    outcome: Outcome,
}

/// What happened at one point in time.
struct News {
    done: Vec<Completion>,
    changes: Vec<DeviceChange>,
    /// Tasks of a lost worker, which must be started again.
    restarted: Vec<NodeId>,
}

impl Workers {
    fn new(n_tasks: usize) -> Self {
        Self {
            now_ns: 0,
            is_up: vec![true; N_WORKERS as usize],
            free_at_ns: vec![0; N_WORKERS as usize],
            running: BTreeMap::new(),
            is_started: vec![false; n_tasks],
            done: BTreeSet::new(),
            outcome: Outcome {
                n_tasks: vec![0; N_WORKERS as usize],
                n_restarted: 0,
                n_overruled: 0,
                n_started_on_lost: 0,
                finished_ns: 0,
            },
        }
    }

    /// Removes and returns the tasks that have not started and wait for nothing any more.
    fn take_ready(&mut self, graph: &Graph) -> Vec<NodeId> {
        let is_ready = |&node: &NodeId| {
            let mut before = graph.predecessors().row(node.index()).iter();
            !self.is_started[node.index()] && before.all(|node| self.done.contains(node))
        };
        graph.nodes().filter(is_ready).collect()
    }

    /// A task, as the policy sees it.
    fn ready_task(&self, candidates: &Candidates, node: NodeId) -> ReadyTask {
        ReadyTask {
            run: RUN,
            node: node.0,
            cost_row: candidates.nodes().cost_row[node.index()],
            candidate_set: candidates.nodes().candidate_set[node.index()],
            input_bytes: 0,
            home: NONE,
            now_ns: nanoseconds(self.now_ns),
        }
    }

    /// Starts a task on the worker that the policy picked, or on the one that is free first.
    fn start(&mut self, node: NodeId, pick: Option<DeviceId>) {
        let picked = pick.map(|device| device.0);
        let usable = picked.filter(|&worker| self.is_up[worker as usize]);
        if usable.is_none() && picked.is_some() {
            self.outcome.n_overruled += 1;
        }
        let worker = usable.unwrap_or_else(|| {
            let up = (0..N_WORKERS).filter(|&worker| self.is_up[worker as usize]);
            up.min_by_key(|&worker| self.free_at_ns[worker as usize])
                .expect("one worker is lost, and there are more")
        });
        if !self.is_up[worker as usize] {
            self.outcome.n_started_on_lost += 1;
        }
        let started_ns = self.now_ns.max(self.free_at_ns[worker as usize]);
        // 1 to 4 ms.
        let finished_ns = started_ns + 1_000_000 * u64::from(1 + node.0 % 4);
        self.free_at_ns[worker as usize] = finished_ns;
        self.running
            .insert((finished_ns, node.0), (worker, started_ns));
        self.is_started[node.index()] = true;
    }

    /// Waits for the next completion, or the loss of the worker; `None` if all tasks are done.
    fn wait(&mut self) -> Option<News> {
        let (&(finished_ns, node), &(worker, started_ns)) = self.running.first_key_value()?;
        if self.is_up[LOST as usize] && finished_ns > LOST_AT_NS {
            return Some(self.lose());
        }
        self.running.remove(&(finished_ns, node));
        self.now_ns = finished_ns;
        self.done.insert(node);
        self.outcome.n_tasks[worker as usize] += 1;
        self.outcome.finished_ns = finished_ns;
        Some(News {
            done: vec![Completion {
                run: RUN,
                node,
                device: worker,
                started_ns: nanoseconds(started_ns),
                finished_ns: nanoseconds(finished_ns),
            }],
            changes: Vec::new(),
            restarted: Vec::new(),
        })
    }

    /// Removes the worker, with its tasks.
    fn lose(&mut self) -> News {
        self.now_ns = LOST_AT_NS;
        self.is_up[LOST as usize] = false;
        let lost = self
            .running
            .extract_if(.., |_, &mut (worker, _)| worker == LOST);
        let restarted: Vec<NodeId> = lost.map(|((_, node), _)| NodeId(node)).collect();
        self.outcome.n_restarted += restarted.len();
        News {
            done: Vec::new(),
            changes: vec![DeviceChange {
                device: LOST,
                is_up: false,
                memory_free_bytes: 0,
                load: 0.0,
            }],
            restarted,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn nanoseconds(ns: u64) -> f64 {
    ns as f64
}
