//! Lowers `If` and `Case`: tensors go to the branch that is taken through `Switch` nodes, and leave
//! it through `Merge` nodes.

use super::Caller;
use super::Form;
use super::Guard;
use super::LowerError;
use super::Lowerer;
use super::Returned;
use super::Source;
use super::nodes::New;
use super::nodes::type_attr;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::tensor::DType;

impl Lowerer<'_> {
    /// Adds the branches of an `If` or `Case`.
    pub(super) fn add_branches(
        &mut self,
        form: Form,
        caller: &Caller<'_>,
    ) -> Result<Returned, LowerError> {
        let mut branches = Vec::new();
        if form == Form::If {
            for (attr, name) in [("else_branch", "else/"), ("then_branch", "then/")] {
                let found = self.function(caller, caller.attrs.get(attr))?;
                branches.push((name.to_owned(), found));
            }
        } else {
            let listed = caller.attrs.list("branches").unwrap_or_default();
            for (index, function) in listed.iter().enumerate() {
                let found = self.function(caller, Some(function))?;
                branches.push((format!("branch{index}/"), found));
            }
        }
        let n_branches = branches.len();
        let Some((&selector, args)) = caller.inputs.split_first() else {
            return Err(caller.error("it has no inputs".to_owned()));
        };
        if n_branches == 0 {
            return Err(caller.error("it has no branches".to_owned()));
        }
        let selector = match form {
            Form::If => self.predicate(caller, selector)?,
            _ => selector,
        };
        let mut switched: Vec<Option<NodeId>> = vec![None; args.len()];
        let waits = &caller.controls;
        let pivots = self.switch(caller, "pivot", form, selector, selector, n_branches, waits)?;
        let mut returned: Vec<Returned> = Vec::with_capacity(n_branches);
        let mut pivot_nodes = Vec::with_capacity(n_branches);
        for (branch, (name, (function, attrs))) in (0..).zip(&branches) {
            let pivot = Source {
                node: pivots,
                slot: branch,
                is_guarded: true,
            };
            let name_of_pivot = format!("{}/{name}pivot", caller.name);
            let pivot = self.identity(caller, name_of_pivot, pivot, None)?;
            let guard = Guard {
                pivot: Some(pivot.node),
                is_needed: true,
            };
            let body = self.instantiate(caller, function, attrs, args.len())?;
            let mut branch_args = Vec::with_capacity(args.len());
            for (index, &arg) in args.iter().enumerate() {
                if !body.reads(index) {
                    // Nothing reads it.
                    branch_args.push(arg);
                    continue;
                }
                let node = match switched[index] {
                    Some(node) => node,
                    None => {
                        let name = format!("switch{index}");
                        self.switch(caller, &name, form, arg, selector, n_branches, waits)?
                    }
                };
                switched[index] = Some(node);
                branch_args.push(Source {
                    node,
                    slot: branch,
                    is_guarded: true,
                });
            }
            pivot_nodes.push(pivot.node);
            returned.push(self.add_body(caller, name, &body, function, &branch_args, guard)?);
        }
        let n_results = returned[0].results.len();
        if let Some(other) = returned
            .iter()
            .find(|other| other.results.len() != n_results)
        {
            return Err(caller.error(format!(
                "its branches return {n_results} and {} tensors",
                other.results.len()
            )));
        }
        let is_guarded = caller.is_guarded();
        let mut merged = Returned::default();
        for result in 0..n_results {
            let mut inputs = Vec::with_capacity(n_branches);
            for (branch, returned) in returned.iter().enumerate() {
                let mut source = returned.results[result];
                if !source.is_guarded {
                    let name = format!("{}/result{result}_{branch}", caller.name);
                    source = self.identity(caller, name, source, Some(pivot_nodes[branch]))?;
                }
                inputs.push(source.data());
            }
            let dtype = self.dtype(returned[0].results[result]);
            let node = self.merge(caller, &format!("merge{result}"), dtype, inputs)?;
            merged.results.push(Source {
                node,
                slot: 0,
                is_guarded,
            });
        }
        if returned.iter().any(|branch| !branch.effects.is_empty()) {
            // Runs when the effects of the branch that was taken are done.
            let mut done = Vec::with_capacity(n_branches);
            for (branch, returned) in (0..).zip(&returned) {
                let effects = returned.effects.iter().map(|&node| Input::Control(node));
                let pivot = Input::Data {
                    node: pivots,
                    slot: branch,
                };
                let dtype = self.dtype(selector);
                let node = self.add(New {
                    name: format!("{}/done{branch}", caller.name),
                    op: "Identity",
                    device: &caller.device,
                    attrs: vec![("T", type_attr(dtype))],
                    inputs: std::iter::once(pivot).chain(effects).collect(),
                })?;
                done.push(Input::Data { node, slot: 0 });
            }
            let dtype = self.dtype(selector);
            merged
                .effects
                .push(self.merge(caller, "done", dtype, done)?);
        }
        Ok(merged)
    }

    /// Adds a `Switch` or `_SwitchN` of a tensor.
    pub(super) fn switch(
        &mut self,
        caller: &Caller<'_>,
        name: &str,
        form: Form,
        data: Source,
        selector: Source,
        n_outputs: usize,
        controls: &[NodeId],
    ) -> Result<NodeId, LowerError> {
        let mut attrs = vec![("T", type_attr(self.dtype(data)))];
        let op = match form {
            Form::Case => {
                let n_outputs = i64::try_from(n_outputs).unwrap_or(i64::MAX);
                attrs.push(("num_outs", AttrValue::Int(n_outputs)));
                "_SwitchN"
            }
            _ => "Switch",
        };
        let controls = controls.iter().map(|&node| Input::Control(node));
        // A constant does not say by itself which branch or loop the node is in.
        let is_guarded = data.is_guarded || selector.is_guarded;
        let pivot = caller
            .guard
            .pivot
            .filter(|_| caller.guard.is_needed && !is_guarded);
        let inputs = [data.data(), selector.data()].into_iter();
        // A handle does not leave the device of its resource, whatever the caller requests.
        let device = match self.dtype(data) {
            DType::Resource => self.assembler.graph().requested(data.node).to_owned(),
            _ => caller.device.clone(),
        };
        self.add(New {
            name: format!("{}/{name}", caller.name),
            op,
            device: &device,
            attrs,
            inputs: inputs
                .chain(controls)
                .chain(pivot.map(Input::Control))
                .collect(),
        })
    }
}
