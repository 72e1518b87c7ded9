//! Random numbers. Stateful kernels draw from their own generator; stateless ones from a generator
//! that their inputs describe.

use std::sync::Mutex;
use std::sync::PoisonError;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::shape_of;
use crate::backend::types::INDICES;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::philox::BLOCKS_PER_ELEMENT;
use crate::kernels::philox::Distribution;
use crate::kernels::philox::FullInt;
use crate::kernels::philox::Normal;
use crate::kernels::philox::Philox;
use crate::kernels::philox::Singles;
use crate::kernels::philox::TruncatedNormal;
use crate::kernels::philox::Uniform;
use crate::kernels::philox::UniformInt;
use crate::kernels::philox::fill;
use crate::kernels::philox::shuffle;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// TensorFlow's numbers of generator algorithms.
const PHILOX: i64 = 1;
const AUTO_SELECT: i64 = 3;

/// The types of [`FullInt`].
const FULL_INTEGERS: [DType; 4] = [DType::I32, DType::I64, DType::U32, DType::U64];

pub(super) fn register(registry: &mut KernelRegistry) {
    stateful(registry);
    stateless(registry);
    for (op, seed) in [
        ("StatelessRandomUniformFullInt", Inputs::Seed),
        ("StatelessRandomUniformFullIntV2", Inputs::Key),
    ] {
        registry.register(
            def(op)
                .with_types("dtype", &FULL_INTEGERS)
                .with_factory(move |node| full_int(node, Source::Stateless(seed))),
        );
    }
    for (op, seed) in [
        ("StatelessRandomUniformInt", Inputs::Seed),
        ("StatelessRandomUniformIntV2", Inputs::Key),
    ] {
        registry.register(
            def(op)
                .with_types("dtype", &INDICES)
                .with_factory(move |node| uniform_int(node, "dtype", Source::Stateless(seed))),
        );
    }
    registry.register(
        def("StatelessShuffle")
            .with_types("T", &MOVED)
            .with_factory(|node| shuffled(node, Source::Stateless(Inputs::Key))),
    );
    registry.register(def("StatelessRandomGetKeyCounter").with_factory(|_| kernel(key_counter)));
    registry.register(def("StatelessRandomGetKeyCounterAlg").with_factory(|_| {
        kernel(|context| {
            key_counter(context)?;
            algorithm(context, 2)
        })
    }));
    registry.register(
        def("StatelessRandomGetAlg").with_factory(|_| kernel(|context| algorithm(context, 0))),
    );
    registry.register(
        def("NonDeterministicInts")
            .with_types("dtype", &FULL_INTEGERS)
            .with_factory(|node| full_int(node, Source::Entropy)),
    );
}

fn stateful(registry: &mut KernelRegistry) {
    type Factory = fn(&KernelConstruction<'_>, Source) -> Made;
    let ops: [(&str, Factory); 3] = [
        ("RandomUniform", uniform),
        ("RandomStandardNormal", normal),
        ("TruncatedNormal", truncated_normal),
    ];
    for (op, factory) in ops {
        registry.register(
            def(op)
                .with_types("dtype", &REALS)
                .with_types("T", &INDICES)
                .with_factory(move |node| factory(node, Source::own(node)?)),
        );
    }
    registry.register(
        def("RandomUniformInt")
            .with_types("Tout", &INDICES)
            .with_types("T", &INDICES)
            .with_factory(|node| uniform_int(node, "Tout", Source::own(node)?)),
    );
    registry.register(
        def("RandomShuffle")
            .with_types("T", &MOVED)
            .with_factory(|node| shuffled(node, Source::own(node)?)),
    );
}

fn stateless(registry: &mut KernelRegistry) {
    type Factory = fn(&KernelConstruction<'_>, Source) -> Made;
    let ops: [(&str, &str, Factory); 3] = [
        (
            "StatelessRandomUniform",
            "StatelessRandomUniformV2",
            uniform,
        ),
        ("StatelessRandomNormal", "StatelessRandomNormalV2", normal),
        (
            "StatelessTruncatedNormal",
            "StatelessTruncatedNormalV2",
            truncated_normal,
        ),
    ];
    for (first, second, factory) in ops {
        for (op, inputs) in [(first, Inputs::Seed), (second, Inputs::Key)] {
            registry.register(
                def(op)
                    .with_types("dtype", &REALS)
                    .with_factory(move |node| factory(node, Source::Stateless(inputs))),
            );
        }
    }
}

/// Which inputs describe the generator of a stateless op.
#[derive(Debug, Clone, Copy)]
pub(super) enum Inputs {
    /// Input 1 is a seed of two integers.
    Seed,
    /// Inputs 1 to 3 are key, counter and algorithm.
    Key,
}

/// Where the generator of an execution comes from.
pub(super) enum Source {
    /// The kernel's own generator, which goes on from run to run (TensorFlow
    /// `GuardedPhiloxRandom`).
    Own(Mutex<Philox>),
    /// Its inputs.
    Stateless(Inputs),
    /// The system's random numbers, in each execution.
    Entropy,
}

/// Returns the generator of a node's seeds, or of random ones if both are 0.
pub(super) fn seeded_generator(node: &KernelConstruction<'_>) -> Result<Philox, KernelError> {
    let seed = int_attr(node, "seed", Some(0))?.cast_unsigned();
    let seed2 = int_attr(node, "seed2", Some(0))?.cast_unsigned();
    match (seed, seed2) {
        (0, 0) => entropy(),
        _ => Ok(Philox::from_seeds(seed, seed2)),
    }
}

impl Source {
    /// Returns the generator of a stateful op: of its seeds, or of random ones if both are 0.
    pub(super) fn own(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        Ok(Self::Own(Mutex::new(seeded_generator(node)?)))
    }

    /// Returns the generator of this execution, which makes `n` elements.
    pub(super) fn generator(
        &self,
        context: &KernelContext<'_>,
        n: usize,
    ) -> Result<Philox, KernelError> {
        match self {
            Self::Own(generator) => {
                // A panic leaves either the old position or the new one.
                let mut generator = generator.lock().unwrap_or_else(PoisonError::into_inner);
                let reserved = *generator;
                generator.skip((n as u64).wrapping_mul(BLOCKS_PER_ELEMENT));
                Ok(reserved)
            }
            Self::Stateless(Inputs::Seed) => seeded(context.input(1)?),
            Self::Stateless(Inputs::Key) => keyed(context),
            Self::Entropy => entropy(),
        }
    }

    /// Returns the generator of an execution that uses this many blocks.
    pub(super) fn generator_of_blocks(
        &self,
        context: &KernelContext<'_>,
        n_blocks: u64,
    ) -> Result<Philox, KernelError> {
        let reserved = self.generator(context, 0)?;
        if let Self::Own(generator) = self {
            let mut generator = generator.lock().unwrap_or_else(PoisonError::into_inner);
            generator.skip(n_blocks);
        }
        Ok(reserved)
    }
}

/// Returns a generator that nobody can predict.
fn entropy() -> Result<Philox, KernelError> {
    let number = || {
        getrandom::u64().map_err(|error| {
            KernelError::invalid(format!("the system has no random numbers: {error}"))
        })
    };
    Ok(Philox::from_seeds(number()?, number()?))
}

/// Returns the generator of a stateless op's seed.
pub(super) fn seeded(seed: &Tensor) -> Result<Philox, KernelError> {
    if seed.shape().dims() != [2] {
        return Err(KernelError::invalid(format!(
            "seed must have shape [2], not {}",
            seed.shape()
        )));
    }
    let seeds: [u64; 2] = match seed.dtype() {
        DType::I32 => pair(seed, |x: i32| i64::from(x).cast_unsigned())?,
        DType::I64 => pair(seed, i64::cast_unsigned)?,
        other => return Err(KernelError::invalid(format!("Invalid seed type: {other}"))),
    };
    Ok(Philox::from_stateless_seeds(seeds))
}

fn pair<T: Element>(tensor: &Tensor, widen: impl Fn(T) -> u64) -> Result<[u64; 2], KernelError> {
    match *tensor.as_slice::<T>()? {
        [first, second, ..] => Ok([widen(first), widen(second)]),
        _ => Err(KernelError::invalid("two numbers are expected")),
    }
}

/// Returns the generator of inputs 1 to 3: key, counter and algorithm.
fn keyed(context: &KernelContext<'_>) -> Result<Philox, KernelError> {
    let (key, counter) = (context.input(1)?, context.input(2)?);
    let algorithm = scalar::<i32>(context, 3)?;
    if !matches!(i64::from(algorithm), PHILOX | AUTO_SELECT) {
        return Err(unsupported_algorithm(algorithm.into()));
    }
    if key.shape().dims() != [1] {
        return Err(KernelError::invalid(format!(
            "key must have shape [1], not {}. (Note that batched keys are not supported yet.)",
            key.shape()
        )));
    }
    if !matches!(counter.shape().dims(), &[n] if n >= 2) {
        return Err(KernelError::invalid(format!(
            "counter must be a vector with length at least 2; got shape: {} (Note that batched \
             counters are not supported yet.)",
            counter.shape()
        )));
    }
    let key = key.as_slice::<u64>()?.first().copied().unwrap_or_default();
    Ok(Philox::from_state(key, pair(counter, |x: u64| x)?))
}

/// Returns the error for a generator algorithm other than Philox.
pub(super) fn unsupported_algorithm(algorithm: i64) -> KernelError {
    KernelError::invalid(format!("Unsupported algorithm id: {algorithm}"))
}

/// Returns the element of a scalar input.
pub(super) fn scalar<T: Element>(
    context: &KernelContext<'_>,
    index: usize,
) -> Result<T, KernelError> {
    let input = context.input(index)?;
    match (input.shape().rank(), input.as_slice::<T>()?) {
        (0, &[value]) => Ok(value),
        _ => Err(KernelError::invalid(format!(
            "input {index} (0-based) must have shape [], not {}",
            input.shape()
        ))),
    }
}

/// Returns the shape in an input.
pub(super) fn sizes(context: &KernelContext<'_>, index: usize) -> Result<Shape, KernelError> {
    let sizes = context.input(index)?;
    if sizes.shape().rank() != 1 {
        return Err(KernelError::invalid(format!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            sizes.shape()
        )));
    }
    shape_of(sizes, "shape")
}

/// Sets output 0 to elements of a distribution.
fn fill_output<D>(
    context: &KernelContext<'_>,
    source: &Source,
    distribution: &D,
) -> Result<(), KernelError>
where
    D: Distribution<Element: Element>,
{
    let shape = sizes(context, 0)?;
    fill_shape(context, &shape, distribution, || {
        source.generator(context, shape.n_elements())
    })
}

/// Sets output 0, of this shape, to elements of a distribution.
pub(super) fn fill_shape<D>(
    context: &KernelContext<'_>,
    shape: &Shape,
    distribution: &D,
    generator: impl FnOnce() -> Result<Philox, KernelError>,
) -> Result<(), KernelError>
where
    D: Distribution<Element: Element>,
{
    context.fill_output(0, shape, |out: &mut [D::Element]| {
        let generator = generator()?;
        fill(distribution, generator, out, Threads::of(context));
        Ok(())
    })
}

fn uniform(node: &KernelConstruction<'_>, source: Source) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(move |context| {
        fill_output(context, &source, &Uniform::<T>::default())
    }))
}

fn normal(node: &KernelConstruction<'_>, source: Source) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(move |context| {
        fill_output(context, &source, &Normal::<T>::default())
    }))
}

fn truncated_normal(node: &KernelConstruction<'_>, source: Source) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(move |context| {
        fill_output(context, &source, &TruncatedNormal::<T>::default())
    }))
}

fn full_int(node: &KernelConstruction<'_>, source: Source) -> Made {
    let dtype = type_attr(node, "dtype")?;
    dispatch!(dtype, [I32: i32, I64: i64, U32: u32, U64: u64], T => kernel(move |context| {
        fill_output(context, &source, &FullInt::<T>::default())
    }))
}

/// TensorFlow `RandomUniformInt` and the stateless ops of that name.
fn uniform_int(node: &KernelConstruction<'_>, dtype: &str, source: Source) -> Made {
    let first = match &source {
        Source::Own(_) | Source::Entropy => 1,
        Source::Stateless(Inputs::Seed) => 2,
        Source::Stateless(Inputs::Key) => 4,
    };
    dispatch!(type_attr(node, dtype)?, [I32: i32, I64: i64], T => kernel(move |context| {
        let shape = sizes(context, 0)?;
        if shape.n_elements() == 0 {
            // Also of an empty range.
            return context.fill_output(0, &shape, |_: &mut [T]| Ok(()));
        }
        let range = int_range::<T>(context, first)?;
        fill_shape(context, &shape, &range, || source.generator(context, shape.n_elements()))
    }))
}

/// Returns the range of integers in inputs `first` and `first + 1`.
pub(super) fn int_range<T: Element + PartialOrd + std::fmt::Display>(
    context: &KernelContext<'_>,
    first: usize,
) -> Result<UniformInt<T>, KernelError> {
    let bound = |index: usize, what: &str| {
        let bound = context.input(index)?;
        match (bound.shape().rank(), bound.as_slice::<T>()?) {
            (0, &[value]) => Ok(value),
            _ => Err(KernelError::invalid(format!(
                "{what} must be 0-D, got shape {}",
                bound.shape()
            ))),
        }
    };
    let (lower, upper) = (bound(first, "minval")?, bound(first + 1, "maxval")?);
    UniformInt::new(lower, upper).map_err(KernelError::InvalidArgument)
}

/// TensorFlow `RandomShuffle` and `StatelessShuffle`: the rows in another order.
fn shuffled(node: &KernelConstruction<'_>, source: Source) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?;
        let shape = input.shape();
        let n_rows = shape.dims().first().copied().unwrap_or(1);
        if shape.n_elements() <= 1 || n_rows <= 1 {
            return context.forward_input(0, 0, shape);
        }
        let generator = source.generator_of_blocks(context, (n_rows as u64 - 1).div_ceil(4))?;
        let mut singles = Singles::new(generator);
        let mut order = Threads::of(context).scratch::<u64>(n_rows)?;
        for (row, slot) in order.iter_mut().enumerate() {
            *slot = row as u64;
        }
        shuffle(n_rows, || singles.number(), |a, b| order.swap(a, b));
        let row_len = shape.n_elements() / n_rows;
        let rows = W::read(input)?;
        W::write(context, 0, input.dtype(), shape.clone(), |out| {
            for (out, &row) in out.chunks_exact_mut(row_len).zip(order.iter()) {
                let start = usize::try_from(row).unwrap_or(0) * row_len;
                out.copy_from_slice(&rows[start..start + row_len]);
            }
            Ok(())
        })
    }))
}

/// TensorFlow `StatelessRandomGetKeyCounter`.
fn key_counter(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (key, counter) = seeded(context.input(0)?)?.state();
    context.fill_output(0, &Shape::from([1]), |out: &mut [u64]| {
        out[0] = key;
        Ok(())
    })?;
    context.fill_output(1, &Shape::from([2]), |out: &mut [u64]| {
        out.copy_from_slice(&counter);
        Ok(())
    })
}

/// Sets an output to the number of the algorithm: Philox.
fn algorithm(context: &KernelContext<'_>, index: usize) -> Result<(), KernelError> {
    context.fill_output(index, &Shape::scalar(), |out: &mut [i32]| {
        out[0] = 1;
        Ok(())
    })
}
