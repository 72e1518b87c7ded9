//! What keeps a session from being built, or a graph from being executed, all at once.

use crate::candidates;
use crate::candidates::Refusal;
use crate::candidates::UnsupportedNode;
use crate::error::Error;
use crate::session::SessionBuilder;

impl SessionBuilder {
    /// The clashes that keep the graph from being placed ([`candidates::refusals`]), where
    /// [`Self::build`] stops at the first. Imports the graph and opens the devices; places
    /// nothing.
    ///
    /// # Errors
    /// The error of the stage that failed, if that is no clash.
    pub fn refusals(self) -> Result<Vec<Refusal>, Error> {
        let opened = self.open()?;
        let (graph, devices) = (&opened.graph, &opened.devices);
        let found = candidates::refusals(graph, devices, &opened.kernels, &opened.options);
        Ok(found?)
    }

    /// Every node that nothing here can execute ([`candidates::unsupported_nodes`]), where a run
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
