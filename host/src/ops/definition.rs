//! Definitions of ops: arguments, attributes, and functions for shapes, known values and work.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::attr_def::AttrDef;
use super::infer::{InferenceContext, Known, ShapeError};
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::RANK_MAX;

/// Returns the shape of every output.
pub(crate) type ShapeFn =
    Arc<dyn Fn(&InferenceContext<'_>) -> Result<Vec<PartialShape>, ShapeError> + Send + Sync>;
/// Returns what is known of the value of every output.
pub(crate) type FoldFn = Arc<dyn Fn(&InferenceContext<'_>, &[Output]) -> Vec<Known> + Send + Sync>;
/// Returns the cost of one execution.
pub(crate) type WorkFn = Arc<dyn Fn(&InferenceContext<'_>, &[Output]) -> Work + Send + Sync>;

/// Why an op definition is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpDefError {
    /// A line of the signature cannot be parsed.
    #[error("op `{op}`: `{text}`: {problem}")]
    Syntax {
        /// The op.
        op: String,
        /// The line.
        text: String,
        /// What is wrong with it, as text.
        problem: String,
    },
    /// The registry already has an op of this name.
    #[error("op `{0}` is registered twice")]
    Duplicate(String),
}

/// An attribute that determines the number or type of arguments is missing or of another kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "argument `{arg}` takes its {what} from attribute `{attr}`, which is missing or of another kind"
)]
pub struct SignatureError {
    /// The argument.
    pub arg: String,
    /// What the attribute determines.
    pub what: &'static str,
    /// The attribute.
    pub attr: String,
}

/// Element type of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgType {
    /// Always this one.
    Fixed(DType),
    /// The value of this `type` attribute.
    Attr(Arc<str>),
    /// One tensor per element of this `list(type)` attribute.
    ListAttr(Arc<str>),
}

/// An argument: one input or output by name, or several of them (TensorFlow `OpDef.ArgDef`).
#[derive(Debug, Clone)]
pub struct ArgDef {
    /// Name, unique among inputs, or outputs.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: ArgType,
    /// The `int` attribute that holds the number of tensors; `None` if there is one tensor, or one
    /// per element of the type list.
    pub number_attr: Option<Arc<str>>,
    /// Whether it is a reference.
    pub is_ref: bool,
}

/// Type of one input or output slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypedSlot {
    /// Element type.
    pub dtype: DType,
    /// Whether it is a reference.
    pub is_ref: bool,
}

impl TypedSlot {
    /// Returns whether a tensor of this type may be used here: a reference may be read as a value,
    /// but a value is not a reference.
    pub fn accepts(&self, dtype: DType, is_ref: bool) -> bool {
        self.dtype == dtype && (is_ref || !self.is_ref)
    }
}

/// What is wrong with an attribute of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttrFault {
    /// The node does not have it, and the op has no default.
    Missing,
    /// The op has none of this name.
    Unknown,
    /// The attribute has another kind, or its value is not allowed: text that continues "attribute
    /// `x`".
    Invalid(String),
}

impl ArgDef {
    /// Parses an argument such as `"value: T"`, `"inputs: N * T"`, `"components: Tin"`,
    /// `"ref: Ref(T)"` or `"size: int32"`. `attrs` decides whether a bare name is a `type` or a
    /// `list(type)` attribute.
    fn parse(text: &str, attrs: &[AttrDef]) -> Result<Self, String> {
        let (name, rest) = text
            .split_once(':')
            .ok_or("expected `name: type`".to_owned())?;
        let rest = rest.trim();
        let inner = rest.strip_prefix("Ref(").and_then(|r| r.strip_suffix(')'));
        let is_ref = inner.is_some();
        let (number_attr, type_name) = match inner.unwrap_or(rest).split_once('*') {
            Some((number, type_name)) => (Some(number.trim().into()), type_name.trim()),
            None => (None, inner.unwrap_or(rest).trim()),
        };
        let dtype = match (
            DType::from_name(type_name),
            attrs.iter().find(|attr| *attr.name == *type_name),
        ) {
            (Some(dtype), _) => ArgType::Fixed(dtype),
            (None, Some(attr)) if attr.is_list => ArgType::ListAttr(type_name.into()),
            (None, Some(_)) => ArgType::Attr(type_name.into()),
            (None, None) => {
                return Err(format!("`{type_name}` is neither a type nor an attribute"));
            }
        };
        Ok(Self {
            name: name.trim().into(),
            dtype,
            number_attr,
            is_ref,
        })
    }

    /// Returns the number of slots that the argument covers on a node with these attributes.
    fn n_slots(&self, attrs: &AttrSet) -> Result<usize, SignatureError> {
        if let Some(attr) = &self.number_attr {
            let number = attrs.int(attr).and_then(|n| usize::try_from(n).ok());
            return number.ok_or_else(|| self.error("number", attr));
        }
        match &self.dtype {
            ArgType::ListAttr(attr) => attrs
                .list(attr)
                .map(<[AttrValue]>::len)
                .ok_or_else(|| self.error("types", attr)),
            ArgType::Fixed(_) | ArgType::Attr(_) => Ok(1),
        }
    }

    fn push_slots(
        &self,
        attrs: &AttrSet,
        slots: &mut Vec<TypedSlot>,
    ) -> Result<(), SignatureError> {
        let is_ref = self.is_ref;
        let dtype = match &self.dtype {
            ArgType::ListAttr(attr) => {
                let dtypes = attrs
                    .dtypes(attr)
                    .ok_or_else(|| self.error("types", attr))?;
                slots.extend(dtypes.into_iter().map(|dtype| TypedSlot { dtype, is_ref }));
                return Ok(());
            }
            ArgType::Attr(attr) => attrs.dtype(attr).ok_or_else(|| self.error("type", attr))?,
            ArgType::Fixed(dtype) => *dtype,
        };
        let n_slots = self.n_slots(attrs)?;
        slots.extend(std::iter::repeat_n(TypedSlot { dtype, is_ref }, n_slots));
        Ok(())
    }

    fn error(&self, what: &'static str, attr: &str) -> SignatureError {
        SignatureError {
            arg: self.name.to_string(),
            what,
            attr: attr.to_owned(),
        }
    }
}

/// An op: signature, shape rule and work (TensorFlow `OpDef` and shape function).
///
/// ```
/// use placewright::graph::Work;
/// use placewright::ops::{OpDef, OpRegistry};
///
/// let blur = OpDef::new("Blur", &["image: T"], &["blurred: T"], &["T: {float, half}", "radius: int >= 1 = 3"])?
///     .with_shape(|context| Ok(vec![context.shape(0).clone()]))
///     .with_work(|context, _| Work { flops: 9.0 * context.input_elements(0), ..context.traffic_only(&[]) });
/// let mut ops = OpRegistry::default();
/// ops.register(blur)?;
/// # Ok::<(), placewright::ops::OpDefError>(())
/// ```
#[derive(Clone)]
pub struct OpDef {
    name: Arc<str>,
    inputs: Vec<ArgDef>,
    outputs: Vec<ArgDef>,
    attrs: Vec<AttrDef>,
    stateful: bool,
    shape: Option<ShapeFn>,
    fold: Option<FoldFn>,
    work: Option<WorkFn>,
}

impl OpDef {
    /// Parses an op from a signature in TensorFlow's notation (see [`AttrDef::parse`] for
    /// attributes; arguments are `"value: T"`, `"inputs: N * T"`, `"components: Tin"` or
    /// `"ref: Ref(T)"`). Without further functions, shapes are unknown, and the work is the bytes
    /// of inputs and outputs.
    ///
    /// # Errors
    /// [`OpDefError::Syntax`] with the offending line.
    pub fn new(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        attrs: &[&str],
    ) -> Result<Self, OpDefError> {
        let syntax = |text: &str, problem: String| OpDefError::Syntax {
            op: name.to_owned(),
            text: text.to_owned(),
            problem,
        };
        let attrs: Vec<AttrDef> = attrs
            .iter()
            .map(|text| AttrDef::parse(text).map_err(|problem| syntax(text, problem)))
            .collect::<Result<_, _>>()?;
        let args = |specs: &[&str]| -> Result<Vec<ArgDef>, OpDefError> {
            specs
                .iter()
                .map(|text| ArgDef::parse(text, &attrs).map_err(|problem| syntax(text, problem)))
                .collect()
        };
        let (inputs, outputs) = (args(inputs)?, args(outputs)?);
        Ok(Self::from_parts(name.into(), inputs, outputs, attrs))
    }

    /// Returns an op with parsed arguments and attributes, such as those of a library function.
    pub fn from_parts(
        name: Arc<str>,
        inputs: Vec<ArgDef>,
        outputs: Vec<ArgDef>,
        attrs: Vec<AttrDef>,
    ) -> Self {
        Self {
            name,
            inputs,
            outputs,
            attrs,
            stateful: false,
            shape: None,
            fold: None,
            work: None,
        }
    }

    /// Marks the op as stateful: running it twice differs from running it once.
    #[must_use]
    pub fn stateful(mut self) -> Self {
        self.stateful = true;
        self
    }

    /// Sets the shape function, which returns one shape per output.
    #[must_use]
    pub fn with_shape(
        mut self,
        shape: impl Fn(&InferenceContext<'_>) -> Result<Vec<PartialShape>, ShapeError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.shape = Some(Arc::new(shape));
        self
    }

    /// Sets the function that returns known output values: one entry per output, or none at all.
    #[must_use]
    pub fn with_fold(
        mut self,
        fold: impl Fn(&InferenceContext<'_>, &[Output]) -> Vec<Known> + Send + Sync + 'static,
    ) -> Self {
        self.fold = Some(Arc::new(fold));
        self
    }

    /// Sets the work function.
    #[must_use]
    pub fn with_work(
        mut self,
        work: impl Fn(&InferenceContext<'_>, &[Output]) -> Work + Send + Sync + 'static,
    ) -> Self {
        self.work = Some(Arc::new(work));
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the input arguments, in order.
    pub fn inputs(&self) -> &[ArgDef] {
        &self.inputs
    }

    /// Returns the output arguments, in order.
    pub fn outputs(&self) -> &[ArgDef] {
        &self.outputs
    }

    /// Returns the attributes, in the order of the signature.
    pub fn attrs(&self) -> &[AttrDef] {
        &self.attrs
    }

    /// Returns the attribute of this name.
    pub fn attr(&self, name: &str) -> Option<&AttrDef> {
        self.attrs.iter().find(|attr| *attr.name == *name)
    }

    /// Checks the attributes of a node and adds the op's defaults. Attributes that start with `_`
    /// are kept unchecked; they are for code that reads them.
    ///
    /// # Errors
    /// The first attribute that is wrong or missing.
    pub(crate) fn complete_attrs(
        &self,
        mut attrs: Vec<(Arc<str>, AttrValue)>,
    ) -> Result<AttrSet, (Arc<str>, AttrFault)> {
        for (name, value) in &attrs {
            match self.attr(name) {
                Some(attr) => attr
                    .check(value)
                    .map_err(|problem| (Arc::clone(name), AttrFault::Invalid(problem)))?,
                None if name.starts_with('_') => {}
                None => return Err((Arc::clone(name), AttrFault::Unknown)),
            }
        }
        for attr in &self.attrs {
            if attrs.iter().any(|(name, _)| *name == attr.name) {
                continue;
            }
            let Some(default) = &attr.default else {
                return Err((Arc::clone(&attr.name), AttrFault::Missing));
            };
            attrs.push((Arc::clone(&attr.name), default.clone()));
        }
        Ok(AttrSet::new(attrs))
    }

    /// Returns whether running the op twice differs from running it once.
    pub fn is_stateful(&self) -> bool {
        self.stateful
    }

    /// Returns the input slots that argument `arg` covers on a node with these attributes; `None`
    /// if there is no such argument, or the attributes do not determine it. Kernels use it to name
    /// arguments in host memory.
    pub fn input_range(&self, arg: &str, attrs: &AttrSet) -> Option<Range<usize>> {
        range(&self.inputs, arg, attrs)
    }

    /// Returns the output slots that argument `arg` covers, like [`Self::input_range`].
    pub fn output_range(&self, arg: &str, attrs: &AttrSet) -> Option<Range<usize>> {
        range(&self.outputs, arg, attrs)
    }

    /// Returns the number of outputs of a node with these attributes, without laying them out.
    ///
    /// # Errors
    /// [`SignatureError`] if an attribute that determines it is missing.
    pub fn n_outputs(&self, attrs: &AttrSet) -> Result<usize, SignatureError> {
        self.outputs.iter().try_fold(0usize, |sum, arg| {
            Ok(sum.saturating_add(arg.n_slots(attrs)?))
        })
    }

    /// Returns the number of data inputs of a node with these attributes.
    ///
    /// # Errors
    /// [`SignatureError`] if an attribute that determines it is missing.
    pub fn n_inputs(&self, attrs: &AttrSet) -> Result<usize, SignatureError> {
        self.inputs.iter().try_fold(0usize, |sum, arg| {
            Ok(sum.saturating_add(arg.n_slots(attrs)?))
        })
    }

    /// Returns the types of the data inputs of a node with these attributes, in slot order.
    ///
    /// # Errors
    /// [`SignatureError`] if an attribute that determines them is missing.
    pub fn input_slots(&self, attrs: &AttrSet) -> Result<Vec<TypedSlot>, SignatureError> {
        slots(&self.inputs, attrs)
    }

    /// Returns the types of the outputs of a node with these attributes, in slot order.
    ///
    /// # Errors
    /// [`SignatureError`] if an attribute that determines them is missing.
    pub fn output_slots(&self, attrs: &AttrSet) -> Result<Vec<TypedSlot>, SignatureError> {
        slots(&self.outputs, attrs)
    }

    /// Infers the shapes of `n_outputs` outputs.
    ///
    /// # Errors
    /// [`ShapeError`] if the inputs or attributes contradict the op's rule.
    pub fn infer_shapes(
        &self,
        context: &InferenceContext<'_>,
        n_outputs: usize,
    ) -> Result<Vec<PartialShape>, ShapeError> {
        let Some(shape) = &self.shape else {
            return Ok(vec![PartialShape::unknown(); n_outputs]);
        };
        let shapes = shape(context)?;
        if shapes.len() != n_outputs {
            return Err(ShapeError::new(format!(
                "the shape function returned {} shapes for {n_outputs} outputs",
                shapes.len()
            )));
        }
        // Ops that add dimensions to their inputs could otherwise double them node by node.
        if let Some(rank) = shapes
            .iter()
            .filter_map(PartialShape::rank)
            .find(|&r| r > RANK_MAX)
        {
            return Err(ShapeError::new(format!(
                "an output has {rank} dimensions; at most {RANK_MAX} are supported"
            )));
        }
        Ok(shapes)
    }

    /// Returns what is known of the output values; empty means nothing.
    pub fn fold(&self, context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
        self.fold
            .as_ref()
            .map_or_else(Vec::new, |fold| fold(context, outputs))
    }

    /// Returns the cost of one execution.
    pub fn work(&self, context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
        match &self.work {
            Some(work) => work(context, outputs),
            None => context.traffic_only(outputs),
        }
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpDef")
            .field("name", &self.name)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .field("attrs", &self.attrs)
            .finish_non_exhaustive()
    }
}

fn range(args: &[ArgDef], name: &str, attrs: &AttrSet) -> Option<Range<usize>> {
    let mut start = 0;
    for arg in args {
        let end = start + arg.n_slots(attrs).ok()?;
        if *arg.name == *name {
            return Some(start..end);
        }
        start = end;
    }
    None
}

fn slots(args: &[ArgDef], attrs: &AttrSet) -> Result<Vec<TypedSlot>, SignatureError> {
    let mut slots = Vec::with_capacity(args.len());
    for arg in args {
        arg.push_slots(attrs, &mut slots)?;
    }
    Ok(slots)
}

/// Parses a definition of the tables in this folder: arguments separated by commas, attributes by
/// semicolons.
///
/// # Panics
/// If the definition is malformed; a test parses every shipped definition.
pub(super) fn op(name: &str, inputs: &str, outputs: &str, attrs: &str) -> OpDef {
    fn split(text: &str, separator: char) -> Vec<&str> {
        let parts = text.split(separator).map(str::trim);
        parts.filter(|part| !part.is_empty()).collect()
    }
    OpDef::new(
        name,
        &split(inputs, ','),
        &split(outputs, ','),
        &split(attrs, ';'),
    )
    .expect("shipped definitions are well formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs(pairs: &[(&str, AttrValue)]) -> AttrSet {
        AttrSet::new(
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), value.clone())),
        )
    }

    #[test]
    fn argument_names_cover_the_slots_that_the_attributes_say() {
        let concat = op(
            "ConcatV2",
            "values: N * T, axis: Tidx",
            "output: T",
            "N: int >= 2; T: type; Tidx: {int32, int64} = DT_INT32",
        );
        let attrs = attrs(&[
            ("N", AttrValue::Int(3)),
            ("T", DType::F32.into()),
            ("Tidx", DType::I32.into()),
        ]);
        assert_eq!(concat.input_range("values", &attrs), Some(0..3));
        assert_eq!(concat.input_range("axis", &attrs), Some(3..4));
        assert_eq!(concat.output_range("output", &attrs), Some(0..1));
        assert_eq!(concat.input_range("nonsense", &attrs), None);
        let dtypes: Vec<_> = concat.input_slots(&attrs).unwrap();
        assert_eq!(dtypes.len(), 4);
        assert_eq!(dtypes[3].dtype, DType::I32);
    }

    #[test]
    fn type_lists_and_references_are_laid_out() {
        let op = op(
            "X",
            "args: Tin, var: Ref(float)",
            "out: Ref(float)",
            "Tin: list(type)",
        );
        let types = AttrValue::List([DType::F32.into(), DType::I64.into()].into());
        let attrs = attrs(&[("Tin", types)]);
        let slots = op.input_slots(&attrs).unwrap();
        let found: Vec<_> = slots.iter().map(|slot| (slot.dtype, slot.is_ref)).collect();
        assert_eq!(
            found,
            [(DType::F32, false), (DType::I64, false), (DType::F32, true)]
        );
        assert_eq!(op.input_range("var", &attrs), Some(2..3));
    }

    #[test]
    fn malformed_definitions_name_the_line() {
        let error = OpDef::new("X", &["a: T"], &[], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "op `X`: `a: T`: `T` is neither a type nor an attribute"
        );
        assert!(OpDef::new("X", &["a"], &[], &[]).is_err());
        assert!(OpDef::new("X", &[], &[], &["T: nonsense"]).is_err());
    }
}
