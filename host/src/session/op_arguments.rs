//! What candidates ask about the arguments of ops, answered by the op registry.

use std::sync::Arc;

use crate::candidates::Argument;
use crate::candidates::OpArguments;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::ops::ArgDef;
use crate::ops::OpRegistry;

/// The ops of one graph. An op that the registry does not have is an app's own, with kernels of its own, unless it is the
/// name of a function.
#[derive(Debug)]
pub(super) struct GraphOps {
    pub(super) graph: Arc<Graph>,
    pub(super) ops: Arc<OpRegistry>,
}

impl OpArguments for GraphOps {
    fn is_known(&self, op: &str) -> bool {
        self.ops.get(op).is_some() || self.graph.find_function(op).is_none()
    }

    fn input(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.ops.get(op)?;
        let covers = |arg: &&ArgDef| {
            let slots = op.input_range(&arg.name, attrs);
            slots.is_some_and(|slots| slots.contains(&slot))
        };
        op.inputs().iter().find(covers).map(argument)
    }

    fn output(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.ops.get(op)?;
        let covers = |arg: &&ArgDef| {
            let slots = op.output_range(&arg.name, attrs);
            slots.is_some_and(|slots| slots.contains(&slot))
        };
        op.outputs().iter().find(covers).map(argument)
    }
}

fn argument(arg: &ArgDef) -> Argument<'_> {
    Argument {
        name: &arg.name,
        is_ref: arg.is_ref,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::AttrValue;
    use crate::graph::GraphAssembler;

    #[test]
    fn arguments_cover_their_slots() {
        let ops = GraphOps {
            graph: Arc::new(GraphAssembler::new("empty").finish()),
            ops: Arc::default(),
        };
        let attrs = AttrSet::new([("N".into(), AttrValue::Int(3))]);
        let name = |slot| ops.input("ConcatV2", &attrs, slot).map(|arg| arg.name);
        assert_eq!(
            [0, 1, 2, 3].map(name),
            [Some("values"), Some("values"), Some("values"), Some("axis")]
        );
        assert_eq!(name(4), None);
        let output = |slot| ops.output("ConcatV2", &attrs, slot).map(|arg| arg.name);
        assert_eq!([0, 1].map(output), [Some("output"), None]);
        assert!(ops.is_known("Decode") && ops.is_known("MatMul"));
    }
}
