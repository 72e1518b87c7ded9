//! Exercises a file that may be a policy: loads it, asks it for placements of both kinds, and
//! checks its answers.

use placewright::candidates::Candidates;
use placewright::placement;
use placewright::policy::{
    Fault, LoadedPolicy, PlaceOptions, PolicyEngine, PolicyError, PolicyErrorKind,
};
use placewright_guest::{Completion, DeviceChange, ReadyTask};

/// Maximum bytes of a message for users: a policy can name a million things.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// How far a file came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Driven {
    /// Whether it was loaded, and hence asked for a placement.
    pub(crate) is_loaded: bool,
    /// The reason of each error, or "placed" and "picked" on success.
    pub(crate) outcomes: Vec<String>,
    /// The last error message.
    pub(crate) said: String,
}

/// Loads a policy, and asks it for placements: each gives a legal plan, or an error that names the
/// culprit.
///
/// `name` is its name in errors.
pub(crate) fn drive(
    engine: &PolicyEngine,
    name: &str,
    bytes: &[u8],
    candidates: &Candidates,
) -> Driven {
    let mut driven = Driven::default();
    let mut policy = match engine.load(name, bytes, &[]) {
        Ok(policy) => policy,
        Err(error) => {
            driven.note(Err(error));
            return driven;
        }
    };
    driven.is_loaded = true;
    let options = PlaceOptions::default().with_explain_wanted(true);
    if policy.is_whole_graph() {
        // The second call uses the memory that the first left, or a new instance.
        for _ in 0..2 {
            driven.note(place(&mut policy, candidates, &options));
        }
    }
    if policy.is_online() {
        driven.note(pick(&mut policy, candidates));
    }
    driven
}

impl Driven {
    fn note(&mut self, outcome: Result<&'static str, PolicyError>) {
        self.outcomes.push(match outcome {
            Ok(done) => done.to_owned(),
            Err(error) => {
                self.said = text_for_users(&error);
                error.kind.reason().to_owned()
            }
        });
    }
}

fn place(
    policy: &mut LoadedPolicy,
    candidates: &Candidates,
    options: &PlaceOptions,
) -> Result<&'static str, PolicyError> {
    let answer = policy.place(candidates, options)?;
    if let Err(violation) = placement::check(candidates, answer.proposal) {
        panic!("an illegal plan was accepted: {violation}");
    }
    Ok("placed")
}

fn pick(policy: &mut LoadedPolicy, candidates: &Candidates) -> Result<&'static str, PolicyError> {
    let nodes = candidates.nodes();
    let n_nodes = u32::try_from(nodes.cost_row.len()).expect("small graphs");
    let tasks: Vec<ReadyTask> = (0..n_nodes)
        .map(|node| ReadyTask {
            run: 5,
            node,
            cost_row: nodes.cost_row[node as usize],
            candidate_set: nodes.candidate_set[node as usize],
            input_bytes: 64,
            home: u32::MAX,
            now_ns: 0.0,
        })
        .collect();
    let mut run = policy.begin(5, candidates, 1)?;
    for task in &tasks {
        run.pick(task)?;
        let done = Completion {
            run: 5,
            node: task.node,
            device: 0,
            started_ns: 0.0,
            finished_ns: 1.0,
        };
        let change = DeviceChange {
            device: 0,
            is_up: true,
            memory_free_bytes: 1 << 20,
            load: 0.5,
        };
        run.observe(&[done], &[change])?;
    }
    let mut devices = Vec::new();
    run.pick_batch(&tasks, &mut devices)?;
    assert_eq!(devices.len(), tasks.len());
    run.end()?;
    Ok("picked")
}

/// Returns an error's message. Nothing in a file is the host's fault.
fn text_for_users(error: &PolicyError) -> String {
    let text = error.to_string();
    let n_bytes = text.len();
    assert!(n_bytes > 0 && n_bytes < ERROR_BYTES_MAX, "{n_bytes} bytes");
    assert_eq!(error.fault(), Fault::Guest, "{text}");
    assert!(!matches!(*error.kind, PolicyErrorKind::Engine(_)), "{text}");
    text
}
