//! Functions of a graph's library as handles (TensorFlow `FunctionLibraryRuntime`).

use std::sync::Arc;

use super::Callable;
use super::Session;
use super::placed::Placed;
use crate::error::Error;
use crate::execute::RunOptions;
use crate::functions::call_graph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::tensor::Tensor;

/// How [`Session::instantiate`] makes a function (TensorFlow `InstantiateOptions`).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct InstantiateOptions {
    /// Values of the function's attributes, such as the types of its arguments.
    pub attrs: Vec<(String, AttrValue)>,
    /// The device of all nodes that request no other one; `None` lets the policy decide.
    pub device: Option<String>,
    /// The devices of the arguments; the policy decides about arguments without a device. A
    /// resource is used where it is: pass the device of its handle.
    pub arg_devices: Vec<String>,
}

impl InstantiateOptions {
    /// Sets an attribute of the function.
    #[must_use]
    pub fn with_attr(mut self, name: impl Into<String>, value: impl Into<AttrValue>) -> Self {
        self.attrs.push((name.into(), value.into()));
        self
    }

    /// Sets the device of all nodes that request no other one.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Sets the devices of the arguments, in order; an empty name leaves one to the policy.
    #[must_use]
    pub fn with_arg_devices<S: Into<String>>(
        mut self,
        devices: impl IntoIterator<Item = S>,
    ) -> Self {
        self.arg_devices = devices.into_iter().map(Into::into).collect();
        self
    }
}

/// A function that has been placed and can be called, from any thread. Clones are cheap. It is
/// released when the last clone is dropped. It keeps what it was made from, as a [`Callable`] does.
#[derive(Debug, Clone)]
pub struct FunctionHandle {
    callable: Callable,
}

impl FunctionHandle {
    /// Runs the function; returns its results in order.
    ///
    /// # Errors
    /// As [`Callable::call`].
    pub fn run(&self, args: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.callable.call(args)
    }

    /// Returns the function as a callable, which knows the types of arguments and results, and runs
    /// with options. Its feeds are `arg0`, `arg1` .., its fetches `result0`, `result1` ..
    pub fn callable(&self) -> &Callable {
        &self.callable
    }
}

impl Session {
    /// Makes a function of the graph's library ready to be called. It is placed by the session's
    /// policy on the session's devices, and may call other functions, and request several devices.
    /// It shares variables and stateful kernels with the session.
    ///
    /// # Errors
    /// [`Error::Lower`] if there is no such function, if the attributes do not fit it, or if it
    /// calls itself; the errors of [`super::SessionBuilder::build`] and [`Session::callable`].
    pub fn instantiate(
        &self,
        function: &str,
        options: &InstantiateOptions,
    ) -> Result<FunctionHandle, Error> {
        let placed = self.placed();
        placed.initialise(&RunOptions::default())?;
        let attrs = options.attrs.iter().cloned();
        let attrs = AttrSet::new(attrs.map(|(name, value)| (name.into(), value)));
        let device = options.device.as_deref().unwrap_or_default();
        let call = call_graph(
            placed.graph(),
            function,
            &attrs,
            device,
            &options.arg_devices,
        )?;
        let mut builder = placed.recipe.clone().with_graph(call.graph);
        // What the app has decided concerns the nodes of its own graph.
        builder.policy.use_policy();
        builder.placement.forget_nodes();
        let called: Arc<Placed> = Arc::new(builder.build_placed()?);
        let feeds: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let fetches: Vec<&str> = call.results.iter().map(String::as_str).collect();
        let callable = Callable::new(called, &feeds, &fetches, &[])?;
        Ok(FunctionHandle { callable })
    }
}
