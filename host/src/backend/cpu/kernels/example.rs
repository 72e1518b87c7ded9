//! Examples: messages with named features, of which each becomes a tensor.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bad_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Threads;
use crate::kernels::example;
use crate::kernels::example::Feature;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["ParseExample", "ParseExampleV2", "ParseSingleExample"] {
        registry.register(def(op).with_factory(parse));
    }
}

/// The versions of the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// `ParseExample`: each name is an input.
    One,
    /// `ParseExampleV2`: names are vectors.
    Two,
    /// `ParseSingleExample`: names are attributes.
    Single,
}

/// A feature that becomes a dense tensor.
#[derive(Debug)]
struct Dense {
    dtype: DType,
    /// Its shape, without the first dimension if that varies.
    dims: SmallVec<[usize; 4]>,
    /// Whether examples may have any number of rows. They are padded to the largest number.
    varies: bool,
}

impl Dense {
    fn n_elements(&self) -> usize {
        self.dims.iter().copied().fold(1, usize::saturating_mul)
    }

    fn shape(&self, batch: &[usize], n_rows: usize) -> Shape {
        let rows = self.varies.then_some(n_rows);
        let dims = batch.iter().copied().chain(rows);
        dims.chain(self.dims.iter().copied()).collect()
    }
}

#[derive(Debug)]
struct Plan {
    version: Version,
    sparse: Vec<DType>,
    dense: Vec<Dense>,
    /// Types of values, and whether the ends of rows are `int64`.
    ragged: Vec<(DType, bool)>,
    /// The names of sparse and dense features, if they are attributes.
    names: Vec<ByteString>,
}

impl Plan {
    fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let version = match node.op {
            "ParseExample" => Version::One,
            "ParseExampleV2" => Version::Two,
            _ => Version::Single,
        };
        let types = |name: &str| node.attrs.dtypes(name).unwrap_or_default();
        let list = |name: &str| node.attrs.list(name).unwrap_or_default();
        let shapes = list("dense_shapes");
        let dense_types = types("Tdense");
        if shapes.len() != dense_types.len() {
            return Err(bad_attr(node, "dense_shapes", "shape per dense feature"));
        }
        let mut dense = Vec::new();
        for (&dtype, shape) in dense_types.iter().zip(shapes) {
            let dims = match shape {
                AttrValue::Shape(shape) => shape.dims(),
                _ => None,
            };
            let dims = dims.ok_or_else(|| bad_attr(node, "dense_shapes", "list of known ranks"))?;
            let varies = dims.first().is_some_and(Option::is_none);
            let rest: Option<_> = dims[usize::from(varies)..].iter().copied().collect();
            let dims = rest.ok_or_else(|| {
                KernelError::invalid(format!(
                    "dense_shapes has {shape:?}, of which only the first dimension may be unknown"
                ))
            })?;
            dense.push(Dense {
                dtype,
                dims,
                varies,
            });
        }
        let is_wide = types("ragged_split_types")
            .into_iter()
            .map(|dtype| dtype == DType::I64);
        let mut names = Vec::new();
        if version == Version::Single {
            for name in list("sparse_keys").iter().chain(list("dense_keys")) {
                match name {
                    AttrValue::Bytes(name) => names.push(name.clone().into()),
                    _ => return Err(bad_attr(node, "dense_keys", "list(string)")),
                }
            }
        }
        Ok(Self {
            version,
            sparse: types("sparse_types"),
            dense,
            ragged: types("ragged_value_types")
                .into_iter()
                .zip(is_wide)
                .collect(),
            names,
        })
    }

    fn n_features(&self) -> usize {
        self.sparse.len() + self.dense.len() + self.ragged.len()
    }

    /// Types of sparse, dense and ragged features, in this order.
    fn dtypes(&self) -> impl Iterator<Item = DType> {
        let dense = self.dense.iter().map(|dense| dense.dtype);
        let ragged = self.ragged.iter().map(|&(dtype, _)| dtype);
        self.sparse.iter().copied().chain(dense).chain(ragged)
    }

    /// The names of sparse, dense and ragged features, in this order.
    fn names<'a>(&'a self, context: &'a KernelContext<'_>) -> Result<Vec<&'a [u8]>, KernelError> {
        let inputs = match self.version {
            Version::Single => 0..0,
            Version::One => 2..2 + self.sparse.len() + self.dense.len(),
            Version::Two => 2..5,
        };
        let mut names: Vec<&[u8]> = scratch::list(self.n_features())?;
        names.extend(self.names.iter().map(|name| &**name));
        for input in inputs {
            names.extend(
                context
                    .input(input)?
                    .as_strings()?
                    .iter()
                    .map(|name| &**name),
            );
            let n_expected = match (self.version, input) {
                (Version::Two, 2) => self.sparse.len(),
                (Version::Two, 3) => self.sparse.len() + self.dense.len(),
                (Version::Two, _) => self.n_features(),
                _ => input - 1,
            };
            if names.len() != n_expected {
                return Err(KernelError::invalid(format!(
                    "input {input} has {} keys of features, which the attributes do not have",
                    context.input(input)?.shape().n_elements()
                )));
            }
        }
        Ok(names)
    }

    fn first_default(&self) -> usize {
        match self.version {
            Version::One => 2 + self.sparse.len() + self.dense.len(),
            Version::Two => 5,
            Version::Single => 1,
        }
    }
}

/// TensorFlow `ParseExample`, `ParseExampleV2` and `ParseSingleExample`.
fn parse(node: &KernelConstruction<'_>) -> Made {
    let plan = Plan::new(node)?;
    kernel(move |context| parsed(context, &plan))
}

fn parsed(context: &KernelContext<'_>, plan: &Plan) -> Result<(), KernelError> {
    let serialized = context.input(0)?;
    let batch = serialized.shape().dims();
    let is_valid = match plan.version {
        Version::One => batch.len() == 1,
        Version::Two => batch.len() <= 1,
        Version::Single => batch.is_empty(),
    };
    if !is_valid {
        return Err(KernelError::invalid(format!(
            "Expected serialized to be a {}, got shape: {}",
            match plan.version {
                Version::One => "vector",
                Version::Two => "scalar or vector",
                Version::Single => "scalar",
            },
            serialized.shape()
        )));
    }
    let names = plan.names(context)?;
    let found = Found::read(context, plan, &names)?;
    let n_sparse = plan.sparse.len();
    for (slot, &dtype) in plan.sparse.iter().enumerate() {
        found.set_sparse(context, slot, n_sparse, dtype)?;
    }
    for (index, dense) in plan.dense.iter().enumerate() {
        let default = context.input(plan.first_default() + index)?;
        found.set_dense(
            context,
            n_sparse + index,
            3 * n_sparse + index,
            dense,
            default,
        )?;
    }
    let first = 3 * n_sparse + plan.dense.len();
    for (index, &(dtype, is_wide)) in plan.ragged.iter().enumerate() {
        let outputs = [first + index, first + plan.ragged.len() + index];
        let slot = n_sparse + plan.dense.len() + index;
        found.set_ragged(context, slot, outputs, dtype, is_wide)?;
    }
    Ok(())
}

/// The features of all examples that are asked for.
struct Found<'a> {
    /// A row per example.
    features: Vec<Option<Feature<'a>>>,
    /// Names of features.
    names: &'a [&'a [u8]],
    /// Names of examples, or none.
    examples: &'a [ByteString],
    /// The batch's shape: none, or the number of examples.
    batch: &'a [usize],
}

impl<'a> Found<'a> {
    fn read(
        context: &'a KernelContext<'_>,
        plan: &Plan,
        names: &'a [&'a [u8]],
    ) -> Result<Self, KernelError> {
        let serialized = context.input(0)?;
        let examples = serialized.as_strings()?;
        let example_names = match plan.version {
            Version::Single => &[],
            _ => context.input(1)?.as_strings()?,
        };
        if !example_names.is_empty() && example_names.len() != examples.len() {
            return Err(KernelError::invalid(format!(
                "Expected len(names) == len(serialized), but got: {} vs. {}",
                example_names.len(),
                examples.len()
            )));
        }
        let mut slots = HashMap::new();
        for (slot, name) in names.iter().enumerate() {
            if slots.insert(*name, slot).is_some() {
                return Err(KernelError::invalid(format!(
                    "key {} is given twice",
                    name.escape_ascii()
                )));
            }
        }
        let n = examples.len().saturating_mul(names.len());
        let mut features = scratch::list(n)?;
        features.extend(std::iter::repeat_n(None, n));
        let mut found = Self {
            features,
            names,
            examples: example_names,
            batch: serialized.shape().dims(),
        };
        let threads = Threads::of(context);
        for (index, example) in examples.iter().enumerate() {
            if threads.is_interrupted() {
                break;
            }
            let row = index * names.len();
            // The last of several features of one name counts.
            let read = example::each_feature(example, |name, feature| {
                if let Some(&slot) = slots.get(name) {
                    found.features[row + slot] = Some(feature);
                }
            });
            read.map_err(|_| {
                KernelError::invalid(format!(
                    "Could not parse example input {index} of {} bytes, {}: it is no message of \
                     type tf.train.Example",
                    example.len(),
                    found.label(index)
                ))
            })?;
            for (slot, dtype) in plan.dtypes().enumerate() {
                match found.features[row + slot] {
                    Some(feature) if feature.dtype() != dtype => {
                        return Err(KernelError::invalid(format!(
                            "{}, Key: {}, Index: {index}.  Data types don't match. Expected type: \
                             {dtype}, found: {}",
                            found.label(index),
                            names[slot].escape_ascii(),
                            feature.dtype()
                        )));
                    }
                    _ => {}
                }
            }
        }
        Ok(found)
    }

    /// Names an example in errors.
    fn label(&self, index: usize) -> String {
        match self.examples.get(index) {
            Some(name) => format!("Name: {}", name.escape_ascii()),
            None => "Name: <unknown>".to_owned(),
        }
    }

    /// The features of a slot, one per example.
    fn slot(&self, slot: usize) -> impl ExactSizeIterator<Item = Option<Feature<'a>>> + Clone {
        let n = self.names.len();
        let rows = 0..self.batch.first().copied().unwrap_or(1);
        rows.map(move |row| self.features[row * n + slot])
    }

    /// The numbers of values of a slot, one per example.
    fn counts(&self, slot: usize) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.slot(slot)
            .map(|feature| feature.map_or(0, |feature| feature.n_values()))
    }

    fn set_sparse(
        &self,
        context: &KernelContext<'_>,
        slot: usize,
        n_sparse: usize,
        dtype: DType,
    ) -> Result<(), KernelError> {
        let counts = self.counts(slot);
        let n = counts.clone().fold(0, usize::saturating_add);
        let rank = self.batch.len() + 1;
        context.fill_output(slot, &Shape::new(&[n, rank]), |out: &mut [i64]| {
            let places = counts.clone().enumerate();
            let places = places.flat_map(|(row, n)| (0..n).map(move |at| [row, at]));
            for (out, place) in out.chunks_exact_mut(rank).zip(places) {
                let place = place.map(long);
                out.copy_from_slice(&place[2 - rank..]);
            }
            Ok(())
        })?;
        let parts = self.slot(slot).flatten().map(Part::Feature);
        set_values(context, n_sparse + slot, dtype, &Shape::new(&[n]), parts)?;
        let longest = long(counts.max().unwrap_or(0));
        let sizes = [self.batch.first().copied().map_or(0, long), longest];
        let shape = Shape::new(&[rank]);
        set_indices(
            context,
            2 * n_sparse + slot,
            &shape,
            &sizes[2 - rank..],
            true,
        )
    }

    fn set_dense(
        &self,
        context: &KernelContext<'_>,
        slot: usize,
        output: usize,
        dense: &Dense,
        default: &Tensor,
    ) -> Result<(), KernelError> {
        let key = || self.names[slot].escape_ascii().to_string();
        let n_row = dense.n_elements();
        let n_default = default.shape().n_elements();
        if dense.varies && n_default != 1 {
            return Err(KernelError::invalid(format!(
                "the shape of feature {} varies, therefore its default must contain a single \
                 element (the padding element).  But its shape is: {}",
                key(),
                default.shape()
            )));
        }
        if !dense.varies && n_default != n_row && n_default > 0 {
            return Err(KernelError::invalid(format!(
                "the default of feature {} has shape {}, which is not compatible with its shape {}",
                key(),
                default.shape(),
                dense.shape(&[], 0)
            )));
        }
        let mut n_rows = 0;
        for (index, feature) in self.slot(slot).enumerate() {
            let n = feature.map_or(0, |feature| feature.n_values());
            let fits = match (dense.varies, feature) {
                (true, _) => n == 0 || n.checked_rem(n_row) == Some(0),
                (false, Some(_)) => n == n_row,
                (false, None) if n_default == 0 && n_row > 0 => {
                    return Err(KernelError::invalid(format!(
                        "{}, Feature: {} (data type: {}) is required but could not be found.",
                        self.label(index),
                        key(),
                        dense.dtype
                    )));
                }
                (false, None) => true,
            };
            if !fits {
                return Err(KernelError::invalid(format!(
                    "{}, Key: {}, Index: {index}.  Number of {} values != expected.  Values size: \
                     {n} but output shape: {}",
                    self.label(index),
                    key(),
                    dense.dtype,
                    dense.shape(&[], 0)
                )));
            }
            n_rows = n_rows.max(n.checked_div(n_row).unwrap_or(0));
        }
        let n_padded = n_rows * n_row;
        let parts = self.slot(slot).flat_map(|feature| {
            let n = feature.map_or(0, |feature| feature.n_values());
            let rest = match (dense.varies, feature) {
                (true, _) => Some(Part::Repeated(default, n_padded - n)),
                (false, None) => Some(Part::Tensor(default)),
                (false, Some(_)) => None,
            };
            feature.map(Part::Feature).into_iter().chain(rest)
        });
        set_values(
            context,
            output,
            dense.dtype,
            &dense.shape(self.batch, n_rows),
            parts,
        )
    }

    fn set_ragged(
        &self,
        context: &KernelContext<'_>,
        slot: usize,
        outputs: [usize; 2],
        dtype: DType,
        is_wide: bool,
    ) -> Result<(), KernelError> {
        let counts = self.counts(slot);
        let mut ends = scratch::list(counts.len() + 1)?;
        ends.push(0);
        let mut n = 0usize;
        for count in counts {
            n = n.saturating_add(count);
            ends.push(long(n));
        }
        let parts = self.slot(slot).flatten().map(Part::Feature);
        set_values(context, outputs[0], dtype, &Shape::new(&[n]), parts)?;
        // A single example is no batch of rows.
        let ends = if self.batch.is_empty() { &[] } else { &*ends };
        set_indices(
            context,
            outputs[1],
            &Shape::new(&[ends.len()]),
            ends,
            is_wide,
        )
    }
}

fn long(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Values of an output that follow each other.
enum Part<'a> {
    Feature(Feature<'a>),
    Tensor(&'a Tensor),
    /// The only element of a tensor, so many times.
    Repeated(&'a Tensor, usize),
}

/// A type of values.
trait Value: Clone {
    fn each(feature: Feature<'_>, visit: &mut dyn FnMut(Self));
    fn elements(tensor: &Tensor) -> Result<&[Self], TensorError>;
}

impl Value for f32 {
    fn each(feature: Feature<'_>, visit: &mut dyn FnMut(Self)) {
        feature.floats(visit);
    }
    fn elements(tensor: &Tensor) -> Result<&[Self], TensorError> {
        tensor.as_slice()
    }
}

impl Value for i64 {
    fn each(feature: Feature<'_>, visit: &mut dyn FnMut(Self)) {
        feature.ints(visit);
    }
    fn elements(tensor: &Tensor) -> Result<&[Self], TensorError> {
        tensor.as_slice()
    }
}

impl Value for ByteString {
    fn each(feature: Feature<'_>, visit: &mut dyn FnMut(Self)) {
        feature.strings(|string| visit(string.into()));
    }
    fn elements(tensor: &Tensor) -> Result<&[Self], TensorError> {
        tensor.as_strings()
    }
}

/// Calls `visit` with each value.
fn each_value<'a, T: Value>(
    parts: impl Iterator<Item = Part<'a>>,
    mut visit: impl FnMut(T),
) -> Result<(), KernelError> {
    for part in parts {
        match part {
            Part::Feature(feature) => T::each(feature, &mut visit),
            Part::Tensor(tensor) => T::elements(tensor)?.iter().cloned().for_each(&mut visit),
            Part::Repeated(tensor, n) => {
                if let Some(value) = T::elements(tensor)?.first() {
                    std::iter::repeat_n(value, n).cloned().for_each(&mut visit);
                }
            }
        }
    }
    Ok(())
}

/// Sets an output to values, as many as its shape holds.
fn set_values<'a>(
    context: &KernelContext<'_>,
    index: usize,
    dtype: DType,
    shape: &Shape,
    parts: impl Iterator<Item = Part<'a>>,
) -> Result<(), KernelError> {
    shape.size_bytes(dtype).map_err(TensorError::from)?;
    match dtype {
        DType::F32 => context.fill_output(index, shape, |out: &mut [f32]| {
            let mut slots = out.iter_mut();
            each_value(parts, |value| {
                slots.next().into_iter().for_each(|slot| *slot = value);
            })
        }),
        DType::I64 => context.fill_output(index, shape, |out: &mut [i64]| {
            let mut slots = out.iter_mut();
            each_value(parts, |value| {
                slots.next().into_iter().for_each(|slot| *slot = value);
            })
        }),
        _ => {
            let mut strings = scratch::list(shape.n_elements())?;
            each_value(parts, |value| strings.push(value))?;
            context.set_output(index, Tensor::from_strings(shape.clone(), strings)?)
        }
    }
}
