//! Boxes drawn on images.

use half::f16;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::image::image_dims;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::image;
use crate::tensor::DType;

/// Colours of boxes without colours of their own, as TensorFlow's: red, green, blue, opacity.
const COLORS: [[f32; 4]; 10] = [
    [1.0, 1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 1.0, 0.0, 1.0],
    [0.5, 0.0, 0.5, 1.0],
    [0.5, 0.5, 0.0, 1.0],
    [0.5, 0.0, 0.0, 1.0],
    [0.0, 0.0, 0.5, 1.0],
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["DrawBoundingBoxes", "DrawBoundingBoxesV2"] {
        registry.register(
            def(op)
                .with_types("T", &[DType::F32, DType::F16])
                .with_factory(draw),
        );
    }
}

/// TensorFlow `DrawBoundingBoxes`, and V2 with colours.
fn draw(node: &KernelConstruction<'_>) -> Made {
    let has_colors = node.op.ends_with("V2");
    let dtype = node.attrs.dtype("T").unwrap_or(DType::F32);
    dispatch!(dtype, [F32: f32, F16: f16], T => kernel(move |context| {
        drawn::<T>(context, has_colors)
    }))
}

fn drawn<T: Number>(context: &KernelContext<'_>, has_colors: bool) -> Result<(), KernelError> {
    let (images, boxes) = (context.input(0)?, context.input(1)?);
    let [batch, rows, columns, channels] = image_dims(images.shape())?;
    if ![1, 3, 4].contains(&channels) {
        return Err(KernelError::invalid(format!(
            "channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA), not {channels}"
        )));
    }
    let n_boxes = match *boxes.shape().dims() {
        [n, n_boxes, 4] if n == batch => n_boxes,
        _ => {
            return Err(KernelError::invalid(format!(
                "boxes must have shape [{batch}, boxes, 4], not {}",
                boxes.shape()
            )));
        }
    };
    let given = match has_colors {
        true => {
            let colors = context.input(2)?;
            let n_components = match *colors.shape().dims() {
                [_, n] if n >= channels || colors.shape().n_elements() == 0 => n,
                _ => {
                    return Err(KernelError::invalid(format!(
                        "colors must have {channels} components per colour, but their shape is {}",
                        colors.shape()
                    )));
                }
            };
            Some((colors.as_slice::<f32>()?, n_components)).filter(|(colors, _)| !colors.is_empty())
        }
        false => None,
    };
    let color = |index: usize| -> [T; 4] {
        let color = match given {
            Some((colors, n)) => {
                let row = index % (colors.len() / n);
                let from = &colors[row * n..][..n];
                [0, 1, 2, 3].map(|channel| from.get(channel).copied().unwrap_or(0.0))
            }
            // On a grey image, all are white.
            None if channels == 1 => [1.0; 4],
            None => COLORS[index % COLORS.len()],
        };
        color.map(|component| T::from_f64(component.into()))
    };
    let (x, corners) = (images.as_slice::<T>()?, boxes.as_slice::<f32>()?);
    context.fill_output(0, images.shape(), |out| {
        out.copy_from_slice(x);
        let whole = rows * columns * channels;
        if whole == 0 {
            return Ok(());
        }
        for (number, out) in out.chunks_exact_mut(whole).enumerate() {
            for index in 0..n_boxes {
                let corners = &corners[(number * n_boxes + index) * 4..][..4];
                let corners = [corners[0], corners[1], corners[2], corners[3]];
                let color = color(index);
                image::frame(rows, columns, corners, |row, column| {
                    let pixel = (row * columns + column) * channels;
                    out[pixel..pixel + channels].copy_from_slice(&color[..channels]);
                });
            }
        }
        Ok(())
    })
}
