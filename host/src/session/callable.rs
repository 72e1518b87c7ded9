//! Prepared calls: feeds and fetches that are resolved once and run often.

use std::fmt;
use std::sync::Arc;

use super::Session;
use super::names;
use super::outputs::Outputs;
use super::placed::Placed;
use crate::error::Error;
use crate::execute::ExecuteError;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::graph::TensorId;
use crate::partition::RunRequest;
use crate::placement::Placement;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Tensor;

/// Feeds that a message lists at most.
const N_NAMES_MAX: usize = 8;

/// Runs one set of feeds, fetches and targets of a session, any number of times (TensorFlow
/// `Session::MakeCallable`). [`Session::callable`] makes it: names are resolved and the plan is
/// prepared then, so a call neither looks names up nor searches the session's recent plans.
///
/// Any number of threads may call it at the same time. Clones are cheap and share everything.
///
/// A callable belongs to the graph, the devices and the placement that the session had when it was
/// made. It keeps them, with their threads, kernels and constants, so it also works after
/// [`Session::extend`] and [`Session::replace_devices`] and without the session: it then still runs
/// the graph that it was made from, on the devices of then. An app that wants the new graph or the
/// new devices makes another callable. Memory and threads go back when the session has changed or
/// is dropped, and the last callable and the last run of the old state are gone. Variables and
/// stateful kernels are on the devices, and all callables of a session share them.
///
/// After [`Session::close`] or [`Session::reset`], calls fail with [`ExecuteError::Closed`].
///
#[cfg_attr(feature = "kernels", doc = "```")]
#[cfg_attr(not(feature = "kernels"), doc = "```text")]
/// use placewright::prelude::*;
///
/// let b = GraphBuilder::new("app");
/// let x = b.placeholder::<f32>("x", [None])?;
/// let doubled = b.named("doubled").add(x, x)?;
/// b.named("y").relu(doubled)?;
/// let session = Session::builder()
///     .with_graph(b.finish())
///     .with_device_count("SYCL", 0)
///     .with_device_count("GPU", 0)
///     .build()?;
///
/// let callable = session.callable(&["x"], &["y", "doubled"])?;
/// assert_eq!(callable.fetches()[0].name, "y");
/// std::thread::scope(|scope| {
///     for value in [-1f32, 3.0] {
///         let callable = &callable;
///         scope.spawn(move || -> Result<(), Error> {
///             let x = Tensor::from_values([1], &[value])?;
///             // By position, in the order of the fetches ..
///             let fetched = callable.call(&[x.clone()])?;
///             assert_eq!(fetched[1].as_slice::<f32>()?, [2.0 * value]);
///             // .. or by name.
///             let outputs = callable.call_named(&[("x", x)])?;
///             assert_eq!(outputs["doubled"].as_slice::<f32>()?, [2.0 * value]);
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Callable {
    placed: Arc<Placed>,
    prepared: Arc<PreparedPlan>,
    signature: Arc<Signature>,
}

/// The feeds and fetches of a callable, in order.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) feeds: Box<[TensorInfo]>,
    pub(super) fetches: Box<[TensorInfo]>,
}

/// A tensor that a [`Callable`] takes or returns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name, as the app has spelled it: `node` or `node:slot`.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, as far as the graph determines it.
    pub shape: PartialShape,
}

impl Session {
    /// Prepares a call with these feeds and fetches, which are named as in [`Session::run`]. The
    /// result can be called from any thread and does not borrow the session.
    ///
    /// # Errors
    /// As [`Session::run`], as far as names, placeholders, kernels and constants are concerned;
    /// [`ExecuteError::Closed`] if the session is closed.
    pub fn callable(&self, feeds: &[&str], fetches: &[&str]) -> Result<Callable, Error> {
        self.callable_with_targets(feeds, fetches, &[])
    }

    /// Like [`Self::callable`]; each call also runs the nodes `targets`.
    ///
    /// # Errors
    /// As [`Self::callable`].
    pub fn callable_with_targets(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Callable, Error> {
        let (placed, request) = self.request(feeds, fetches, targets)?;
        Callable::of_request(placed, request, feeds, fetches)
    }
}

impl Callable {
    pub(super) fn new(
        placed: Arc<Placed>,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Self, Error> {
        let request = placed.request(feeds.iter().copied(), fetches, targets)?;
        Self::of_request(placed, request, feeds, fetches)
    }

    fn of_request(
        placed: Arc<Placed>,
        request: RunRequest,
        feeds: &[&str],
        fetches: &[&str],
    ) -> Result<Self, Error> {
        if placed.member.is_closed() {
            return Err(ExecuteError::Closed.into());
        }
        let graph = placed.graph();
        let signature = Arc::new(Signature {
            feeds: TensorInfo::of_all(graph, feeds, &request.feeds),
            fetches: TensorInfo::of_all(graph, fetches, &request.fetches),
        });
        let prepared = placed.prepare(request)?;
        Ok(Callable {
            placed,
            prepared,
            signature,
        })
    }

    /// Feeds tensors in the order of [`Self::feeds`], and returns the fetched tensors in the order
    /// of [`Self::fetches`].
    ///
    /// # Errors
    /// [`Error::Execute`] for a wrong number of feeds, a feed of the wrong type or shape, a kernel
    /// that fails, or a closed session. The callable can still be used.
    pub fn call(&self, feeds: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.call_with(feeds, &RunOptions::default())
    }

    /// Like [`Self::call`], with options.
    ///
    /// # Errors
    /// As [`Self::call`], and if the run is cancelled or exceeds its time limit.
    pub fn call_with(&self, feeds: &[Tensor], options: &RunOptions) -> Result<Vec<Tensor>, Error> {
        self.placed.run(&self.prepared, feeds.to_vec(), options)
    }

    /// Like [`Self::call`], with feeds by name, in any order, and outputs by name. A name may be
    /// spelled as `node` or `node:0`.
    ///
    /// # Errors
    /// As [`Self::call`], and [`Error::CallFeed`] if a feed is missing, unknown or given twice.
    pub fn call_named(&self, feeds: &[(&str, Tensor)]) -> Result<Outputs, Error> {
        self.call_named_with(feeds, &RunOptions::default())
    }

    /// Like [`Self::call_named`], with options.
    ///
    /// # Errors
    /// As [`Self::call_named`], and if the run is cancelled or exceeds its time limit.
    pub fn call_named_with(
        &self,
        feeds: &[(&str, Tensor)],
        options: &RunOptions,
    ) -> Result<Outputs, Error> {
        let feeds = self.signature.ordered(feeds)?;
        let fetched = self.placed.run(&self.prepared, feeds, options)?;
        Ok(Outputs::new(Arc::clone(&self.signature), fetched))
    }

    /// Returns the tensors to feed, in order.
    pub fn feeds(&self) -> &[TensorInfo] {
        &self.signature.feeds
    }

    /// Returns the fetched tensors, in order.
    pub fn fetches(&self) -> &[TensorInfo] {
        &self.signature.fetches
    }

    /// Returns the placement that calls run on, with its graph and devices: that of the session
    /// when the callable was made.
    pub fn placement(&self) -> &Arc<Placement> {
        &self.placed.placement
    }
}

impl Signature {
    /// Returns named feeds in the order of the signature.
    fn ordered(&self, feeds: &[(&str, Tensor)]) -> Result<Vec<Tensor>, Error> {
        let error = |name: &str, problem: String| Error::CallFeed {
            name: name.to_owned(),
            problem,
        };
        let mut ordered: Vec<Option<Tensor>> = vec![None; self.feeds.len()];
        for (name, tensor) in feeds {
            let Some(position) = position(&self.feeds, name) else {
                return Err(error(name, unknown(&self.feeds)));
            };
            if ordered[position].replace(tensor.clone()).is_some() {
                return Err(error(name, "it is fed twice".to_owned()));
            }
        }
        let ordered = self.feeds.iter().zip(ordered);
        ordered
            .map(|(feed, tensor)| {
                tensor.ok_or_else(|| error(&feed.name, "it is missing".to_owned()))
            })
            .collect()
    }
}

/// Finds a tensor by name. Callables have few, so a search is as fast as a map.
pub(super) fn position(tensors: &[TensorInfo], name: &str) -> Option<usize> {
    let name = names::split(name);
    let mut tensors = tensors.iter();
    tensors.position(|tensor| names::split(&tensor.name) == name)
}

fn unknown(feeds: &[TensorInfo]) -> String {
    if feeds.is_empty() {
        return "the callable has no feeds".to_owned();
    }
    let names = feeds.iter().take(N_NAMES_MAX);
    let names: Vec<String> = names.map(|feed| format!("`{}`", feed.name)).collect();
    let names = names.join(", ");
    match feeds.len().saturating_sub(N_NAMES_MAX) {
        0 => format!("the callable has no such feed; feeds are {names}"),
        n_more => format!("the callable has no such feed; feeds are {names} and {n_more} more"),
    }
}

impl TensorInfo {
    fn of_all(graph: &Graph, names: &[&str], tensors: &[TensorId]) -> Box<[Self]> {
        let tensors = names.iter().zip(tensors);
        tensors
            .map(|(&name, &tensor)| Self {
                name: name.to_owned(),
                dtype: graph.tensor_dtypes()[tensor.index()],
                shape: graph.tensor_shape(tensor),
            })
            .collect()
    }
}

impl fmt::Debug for Callable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callable")
            .field("graph", &self.placed.graph().name())
            .field("feeds", &self.signature.feeds)
            .field("fetches", &self.signature.fetches)
            .finish_non_exhaustive()
    }
}
