//! Windows over images: maxima with their positions, dilation, and patches.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::pool::PoolWindows;
use crate::backend::plan::product;
use crate::backend::plan::value::shape_of;
use crate::backend::plan::value::vector;
use crate::backend::plan::window::channels_last;
use crate::backend::plan::window::paddings;
use crate::backend::plan::window::spatial;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::patches::ImageWindows;
use crate::kernels::window::WindowSpec;
use crate::ops::Padding;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("MaxPoolV2")
            .with_types("T", &NUMBERS)
            .with_host_memory("ksize")
            .with_host_memory("strides")
            .with_factory(max_pool),
    );
    registry.register(
        def("MaxPoolWithArgmax")
            .with_types("T", &NUMBERS)
            .with_types("Targmax", &INDICES)
            .with_factory(with_argmax),
    );
    registry.register(
        def("Dilation2D")
            .with_types("T", &NUMBERS)
            .with_factory(dilation),
    );
    registry.register(
        def("ExtractImagePatches")
            .with_types("T", &ARITHMETIC)
            .with_factory(patches),
    );
    registry.register(
        def("MaxPoolGrad")
            .with_types("T", &NUMBERS)
            .with_factory(max_pool_gradient),
    );
    registry.register(
        def("AvgPoolGrad")
            .with_types("T", &REALS)
            .with_host_memory("orig_input_shape")
            .with_factory(avg_pool_gradient),
    );
    registry.register(
        def("ExtractVolumePatches")
            .with_types("T", &NUMBERS)
            .with_factory(volume_patches),
    );
}

/// Windows over images, from attributes.
#[derive(Debug, Clone, Copy)]
struct Attrs {
    strides: [usize; 2],
    rates: [usize; 2],
    padding: [Padding; 2],
}

impl Attrs {
    /// The windows of a pool, and their sizes.
    fn of_pool(node: &KernelConstruction<'_>) -> Result<(Self, [usize; 2]), KernelError> {
        channels_last(node)?;
        let attrs = Self {
            strides: spatial(node, "strides", None)?,
            rates: [1, 1],
            padding: paddings(node)?,
        };
        Ok((attrs, spatial(node, "ksize", None)?))
    }

    fn over(self, input: &Shape, sizes: [usize; 2]) -> Result<ImageWindows, KernelError> {
        let &[batch, rows, columns, channels] = input.dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 4-dimensional, found {input}"
            )));
        };
        let axis = |index: usize, length: usize| {
            WindowSpec {
                size: sizes[index],
                stride: self.strides[index],
                dilation: self.rates[index],
                padding: self.padding[index],
            }
            .over(length)
            .map_err(|error| KernelError::invalid(format!("{error}: input {input}")))
        };
        Ok(ImageWindows {
            batch,
            rows: axis(0, rows)?,
            columns: axis(1, columns)?,
            channels,
        })
    }
}

fn result_shape(windows: &ImageWindows, depth: usize) -> Shape {
    [
        windows.batch,
        windows.rows.output,
        windows.columns.output,
        depth,
    ]
    .into()
}

/// TensorFlow `MaxPoolV2`: sizes and strides are inputs.
fn max_pool(node: &KernelConstruction<'_>) -> Made {
    channels_last(node)?;
    let padding = paddings(node)?;
    let dtype = node.attrs.dtype("T").unwrap_or(DType::F32);
    dispatch_number!(dtype, T => kernel(move |context| {
        let list = |index: usize, what: &str| {
            let list = vector(context.input(index)?, what)?;
            match list[..] {
                [1, rows, columns, 1] if rows > 0 && columns > 0 => Ok([rows, columns]),
                _ => Err(KernelError::invalid(format!(
                    "sliding window {what} must be 4 positive numbers, 1 for batch and depth, not \
                     {list:?}"
                ))),
            }
        };
        let windows = PoolWindows::of(list(1, "ksize")?, list(2, "stride")?, padding)?;
        let input = context.input(0)?;
        let (pool, shape) = windows.over(input.shape())?;
        let x = input.as_slice::<T>()?;
        output(context, shape, |out| pool.max(x, out, Threads::of(context)))
    }))
}

/// TensorFlow `MaxPoolWithArgmax`. Positions are those in an image, or in the batch.
fn with_argmax(node: &KernelConstruction<'_>) -> Made {
    let sizes = spatial(node, "ksize", None)?;
    let attrs = Attrs {
        strides: spatial(node, "strides", None)?,
        rates: [1, 1],
        padding: paddings(node)?,
    };
    let in_batch = bool_attr(node, "include_batch_in_index", false)?;
    let position = node.attrs.dtype("Targmax").unwrap_or(DType::I64);
    dispatch_number!(type_attr(node, "T")?, T => {
        dispatch!(position, [I32: i32, I64: i64], I => kernel(move |context| {
            let windows = attrs.over(context.input(0)?.shape(), sizes)?;
            pool_with_positions::<T, I>(context, &windows, in_batch)
        }))
    })
}

fn pool_with_positions<T: Number, I: Number>(
    context: &KernelContext<'_>,
    windows: &ImageWindows,
    in_batch: bool,
) -> Result<(), KernelError> {
    let x = context.input(0)?.as_slice::<T>()?;
    let channels = windows.channels;
    let shape = result_shape(windows, channels);
    let whole = product(&[windows.rows.input, windows.columns.input, channels]);
    let mut found = Threads::of(context).scratch::<usize>(shape.n_elements())?;
    for (index, slot) in found.iter_mut().enumerate() {
        let largest = windows.largest(x, index / channels, index % channels);
        *slot = largest.ok_or_else(|| {
            KernelError::invalid("a window lies outside of the image, and has no largest element")
        })?;
    }
    context.fill_output(0, &shape, |out: &mut [T]| {
        for (slot, &element) in out.iter_mut().zip(found.iter()) {
            *slot = x[element];
        }
        Ok(())
    })?;
    context.fill_output(1, &shape, |out: &mut [I]| {
        for (slot, &element) in out.iter_mut().zip(found.iter()) {
            let position = if in_batch { element } else { element % whole };
            *slot = I::from_i64(i64::try_from(position).unwrap_or(i64::MAX));
        }
        Ok(())
    })
}

/// TensorFlow `MaxPoolGrad`: a window's gradient belongs to the first of its largest elements.
fn max_pool_gradient(node: &KernelConstruction<'_>) -> Made {
    let (attrs, sizes) = Attrs::of_pool(node)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let (input, gradient) = (context.input(0)?, context.input(2)?);
        let windows = attrs.over(input.shape(), sizes)?;
        check_gradient(gradient.shape(), &windows)?;
        let (x, gradient) = (input.as_slice::<T>()?, gradient.as_slice::<T>()?);
        let channels = windows.channels;
        output(context, input.shape().clone(), |out: &mut [T]| {
            out.fill(T::ZERO);
            for (index, &gradient) in gradient.iter().enumerate() {
                if let Some(at) = windows.largest(x, index / channels, index % channels) {
                    out[at] = out[at].plus(gradient);
                }
            }
            Ok(())
        })
    }))
}

/// TensorFlow `AvgPoolGrad`.
fn avg_pool_gradient(node: &KernelConstruction<'_>) -> Made {
    let (attrs, sizes) = Attrs::of_pool(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let shape = shape_of(context.input(0)?, "orig_input_shape")?;
        let gradient = context.input(1)?;
        let windows = attrs.over(&shape, sizes)?;
        check_gradient(gradient.shape(), &windows)?;
        let gradient = gradient.as_slice::<T>()?;
        output(context, shape.clone(), |out: &mut [T]| {
            out.fill(T::ZERO);
            windows.spread_average(gradient, out);
            Ok(())
        })
    }))
}

fn check_gradient(gradient: &Shape, windows: &ImageWindows) -> Result<(), KernelError> {
    let expected = result_shape(windows, windows.channels);
    match *gradient == expected {
        true => Ok(()),
        false => Err(KernelError::invalid(format!(
            "Expected grad shape to be {expected}, but got {gradient}"
        ))),
    }
}

/// TensorFlow `Dilation2D`.
fn dilation(node: &KernelConstruction<'_>) -> Made {
    let attrs = Attrs {
        strides: spatial(node, "strides", None)?,
        rates: spatial(node, "rates", None)?,
        padding: paddings(node)?,
    };
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let (input, filter) = (context.input(0)?, context.input(1)?);
        let &[rows, columns, depth] = filter.shape().dims() else {
            return Err(KernelError::invalid(format!(
                "filter must be 3-dimensional: {}",
                filter.shape()
            )));
        };
        let windows = attrs.over(input.shape(), [rows, columns])?;
        if windows.channels != depth {
            return Err(KernelError::invalid(format!(
                "input and filter must have the same depth: {} vs {depth}",
                windows.channels
            )));
        }
        let (x, f) = (input.as_slice::<T>()?, filter.as_slice::<T>()?);
        output(context, result_shape(&windows, depth), |out| {
            windows.dilate(x, f, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ExtractImagePatches`.
fn patches(node: &KernelConstruction<'_>) -> Made {
    let sizes = spatial(node, "ksizes", None)?;
    let attrs = Attrs {
        strides: spatial(node, "strides", None)?,
        rates: spatial(node, "rates", None)?,
        padding: paddings(node)?,
    };
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?;
        let windows = attrs.over(input.shape(), sizes)?;
        let depth = product(&[sizes[0], sizes[1], windows.channels]);
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), result_shape(&windows, depth), |out| {
            windows.extract(&x, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ExtractVolumePatches`.
fn volume_patches(node: &KernelConstruction<'_>) -> Made {
    let list = |name: &str| -> Result<[usize; 3], KernelError> {
        let list = ints_attr(node, name, &[])?;
        let size = |at: i64| usize::try_from(at).ok().filter(|&size| size > 0);
        match list[..] {
            [1, planes, rows, columns, 1] => match [planes, rows, columns].map(size) {
                [Some(planes), Some(rows), Some(columns)] => Some([planes, rows, columns]),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "{name} must be 5 positive numbers, 1 for batch and depth, not {list:?}"
            ))
        })
    };
    let (sizes, strides) = (list("ksizes")?, list("strides")?);
    let padding = match string_attr(node, "padding", "VALID")? {
        "SAME" => Padding::Same,
        _ => Padding::Valid,
    };
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let input = context.input(0)?;
        let &[batch, planes, rows, columns, depth] = input.shape().dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 5-dimensional, found {}",
                input.shape()
            )));
        };
        let over = |axis: usize, length: usize| {
            WindowSpec {
                size: sizes[axis],
                stride: strides[axis],
                dilation: 1,
                padding,
            }
            .over(length)
        };
        let axes = [over(0, planes)?, over(1, rows)?, over(2, columns)?];
        let windows = axes.map(|axis| axis.output);
        let patch = product(&[sizes[0], sizes[1], sizes[2], depth]);
        let shape = Shape::from([batch, windows[0], windows[1], windows[2], patch]);
        let x = W::read(input)?;
        W::write(context, 0, input.dtype(), shape, |out| {
            for (at, patch) in out.chunks_exact_mut(patch.max(1)).enumerate() {
                let place = unravel(at, [batch, windows[0], windows[1], windows[2]]);
                for (tap, slots) in patch.chunks_exact_mut(depth.max(1)).enumerate() {
                    let taps = unravel(tap, [1, sizes[0], sizes[1], sizes[2]]);
                    let of = |axis: usize| axes[axis].input_of(place[axis + 1], taps[axis + 1]);
                    match (of(0), of(1), of(2)) {
                        (Some(plane), Some(row), Some(column)) => {
                            let volume = (place[0] * planes + plane) * rows + row;
                            let start = (volume * columns + column) * depth;
                            slots.copy_from_slice(&x[start..start + depth]);
                        }
                        _ => slots.fill(Default::default()),
                    }
                }
            }
            Ok(())
        })
    }))
}

/// Returns the indices of a row-major position.
fn unravel(mut place: usize, dims: [usize; 4]) -> [usize; 4] {
    let mut indices = [0; 4];
    for (index, dim) in indices.iter_mut().zip(dims).rev() {
        *index = place % dim.max(1);
        place /= dim.max(1);
    }
    indices
}
