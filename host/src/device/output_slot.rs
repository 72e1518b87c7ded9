//! The slots of a kernel's outputs.

use crate::tensor::{DType, Shape, Tensor};

/// The slot of an output of an execution.
#[derive(Debug, Default)]
pub(crate) struct OutputSlot {
    /// A tensor whose place was planned before the run. It is the output if the kernel fills it,
    /// and it stays for the next run in any case.
    pub(crate) planned: Option<Tensor>,
    /// Whether the planned place is that of an input. Then only [`KernelContext::forward_input`]
    /// may take it.
    pub(crate) is_forwarded: bool,
    /// A tensor that the kernel set, or that had to be allocated because its type or shape differs
    /// from the planned one.
    pub(crate) own: Option<Box<Tensor>>,
    pub(crate) state: OutputState,
}

/// Which tensor of a slot is the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OutputState {
    #[default]
    Unset,
    Planned,
    Own,
    /// The node did not execute, because it is in a branch that is not taken.
    Dead,
}

impl OutputSlot {
    /// Returns the output, if it is set.
    #[inline]
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match self.state {
            OutputState::Unset | OutputState::Dead => None,
            OutputState::Planned => self.planned.as_ref(),
            OutputState::Own => self.own.as_deref(),
        }
    }

    #[inline]
    pub(crate) fn set_own(&mut self, tensor: Tensor) {
        self.own = Some(Box::new(tensor));
        self.state = OutputState::Own;
    }

    /// Marks the output as dead. The planned tensor stays.
    pub(crate) fn kill(&mut self) {
        self.own = None;
        self.state = OutputState::Dead;
    }

    /// Drops the output. The planned tensor stays.
    pub(crate) fn clear(&mut self) {
        self.own = None;
        self.state = OutputState::Unset;
    }

    /// Makes the planned tensor the output and returns it, if it has this type and shape.
    #[inline]
    pub(super) fn planned_as(&mut self, dtype: DType, shape: &Shape) -> Option<&mut Tensor> {
        let planned = self.planned.as_mut()?;
        if planned.dtype() != dtype || planned.shape() != shape {
            return None;
        }
        if self.state == OutputState::Own {
            self.own = None;
        }
        self.state = OutputState::Planned;
        Some(planned)
    }
}
