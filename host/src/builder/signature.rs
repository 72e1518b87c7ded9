//! Matches the arguments of a node with its op's signature: types and lengths of lists become
//! attributes, as in TensorFlow's `op_def_library`; mismatches are errors.

use std::sync::Arc;

use crate::builder::error::BuildError;
use crate::builder::error::TypeMismatch;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::ops::ArgDef;
use crate::ops::ArgType;
use crate::ops::AttrFault;
use crate::ops::OpDef;
use crate::ops::TypedSlot;
use crate::tensor::DType;

/// The value of one argument of the signature.
#[derive(Debug)]
pub(super) enum Argument<T> {
    One(T),
    List(Vec<T>),
}

impl<T> Argument<T> {
    /// Returns the tensors.
    pub(super) fn items(&self) -> &[T] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::List(items) => items,
        }
    }

    /// Returns the tensors, to change them.
    pub(super) fn items_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => std::slice::from_mut(item),
            Self::List(items) => items,
        }
    }
}

/// A tensor argument: its type, and its name for errors.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) slot: TypedSlot,
    pub(super) name: String,
}

/// The signature, arguments and name of a node to be added.
pub(super) struct Call<'a> {
    pub(super) node: &'a str,
    pub(super) op: &'a OpDef,
    pub(super) arguments: &'a [Argument<Given>],
    /// Returns whether the builder has a function of this name.
    pub(super) is_function: &'a dyn Fn(&str) -> bool,
}

/// An attribute, with the argument that it was inferred from.
struct Taken<'a> {
    name: &'a Arc<str>,
    value: AttrValue,
    from: &'a str,
}

impl Call<'_> {
    /// Returns the complete attributes of the node: explicit ones, those that the arguments imply,
    /// and the op's defaults.
    pub(super) fn attrs(&self, given: Vec<(Arc<str>, AttrValue)>) -> Result<AttrSet, BuildError> {
        self.check_kinds()?;
        self.check_given(&given)?;
        let taken = self.taken(&given);
        let mut attrs = given;
        attrs.extend(
            taken
                .iter()
                .map(|attr| (Arc::clone(attr.name), attr.value.clone())),
        );
        let attrs = self.op.complete_attrs(attrs);
        let attrs = attrs.map_err(|(attr, fault)| self.attr_error(&attr, fault, &taken))?;
        self.check_arguments(&attrs, &taken)?;
        Ok(attrs)
    }

    /// Checks the number of arguments, and which are lists.
    fn check_kinds(&self) -> Result<(), BuildError> {
        let takes = self.op.inputs();
        if takes.len() != self.arguments.len() {
            let names: Vec<&str> = takes.iter().map(|arg| &*arg.name).collect();
            let expected = match *names {
                [] => "none".to_owned(),
                _ => format!("{}: {}", names.len(), names.join(", ")),
            };
            return Err(BuildError::ArgumentCount {
                node: self.node.to_owned(),
                op: self.op.name().to_owned(),
                expected,
                found: self.arguments.len(),
            });
        }
        for (arg, argument) in takes.iter().zip(self.arguments) {
            let (expected, method) = match (is_list(arg), argument) {
                (true, Argument::One(_)) => ("a list of tensors", "inputs"),
                (false, Argument::List(_)) => ("one tensor", "input"),
                _ => continue,
            };
            return Err(BuildError::ArgumentKind {
                node: self.node.to_owned(),
                op: self.op.name().to_owned(),
                arg: arg.name.to_string(),
                expected,
                method,
            });
        }
        Ok(())
    }

    /// Refuses attributes that occur twice, and those that have a meaning only inside a function.
    fn check_given(&self, given: &[(Arc<str>, AttrValue)]) -> Result<(), BuildError> {
        for (index, (name, value)) in given.iter().enumerate() {
            if given[..index].iter().any(|(other, _)| other == name) {
                let twice = "is given twice".to_owned();
                return Err(self.attr_problem(name, twice));
            }
            let values = match value {
                AttrValue::List(values) => values,
                value => std::slice::from_ref(value),
            };
            for value in values {
                let problem = match value {
                    AttrValue::Placeholder(of) => format!(
                        "refers to attribute `{of}` of a function, but the node is not in a function"
                    ),
                    AttrValue::Function(function, _) if !(self.is_function)(function) => {
                        format!("names function `{function}`, which the GraphBuilder does not have")
                    }
                    _ => continue,
                };
                return Err(self.attr_problem(name, problem));
            }
        }
        Ok(())
    }

    /// Returns the attributes that the arguments imply and that are not explicit. If several
    /// arguments imply one, the first wins; the others are checked against it afterwards.
    fn taken(&self, given: &[(Arc<str>, AttrValue)]) -> Vec<Taken<'_>> {
        let mut taken: Vec<Taken<'_>> = Vec::new();
        for (arg, argument) in self.op.inputs().iter().zip(self.arguments) {
            let items = argument.items();
            let mut take = |name, value| {
                let is_known = given.iter().any(|(other, _)| other == name)
                    || taken.iter().any(|other| other.name == name);
                if !is_known {
                    let from = &arg.name;
                    taken.push(Taken { name, value, from });
                }
            };
            if let Some(number) = &arg.number_attr {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                take(number, AttrValue::Int(length));
            }
            match &arg.dtype {
                ArgType::Fixed(_) => {}
                ArgType::Attr(attr) => {
                    if let Some(first) = items.first() {
                        take(attr, first.slot.dtype.into());
                    }
                }
                ArgType::ListAttr(attr) => {
                    let dtypes: Vec<DType> = items.iter().map(|item| item.slot.dtype).collect();
                    take(attr, dtypes.into());
                }
            }
        }
        taken
    }

    /// Checks each argument against the complete attributes.
    fn check_arguments(&self, attrs: &AttrSet, taken: &[Taken<'_>]) -> Result<(), BuildError> {
        for (arg, argument) in self.op.inputs().iter().zip(self.arguments) {
            let items = argument.items();
            let list = match &arg.dtype {
                ArgType::ListAttr(attr) => Some((attr, attrs.dtypes(attr).unwrap_or_default())),
                _ => None,
            };
            let length = match (&arg.number_attr, &list) {
                (Some(attr), _) => attrs.int(attr).map(|length| (attr, length)),
                (None, Some((attr, dtypes))) => {
                    Some((*attr, i64::try_from(dtypes.len()).unwrap_or(i64::MAX)))
                }
                (None, None) => None,
            };
            if let Some((attr, length)) = length
                && usize::try_from(length) != Ok(items.len())
            {
                return Err(BuildError::ListLength {
                    node: self.node.to_owned(),
                    op: self.op.name().to_owned(),
                    arg: arg.name.to_string(),
                    attr: attr.to_string(),
                    expected: length,
                    found: items.len(),
                });
            }
            for (index, item) in items.iter().enumerate() {
                let (dtype, attr) = match (&arg.dtype, &list) {
                    (ArgType::Fixed(dtype), _) => (Some(*dtype), None),
                    (ArgType::Attr(attr), _) => (attrs.dtype(attr), Some(attr)),
                    (ArgType::ListAttr(attr), list) => {
                        let dtypes = list.as_ref().map(|(_, dtypes)| dtypes);
                        (dtypes.and_then(|all| all.get(index).copied()), Some(attr))
                    }
                };
                // An attribute of another kind is an error of the definition, which laying out the
                // inputs reports.
                let Some(dtype) = dtype else { continue };
                let takes = TypedSlot {
                    dtype,
                    is_ref: arg.is_ref,
                };
                if !takes.accepts(item.slot.dtype, item.slot.is_ref) {
                    let from = attr.map(|attr| (&**attr, source_of(attr, taken)));
                    return Err(self.type_error(arg, index, takes, item, from));
                }
            }
        }
        Ok(())
    }

    fn type_error(
        &self,
        arg: &ArgDef,
        index: usize,
        takes: TypedSlot,
        item: &Given,
        attr: Option<(&str, Option<&str>)>,
    ) -> BuildError {
        let name = &arg.name;
        BuildError::ArgumentType(Box::new(TypeMismatch {
            node: self.node.to_owned(),
            op: self.op.name().to_owned(),
            arg: if is_list(arg) {
                format!("{name}[{index}]")
            } else {
                name.to_string()
            },
            expected: takes.dtype,
            expected_ref: takes.is_ref,
            reason: match attr {
                Some((attr, Some(from))) => format!(" (`{attr}` of argument `{from}`)"),
                Some((attr, None)) => format!(" (attribute `{attr}`)"),
                None => String::new(),
            },
            producer: item.name.clone(),
            found: item.slot.dtype,
            found_ref: item.slot.is_ref,
        }))
    }

    fn attr_error(&self, attr: &str, fault: AttrFault, taken: &[Taken<'_>]) -> BuildError {
        let problem = match fault {
            AttrFault::Missing => {
                let takes = self.op.attr(attr).map(ToString::to_string);
                format!("is missing; the op takes {}", takes.unwrap_or_default())
            }
            AttrFault::Unknown => {
                let names: Vec<&str> = self.op.attrs().iter().map(|attr| &*attr.name).collect();
                match *names {
                    [] => "is not an attribute of the op, which has none".to_owned(),
                    _ => format!(
                        "is not an attribute of the op, which has {}",
                        names.join(", ")
                    ),
                }
            }
            AttrFault::Invalid(problem) => match source_of(attr, taken) {
                Some(from) => format!("{problem}; it was taken from argument `{from}`"),
                None => problem,
            },
        };
        self.attr_problem(attr, problem)
    }

    fn attr_problem(&self, attr: &str, problem: String) -> BuildError {
        BuildError::Attr {
            node: self.node.to_owned(),
            op: self.op.name().to_owned(),
            attr: attr.to_owned(),
            problem,
        }
    }
}

/// Returns the argument that an attribute was inferred from.
fn source_of<'a>(attr: &str, taken: &[Taken<'a>]) -> Option<&'a str> {
    let taken = taken.iter().find(|taken| **taken.name == *attr);
    taken.map(|taken| taken.from)
}

fn is_list(arg: &ArgDef) -> bool {
    arg.number_attr.is_some() || matches!(arg.dtype, ArgType::ListAttr(_))
}
