//! Depthwise and transposed convolutions.

use half::bf16;
use half::f16;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = depthwise();
    cases.extend(transposed());
    cases
}

fn windows(case: Case, stride: i64, padding: &str) -> Case {
    case.ints("strides", &[1, stride, stride, 1])
        .ints("dilations", &[1, 1, 1, 1])
        .ints("explicit_paddings", &[])
        .text("padding", padding)
        .text("data_format", "NHWC")
}

/// Returns the number of windows, and the padding before the first one, by the rule that TensorFlow
/// documents.
fn axis(input: usize, size: usize, stride: usize, padding: &str) -> (usize, usize) {
    if padding == "SAME" {
        let n = input.div_ceil(stride);
        (n, ((n - 1) * stride + size).saturating_sub(input) / 2)
    } else {
        ((input - size) / stride + 1, 0)
    }
}

fn single(values: &[f64]) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    values.iter().map(|&value| value as f32).collect()
}

fn depthwise_case(name: &str, x: Tensor, filter: Tensor, stride: i64, padding: &str) -> Case {
    let op = "DepthwiseConv2dNative";
    windows(case(&format!("{op}: {name}"), op), stride, padding)
        .typed("T", x.dtype())
        .input(x)
        .input(filter)
}

/// Returns the input of each pair of a window and a tap: (window, tap, input).
fn meetings(input: usize, size: usize, stride: usize, padding: &str) -> Vec<(usize, usize, usize)> {
    let (n, before) = axis(input, size, stride, padding);
    let all = (0..n).flat_map(|place| (0..size).map(move |tap| (place, tap)));
    all.filter_map(|(place, tap)| {
        let at = (place * stride + tap).checked_sub(before)?;
        (at < input).then_some((place, tap, at))
    })
    .collect()
}

/// Plain reference loop, in double precision.
fn random_depthwise(x: [usize; 4], filter: [usize; 3], stride: usize, padding: &str) -> Case {
    let [batch, rows, columns, channels] = x;
    let [size_y, size_x, multiplier] = filter;
    let (values, weights) = (
        noise(x.iter().product(), 1),
        noise(filter.iter().product::<usize>() * channels, 2),
    );
    let (n_y, n_x) = (
        axis(rows, size_y, stride, padding).0,
        axis(columns, size_x, stride, padding).0,
    );
    let depth = channels * multiplier;
    let mut sums = vec![0.0f64; batch * n_y * n_x * depth];
    for b in 0..batch {
        for (y, tap_y, in_y) in meetings(rows, size_y, stride, padding) {
            for (x, tap_x, in_x) in meetings(columns, size_x, stride, padding) {
                for d in 0..depth {
                    let value =
                        values[((b * rows + in_y) * columns + in_x) * channels + d / multiplier];
                    let weight = weights[(tap_y * size_x + tap_x) * depth + d];
                    sums[((b * n_y + y) * n_x + x) * depth + d] +=
                        f64::from(value) * f64::from(weight);
                }
            }
        }
    }
    depthwise_case(
        &format!("{x:?} * {filter:?}, stride {stride}, {padding}"),
        tensor(&x, &values),
        tensor(&[size_y, size_x, channels, multiplier], &weights),
        i64::try_from(stride).expect("small"),
        padding,
    )
    // At most 25 products of numbers below 1.
    .gives_within(tensor(&[batch, n_y, n_x, depth], &single(&sums)), 4e-6)
}

fn small_depthwise<T: Element>(number: impl Fn(f32) -> T) -> Case {
    let values = |list: &[f32]| -> Vec<T> { list.iter().map(|&v| number(v)).collect() };
    depthwise_case(
        &format!("{}", T::DTYPE),
        tensor(&[1, 1, 2, 2], &values(&[1.0, 2.0, 3.0, 4.0])),
        tensor(&[1, 2, 2, 1], &values(&[1.0, 10.0, 2.0, 20.0])),
        1,
        "VALID",
    )
    .gives(tensor(&[1, 1, 1, 2], &values(&[7.0, 100.0])))
}

fn depthwise() -> Vec<Case> {
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    vec![
        small_depthwise(|x| x),
        small_depthwise(f64::from),
        small_depthwise(f16::from_f32),
        small_depthwise(bf16::from_f32),
        random_depthwise([2, 7, 6, 3], [3, 3, 1], 1, "SAME"),
        random_depthwise([2, 7, 6, 3], [3, 2, 2], 2, "SAME"),
        random_depthwise([1, 7, 6, 5], [3, 3, 1], 2, "VALID"),
        random_depthwise([1, 5, 5, 1], [5, 5, 3], 1, "VALID"),
        random_depthwise([1, 64, 64, 32], [3, 3, 1], 1, "SAME"),
        random_depthwise([1, 5, 6, 35], [3, 2, 1], 2, "SAME"),
        random_depthwise([1, 4, 4, 17], [2, 2, 2], 1, "VALID"),
        // As in tensorflow-cpu 2.21, the padding is multiplied, too.
        depthwise_case(
            "an infinite weight over the padding",
            tensor(&[1, 1, 2, 1], &[1.0f32, 2.0]),
            tensor(&[1, 2, 1, 1], &[2.0, f32::INFINITY]),
            1,
            "SAME",
        )
        .gives(tensor(&[1, 1, 2, 1], &[f32::INFINITY, f32::NAN])),
        depthwise_case(
            "an infinite pixel",
            tensor(&[1, 1, 2, 2], &[f32::INFINITY, 1.0, 1.0, 1.0]),
            tensor(&[1, 2, 2, 1], &[0.0f32, 1.0, 1.0, 1.0]),
            1,
            "SAME",
        )
        .gives(tensor(&[1, 1, 2, 2], &[f32::NAN, 2.0, 0.0, 1.0])),
        depthwise_case(
            "nothing",
            zeros(&[0, 3, 3, 2]),
            zeros(&[2, 2, 2, 1]),
            1,
            "VALID",
        )
        .gives(zeros(&[0, 2, 2, 2])),
        depthwise_case(
            "another depth",
            zeros(&[1, 3, 3, 2]),
            zeros(&[2, 2, 3, 1]),
            1,
            "VALID",
        )
        .refused("the same depth: 2 vs 3"),
        depthwise_case("a matrix", zeros(&[3, 3]), zeros(&[2, 2, 3, 1]), 1, "VALID")
            .refused("4-dimensional: input [3,3]"),
        depthwise_case(
            "a window too large",
            zeros(&[1, 1, 3, 1]),
            zeros(&[3, 3, 1, 1]),
            1,
            "VALID",
        )
        .refused("computed output size would be negative"),
        depthwise_case(
            "steps that differ",
            zeros(&[1, 3, 3, 1]),
            zeros(&[1, 1, 1, 1]),
            1,
            "VALID",
        )
        .ints("strides", &[1, 1, 2, 1])
        .refused("only equal strides"),
        depthwise_case(
            "dilations",
            zeros(&[1, 3, 3, 1]),
            zeros(&[1, 1, 1, 1]),
            1,
            "VALID",
        )
        .ints("dilations", &[1, 2, 2, 1])
        .refused("dilations [2, 2]; only 1 is"),
        depthwise_case(
            "channels first",
            tensor(&[1, 2, 1, 2], &[1.0f32, 2.0, 3.0, 4.0]),
            tensor(&[1, 1, 2, 1], &[10.0f32, 100.0]),
            1,
            "VALID",
        )
        .text("data_format", "NCHW")
        .gives(tensor(&[1, 2, 1, 2], &[10.0f32, 20.0, 300.0, 400.0])),
    ]
}

fn transposed_case(
    name: &str,
    sizes: &[i32],
    filter: Tensor,
    given: Tensor,
    stride: i64,
    padding: &str,
) -> Case {
    let op = "Conv2DBackpropInput";
    windows(case(&format!("{op}: {name}"), op), stride, padding)
        .typed("T", filter.dtype())
        .named_input("input_sizes", tensor(&[sizes.len()], sizes))
        .input(filter)
        .input(given)
}

/// Plain reference loop, in double precision: each input pixel adds its window.
fn random_transposed(x: [usize; 4], filter: [usize; 3], stride: usize, padding: &str) -> Case {
    let [batch, rows, columns, channels] = x;
    let [size_y, size_x, depth] = filter;
    let (n_y, n_x) = (
        axis(rows, size_y, stride, padding).0,
        axis(columns, size_x, stride, padding).0,
    );
    let given = noise(batch * n_y * n_x * depth, 1);
    let weights = noise(filter.iter().product::<usize>() * channels, 2);
    let mut sums = vec![0.0f64; x.iter().product()];
    for b in 0..batch {
        for (y, tap_y, in_y) in meetings(rows, size_y, stride, padding) {
            for (x, tap_x, in_x) in meetings(columns, size_x, stride, padding) {
                for c in 0..channels {
                    for d in 0..depth {
                        let value = given[((b * n_y + y) * n_x + x) * depth + d];
                        let weight = weights[((tap_y * size_x + tap_x) * channels + c) * depth + d];
                        sums[((b * rows + in_y) * columns + in_x) * channels + c] +=
                            f64::from(value) * f64::from(weight);
                    }
                }
            }
        }
    }
    let sizes = x.map(|size| i32::try_from(size).expect("small"));
    transposed_case(
        &format!("{x:?} from {filter:?}, stride {stride}, {padding}"),
        &sizes,
        tensor(&[size_y, size_x, channels, depth], &weights),
        tensor(&[batch, n_y, n_x, depth], &given),
        i64::try_from(stride).expect("small"),
        padding,
    )
    // At most 9 windows of 64 products of numbers below 1.
    .gives_within(tensor(&x, &single(&sums)), 2e-5)
}

fn small_transposed<T: Element>(number: impl Fn(f32) -> T) -> Case {
    let values = |list: &[f32]| -> Vec<T> { list.iter().map(|&v| number(v)).collect() };
    transposed_case(
        &format!("{}", T::DTYPE),
        &[1, 1, 3, 1],
        tensor(&[1, 2, 1, 1], &values(&[1.0, 10.0])),
        tensor(&[1, 1, 2, 1], &values(&[2.0, 3.0])),
        1,
        "VALID",
    )
    .gives(tensor(&[1, 1, 3, 1], &values(&[2.0, 23.0, 30.0])))
}

fn transposed() -> Vec<Case> {
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    let plain = |name: &str, sizes: &[i32], filter: &[usize], given: &[usize]| {
        transposed_case(name, sizes, zeros(filter), zeros(given), 1, "VALID")
    };
    vec![
        small_transposed(|x| x),
        small_transposed(f64::from),
        small_transposed(f16::from_f32),
        small_transposed(bf16::from_f32),
        #[expect(clippy::cast_possible_truncation, reason = "whole numbers")]
        small_transposed(|x| x as i32),
        random_transposed([2, 6, 7, 3], [3, 3, 4], 1, "SAME"),
        random_transposed([2, 6, 7, 3], [3, 2, 4], 2, "SAME"),
        random_transposed([1, 8, 8, 16], [2, 2, 64], 2, "SAME"),
        random_transposed([1, 9, 7, 2], [3, 3, 5], 2, "VALID"),
        random_transposed([3, 40, 40, 8], [3, 3, 16], 1, "SAME"),
        // Numbers of columns that the stride divides, and others.
        random_transposed([1, 6, 9, 33], [2, 3, 3], 3, "VALID"),
        random_transposed([2, 7, 10, 17], [4, 3, 5], 2, "SAME"),
        random_transposed([1, 7, 11, 16], [1, 1, 2], 3, "SAME"),
        plain("two sizes", &[3, 3], &[2, 2, 1, 1], &[1, 2, 2, 1]).gives(zeros(&[1, 3, 3, 1])),
        plain("nothing", &[0, 3, 3, 1], &[2, 2, 1, 1], &[0, 2, 2, 1]).gives(zeros(&[0, 3, 3, 1])),
        plain("another size", &[1, 4, 3, 1], &[2, 2, 1, 1], &[1, 2, 2, 1])
            .refused("actual = 2, computed = 3"),
        plain("another batch", &[2, 3, 3, 1], &[2, 2, 1, 1], &[1, 2, 2, 1])
            .refused("the same batch size: 2 vs. 1"),
        plain("groups", &[1, 3, 3, 2], &[2, 2, 1, 1], &[1, 2, 2, 1])
            .refused("gradients of groups are not supported: input depth 2, filter depth 1"),
        plain("another depth", &[1, 3, 3, 1], &[2, 2, 1, 1], &[1, 2, 2, 2])
            .refused("must have the same out_depth"),
        plain("three sizes", &[1, 3, 3], &[2, 2, 1, 1], &[1, 2, 2, 1])
            .refused("4 values or 2 values"),
        plain(
            "a negative size",
            &[1, -3, 3, 1],
            &[2, 2, 1, 1],
            &[1, 2, 2, 1],
        )
        .refused("must not be negative"),
        plain("a vector", &[1, 3, 3, 1], &[2, 2, 1, 1], &[1]).refused("must be 4-dimensional"),
        plain("dilations", &[1, 3, 3, 1], &[1, 1, 1, 1], &[1, 3, 3, 1])
            .ints("dilations", &[1, 2, 2, 1])
            .refused("dilations [2, 2]; only 1 is"),
    ]
}
