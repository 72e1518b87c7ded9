//! Convolution and pooling of volumes.

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
    let mut cases = convolutions();
    cases.extend(pools());
    cases
}

fn conv(op: &'static str, name: &str, strides: [i64; 3], padding: &str) -> Case {
    let [z, y, x] = strides;
    case(&format!("{op}: {name}, strides {strides:?}, {padding}"), op)
        .ints("strides", &[1, z, y, x, 1])
        .text("padding", padding)
}

/// Windows along an axis: their number, and the padding before the first element.
fn windows(length: usize, size: usize, stride: usize, padding: &str) -> (usize, usize) {
    match padding {
        "SAME" => {
            let n = length.div_ceil(stride);
            let needed = ((n - 1) * stride + size).saturating_sub(length);
            (n, needed / 2)
        }
        _ => ((length - size) / stride + 1, 0),
    }
}

/// All pairs of window and input position of volumes of three axes: (window, tap, input), flat.
fn pairs(
    lengths: [usize; 3],
    sizes: [usize; 3],
    strides: [usize; 3],
    padding: &str,
) -> (usize, Vec<[usize; 3]>, [usize; 3]) {
    let axes: Vec<(usize, usize)> = (0..3)
        .map(|axis| windows(lengths[axis], sizes[axis], strides[axis], padding))
        .collect();
    let counts = [axes[0].0, axes[1].0, axes[2].0];
    let split = |mut flat: usize, dims: [usize; 3]| {
        let mut index = [0; 3];
        for axis in (0..3).rev() {
            index[axis] = flat % dims[axis];
            flat /= dims[axis];
        }
        index
    };
    let (n_windows, n_taps): (usize, usize) = (counts.iter().product(), sizes.iter().product());
    let mut found = Vec::new();
    for window in 0..n_windows {
        let w = split(window, counts);
        'taps: for tap in 0..n_taps {
            let t = split(tap, sizes);
            let mut input = 0;
            for (axis, &(_, before)) in axes.iter().enumerate() {
                let at = (w[axis] * strides[axis] + t[axis]).checked_sub(before);
                let Some(at) = at.filter(|&at| at < lengths[axis]) else {
                    continue 'taps;
                };
                input = input * lengths[axis] + at;
            }
            found.push([window, tap, input]);
        }
    }
    (n_windows, found, counts)
}

#[expect(clippy::cast_possible_truncation, reason = "rounded once")]
fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// A convolution and its transposed one, by plain loops in double precision.
fn random(
    lengths: [usize; 3],
    sizes: [usize; 3],
    strides: [usize; 3],
    channels: [usize; 2],
    padding: &str,
) -> Vec<Case> {
    let batch = 2;
    let [n_in, n_out] = channels;
    let (n_windows, pairs, counts) = pairs(lengths, sizes, strides, padding);
    let (n_pixels, n_taps): (usize, usize) = (lengths.iter().product(), sizes.iter().product());
    let dims = |space: [usize; 3], depth: usize| [batch, space[0], space[1], space[2], depth];
    let x = noise(batch * n_pixels * n_in, 1);
    let given = noise(batch * n_windows * n_out, 2);
    let filter = noise(n_taps * n_in * n_out, 3);
    let mut forward = vec![0.0; batch * n_windows * n_out];
    let mut back = vec![0.0; batch * n_pixels * n_in];
    for volume in 0..batch {
        for &[window, tap, input] in &pairs {
            for i in 0..n_in {
                for o in 0..n_out {
                    let weight = f64::from(filter[(tap * n_in + i) * n_out + o]);
                    let from = (volume * n_pixels + input) * n_in + i;
                    let to = (volume * n_windows + window) * n_out + o;
                    forward[to] += f64::from(x[from]) * weight;
                    back[from] += f64::from(given[to]) * weight;
                }
            }
        }
    }
    let filter = tensor(&[sizes[0], sizes[1], sizes[2], n_in, n_out], &filter);
    let name = format!("{lengths:?} by {sizes:?}, {channels:?}");
    let strides = strides.map(|stride| i64::try_from(stride).expect("small"));
    let wanted = dims(lengths, n_in).map(|size| i32::try_from(size).expect("small"));
    // At most some hundred products of numbers below 1, each rounded, in another order.
    vec![
        conv("Conv3D", &name, strides, padding)
            .typed("T", DType::F32)
            .input(tensor(&dims(lengths, n_in), &x))
            .input(filter.clone())
            .gives_within(tensor(&dims(counts, n_out), &single(&forward)), 1e-5),
        conv("Conv3DBackpropInputV2", &name, strides, padding)
            .typed("T", DType::F32)
            .typed("Tshape", DType::I32)
            .named_input("input_sizes", tensor(&[5], &wanted))
            .input(filter)
            .input(tensor(&dims(counts, n_out), &given))
            .gives_within(tensor(&dims(lengths, n_in), &single(&back)), 1e-5),
    ]
}

fn small<T: Element>(number: impl Fn(i8) -> T) -> Vec<Case> {
    let values = |list: &[i8]| list.iter().map(|&x| number(x)).collect::<Vec<T>>();
    let filter = tensor(&[1, 1, 2, 1, 1], &values(&[1, 2]));
    vec![
        conv("Conv3D", &format!("{}", T::DTYPE), [1, 1, 1], "VALID")
            .typed("T", T::DTYPE)
            .input(tensor(&[1, 1, 1, 3, 1], &values(&[1, 2, 3])))
            .input(filter.clone())
            .gives(tensor(&[1, 1, 1, 2, 1], &values(&[5, 8]))),
        conv(
            "Conv3DBackpropInputV2",
            &format!("{}", T::DTYPE),
            [1, 1, 1],
            "VALID",
        )
        .typed("T", T::DTYPE)
        .typed("Tshape", DType::I64)
        .named_input("input_sizes", tensor(&[5], &[1i64, 1, 1, 3, 1]))
        .input(filter)
        .input(tensor(&[1, 1, 1, 2, 1], &values(&[1, 3])))
        .gives(tensor(&[1, 1, 1, 3, 1], &values(&[1, 5, 6]))),
    ]
}

fn zeros(dims: &[usize]) -> Tensor {
    tensor(dims, &vec![0.0f32; dims.iter().product()])
}

fn convolutions() -> Vec<Case> {
    let mut cases = small(f32::from);
    cases.extend(small(f64::from));
    cases.extend(small(|x| f16::from_f32(x.into())));
    cases.extend(small(|x| bf16::from_f32(x.into())));
    for padding in ["SAME", "VALID"] {
        cases.extend(random([4, 5, 6], [2, 3, 3], [1, 1, 1], [3, 4], padding));
        cases.extend(random([5, 4, 7], [3, 1, 2], [2, 1, 3], [1, 5], padding));
        cases.extend(random([3, 3, 3], [1, 1, 1], [1, 1, 1], [4, 2], padding));
        // More than one block of patches.
        cases.extend(random([9, 11, 13], [3, 3, 3], [1, 1, 1], [5, 2], padding));
    }
    let plain = |name: &str, x: Tensor, filter: Tensor| {
        conv("Conv3D", name, [1, 1, 1], "VALID")
            .typed("T", DType::F32)
            .input(x)
            .input(filter)
    };
    let back = |name: &str, sizes: &[i32], given: &[usize]| {
        conv("Conv3DBackpropInputV2", name, [1, 1, 1], "VALID")
            .typed("T", DType::F32)
            .typed("Tshape", DType::I32)
            .named_input("input_sizes", tensor(&[sizes.len()], sizes))
            .input(zeros(&[1, 1, 1, 1, 1]))
            .input(zeros(given))
    };
    cases.extend([
        plain(
            "no volumes",
            zeros(&[0, 2, 2, 2, 1]),
            zeros(&[1, 1, 1, 1, 3]),
        )
        .gives(zeros(&[0, 2, 2, 2, 3])),
        plain("a matrix", zeros(&[2, 2]), zeros(&[1, 1, 1, 1, 1])).refused("must be 5-dimensional"),
        plain(
            "depths that differ",
            zeros(&[1, 1, 1, 1, 2]),
            zeros(&[1, 1, 1, 1, 1]),
        )
        .refused("must have the same depth: 2 vs 1"),
        plain(
            "an empty filter",
            zeros(&[1, 1, 1, 1, 1]),
            zeros(&[0, 1, 1, 1, 1]),
        )
        .refused("filter must not have zero elements"),
        plain(
            "a large window",
            zeros(&[1, 1, 1, 1, 1]),
            zeros(&[1, 1, 3, 1, 1]),
        )
        .refused("output size would be negative"),
        plain(
            "dilated",
            tensor(&[1, 1, 1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]),
            tensor(&[1, 1, 2, 1, 1], &[1.0f32, 10.0]),
        )
        .ints("dilations", &[1, 1, 1, 2, 1])
        .gives(tensor(&[1, 1, 1, 2, 1], &[31.0f32, 42.0])),
        plain(
            "channels first",
            zeros(&[1, 1, 1, 1, 1]),
            zeros(&[1, 1, 1, 1, 1]),
        )
        .text("data_format", "NCDHW")
        .refused("only NDHWC is implemented"),
        plain(
            "strides of the batch",
            zeros(&[1, 1, 1, 1, 1]),
            zeros(&[1, 1, 1, 1, 1]),
        )
        .ints("strides", &[2, 1, 1, 1, 1])
        .refused("1 for batch and depth"),
        back("sizes that do not fit", &[1, 1, 1, 2, 1], &[1, 1, 1, 1, 1])
            .refused("does not match the shape computed"),
        back("negative sizes", &[1, 1, 1, -1, 1], &[1, 1, 1, 1, 1])
            .refused("input_sizes must not be negative"),
        back("no volumes", &[0, 1, 1, 1, 1], &[0, 1, 1, 1, 1]).gives(zeros(&[0, 1, 1, 1, 1])),
    ]);
    cases
}

fn pool(
    op: &'static str,
    name: &str,
    x: Tensor,
    sizes: [i64; 3],
    strides: [i64; 3],
    padding: &str,
) -> Case {
    conv(op, name, strides, padding)
        .typed("T", x.dtype())
        .ints("ksize", &[1, sizes[0], sizes[1], sizes[2], 1])
        .input(x)
}

fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    let bf = |values: &[f32]| {
        values
            .iter()
            .map(|&x| bf16::from_f32(x))
            .collect::<Vec<bf16>>()
    };
    for padding in ["SAME", "VALID"] {
        for (lengths, sizes, strides) in [
            ([4, 5, 6], [2, 3, 3], [1, 2, 1]),
            ([3, 7, 5], [3, 2, 1], [2, 3, 2]),
        ] {
            let channels = 3;
            let (n_windows, pairs, counts) = pairs(lengths, sizes, strides, padding);
            let n_pixels: usize = lengths.iter().product();
            let x = noise(n_pixels * channels, 7);
            let mut largest = vec![f32::MIN; n_windows * channels];
            let mut sums = vec![(0.0, 0.0); n_windows * channels];
            for &[window, _, input] in &pairs {
                for channel in 0..channels {
                    let value = x[input * channels + channel];
                    let place = window * channels + channel;
                    largest[place] = largest[place].max(value);
                    sums[place].0 += f64::from(value);
                    sums[place].1 += 1.0;
                }
            }
            let means: Vec<f64> = sums.iter().map(|(sum, n)| sum / n).collect();
            let dims = |space: [usize; 3]| [1, space[0], space[1], space[2], channels];
            let long = |list: [usize; 3]| list.map(|x| i64::try_from(x).expect("small"));
            let name = format!("{lengths:?} by {sizes:?}");
            let input = tensor(&dims(lengths), &x);
            cases.push(
                pool(
                    "MaxPool3D",
                    &name,
                    input.clone(),
                    long(sizes),
                    long(strides),
                    padding,
                )
                .gives(tensor(&dims(counts), &largest)),
            );
            cases.push(
                // Sums of at most 18 rounded terms.
                pool(
                    "AvgPool3D",
                    &name,
                    input,
                    long(sizes),
                    long(strides),
                    padding,
                )
                .gives_within(tensor(&dims(counts), &single(&means)), 1e-6),
            );
        }
    }
    for (op, result) in [("MaxPool3D", 3.0), ("AvgPool3D", 2.0)] {
        cases.extend([
            // Windows that leave elements out are centred.
            pool(
                op,
                "centred windows",
                tensor(&[1, 1, 1, 3, 1], &[1.0f32, 2.0, 3.0]),
                [1; 3],
                [1, 1, 3],
                "SAME",
            )
            .gives(tensor(&[1, 1, 1, 1, 1], &[2.0f32])),
            pool(
                op,
                "bfloat16",
                tensor(&[1, 1, 1, 2, 1], &bf(&[1.0, 3.0])),
                [1, 1, 2],
                [1; 3],
                "VALID",
            )
            .gives(tensor(&[1, 1, 1, 1, 1], &bf(&[result]))),
            pool(
                op,
                "no volumes",
                zeros(&[0, 2, 2, 2, 1]),
                [2; 3],
                [2; 3],
                "VALID",
            )
            .gives(zeros(&[0, 1, 1, 1, 1])),
            pool(op, "a matrix", zeros(&[2, 2]), [1; 3], [1; 3], "VALID")
                .refused("must be 5-dimensional"),
            pool(
                op,
                "an empty window",
                zeros(&[1, 1, 1, 1, 1]),
                [1, 0, 1],
                [1; 3],
                "VALID",
            )
            .refused("must be positive"),
        ]);
    }
    cases
}
