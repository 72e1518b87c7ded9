//! What surrounds the execution of a kernel.

use std::cell::RefCell;
use std::sync::Arc;

use super::context::DeviceContext;
use super::run::DeviceRun;
use crate::tensor::Tensor;

/// What an execution can use besides tensors; called only when a kernel needs it.
pub(crate) trait Surroundings {
    /// Returns the name of the node.
    fn node(&self) -> &str;

    /// Returns what the run has on this device.
    fn device_run(&self) -> Option<&DeviceRun>;

    /// Returns the node's context, if it has one of its own.
    fn context(&self) -> Option<&Arc<dyn DeviceContext>>;

    /// Returns where to record tensors that the execution allocates, if the device needs them.
    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        None
    }
}

/// The environment of an inner node.
pub(super) struct InnerNode<'a> {
    pub(super) node: &'a str,
    pub(super) run: &'a dyn Surroundings,
}

impl Surroundings for InnerNode<'_> {
    fn node(&self) -> &str {
        self.node
    }

    fn device_run(&self) -> Option<&DeviceRun> {
        self.run.device_run()
    }

    fn context(&self) -> Option<&Arc<dyn DeviceContext>> {
        self.run.context()
    }

    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        self.run.temporaries()
    }
}
