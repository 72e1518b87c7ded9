//! Resizing by areas and by cubic interpolation, and resized parts of images.

use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::tensor;
use crate::case::typed_tensor;

fn numbers() -> impl Iterator<Item = DType> {
    MOVED
        .into_iter()
        .filter(|dtype| dtype.is_floating() || dtype.is_integer())
}

fn line(values: &[f32]) -> Tensor {
    tensor(&[1, 1, values.len(), 1], values)
}

fn zeros(dims: &[usize]) -> Tensor {
    tensor(dims, &vec![0.0f32; dims.iter().product()])
}

fn resize(op: &'static str, name: &str, x: Tensor, size: &[i32]) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", x.dtype())
        .input(x)
        .named_input("size", tensor(&[size.len()], size))
}

fn crop(name: &str, x: Tensor, boxes: &[[f32; 4]], images: &[i32], size: &[i32]) -> Case {
    case(&format!("CropAndResize: {name}"), "CropAndResize")
        .typed("T", x.dtype())
        .float("extrapolation_value", 9.0)
        .input(x)
        .input(tensor(&[boxes.len(), 4], boxes.as_flattened()))
        .input(tensor(&[images.len()], images))
        .named_input("crop_size", tensor(&[size.len()], size))
}

/// A row of pixels that is scaled and moved along.
fn sample(name: &str, sampler: &str, x: Tensor, [scale, translation]: [f32; 2], n: i32) -> Case {
    case(&format!("ScaleAndTranslate: {name}"), "ScaleAndTranslate")
        .typed("T", x.dtype())
        .text("kernel_type", sampler)
        .input(x)
        .named_input("size", tensor(&[2], &[1, n]))
        .named_input("scale", tensor(&[2], &[1.0, scale]))
        .named_input("translation", tensor(&[2], &[0.0, translation]))
}

fn sampled() -> Vec<Case> {
    let row = || line(&[2.0, 4.0, 6.0, 8.0]);
    let whole = line(&[0.0, 32.0]);
    let as_is = [1.0, 0.0];
    let mut cases = vec![
        sample("larger", "triangle", whole.clone(), [2.0, 0.0], 4)
            .gives(line(&[0.0, 8.0, 24.0, 32.0])),
        sample("smaller", "box", row(), [0.5, 0.0], 2).gives(line(&[3.0, 7.0])),
        sample("smaller, not antialiased", "triangle", row(), [0.5, 0.0], 2)
            .bool("antialias", false)
            .gives(line(&[3.0, 7.0])),
        sample("moved", "keyscubic", row(), [1.0, 2.0], 4)
            .gives_within(line(&[0.0, 0.0, 2.0, 4.0]), 1e-6),
        sample("no images", "gaussian", zeros(&[0, 1, 1, 1]), as_is, 2).gives(zeros(&[0, 1, 2, 1])),
        sample("no channels", "gaussian", zeros(&[1, 1, 1, 0]), as_is, 2)
            .gives(zeros(&[1, 1, 2, 0])),
        sample("no pixels", "box", zeros(&[1, 0, 1, 1]), as_is, 2)
            .refused("input image must be of non-zero size"),
        sample("no scale", "box", row(), [0.0, 0.0], 2).refused("Scale must be greater than zero"),
        sample("no size", "box", row(), as_is, 0).refused("output dimensions must be positive"),
        sample("a vector", "box", zeros(&[2]), as_is, 2).refused("input rank should be 4"),
        sample("another sampler", "sinc", row(), as_is, 2)
            .refused("Unrecognized kernel type: sinc"),
    ];
    // Weights at distances of 0, 1, 2 .. are 1, 0, 0 ..
    for sampler in [
        "lanczos1",
        "lanczos3",
        "lanczos5",
        "keyscubic",
        "triangle",
        "box",
    ] {
        cases.push(sample(sampler, sampler, row(), as_is, 4).gives_within(row(), 1e-5));
    }
    cases.extend(numbers().map(|dtype| {
        let image = typed_tensor(dtype, &[1, 1, 2, 1], &[2, 4]);
        sample(&format!("{dtype}"), "box", image, [0.5, 0.0], 1).gives(line(&[3.0]))
    }));
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let (area, cubic) = ("ResizeArea", "ResizeBicubic");
    let whole = [0.0, 0.0, 1.0, 1.0];
    let x = line(&[0.0, 4.0, 8.0]);
    let mut cases = sampled();
    for dtype in numbers() {
        let image = typed_tensor(dtype, &[1, 2, 2, 1], &[2, 4, 6, 8]);
        let name = format!("{dtype}");
        cases.push(
            resize(area, &name, image.clone(), &[1, 1]).gives(tensor(&[1, 1, 1, 1], &[5.0f32])),
        );
        cases.push(
            resize(cubic, &name, image.clone(), &[2, 2])
                .gives(tensor(&[1, 2, 2, 1], &[2.0f32, 4.0, 6.0, 8.0])),
        );
        cases.push(
            crop(&name, image, &[whole], &[0], &[1, 3])
                .gives(tensor(&[1, 1, 3, 1], &[4.0f32, 5.0, 6.0])),
        );
    }
    for op in [area, cubic] {
        cases.extend([
            resize(op, "no images", zeros(&[0, 1, 1, 1]), &[2, 2]).gives(zeros(&[0, 2, 2, 1])),
            resize(op, "no pixels", zeros(&[1, 0, 1, 1]), &[2, 2])
                .refused("input image must be of non-zero size"),
            resize(op, "no size", x.clone(), &[0, 2]).refused("output dimensions must be positive"),
            resize(op, "a vector", zeros(&[2]), &[1, 1]).refused("input must be 4-dimensional"),
        ]);
    }
    // The weights of a position in the middle, a = -0.75: -3/32, 19/32, 19/32, -3/32; outside is
    // the edge. With centres, a = -0.5, and pixels outside have no weight.
    cases.extend([
        // Areas of one and a half pixels.
        resize(area, "a part of a pixel", line(&[3.0, 6.0, 9.0]), &[1, 2])
            .gives_within(line(&[4.0, 8.0]), 1e-6),
        resize(area, "larger", line(&[3.0, 6.0]), &[1, 4]).gives(line(&[3.0, 3.0, 6.0, 6.0])),
        resize(area, "corners aligned", line(&[1.0, 2.0, 3.0]), &[1, 3])
            .bool("align_corners", true)
            .gives(line(&[1.0, 2.0, 3.0])),
        resize(cubic, "larger", line(&[0.0, 32.0]), &[1, 4])
            .gives_within(line(&[0.0, 16.0, 32.0, 35.0]), 1e-5),
        resize(cubic, "middles of pixels", line(&[0.0, 32.0]), &[1, 1])
            .bool("half_pixel_centers", true)
            .gives_within(line(&[16.0]), 1e-5),
        crop(
            "two parts, one flipped",
            x.clone(),
            &[[0.0, 0.0, 0.0, 0.5], [0.0, 1.0, 0.0, 0.0]],
            &[0, 0],
            &[1, 3],
        )
        .gives(tensor(&[2, 1, 3, 1], &[0.0f32, 2.0, 4.0, 8.0, 4.0, 0.0])),
        crop(
            "outside",
            x.clone(),
            &[[0.0, -0.5, 0.0, 0.5]],
            &[0],
            &[1, 3],
        )
        .gives(line(&[9.0, 0.0, 4.0])),
        crop(
            "the nearest pixel",
            x.clone(),
            &[[0.0, 0.1, 0.0, 0.8]],
            &[0],
            &[1, 2],
        )
        .text("method", "nearest")
        .gives(line(&[0.0, 8.0])),
        crop("no parts", x.clone(), &[], &[], &[2, 2]).gives(zeros(&[0, 2, 2, 1])),
        crop("another image", x.clone(), &[whole], &[1], &[1, 1])
            .refused("box_index has values outside [0, 1)"),
        crop("no size", x.clone(), &[whole], &[0], &[1, 0])
            .refused("crop dimensions must be two positive sizes"),
        crop("too few images", x.clone(), &[whole], &[], &[1, 1])
            .refused("boxes must be 2-D with 4 columns"),
        crop("another method", x, &[whole], &[0], &[1, 1])
            .text("method", "cubic")
            .refused("method must be"),
        crop("a vector", zeros(&[2]), &[whole], &[0], &[1, 1]).refused("input rank should be 4"),
    ]);
    cases
}
