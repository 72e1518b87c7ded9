//! The arguments of ops, from the op registry.

use crate::candidates::options::Argument;
use crate::candidates::options::OpArguments;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::ArgDef;
use crate::ops::NodeDefError;
use crate::ops::OpDef;
use crate::ops::OpRegistry;

/// An op that is not in the registry belongs to an app, if it has kernels, or is the name of a
/// function.
impl OpArguments for OpRegistry {
    fn is_known(&self, op: &str) -> bool {
        self.get(op).is_some()
    }

    fn definition(&self, op: &str) -> Option<&OpDef> {
        self.get(op).map(|op| &**op)
    }

    fn check_node(&self, graph: &Graph, node: NodeId) -> Result<(), NodeDefError> {
        match self.get(graph.op(node)) {
            Some(op) if !graph.is_checked() => op.check_node(graph, node).map(drop),
            _ => Ok(()),
        }
    }

    fn input(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.get(op)?;
        let covers = |arg: &&ArgDef| {
            let slots = op.input_range(&arg.name, attrs);
            slots.is_some_and(|slots| slots.contains(&slot))
        };
        op.inputs().iter().find(covers).map(argument)
    }

    fn output(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>> {
        let op = self.get(op)?;
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
        let ops = OpRegistry::default();
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
