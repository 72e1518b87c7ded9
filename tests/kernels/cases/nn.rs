//! Convolution, pooling, bias, softmax.

use half::bf16;
use half::f16;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = biases();
    cases.extend(softmaxes());
    cases.extend(convolutions());
    cases.extend(pools());
    cases
}

fn bias(name: &str, value: Tensor, bias: Tensor, format: &str) -> Case {
    case(&format!("BiasAdd: {name}"), "BiasAdd")
        .typed("T", value.dtype())
        .text("data_format", format)
        .input(value)
        .input(bias)
}

/// 19 channels of 23 pixels: neither number is a multiple of a vector length.
fn wide_bias(format: &str) -> Case {
    let x: Vec<i32> = (0..2 * 19 * 23).collect();
    let b: Vec<i32> = (0..19).map(|channel| 1000 * channel).collect();
    let is_first = format == "NCHW";
    let dims = if is_first { [2, 19, 23] } else { [2, 23, 19] };
    let sums = (0..).zip(&x).map(|(index, x)| {
        let channel: usize = if is_first {
            index / 23 % 19
        } else {
            index % 19
        };
        x + b[channel]
    });
    bias(
        &format!("19 channels, {format}"),
        tensor(&dims, &x),
        tensor(&[19], &b),
        format,
    )
    .gives(tensor(&dims, &sums.collect::<Vec<i32>>()))
}

fn biases() -> Vec<Case> {
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    let b = tensor(&[3], &[1.0f32, 2.0, 3.0]);
    vec![
        wide_bias("NHWC"),
        wide_bias("NCHW"),
        bias("channels last", zeros(&[2, 3]), b.clone(), "NHWC")
            .gives(tensor(&[2, 3], &[1.0f32, 2.0, 3.0, 1.0, 2.0, 3.0])),
        bias("channels first", zeros(&[1, 3, 2]), b.clone(), "NCHW")
            .gives(tensor(&[1, 3, 2], &[1.0f32, 1.0, 2.0, 2.0, 3.0, 3.0])),
        bias(
            "channels first of a matrix",
            zeros(&[1, 3]),
            b.clone(),
            "NCHW",
        )
        .gives(tensor(&[1, 3], &[1.0f32, 2.0, 3.0])),
        bias(
            "integers",
            tensor(&[1, 2], &[1i32, -1]),
            tensor(&[2], &[10, 20]),
            "NHWC",
        )
        .gives(tensor(&[1, 2], &[11, 19])),
        bias("nothing", zeros(&[0, 3]), b.clone(), "NHWC").gives(tensor::<f32>(&[0, 3], &[])),
        bias("too many biases", zeros(&[2, 2]), b.clone(), "NHWC").refused("[3] vs. [2,2]"),
        // One bias would broadcast; the op does not.
        bias("one bias for all", zeros(&[2, 3]), zeros(&[1]), "NHWC").refused("[1] vs. [2,3]"),
        bias("a vector", zeros(&[3]), b.clone(), "NHWC").refused("must be at least 2D: [3]"),
        bias("a matrix of biases", zeros(&[2, 3]), zeros(&[1, 3]), "NHWC")
            .refused("biases must be 1D: [1,3]"),
        bias("an unknown layout", zeros(&[2, 3]), b, "HWNC").refused("`data_format` is `HWNC`"),
    ]
}

fn softmaxes() -> Vec<Case> {
    let softmax = |name: &str, input: Tensor| {
        case(&format!("Softmax: {name}"), "Softmax")
            .typed("T", input.dtype())
            .input(input)
    };
    let input: Vec<f32> = noise(3 * 5 * 37, 3).iter().map(|x| x * 20.0).collect();
    let mut expected = Vec::new();
    for row in input.chunks(37) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f64> = row.iter().map(|&x| f64::from(x - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        expected.extend(exps.iter().map(|e| e / sum));
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let single: Vec<f32> = expected.iter().map(|&y| y as f32).collect();
    let wide: Vec<f64> = input.iter().map(|&x| x.into()).collect();
    let half = [0.0, 0.0, 1.0, 1.0].map(f16::from_f32);
    let brain = [2.0; 4].map(bf16::from_f32);
    let spoilt = |bad: f32| {
        let mut row = [0.0f32; 41];
        row[19] = bad;
        softmax(
            &format!("{bad} spoils its row only"),
            tensor(&[2, 41], &[row, [1.0; 41]].concat()),
        )
        // The second row has the same value 41 times: a sum and a quotient.
        .gives_within(
            tensor(&[2, 41], &[[f32::NAN; 41], [1.0 / 41.0; 41]].concat()),
            1e-7,
        )
    };
    vec![
        spoilt(f32::NAN),
        spoilt(f32::INFINITY),
        softmax("a column", tensor(&[3, 1], &[1.0f32, -5.0, 1e20]))
            .gives(tensor(&[3, 1], &[1.0f32; 3])),
        softmax("whole vectors", tensor(&[70, 32], &[2.0f32; 70 * 32]))
            .gives(tensor(&[70, 32], &[0.031_25f32; 70 * 32])),
        // Each result is an exponential, a sum of 37 and a quotient.
        softmax("rows of the last dimension", tensor(&[3, 5, 37], &input))
            .gives_within(tensor(&[3, 5, 37], &single), 1e-6),
        softmax("double", tensor(&[15, 37], &wide))
            .gives_within(tensor(&[15, 37], &expected), 1e-7),
        softmax("half", tensor(&[2, 2], &half)).gives(tensor(&[2, 2], &[f16::from_f32(0.5); 4])),
        softmax("bfloat16", tensor(&[4], &brain)).gives(tensor(&[4], &[bf16::from_f32(0.25); 4])),
        softmax(
            "large numbers do not overflow",
            tensor(&[2], &[1e30f32, 1e30]),
        )
        .gives(tensor(&[2], &[0.5f32, 0.5])),
        softmax("a masked element", tensor(&[2], &[f32::NEG_INFINITY, 3.0]))
            .gives(tensor(&[2], &[0.0f32, 1.0])),
        softmax(
            "nothing but masked elements",
            tensor(&[2], &[f32::NEG_INFINITY; 2]),
        )
        .gives(tensor(&[2], &[f32::NAN; 2])),
        softmax("no columns", tensor::<f32>(&[2, 0], &[])).gives(tensor::<f32>(&[2, 0], &[])),
        softmax("a scalar", tensor(&[], &[1.0f32])).refused("at least one dimension"),
    ]
}

/// Attributes of a convolution or pool.
#[derive(Clone, Copy)]
struct Window {
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: &'static str,
    /// Top, bottom, left, right.
    explicit: [usize; 4],
}

const PLAIN: Window = Window {
    strides: [1, 1],
    dilations: [1, 1],
    padding: "VALID",
    explicit: [0; 4],
};

impl Window {
    fn attrs(self, case: Case) -> Case {
        let four = |[y, x]: [usize; 2]| [1, y, x, 1].map(|n| i64::try_from(n).expect("small"));
        let [top, bottom, left, right] = self.explicit;
        let explicit =
            [0, 0, top, bottom, left, right, 0, 0].map(|n| i64::try_from(n).expect("small"));
        let case = case
            .ints("strides", &four(self.strides))
            .ints("dilations", &four(self.dilations))
            .text("padding", self.padding)
            .text("data_format", "NHWC");
        if self.padding == "EXPLICIT" {
            case.ints("explicit_paddings", &explicit)
        } else {
            case.ints("explicit_paddings", &[])
        }
    }

    /// Returns the number of outputs on an axis, and the position of the first window, by the rule
    /// that TensorFlow documents.
    fn axis(self, axis: usize, input: usize, size: usize) -> (usize, isize) {
        let (stride, reach) = (self.strides[axis], (size - 1) * self.dilations[axis] + 1);
        let signed = |n: usize| isize::try_from(n).expect("small");
        match self.padding {
            "SAME" => {
                let n = input.div_ceil(stride);
                let missing = ((n - 1) * stride + reach).saturating_sub(input);
                (n, -signed(missing / 2))
            }
            "EXPLICIT" => {
                let [before, after] = [self.explicit[2 * axis], self.explicit[2 * axis + 1]];
                (
                    (input + before + after - reach) / stride + 1,
                    -signed(before),
                )
            }
            _ => ((input - reach) / stride + 1, 0),
        }
    }
}

fn conv(name: &str, input: Tensor, filter: Tensor, window: Window) -> Case {
    window
        .attrs(case(&format!("Conv2D: {name}"), "Conv2D").typed("T", input.dtype()))
        .input(input)
        .input(filter)
}

/// Plain reference loop, in double precision.
fn random_conv(input: [usize; 4], filter: [usize; 4], window: Window) -> Case {
    let [batch, rows, columns, channels] = input;
    let [f_rows, f_columns, f_channels, outputs] = filter;
    let x = noise(input.iter().product(), 1);
    let f = noise(filter.iter().product(), 2);
    let ((n_rows, top), (n_columns, left)) = (
        window.axis(0, rows, f_rows),
        window.axis(1, columns, f_columns),
    );
    let inside = |start: isize, step: usize, n: usize| {
        start
            .checked_add_unsigned(step)
            .and_then(|at| usize::try_from(at).ok())
            .filter(|&at| at < n)
    };
    let group_outputs = outputs / (channels / f_channels);
    let mut expected = Vec::new();
    for image in 0..batch {
        for row in 0..n_rows {
            for column in 0..n_columns {
                for output in 0..outputs {
                    let mut sum = 0.0f64;
                    for i in 0..f_rows {
                        for j in 0..f_columns {
                            let at = (
                                inside(
                                    top,
                                    row * window.strides[0] + i * window.dilations[0],
                                    rows,
                                ),
                                inside(
                                    left,
                                    column * window.strides[1] + j * window.dilations[1],
                                    columns,
                                ),
                            );
                            let (Some(y), Some(z)) = at else { continue };
                            for c in 0..f_channels {
                                let channel = output / group_outputs * f_channels + c;
                                let pixel =
                                    x[((image * rows + y) * columns + z) * channels + channel];
                                let weight =
                                    f[((i * f_columns + j) * f_channels + c) * outputs + output];
                                sum += f64::from(pixel) * f64::from(weight);
                            }
                        }
                    }
                    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
                    expected.push(sum as f32);
                }
            }
        }
    }
    let name = format!(
        "{input:?} * {filter:?} {} strides {:?} dilations {:?} {:?}",
        window.padding, window.strides, window.dilations, window.explicit
    );
    conv(&name, tensor(&input, &x), tensor(&filter, &f), window)
        // Sums of at most 300 terms of size 1, each rounded to 24 bits, in any order or by
        // Winograd.
        .gives_within(
            tensor(&[batch, n_rows, n_columns, outputs], &expected),
            4e-5,
        )
}

fn convolutions() -> Vec<Case> {
    let same = Window {
        padding: "SAME",
        ..PLAIN
    };
    let ones = |dims: &[usize]| tensor(dims, &vec![1.0f32; dims.iter().product()]);
    let mut cases = vec![
        conv("integers", tensor(&[1, 2, 2, 1], &[1, 2, 3, 4]), tensor(&[2, 2, 1, 1], &[1, 0, 0, -1]), PLAIN)
            .gives(tensor(&[1, 1, 1, 1], &[-3])),
        conv("no images", tensor::<f32>(&[0, 3, 3, 2], &[]), ones(&[2, 2, 2, 1]), PLAIN)
            .gives(tensor::<f32>(&[0, 2, 2, 1], &[])),
        conv("a window larger than the image by less than a stride", ones(&[1, 3, 2, 1]), ones(&[2, 3, 1, 1]), PLAIN)
            .gives(tensor::<f32>(&[1, 2, 0, 1], &[])),
        conv("a window larger than the image", ones(&[1, 3, 1, 2]), ones(&[2, 3, 2, 1]), PLAIN)
            .refused("computed output size would be negative: -1 [input_size: 1, effective_filter_size: 3, stride: 1]: input [1,3,1,2], filter [2,3,2,1]"),
        conv("depths that do not divide", ones(&[1, 3, 3, 2]), ones(&[2, 2, 3, 1]), PLAIN)
            .refused("input depth must be evenly divisible by filter depth: 2 vs 3"),
        conv("groups that do not divide", ones(&[1, 3, 3, 4]), ones(&[2, 2, 2, 3]), PLAIN)
            .refused("number of groups: 3 vs 2"),
        conv("an image of rank three", ones(&[3, 3, 2]), ones(&[2, 2, 2, 1]), PLAIN)
            .refused("must be 4-dimensional: input [3,3,2], filter [2,2,2,1]"),
        conv("an empty filter", ones(&[1, 3, 3, 2]), tensor::<f32>(&[0, 2, 2, 1], &[]), PLAIN)
            .refused("filter must not have zero elements"),
        conv("a stride of zero", ones(&[1, 3, 3, 1]), ones(&[2, 2, 1, 1]), Window { strides: [0, 1], ..PLAIN })
            .refused("attribute `strides` must be positive"),
        conv("an unknown padding", ones(&[1, 3, 3, 1]), ones(&[2, 2, 1, 1]), Window { padding: "FULL", ..PLAIN })
            .refused("attribute `padding` is `FULL`"),
        case("Conv2D: a stride over images", "Conv2D")
            .typed("T", DType::F32)
            .ints("strides", &[2, 1, 1, 1])
            .text("padding", "SAME")
            .input(ones(&[1, 3, 3, 1]))
            .input(ones(&[1, 1, 1, 1]))
            .refused("batch and depth dimensions must be 1"),
        case("Conv2D: channels first", "Conv2D")
            .typed("T", DType::F32)
            .ints("strides", &[1, 1, 1, 1])
            .text("padding", "VALID")
            .text("data_format", "NCHW")
            .input(tensor(&[1, 2, 2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]))
            .input(ones(&[1, 2, 2, 1]))
            .gives(tensor(&[1, 1, 2, 2], &[18.0f32, 22.0, 30.0, 34.0])),
        case("Conv2D: explicit sizes beside another padding", "Conv2D")
            .typed("T", DType::F32)
            .ints("strides", &[1, 1, 1, 1])
            .text("padding", "SAME")
            .ints("explicit_paddings", &[0, 0, 1, 1, 1, 1, 0, 0])
            .input(ones(&[1, 3, 3, 1]))
            .input(ones(&[1, 1, 1, 1]))
            .refused("explicit_paddings must be empty"),
        case("Conv2D: explicit sizes beyond int32", "Conv2D")
            .typed("T", DType::F32)
            .ints("strides", &[1, 1, 1, 1])
            .text("padding", "EXPLICIT")
            .ints("explicit_paddings", &[0, 0, 1 << 31, 0, 0, 0, 0, 0])
            .input(ones(&[1, 3, 3, 1]))
            .input(ones(&[1, 1, 1, 1]))
            .refused("out of range for an int32"),
        case("Conv2D: explicit sizes of the wrong number", "Conv2D")
            .typed("T", DType::F32)
            .ints("strides", &[1, 1, 1, 1])
            .text("padding", "EXPLICIT")
            .ints("explicit_paddings", &[1, 1])
            .input(ones(&[1, 3, 3, 1]))
            .input(ones(&[1, 1, 1, 1]))
            .refused("explicit_paddings must be 8 sizes"),
    ];
    for short in ["half", "bfloat16"] {
        let of = |dims: &[usize], values: &[f32]| -> Tensor {
            if short == "half" {
                tensor(
                    dims,
                    &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>(),
                )
            } else {
                tensor(
                    dims,
                    &values
                        .iter()
                        .map(|&x| bf16::from_f32(x))
                        .collect::<Vec<_>>(),
                )
            }
        };
        cases.push(
            conv(
                short,
                of(&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]),
                of(&[2, 2, 1, 1], &[1.0; 4]),
                PLAIN,
            )
            .gives(of(&[1, 1, 1, 1], &[10.0])),
        );
    }
    let explicit = Window {
        padding: "EXPLICIT",
        explicit: [1, 0, 0, 2],
        ..PLAIN
    };
    cases.extend([
        random_conv([2, 7, 6, 3], [3, 2, 3, 4], PLAIN),
        random_conv([2, 7, 6, 3], [3, 2, 3, 4], same),
        random_conv(
            [1, 8, 9, 2],
            [3, 3, 2, 5],
            Window {
                strides: [2, 3],
                ..same
            },
        ),
        random_conv(
            [1, 8, 9, 2],
            [3, 3, 2, 5],
            Window {
                strides: [3, 2],
                ..PLAIN
            },
        ),
        random_conv(
            [1, 9, 9, 2],
            [3, 3, 2, 1],
            Window {
                dilations: [2, 3],
                ..PLAIN
            },
        ),
        random_conv(
            [1, 9, 9, 2],
            [3, 3, 2, 1],
            Window {
                dilations: [2, 1],
                ..same
            },
        ),
        random_conv([1, 4, 5, 2], [2, 3, 2, 2], explicit),
        random_conv(
            [1, 4, 5, 2],
            [2, 3, 2, 2],
            Window {
                strides: [2, 2],
                ..explicit
            },
        ),
        // One element per window: a matmul, unless there is a stride.
        random_conv([2, 5, 5, 8], [1, 1, 8, 6], same),
        random_conv(
            [2, 5, 5, 8],
            [1, 1, 8, 6],
            Window {
                strides: [2, 2],
                ..same
            },
        ),
        // Groups.
        random_conv([1, 5, 5, 6], [3, 3, 2, 9], same),
        random_conv([1, 5, 5, 4], [1, 1, 1, 4], PLAIN),
        // Large enough for several threads and several blocks.
        random_conv([2, 40, 40, 32], [3, 3, 32, 16], same),
        // Winograd's tiles of both sizes, and of pixels that are not neighbours.
        random_conv([1, 9, 8, 32], [3, 3, 32, 48], same),
        random_conv([3, 21, 18, 17], [3, 3, 17, 19], explicit),
        random_conv(
            [1, 20, 23, 16],
            [3, 3, 16, 20],
            Window {
                dilations: [2, 3],
                ..same
            },
        ),
        // Around the sizes of tiles; windows larger than the image; groups wider than a vector.
        random_conv([1, 1, 1, 3], [1, 1, 3, 17], PLAIN),
        random_conv([1, 1, 3, 2], [1, 2, 2, 33], same),
        random_conv([1, 9, 11, 5], [3, 3, 5, 33], same),
        random_conv([1, 2, 3, 16], [5, 5, 8, 16], same),
        random_conv([2, 6, 7, 8], [3, 3, 4, 34], same),
    ]);
    cases
}

fn pool<T: Element>(
    op: &'static str,
    name: &str,
    input: (&[usize], &[T]),
    ksize: [i64; 2],
    window: Window,
) -> Case {
    window
        .attrs(case(&format!("{op}: {name}"), op).typed("T", T::DTYPE))
        .ints("ksize", &[1, ksize[0], ksize[1], 1])
        .input(tensor(input.0, input.1))
}

/// Plain reference loop for both poolings.
fn random_pools(input: [usize; 4], size: [usize; 2], window: Window) -> [Case; 2] {
    let [batch, rows, columns, channels] = input;
    let x = noise(input.iter().product(), 4);
    let ((n_rows, top), (n_columns, left)) = (
        window.axis(0, rows, size[0]),
        window.axis(1, columns, size[1]),
    );
    let (mut largest, mut means) = (Vec::new(), Vec::new());
    for image in 0..batch {
        for row in 0..n_rows {
            for column in 0..n_columns {
                for channel in 0..channels {
                    let (mut max, mut sum, mut count) = (f32::NEG_INFINITY, 0.0f64, 0.0f64);
                    for i in 0..size[0] {
                        for j in 0..size[1] {
                            let y = top.checked_add_unsigned(row * window.strides[0] + i);
                            let z = left.checked_add_unsigned(column * window.strides[1] + j);
                            let (Ok(y), Ok(z)) = (
                                usize::try_from(y.expect("small")),
                                usize::try_from(z.expect("small")),
                            ) else {
                                continue;
                            };
                            if y < rows && z < columns {
                                let value =
                                    x[((image * rows + y) * columns + z) * channels + channel];
                                max = max.max(value);
                                sum += f64::from(value);
                                count += 1.0;
                            }
                        }
                    }
                    largest.push(max);
                    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
                    means.push((sum / count) as f32);
                }
            }
        }
    }
    let name = format!(
        "{input:?} by {size:?} {} strides {:?}",
        window.padding, window.strides
    );
    let ksize = size.map(|n| i64::try_from(n).expect("small"));
    let dims = [batch, n_rows, n_columns, channels];
    [
        pool("MaxPool", &name, (&input, &x), ksize, window).gives(tensor(&dims, &largest)),
        // A sum of at most nine terms of size 1, and a quotient.
        pool("AvgPool", &name, (&input, &x), ksize, window)
            .gives_within(tensor(&dims, &means), 1e-6),
    ]
}

fn pools() -> Vec<Case> {
    let same = Window {
        padding: "SAME",
        ..PLAIN
    };
    let image: (&[usize], &[f32]) = (&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let nan = f32::NAN;
    let mut cases = vec![
        pool(
            "MaxPool",
            "negative numbers beside the padding",
            (&[1, 1, 1, 1], &[-5.0f32]),
            [2, 2],
            same,
        )
        .gives(tensor(&[1, 1, 1, 1], &[-5.0f32])),
        pool(
            "AvgPool",
            "the padding does not count",
            (&[1, 1, 1, 1], &[-5.0f32]),
            [3, 3],
            same,
        )
        .gives(tensor(&[1, 1, 1, 1], &[-5.0f32])),
        pool(
            "MaxPool",
            "negative infinity is below the lowest number",
            (&[1, 1, 2, 1], &[f32::NEG_INFINITY; 2]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[f32::MIN])),
        pool(
            "MaxPool",
            "negative infinity in half, beside the padding",
            (&[1, 1, 1, 1], &[f16::NEG_INFINITY]),
            [2, 2],
            same,
        )
        .gives(tensor(&[1, 1, 1, 1], &[f16::MIN])),
        pool(
            "MaxPool",
            "negative infinity in double",
            (&[1, 1, 2, 1], &[f64::NEG_INFINITY, f64::NAN]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[f64::MIN])),
        pool(
            "MaxPool",
            "windows beyond 32 bits",
            (&[1, 1, 1, 1], &[1.0f32]),
            [1, 1 << 31],
            same,
        )
        .refused("`ksize` has value 2147483648 out of range for an int32"),
        pool(
            "AvgPool",
            "windows beyond 32 bits",
            (&[1, 1, 1, 1], &[1.0f32]),
            [1 << 31, 1],
            same,
        )
        .refused("`ksize` has value 2147483648 out of range for an int32"),
        // As in tensorflow-cpu 2.21.
        pool(
            "MaxPool",
            "not a number loses",
            (&[1, 1, 4, 1], &[nan, 1.0, 2.0, nan]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 3, 1], &[1.0f32, 2.0, 2.0])),
        pool(
            "AvgPool",
            "not a number spreads",
            (&[1, 1, 3, 1], &[nan, 1.0, 2.0]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 2, 1], &[nan, 1.5])),
        pool(
            "MaxPool",
            "bytes",
            (&[1, 1, 2, 1], &[200u8, 100]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[200u8])),
        pool(
            "MaxPool",
            "short integers",
            (&[1, 1, 2, 1], &[-7i16, -9]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[-7i16])),
        pool(
            "MaxPool",
            "double",
            (&[1, 1, 2, 1], &[-7.0f64, -9.0]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[-7.0f64])),
        pool(
            "AvgPool",
            "half sums in float",
            (&[1, 1, 2, 1], &[f16::MAX; 2]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[f16::MAX])),
        pool(
            "AvgPool",
            "double",
            (&[1, 1, 2, 1], &[1.0f64, 2.0]),
            [1, 2],
            PLAIN,
        )
        .gives(tensor(&[1, 1, 1, 1], &[1.5f64])),
        pool(
            "AvgPool",
            "of integers",
            (&[1, 1, 2, 1], &[1i32, 2]),
            [1, 2],
            PLAIN,
        )
        .refused("no kernel"),
        pool(
            "MaxPool",
            "no images",
            (&[0, 2, 2, 1], &[] as &[f32]),
            [2, 2],
            PLAIN,
        )
        .gives(tensor::<f32>(&[0, 1, 1, 1], &[])),
        pool(
            "MaxPool",
            "explicit sizes",
            image,
            [2, 2],
            Window {
                padding: "EXPLICIT",
                explicit: [1, 0, 0, 1],
                ..PLAIN
            },
        )
        .gives(tensor(&[1, 2, 2, 1], &[2.0f32, 2.0, 4.0, 4.0])),
        pool(
            "MaxPool",
            "windows of nothing but padding",
            image,
            [2, 2],
            Window {
                padding: "EXPLICIT",
                explicit: [2, 0, 0, 0],
                ..PLAIN
            },
        )
        .refused("would leave windows of 2 without input"),
        pool(
            "MaxPool",
            "an image of rank two",
            (&[2, 2], &[1.0f32; 4]),
            [2, 2],
            PLAIN,
        )
        .refused("must be 4-dimensional, found [2,2]"),
        pool("AvgPool", "a window of zero", image, [0, 2], PLAIN)
            .refused("attribute `ksize` must be positive"),
        pool(
            "AvgPool",
            "a window larger than the image",
            image,
            [4, 2],
            PLAIN,
        )
        .refused("computed output size would be negative: -1"),
        case("MaxPool: over channels", "MaxPool")
            .typed("T", DType::F32)
            .ints("ksize", &[1, 1, 1, 2])
            .ints("strides", &[1, 1, 1, 2])
            .text("padding", "VALID")
            .input(tensor(image.0, image.1))
            .refused("batch and depth dimensions must be 1"),
    ];
    let image = tensor(&[1, 2, 2, 2], &[1.0f32, 2.0, 3.0, 4.0, 8.0, 7.0, 6.0, 5.0]);
    for (op, results) in [("MaxPool", [4.0f32, 8.0]), ("AvgPool", [2.5, 6.5])] {
        let pool = case(&format!("{op}: channels first"), op).typed("T", DType::F32);
        let pool = pool
            .ints("ksize", &[1, 1, 2, 2])
            .ints("strides", &[1, 1, 1, 1]);
        let pool = pool.text("padding", "VALID").text("data_format", "NCHW");
        let pool = pool.input(image.clone());
        cases.push(pool.gives(tensor(&[1, 2, 1, 1], &results)));
    }
    for (input, size, window) in [
        (
            [1, 6, 6, 3],
            [2, 2],
            Window {
                strides: [2, 2],
                ..PLAIN
            },
        ),
        (
            [2, 7, 5, 2],
            [3, 2],
            Window {
                strides: [2, 3],
                ..same
            },
        ),
        ([1, 5, 5, 1], [3, 3], same),
        (
            [1, 3, 3, 2],
            [2, 2],
            Window {
                strides: [4, 4],
                ..same
            },
        ),
        // Large enough for several threads.
        (
            [4, 33, 31, 16],
            [3, 3],
            Window {
                strides: [1, 2],
                ..same
            },
        ),
        // A vector of channels, and a remainder.
        ([2, 5, 4, 17], [3, 2], same),
        ([1, 4, 4, 35], [2, 2], PLAIN),
    ] {
        cases.extend(random_pools(input, size, window));
    }
    cases
}
