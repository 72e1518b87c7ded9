//! A cache of placements: an identical request is not asked twice.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use hashbrown::HashMap;
use serde::Deserialize;
use serde::Serialize;
use tracing::warn;

use super::engine::PolicyEngine;
use super::identity::policy_digest;
use super::ladder::LadderError;
use super::ladder::PolicyReport;
use super::ladder::PolicyRequest;
use super::ladder::Rung;
use super::ladder::place_with_ladder;
use super::loaded::CutOff;
use super::loaded::Dropped;
use super::loaded::PolicyAnswer;
use super::messages::Messages;
use crate::candidates::Candidates;
use crate::candidates::Explanation;
use crate::candidates::Proposal;
use crate::placement::Digest;
use crate::placement::Placement;
use crate::placement::PlacementIdentity;
use crate::placement::check;
use crate::store::CacheFolder;
use crate::store::CacheKey;
use crate::trace::targets;

/// Changes with the format of a stored answer.
const FORMAT: &[u8] = b"answer 2";

/// A cache of policies' answers by the identity of their requests, in memory and, if requested, in
/// a folder. Clones share the entries.
///
/// Only reproducible answers are stored: those of the requested policy, not of a fallback, that
/// were metered by fuel and ended by themselves or by their fuel. A cached answer is checked
/// against the rules like a fresh one. Messages are not stored. The cache is useful for sessions
/// that place the same graph again and again; a single session gains nothing.
#[derive(Clone)]
pub struct PlacementCache {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Mutex<Kept>,
    size_bytes_max: usize,
    folder: Option<CacheFolder>,
}

/// The answers in memory. The least recently used are removed when they get too large together.
#[derive(Default)]
struct Kept {
    answers: HashMap<PlacementIdentity, (u64, Arc<Answer>)>,
    size_bytes: usize,
    /// Counts uses.
    now: u64,
}

/// A stored answer, in the format of the folder.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    #[serde(default)]
    streamed: Vec<u32>,
    explanations: Vec<(Vec<u32>, String)>,
    /// The value as its bits: JSON has no infinity.
    metrics: Vec<(String, u64)>,
    n_offers: u64,
    is_cut_off: bool,
    explanations_dropped: u64,
    metrics_dropped: u64,
    fuel_used: Option<u64>,
    host_fuel_used: Option<u64>,
    peak_memory_bytes: Option<usize>,
}

impl PlacementCache {
    /// The default limit for the answers in memory, in bytes: some hundred answers for graphs of
    /// 100,000 nodes.
    pub const DEFAULT_SIZE_BYTES_MAX: usize = 64 << 20;

    /// Creates a cache in memory only.
    pub fn new() -> Self {
        Self::with_size_bytes_max(Self::DEFAULT_SIZE_BYTES_MAX)
    }

    /// Creates a cache in memory only, of this size at most.
    pub fn with_size_bytes_max(size_bytes_max: usize) -> Self {
        Self::of(size_bytes_max, None)
    }

    /// Creates a cache that also stores its answers in a folder, for other and later processes.
    pub fn in_folder(folder: CacheFolder) -> Self {
        Self::of(Self::DEFAULT_SIZE_BYTES_MAX, Some(folder))
    }

    fn of(size_bytes_max: usize, folder: Option<CacheFolder>) -> Self {
        Self {
            shared: Arc::new(Shared {
                memory: Mutex::default(),
                size_bytes_max,
                folder,
            }),
        }
    }

    /// Returns the number of answers in memory.
    pub fn len(&self) -> usize {
        self.lock().answers.len()
    }

    /// Returns whether there is no answer in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a cached answer, or else that of [`place_with_ladder`], which is stored if it is
    /// reproducible. [`PolicyReport::is_cached`] says which.
    ///
    /// # Errors
    /// As [`place_with_ladder`].
    pub fn place(
        &self,
        engine: &PolicyEngine,
        candidates: &Candidates,
        request: &PolicyRequest,
    ) -> Result<(Placement, PolicyReport), LadderError> {
        let started = Instant::now();
        let is_metered = engine.limits().fuel.is_some();
        // The ladder reports a policy that cannot be read.
        let Some(bytes) = request
            .source
            .read(engine.limits())
            .ok()
            .filter(|_| is_metered)
        else {
            return place_with_ladder(engine, candidates, request);
        };
        let wasm = Digest::of_bytes(&bytes);
        let policy = policy_digest(&wasm, request, engine.limits(), candidates);
        let identity = PlacementIdentity::of(candidates).with_policy(Some(policy));
        let mut problem = None;
        match self.find(&identity) {
            Ok(None) => {}
            Ok(Some(answer)) => match check(candidates, answer.proposal()) {
                Ok(placement) => {
                    let report = PolicyReport {
                        answered_by: Rung::Sandboxed(request.source.to_string()),
                        failed: Vec::new(),
                        answer: PolicyAnswer {
                            elapsed: started.elapsed(),
                            ..answer.to_answer()
                        },
                        load: None,
                        identity: Some(policy),
                        is_cached: true,
                        cache_problem: None,
                    };
                    return Ok((placement, report));
                }
                Err(violation) => {
                    problem = Some(format!("found an answer that breaks a rule: {violation}"));
                }
            },
            Err(found) => problem = Some(found.to_owned()),
        }
        let (placement, mut report) = place_with_ladder(engine, candidates, request)?;
        if report.identity == Some(policy)
            && matches!(report.answer.cut_off, None | Some(CutOff::Fuel))
        {
            let kept = self.keep(identity, Answer::of(&placement, &report.answer));
            problem = problem.or(kept.err());
        }
        if let Some(problem) = &problem {
            warn!(target: targets::POLICY, problem, "the cache of placements is partly unusable");
        }
        report.cache_problem = problem;
        Ok((placement, report))
    }

    /// # Errors
    /// An entry exists and cannot be read.
    fn find(&self, identity: &PlacementIdentity) -> Result<Option<Arc<Answer>>, &'static str> {
        if let Some(found) = self.lock().get(identity) {
            return Ok(Some(found));
        }
        let Some(folder) = &self.shared.folder else {
            return Ok(None);
        };
        let key = key(identity);
        let Some(bytes) = folder.read(&key) else {
            return if folder.has(&key) {
                Err("found a damaged answer in the folder")
            } else {
                Ok(None)
            };
        };
        let answer: Answer = serde_json::from_slice(&bytes)
            .map_err(|_| "found an answer of another format in the folder")?;
        let answer = Arc::new(answer);
        let max = self.shared.size_bytes_max;
        self.lock().insert(*identity, Arc::clone(&answer), max);
        Ok(Some(answer))
    }

    /// # Errors
    /// The answer could not be written to the folder.
    fn keep(&self, identity: PlacementIdentity, answer: Answer) -> Result<(), String> {
        let answer = Arc::new(answer);
        let max = self.shared.size_bytes_max;
        self.lock().insert(identity, Arc::clone(&answer), max);
        let Some(folder) = &self.shared.folder else {
            return Ok(());
        };
        let bytes = serde_json::to_vec(&*answer).map_err(|error| error.to_string())?;
        folder
            .write(&key(&identity), &bytes)
            .map_err(|error| error.to_string())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A thread that panicked left complete answers behind.
        let memory = self.shared.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PlacementCache {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PlacementCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacementCache")
            .field("n_answers", &self.len())
            .field("folder", &self.shared.folder)
            .finish_non_exhaustive()
    }
}

fn key(identity: &PlacementIdentity) -> CacheKey {
    let policy = identity.policy.map(|policy| *policy.as_bytes());
    CacheKey::new(
        "placement",
        &[
            FORMAT,
            policy.as_ref().map_or(&[], |policy| &policy[..]),
            identity.graph.as_bytes(),
            identity.devices.as_bytes(),
            identity.options.as_bytes(),
        ],
    )
}

impl Kept {
    fn get(&mut self, identity: &PlacementIdentity) -> Option<Arc<Answer>> {
        self.now += 1;
        let (used, answer) = self.answers.get_mut(identity)?;
        *used = self.now;
        Some(Arc::clone(answer))
    }

    fn insert(&mut self, identity: PlacementIdentity, answer: Arc<Answer>, size_bytes_max: usize) {
        self.now += 1;
        self.size_bytes += answer.size_bytes();
        if let Some((_, old)) = self.answers.insert(identity, (self.now, answer)) {
            self.size_bytes -= old.size_bytes();
        }
        while self.size_bytes > size_bytes_max {
            let oldest = self.answers.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(identity, _)| *identity) else {
                break;
            };
            if let Some((_, gone)) = self.answers.remove(&oldest) {
                self.size_bytes -= gone.size_bytes();
            }
        }
    }
}

impl Answer {
    fn of(placement: &Placement, answer: &PolicyAnswer) -> Self {
        let explanations = placement.explanations().iter();
        let metrics = placement.metrics().iter();
        Self {
            devices: placement.devices().to_vec(),
            start_order: placement.start_order().map(<[i32]>::to_vec),
            queues: placement.queues().map(<[u32]>::to_vec),
            streamed: placement.streamed().to_vec(),
            explanations: explanations
                .map(|explanation| (explanation.nodes.clone(), explanation.reason.clone()))
                .collect(),
            metrics: metrics
                .map(|(name, value)| (name.clone(), value.to_bits()))
                .collect(),
            n_offers: answer.n_offers,
            is_cut_off: answer.cut_off.is_some(),
            explanations_dropped: answer.dropped.explanations,
            metrics_dropped: answer.dropped.metrics,
            fuel_used: answer.fuel_used,
            host_fuel_used: answer.host_fuel_used,
            peak_memory_bytes: answer.peak_memory_bytes,
        }
    }

    fn proposal(&self) -> Proposal {
        let explanations = self.explanations.iter();
        let metrics = self.metrics.iter();
        Proposal {
            devices: self.devices.clone(),
            start_order: self.start_order.clone(),
            queues: self.queues.clone(),
            streamed: self.streamed.clone(),
            explanations: explanations
                .map(|(nodes, reason)| Explanation {
                    nodes: nodes.clone(),
                    reason: reason.clone(),
                })
                .collect(),
            metrics: metrics
                .map(|(name, bits)| (name.clone(), f64::from_bits(*bits)))
                .collect(),
        }
    }

    /// Returns the answer without its proposal, for reports.
    fn to_answer(&self) -> PolicyAnswer {
        PolicyAnswer {
            proposal: Proposal::default(),
            n_offers: self.n_offers,
            cut_off: self.is_cut_off.then_some(CutOff::Fuel),
            dropped: Dropped {
                explanations: self.explanations_dropped,
                metrics: self.metrics_dropped,
            },
            messages: Messages::default(),
            fuel_used: self.fuel_used,
            host_fuel_used: self.host_fuel_used,
            peak_memory_bytes: self.peak_memory_bytes,
            elapsed: std::time::Duration::ZERO,
        }
    }

    fn size_bytes(&self) -> usize {
        let column = |length: Option<usize>| 4 * length.unwrap_or(0);
        let explanations = self.explanations.iter();
        let metrics = self.metrics.iter();
        size_of::<(PlacementIdentity, Self)>()
            + column(Some(self.devices.len()))
            + column(self.start_order.as_ref().map(Vec::len))
            + column(self.queues.as_ref().map(Vec::len))
            + column(Some(self.streamed.len()))
            + explanations
                .map(|(nodes, reason)| {
                    size_of::<(Vec<u32>, String)>() + 4 * nodes.len() + reason.len()
                })
                .sum::<usize>()
            + metrics
                .map(|(name, _)| size_of::<(String, u64)>() + name.len())
                .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(n_nodes: usize) -> Answer {
        Answer {
            devices: vec![1; n_nodes],
            start_order: Some(vec![-3; n_nodes]),
            queues: None,
            streamed: Vec::new(),
            explanations: vec![(vec![0], "near its input".to_owned())],
            metrics: vec![("best".to_owned(), f64::INFINITY.to_bits())],
            n_offers: 2,
            is_cut_off: true,
            explanations_dropped: 1,
            metrics_dropped: 0,
            fuel_used: Some(9),
            host_fuel_used: Some(4),
            peak_memory_bytes: Some(65_536),
        }
    }

    fn identity(of: &[u8]) -> PlacementIdentity {
        let digest = Digest::of_bytes(of);
        PlacementIdentity {
            policy: Some(digest),
            graph: digest,
            devices: digest,
            options: digest,
        }
    }

    #[test]
    fn an_answer_survives_the_folder() {
        let written = answer(3);
        let bytes = serde_json::to_vec(&written).unwrap();
        let read: Answer = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.proposal().metrics[0].1, f64::INFINITY);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let size = answer(1000).size_bytes();
        let mut kept = Kept::default();
        for name in [b"a", b"b"] {
            kept.insert(identity(name), Arc::new(answer(1000)), 2 * size);
        }
        assert!(kept.get(&identity(b"a")).is_some());
        kept.insert(identity(b"c"), Arc::new(answer(1000)), 2 * size);
        assert!(kept.get(&identity(b"a")).is_some() && kept.get(&identity(b"c")).is_some());
        assert!(kept.get(&identity(b"b")).is_none());
        assert_eq!(kept.size_bytes, 2 * size);
        kept.insert(identity(b"a"), Arc::new(answer(1000)), 2 * size);
        assert_eq!(kept.size_bytes, 2 * size, "one in place of the other");
        kept.insert(identity(b"d"), Arc::new(answer(5000)), 2 * size);
        assert!(
            kept.answers.is_empty(),
            "nothing fits beside one that does not fit"
        );
    }
}
