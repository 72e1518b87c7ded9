//! What candidates ask about the arguments of ops, answered by the op registry.

use std::sync::Arc;

use crate::candidates::Argument;
use crate::candidates::OpArguments;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::ArgDef;
use crate::ops::NodeDefError;
use crate::ops::OpRegistry;

/// The ops of a session. An op that the registry does not have is an app's own, if it has kernels, or the name of a function.
#[derive(Debug)]
pub(super) struct SessionOps(pub(super) Arc<OpRegistry>);

impl OpArguments for SessionOps {
    fn is_known(&self, op: &str) -> bool {
        self.0.get(op).is_some()
    }

    fn check_node(&self, graph: &Graph, node: NodeId) -> Result<(), NodeDefError> {
        match self.0.get(graph.op(node)) {
            Some(op) if !graph.is_checked() => op.check_node(graph, node).map(drop),
            _ => Ok(()),
        }
    }

    fn input(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.0.get(op)?;
        let covers = |arg: &&ArgDef| {
            let slots = op.input_range(&arg.name, attrs);
            slots.is_some_and(|slots| slots.contains(&slot))
        };
        op.inputs().iter().find(covers).map(argument)
    }

    fn output(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.0.get(op)?;
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

    #[test]
    fn arguments_cover_their_slots() {
        let ops = SessionOps(Arc::default());
        let attrs = AttrSet::new([("N".into(), AttrValue::Int(3))]);
        let name = |slot| ops.input("ConcatV2", &attrs, slot).map(|arg| arg.name);
        assert_eq!(
            [0, 1, 2, 3].map(name),
            [Some("values"), Some("values"), Some("values"), Some("axis")]
        );
        assert_eq!(name(4), None);
        let output = |slot| ops.output("ConcatV2", &attrs, slot).map(|arg| arg.name);
        assert_eq!([0, 1].map(output), [Some("output"), None]);
        assert!(ops.is_known("MatMul") && !ops.is_known("Decode"));
    }
}
