//! The graph that a session was given, where passes have changed it.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::Session;
use super::names;
use super::placed::Placed;
use crate::error::Error;
use crate::error::NameRole;
use crate::execute::ExecuteError;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::optimize::PassReport;
use crate::partition::RunRequest;

/// The graph before the passes of the optimizer.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) graph: Arc<Graph>,
    /// Nodes of the graph after the passes that other nodes no longer read: if one of them is fed,
    /// the graph before the passes runs.
    pub(super) absorbed: FxHashSet<NodeId>,
    pub(super) passes: Vec<PassReport>,
}

impl Given {
    /// Returns whether this graph has everything that a run names.
    fn has_all(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> bool {
        let graph = &*self.graph;
        let finds = |role, name: &&str| names::find_tensor(graph, role, name).is_ok();
        feeds.iter().all(|name| finds(NameRole::Feed, name))
            && fetches.iter().all(|name| finds(NameRole::Fetch, name))
            && targets
                .iter()
                .all(|name| names::find_target(graph, name).is_ok())
    }
}

impl Session {
    /// Finds the tensors and nodes of a run, and the state that has them. If the passes have
    /// removed one of them, the session continues with the graph as it was given.
    pub(super) fn request(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<(Arc<Placed>, RunRequest), Error> {
        let placed = self.placed();
        let found = placed.request(feeds.iter().copied(), fetches, targets);
        let Some(given) = &placed.given else {
            return Ok((placed, found?));
        };
        let graph = placed.graph();
        let is_absorbed = |request: &RunRequest| {
            let mut nodes = request.feeds.iter().map(|&feed| graph.producer(feed).0);
            nodes.any(|node| given.absorbed.contains(&node))
        };
        match found {
            Ok(request) if !is_absorbed(&request) => return Ok((placed, request)),
            Err(error) if !given.has_all(feeds, fetches, targets) => return Err(error),
            _ => {}
        }
        let closed = |_| Error::Execute(ExecuteError::Closed);
        let placed = self.change(closed, Placed::as_given)?;
        let request = placed.request(feeds.iter().copied(), fetches, targets)?;
        Ok((placed, request))
    }
}

impl Placed {
    /// Returns the graph before the passes.
    pub(super) fn given_graph(&self) -> &Arc<Graph> {
        match &self.given {
            Some(given) => &given.graph,
            None => self.graph(),
        }
    }

    /// Builds the state that has the graph as it was given.
    fn as_given(self: &Arc<Self>) -> Result<Self, Error> {
        let mut builder = self.recipe.clone().with_passes([]);
        builder.policy.keep_saved();
        builder = builder.with_graph(Arc::clone(self.given_graph()));
        let mut placed = self.with_larger_graph(builder)?;
        placed.recipe.graph.copy_graph_def(&self.recipe.graph);
        Ok(placed)
    }
}
