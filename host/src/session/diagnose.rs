//! Lists all problems that keep a session from being built, or a graph from being executed.

use crate::candidates;
use crate::candidates::Conflict;
use crate::candidates::UnsupportedNode;
use crate::error::Error;
use crate::session::SessionBuilder;

impl SessionBuilder {
    /// Returns all conflicts that keep the graph from being placed ([`candidates::conflicts`]);
    /// [`Self::build`] stops at the first. Imports the graph and opens the devices; places nothing.
    ///
    /// # Errors
    /// The error of the stage that failed, unless it is a conflict.
    pub fn conflicts(self) -> Result<Vec<Conflict>, Error> {
        let opened = self.open()?;
        let (graph, devices) = (&opened.graph, &opened.devices);
        let found = candidates::conflicts(graph, devices, &opened.kernels, &opened.options);
        Ok(found?)
    }

    /// Returns every node that no device can execute ([`candidates::unsupported_nodes`]); a run
    /// stops at the first that it needs. Imports the graph and opens the devices; places
    /// nothing.
    ///
    /// # Errors
    /// The error of the stage that failed.
    pub fn unsupported_nodes(self) -> Result<Vec<UnsupportedNode>, Error> {
        let opened = self.open()?;
        Ok(candidates::unsupported_nodes(
            &opened.graph,
            &opened.devices,
            &opened.kernels,
            &opened.options,
            Some(&opened.ops),
        )?)
    }
}
