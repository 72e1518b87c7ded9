//! Windows over images: positions of maxima, dilation, patches; colours and transforms.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = pools();
    cases.extend(dilations());
    cases.extend(patches());
    cases.extend(colors());
    cases.extend(transforms());
    cases.extend(frames());
    cases
}

fn numbers() -> impl Iterator<Item = DType> {
    MOVED
        .into_iter()
        .filter(|dtype| dtype.is_floating() || dtype.is_integer())
}

fn zeros(dims: &[usize]) -> Tensor {
    tensor(dims, &vec![0.0f32; dims.iter().product()])
}

fn pool(name: &str, x: Tensor, sizes: [i64; 2], strides: [i64; 2], padding: &str) -> Case {
    case(&format!("MaxPoolWithArgmax: {name}"), "MaxPoolWithArgmax")
        .typed("T", x.dtype())
        .typed("Targmax", DType::I64)
        .ints("ksize", &[1, sizes[0], sizes[1], 1])
        .ints("strides", &[1, strides[0], strides[1], 1])
        .text("padding", padding)
        .input(x)
}

/// A `MaxPoolV2`, whose sizes are inputs.
fn pool_v2(name: &str, x: Tensor, sizes: &[i32], strides: &[i32], padding: &str) -> Case {
    case(&format!("MaxPoolV2: {name}"), "MaxPoolV2")
        .typed("T", x.dtype())
        .text("padding", padding)
        .input(x)
        .named_input("ksize", tensor(&[sizes.len()], sizes))
        .named_input("strides", tensor(&[strides.len()], strides))
}

fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in numbers() {
        let x = typed_tensor(dtype, &[1, 2, 3, 1], &[1, 5, 2, 5, 0, 7]);
        let y = typed_tensor(dtype, &[1, 1, 2, 1], &[5, 7]);
        let name = format!("{dtype}");
        cases.push(
            pool(&name, x.clone(), [2, 2], [1, 1], "VALID")
                .gives_all(vec![y.clone(), tensor(&[1, 1, 2, 1], &[1i64, 5])]),
        );
        cases.push(pool_v2(&name, x, &[1, 2, 2, 1], &[1, 1, 1, 1], "VALID").gives(y));
    }
    // Two images of two channels, by a plain loop.
    let (batch, rows, columns, channels) = (2, 5, 4, 2);
    let x = noise(batch * rows * columns * channels, 4);
    for padding in ["SAME", "VALID"] {
        let (n_rows, n_columns): (usize, usize) = if padding == "SAME" { (3, 2) } else { (2, 1) };
        let (mut values, mut places) = (Vec::new(), Vec::new());
        for image in 0..batch {
            for window in 0..n_rows * n_columns {
                for channel in 0..channels {
                    let mut best: Option<usize> = None;
                    for y in 0..3usize {
                        for x_tap in 0..3usize {
                            // One row is padded before the image, and no column.
                            let before = usize::from(padding == "SAME");
                            let at = (window / n_columns * 2 + y).checked_sub(before);
                            let x_at = window % n_columns * 2 + x_tap;
                            let Some(y_at) = at.filter(|&at| at < rows && x_at < columns) else {
                                continue;
                            };
                            let place =
                                ((image * rows + y_at) * columns + x_at) * channels + channel;
                            if best.is_none_or(|best| x[place] > x[best]) {
                                best = Some(place);
                            }
                        }
                    }
                    let best = best.expect("windows cover a pixel");
                    values.push(x[best]);
                    places.push(i64::try_from(best).expect("small"));
                }
            }
        }
        let dims = [batch, n_rows, n_columns, channels];
        let input = tensor(&[batch, rows, columns, channels], &x);
        cases.push(
            pool(padding, input.clone(), [3, 3], [2, 2], padding)
                .bool("include_batch_in_index", true)
                .gives_all(vec![tensor(&dims, &values), tensor(&dims, &places)]),
        );
        let whole = i64::try_from(rows * columns * channels).expect("small");
        let in_image: Vec<i64> = places.iter().map(|place| place % whole).collect();
        cases.push(
            pool(
                &format!("{padding}, in images"),
                input.clone(),
                [3, 3],
                [2, 2],
                padding,
            )
            .gives_all(vec![tensor(&dims, &values), tensor(&dims, &in_image)]),
        );
        cases.push(
            pool_v2(padding, input, &[1, 3, 3, 1], &[1, 2, 2, 1], padding)
                .gives(tensor(&dims, &values)),
        );
    }
    cases.extend([
        pool("no images", zeros(&[0, 2, 2, 1]), [1, 1], [1, 1], "VALID").gives_all(vec![
            zeros(&[0, 2, 2, 1]),
            tensor(&[0, 2, 2, 1], &[0i64; 0]),
        ]),
        pool("a vector", zeros(&[2]), [1, 1], [1, 1], "VALID")
            .with_outputs(2)
            .refused("must be 4-dimensional"),
        pool_v2(
            "over the batch",
            zeros(&[2, 2, 2, 1]),
            &[2, 1, 1, 1],
            &[1; 4],
            "VALID",
        )
        .refused("sliding window ksize must be"),
        pool_v2(
            "three sizes",
            zeros(&[2, 2, 2, 1]),
            &[1; 3],
            &[1; 4],
            "VALID",
        )
        .refused("sliding window ksize must be"),
        pool_v2(
            "no stride",
            zeros(&[2, 2, 2, 1]),
            &[1; 4],
            &[1, 0, 1, 1],
            "VALID",
        )
        .refused("sliding window stride must be"),
    ]);
    cases
}

fn dilation(name: &str, x: Tensor, filter: Tensor, strides: [i64; 2], rates: [i64; 2]) -> Case {
    case(&format!("Dilation2D: {name}"), "Dilation2D")
        .typed("T", x.dtype())
        .ints("strides", &[1, strides[0], strides[1], 1])
        .ints("rates", &[1, rates[0], rates[1], 1])
        .text("padding", "VALID")
        .input(x)
        .input(filter)
}

fn dilations() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in numbers() {
        let x = typed_tensor(dtype, &[1, 2, 3, 1], &[1, 2, 3, 4, 0, 9]);
        let filter = typed_tensor(dtype, &[2, 2, 1], &[5, 1, 2, 0]);
        // Of 1+5, 2+1, 4+2, 0 and of 2+5, 3+1, 0+2, 9.
        cases.push(
            dilation(&format!("{dtype}"), x, filter, [1, 1], [1, 1]).gives(typed_tensor(
                dtype,
                &[1, 1, 2, 1],
                &[6, 9],
            )),
        );
    }
    cases.extend([
        dilation(
            "with a rate",
            tensor(&[1, 1, 3, 1], &[1, 9, 2]),
            tensor(&[1, 2, 1], &[3, 4]),
            [1, 1],
            [1, 2],
        )
        .gives(tensor(&[1, 1, 1, 1], &[6])),
        dilation(
            "with padding",
            tensor(&[1, 1, 2, 1], &[-3, -4]),
            tensor(&[1, 3, 1], &[0, 0, 0]),
            [1, 1],
            [1, 1],
        )
        .text("padding", "SAME")
        .gives(tensor(&[1, 1, 2, 1], &[-3, -3])),
        dilation(
            "no images",
            zeros(&[0, 2, 2, 1]),
            zeros(&[1, 1, 1]),
            [1, 1],
            [1, 1],
        )
        .gives(zeros(&[0, 2, 2, 1])),
        dilation(
            "depths that differ",
            zeros(&[1, 2, 2, 1]),
            zeros(&[1, 1, 2]),
            [1, 1],
            [1, 1],
        )
        .refused("must have the same depth: 1 vs 2"),
        dilation(
            "a filter of rank 4",
            zeros(&[1, 2, 2, 1]),
            zeros(&[1, 1, 1, 1]),
            [1, 1],
            [1, 1],
        )
        .refused("filter must be 3-dimensional"),
        dilation("a vector", zeros(&[2]), zeros(&[1, 1, 1]), [1, 1], [1, 1])
            .refused("input must be 4-dimensional"),
    ]);
    cases
}

fn extract(name: &str, x: Tensor, lists: [[i64; 2]; 3], padding: &str) -> Case {
    let names = ["ksizes", "strides", "rates"];
    names
        .into_iter()
        .zip(lists)
        .fold(
            case(
                &format!("ExtractImagePatches: {name}"),
                "ExtractImagePatches",
            ),
            |case, (name, list)| case.ints(name, &[1, list[0], list[1], 1]),
        )
        .typed("T", x.dtype())
        .text("padding", padding)
        .input(x)
}

fn patches() -> Vec<Case> {
    let mut cases = Vec::new();
    let types = MOVED
        .into_iter()
        .filter(|dtype| !matches!(dtype, DType::Bool | DType::String));
    for dtype in types {
        let x = typed_tensor(dtype, &[1, 2, 3, 1], &[1, 2, 3, 4, 5, 6]);
        cases.push(
            extract(&format!("{dtype}"), x, [[2, 2], [1, 1], [1, 1]], "VALID").gives(typed_tensor(
                dtype,
                &[1, 1, 2, 4],
                &[1, 2, 4, 5, 2, 3, 5, 6],
            )),
        );
    }
    let x = tensor(&[1, 1, 4, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
    cases.extend([
        extract("with a rate", x.clone(), [[1, 2], [1, 1], [1, 2]], "VALID")
            .gives(tensor(&[1, 1, 2, 4], &[1, 2, 5, 6, 3, 4, 7, 8])),
        extract("with padding", x, [[1, 3], [1, 3], [1, 1]], "SAME")
            .gives(tensor(&[1, 1, 2, 6], &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0])),
        extract("no images", zeros(&[0, 2, 2, 1]), [[1, 1]; 3], "VALID")
            .gives(zeros(&[0, 2, 2, 1])),
        extract("a vector", zeros(&[2]), [[1, 1]; 3], "VALID")
            .refused("input must be 4-dimensional"),
        extract(
            "too large",
            zeros(&[1, 1, 1, 1]),
            [[4, 4], [1, 1], [1, 1]],
            "VALID",
        )
        .refused("output size would be negative"),
    ]);
    cases
}

fn color(op: &'static str, name: &str, x: Tensor, amount: Option<f32>) -> Case {
    let case = case(&format!("{op}: {name}"), op)
        .typed("T", x.dtype())
        .input(x);
    match amount {
        Some(amount) => case.input(tensor(&[], &[amount])),
        None => case,
    }
}

fn converted<T: Element>(number: impl Fn(f32) -> T) -> Vec<Case> {
    let pixels = |list: &[f32]| {
        tensor(
            &[list.len() / 3, 3],
            &list.iter().map(|&x| number(x)).collect::<Vec<T>>(),
        )
    };
    let rgb = pixels(&[1.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0]);
    let third = number(1.0 / 3.0);
    let hsv = [0.0, 1.0, 1.0, 9.0, 1.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0];
    let mut hsv: Vec<T> = hsv.iter().map(|&x| number(x)).collect();
    hsv[3] = third;
    let hsv = tensor(&[4, 3], &hsv);
    let name = format!("{}", T::DTYPE);
    vec![
        // The hue of green is rounded in each type.
        color("RGBToHSV", &name, rgb.clone(), None).gives_within(hsv.clone(), 1e-6),
        color("HSVToRGB", &name, hsv, None).gives_within(rgb, 2e-2),
    ]
}

fn colors() -> Vec<Case> {
    let (contrast, hue, saturation) = ("AdjustContrastv2", "AdjustHue", "AdjustSaturation");
    let pixel = |x: [f32; 3]| tensor(&[1, 1, 3], &x);
    let mut cases = converted(|x| x);
    cases.extend(converted(f64::from));
    cases.extend(converted(f16::from_f32));
    cases.extend(converted(bf16::from_f32));
    cases.extend([
        color(
            contrast,
            "two images",
            tensor(&[2, 1, 2, 2], &[0.0f32, 5.0, 4.0, 5.0, 1.0, 2.0, 3.0, 6.0]),
            Some(2.0),
        )
        .gives(tensor(
            &[2, 1, 2, 2],
            &[-2.0f32, 5.0, 6.0, 5.0, 0.0, 0.0, 4.0, 8.0],
        )),
        color(contrast, "no images", zeros(&[0, 1, 1, 1]), Some(2.0)).gives(zeros(&[0, 1, 1, 1])),
        color(contrast, "no pixels", zeros(&[1, 0, 1, 1]), Some(2.0)).gives(zeros(&[1, 0, 1, 1])),
        color(contrast, "a matrix", zeros(&[1, 1]), Some(2.0))
            .refused("input must be at least 3-D"),
        color(
            hue,
            "a third of a turn",
            pixel([1.0, 0.0, 0.5]),
            Some(1.0 / 3.0),
        )
        .gives_within(pixel([0.5, 1.0, 0.0]), 1e-6),
        color(hue, "many turns back", pixel([0.2, 0.8, 0.4]), Some(-5.0))
            .gives_within(pixel([0.2, 0.8, 0.4]), 1e-5),
        color(hue, "grey", pixel([0.5; 3]), Some(0.3)).gives(pixel([0.5; 3])),
        color(hue, "no pixels", zeros(&[0, 1, 3]), Some(0.3)).gives(zeros(&[0, 1, 3])),
        color(hue, "two channels", zeros(&[1, 1, 2]), Some(0.3))
            .refused("input must have 3 channels"),
        color(hue, "a matrix", zeros(&[1, 3]), Some(0.3)).refused("input must be at least 3-D"),
        color(saturation, "none", pixel([1.0, 0.0, 0.5]), Some(0.0)).gives(pixel([1.0; 3])),
        color(saturation, "half", pixel([1.0, 0.0, 0.0]), Some(0.5)).gives(pixel([1.0, 0.5, 0.5])),
        color(
            saturation,
            "more than all",
            pixel([1.0, 0.5, 0.5]),
            Some(9.0),
        )
        .gives(pixel([1.0, 0.0, 0.0])),
        color(
            saturation,
            "an amount of rank 1",
            pixel([1.0, 0.5, 0.5]),
            None,
        )
        .input(tensor(&[1], &[1.0f32]))
        .refused("scale must be 0-D"),
        color("RGBToHSV", "two channels", zeros(&[2]), None).refused("input must have 3 channels"),
    ]);
    cases
}

fn transform(name: &str, x: Tensor, by: [f32; 8], size: &[i32], modes: [&str; 2]) -> Case {
    case(
        &format!("ImageProjectiveTransformV3: {name}"),
        "ImageProjectiveTransformV3",
    )
    .typed("dtype", x.dtype())
    .text("interpolation", modes[0])
    .text("fill_mode", modes[1])
    .input(x)
    .input(tensor(&[1, 8], &by))
    .named_input("output_shape", tensor(&[size.len()], size))
    .input(tensor(&[], &[7.0f32]))
}

fn transforms() -> Vec<Case> {
    let identity = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
    let shifted = |by: f32| [1.0, 0.0, by, 0.0, 1.0, 0.0, 0.0, 0.0];
    let line = |values: &[f32]| tensor(&[1, 1, values.len(), 1], values);
    let (x, nearest) = (line(&[1.0, 2.0, 3.0]), "NEAREST");
    let mut cases = Vec::new();
    for dtype in [
        DType::U8,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ] {
        let image = typed_tensor(dtype, &[1, 2, 2, 1], &[1, 2, 3, 4]);
        cases.push(
            transform(
                &format!("{dtype}"),
                image,
                [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
                &[2, 3],
                [nearest, "CONSTANT"],
            )
            .gives(typed_tensor(dtype, &[1, 2, 3, 1], &[1, 3, 7, 2, 4, 7])),
        );
    }
    cases.extend([
        transform(
            "between pixels",
            x.clone(),
            shifted(0.25),
            &[1, 3],
            ["BILINEAR", "NEAREST"],
        )
        .gives(line(&[1.25, 2.25, 3.0])),
        transform(
            "outside is constant",
            x.clone(),
            shifted(-2.0),
            &[1, 6],
            [nearest, "CONSTANT"],
        )
        .gives(line(&[7.0, 7.0, 1.0, 2.0, 3.0, 7.0])),
        transform(
            "outside is mirrored",
            x.clone(),
            shifted(-3.0),
            &[1, 9],
            [nearest, "REFLECT"],
        )
        .gives(line(&[3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0])),
        transform(
            "outside is repeated",
            x.clone(),
            shifted(-1.0),
            &[1, 5],
            [nearest, "WRAP"],
        )
        .gives(line(&[3.0, 1.0, 2.0, 3.0, 1.0])),
        transform(
            "outside is the edge",
            x.clone(),
            shifted(-2.0),
            &[1, 6],
            [nearest, "NEAREST"],
        )
        .gives(line(&[1.0, 1.0, 1.0, 2.0, 3.0, 3.0])),
        transform(
            "at infinity",
            x.clone(),
            [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0],
            &[1, 2],
            [nearest, "CONSTANT"],
        )
        .gives(line(&[1.0, 7.0])),
        transform(
            "no images",
            zeros(&[0, 1, 1, 1]),
            identity,
            &[2, 2],
            [nearest, "CONSTANT"],
        )
        .gives(zeros(&[0, 2, 2, 1])),
        transform(
            "no size",
            x.clone(),
            identity,
            &[0, 2],
            [nearest, "CONSTANT"],
        )
        .refused("output_shape must be two positive sizes"),
        transform(
            "another mode",
            x.clone(),
            identity,
            &[1, 1],
            [nearest, "MIRROR"],
        )
        .refused("invalid mode MIRROR"),
        transform(
            "another interpolation",
            x.clone(),
            identity,
            &[1, 1],
            ["CUBIC", "WRAP"],
        )
        .refused("invalid interpolation CUBIC"),
        transform(
            "a matrix",
            zeros(&[1, 1]),
            identity,
            &[1, 1],
            [nearest, "WRAP"],
        )
        .refused("input rank should be 4"),
        case(
            "ImageProjectiveTransformV2: fills with 0",
            "ImageProjectiveTransformV2",
        )
        .typed("dtype", DType::F32)
        .text("interpolation", nearest)
        .input(x)
        .input(tensor(&[1, 8], &shifted(2.0)))
        .named_input("output_shape", tensor(&[2], &[1, 2]))
        .gives(line(&[3.0, 0.0])),
        case(
            "ImageProjectiveTransformV2: transforms of other images",
            "ImageProjectiveTransformV2",
        )
        .typed("dtype", DType::F32)
        .text("interpolation", nearest)
        .input(zeros(&[3, 1, 1, 1]))
        .input(tensor(&[2, 8], &[0.0f32; 16]))
        .named_input("output_shape", tensor(&[2], &[1, 2]))
        .refused("num_images x 8 or 1 x 8"),
    ]);
    cases
}

fn frames() -> Vec<Case> {
    let draw = |op: &'static str, name: &str, x: Tensor, boxes: &[[f32; 4]]| {
        let boxes = tensor(&[1, boxes.len(), 4], boxes.as_flattened());
        case(&format!("{op}: {name}"), op)
            .typed("T", x.dtype())
            .input(x)
            .input(boxes)
    };
    let (first, second) = ("DrawBoundingBoxes", "DrawBoundingBoxesV2");
    let grey = |values: &[f32]| tensor(&[1, 3, 3, 1], values);
    let halves = |value: f32| tensor(&[1, 1, 1, 3], &[value, value, 0.0].map(f16::from_f32));
    let whole = [0.0, 0.0, 1.0, 1.0];
    vec![
        draw(first, "around the image", zeros(&[1, 3, 3, 1]), &[whole])
            .gives(grey(&[1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])),
        draw(
            first,
            "partly outside",
            zeros(&[1, 3, 3, 1]),
            &[[-0.5, -0.5, 0.5, 0.5]],
        )
        .gives(grey(&[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])),
        draw(
            first,
            "outside, and inside out",
            zeros(&[1, 3, 3, 1]),
            &[[2.0, 2.0, 3.0, 3.0], [1.0, 1.0, 0.0, 0.0]],
        )
        .gives(zeros(&[1, 3, 3, 1])),
        draw(first, "half, yellow", halves(0.0), &[whole]).gives(halves(1.0)),
        draw(first, "no boxes", zeros(&[1, 1, 1, 4]), &[]).gives(zeros(&[1, 1, 1, 4])),
        draw(second, "own colours", zeros(&[1, 1, 1, 3]), &[whole])
            .input(tensor(&[1, 3], &[0.1f32, 0.2, 0.3]))
            .gives(tensor(&[1, 1, 1, 3], &[0.1f32, 0.2, 0.3])),
        draw(second, "no colours", zeros(&[1, 1, 1, 3]), &[whole])
            .input(tensor::<f32>(&[0, 3], &[]))
            .gives(tensor(&[1, 1, 1, 3], &[1.0f32, 1.0, 0.0])),
        draw(second, "too few components", zeros(&[1, 1, 1, 3]), &[whole])
            .input(tensor(&[1, 2], &[0.1f32, 0.2]))
            .refused("colors must have 3 components"),
        draw(first, "two channels", zeros(&[1, 1, 1, 2]), &[whole])
            .refused("channel depth should be either 1"),
        draw(
            first,
            "boxes of another batch",
            zeros(&[2, 1, 1, 1]),
            &[whole],
        )
        .refused("boxes must have shape [2, boxes, 4]"),
    ]
}
