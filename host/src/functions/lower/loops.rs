//! Lowers `While`: the variables circulate from `NextIteration` to `Merge`.

use std::sync::Arc;

use super::Caller;
use super::Form;
use super::Guard;
use super::LowerError;
use super::Lowerer;
use super::Returned;
use super::Source;
use super::nodes::New;
use super::nodes::problem;
use super::nodes::type_attr;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::ops::Known;
use crate::ops::OpInput;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

impl Lowerer<'_> {
    /// Adds the loop of a `While`.
    pub(super) fn add_loop(&mut self, caller: &Caller<'_>) -> Result<Returned, LowerError> {
        let (cond, cond_attrs) = self.function(caller, caller.attrs.get("cond"))?;
        let (body, body_attrs) = self.function(caller, caller.attrs.get("body"))?;
        let n_vars = caller.inputs.len();
        let cond_graph = self.instantiate(caller, cond, cond_attrs, n_vars)?;
        let body_graph = self.instantiate(caller, body, body_attrs, n_vars)?;
        if body_graph.results.len() != n_vars || cond_graph.results.len() != 1 {
            return Err(caller.error(format!(
                "its body returns {} tensors and its condition {}, expected {n_vars} and 1",
                body_graph.results.len(),
                cond_graph.results.len()
            )));
        }
        let mut vars: Vec<Option<usize>> = Vec::with_capacity(n_vars);
        let (mut merges, mut entered) = (Vec::new(), caller.inputs.clone());
        // A loop without a variable that changes has one of its own.
        let changes = (0..n_vars).map(|var| body_graph.returned_arg(var) != Some(var));
        let changes: Vec<bool> = changes.collect();
        if !changes.contains(&true) {
            let literal = Literal::new(
                DType::Bool,
                Shape::scalar(),
                LiteralData::Dense(Arc::new([1u8])),
            );
            let literal = literal.map_err(|error| caller.error(error.to_string()))?;
            let node = self.add(New {
                name: format!("{}/once", caller.name),
                op: "Const",
                device: &caller.device,
                attrs: vec![
                    ("dtype", type_attr(DType::Bool)),
                    ("value", AttrValue::Tensor(Arc::new(literal))),
                ],
                inputs: Vec::new(),
            })?;
            entered.push(Source {
                node,
                slot: 0,
                is_guarded: false,
            });
        }
        let parallel = caller.attrs.int("parallel_iterations").unwrap_or(10);
        let declared = caller.attrs.list("output_shapes").unwrap_or_default();
        for (var, &source) in entered.iter().enumerate() {
            if changes.get(var) == Some(&false) {
                vars.push(None);
                continue;
            }
            let dtype = self.dtype(source);
            let controls = caller.controls.iter().copied();
            // Makes the loop part of the scope around it, which constants are not.
            let pivot = caller.guard.pivot.filter(|_| !source.is_guarded);
            let controls = controls.chain(pivot).map(Input::Control);
            let enter = self.add(New {
                name: format!("{}/enter{var}", caller.name),
                op: "Enter",
                device: &caller.device,
                attrs: vec![
                    ("T", type_attr(dtype)),
                    (
                        "frame_name",
                        AttrValue::Bytes(caller.name.as_bytes().into()),
                    ),
                    ("is_constant", AttrValue::Bool(false)),
                    ("parallel_iterations", AttrValue::Int(parallel)),
                ],
                inputs: std::iter::once(source.data()).chain(controls).collect(),
            })?;
            // Loop variables keep their shapes, unless the node says otherwise.
            let shape = match declared.get(var) {
                Some(AttrValue::Shape(shape)) => shape.clone(),
                Some(_) => PartialShape::unknown(),
                None => self.output(source).shape,
            };
            let merge = self.loop_merge(caller, var, dtype, enter, &shape)?;
            vars.push(Some(merges.len()));
            merges.push(merge);
        }
        let first = merges[0];
        let unchanged = |var: usize| Source {
            is_guarded: false,
            ..caller.inputs[var]
        };
        let of_var = |nodes: &[NodeId], slot: u32, var: usize| match vars[var] {
            None => unchanged(var),
            Some(index) => Source {
                node: nodes[index],
                slot,
                is_guarded: true,
            },
        };
        let args: Vec<Source> = (0..n_vars).map(|var| of_var(&merges, 0, var)).collect();
        let guard = Guard {
            pivot: Some(first),
            is_needed: true,
        };
        let decided = self.add_body(caller, "cond/", &cond_graph, cond, &args, guard)?;
        let condition = self.predicate(caller, decided.results[0])?;
        let effects = decided.effects.iter().map(|&node| Input::Control(node));
        let pivot = (!condition.is_guarded).then_some(Input::Control(first));
        let loop_cond = self.add(New {
            name: format!("{}/loop_cond", caller.name),
            op: "LoopCond",
            device: &caller.device,
            attrs: Vec::new(),
            inputs: std::iter::once(condition.data())
                .chain(effects)
                .chain(pivot)
                .collect(),
        })?;
        let condition = Source {
            node: loop_cond,
            slot: 0,
            is_guarded: true,
        };
        let mut switches = Vec::with_capacity(merges.len());
        for (index, &merge) in merges.iter().enumerate() {
            let merge = Source {
                node: merge,
                slot: 0,
                is_guarded: true,
            };
            let name = format!("switch{index}");
            switches.push(self.switch(caller, &name, Form::If, merge, condition, 2, &[])?);
        }
        let pivot = Source {
            node: switches[0],
            slot: 1,
            is_guarded: true,
        };
        let name_of_pivot = format!("{}/body/pivot", caller.name);
        let pivot = self.identity(caller, name_of_pivot, pivot, None)?;
        let guard = Guard {
            pivot: Some(pivot.node),
            is_needed: true,
        };
        let args: Vec<Source> = (0..n_vars).map(|var| of_var(&switches, 1, var)).collect();
        let next = self.add_body(caller, "body/", &body_graph, body, &args, guard)?;
        let mut effects = next.effects;
        for (var, &index) in vars.iter().enumerate() {
            let Some(index) = index else { continue };
            let source = next
                .results
                .get(var)
                .copied()
                .unwrap_or(pivot_of(&switches, index));
            let dtype = self.dtype(source);
            let mut inputs = vec![source.data()];
            // The effects of an iteration belong to the loop, whichever results are read.
            inputs.extend(effects.iter().map(|&node| Input::Control(node)));
            if !source.is_guarded {
                inputs.push(Input::Control(pivot.node));
            }
            let node = self.add(New {
                name: format!("{}/next{var}", caller.name),
                op: "NextIteration",
                device: &caller.device,
                attrs: vec![("T", type_attr(dtype))],
                inputs,
            })?;
            let expected = self.dtype(Source {
                node: merges[index],
                slot: 0,
                is_guarded: true,
            });
            if dtype != expected {
                return Err(caller.error(format!(
                    "its body returns {dtype} for variable {var}, which is {expected}"
                )));
            }
            let assembler = self.assembler.graph_mut();
            assembler.add_back_input(node, 0, merges[index], 1)?;
        }
        let is_guarded = caller.is_guarded();
        let mut returned = Returned::default();
        let mut last = None;
        for (var, index) in vars.iter().enumerate() {
            let Some(index) = *index else {
                returned.results.push(caller.inputs[var]);
                continue;
            };
            let source = Source {
                node: switches[index],
                slot: 0,
                is_guarded: true,
            };
            let node = self.add(New {
                name: format!("{}/exit{var}", caller.name),
                op: "Exit",
                device: &caller.device,
                attrs: vec![("T", type_attr(self.dtype(source)))],
                inputs: vec![source.data()],
            })?;
            last = Some(node);
            if var < n_vars {
                returned.results.push(Source {
                    node,
                    slot: 0,
                    is_guarded,
                });
            }
        }
        effects.extend(decided.effects);
        if !effects.is_empty() {
            returned.effects.extend(last);
        }
        Ok(returned)
    }

    pub(super) fn loop_merge(
        &mut self,
        caller: &Caller<'_>,
        var: usize,
        dtype: DType,
        enter: NodeId,
        shape: &PartialShape,
    ) -> Result<NodeId, LowerError> {
        let name = format!("{}/merge{var}", caller.name);
        let definition = self.definition("Merge", &name)?;
        let attrs = vec![
            ("T".into(), type_attr(dtype)),
            ("N".into(), AttrValue::Int(2)),
        ];
        let attrs = self.completed(&definition, AttrSet::new(attrs), &name)?;
        let back = OpInput {
            dtype,
            shape: PartialShape::unknown(),
            known: Known::Nothing,
        };
        let inputs = [
            self.op_input(Source {
                node: enter,
                slot: 0,
                is_guarded: true,
            }),
            back,
        ];
        let inferred = self
            .assembler
            .infer(&definition, &attrs, &inputs, |shapes| {
                if let Some(merged) = shapes.first_mut() {
                    *merged = shape.clone();
                }
                Ok(())
            });
        let inferred = inferred.map_err(|error| caller.error(problem(error)))?;
        let edges = [Input::Data {
            node: enter,
            slot: 0,
        }];
        self.append_inferred(&name, &definition, &attrs, &edges, &caller.device, inferred)
    }
}

/// Returns what the variable of a loop without variables is in the next iteration: unchanged.
fn pivot_of(switches: &[NodeId], index: usize) -> Source {
    Source {
        node: switches[index],
        slot: 1,
        is_guarded: true,
    }
}
