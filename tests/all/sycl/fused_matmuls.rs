//! Matmuls that SYCL devices fuse with the nodes around them: biases, activations, transpositions.
//! The results equal those of separate nodes.

use std::sync::Arc;

use half::bf16;
use half::f16;
use placewright::builder::Conv2d;
use placewright::builder::GraphBuilder;
use placewright::builder::Number;
use placewright::builder::Padding;
use placewright::builder::Scalar;
use placewright::device::DeviceSet;
use placewright::tensor::Element;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use super::fusion::Ways;
use super::fusion::assert_close;
use super::fusion::bits;
use super::fusion::recorded;
use super::fusion::values;
use super::open;
use super::options;
use crate::sample::joined;

/// `y` = activation(x w + bias), with constant weights or not.
pub(super) fn dense(size: [usize; 3], activation: Option<&str>, is_fixed: bool) -> GraphBuilder {
    let [m, k, n] = size;
    let b = GraphBuilder::new("dense");
    let x = b.placeholder::<f32>("x", [m, k]).unwrap();
    let w = if is_fixed {
        let w = values(&[k, n], 2);
        b.constant([k, n], w.as_slice::<f32>().unwrap()).unwrap()
    } else {
        b.placeholder::<f32>("w", [k, n]).unwrap()
    };
    let bias = b.placeholder::<f32>("bias", [n]).unwrap();
    let matmul = b.named("matmul").matmul(x, w).unwrap();
    let name = if activation.is_some() { "sum" } else { "y" };
    let sum = b.named(name).bias_add(matmul, bias).unwrap();
    if let Some(op) = activation {
        b.op(op).name("y").input(sum).finish().unwrap();
    }
    b
}

#[test]
#[needs(Sycl)]
fn matmuls_fuse_bias_and_activation() {
    let ways = Ways::open();
    for devices in ways.all() {
        matmuls(devices);
    }
}

fn matmuls(devices: &Arc<DeviceSet>) {
    for (size, activation, is_fixed) in [
        ([4, 8, 5], Some("Relu"), false),
        ([1, 33, 50], None, true),
        ([1, 33, 50], Some("Relu6"), true),
        ([40, 17, 16], Some("Neg"), false),
        ([300, 20, 70], Some("Relu"), false),
        ([300, 20, 70], Some("Tanh"), true),
        ([7, 0, 9], Some("Relu"), false),
        ([0, 4, 9], None, false),
    ] {
        let what = format!("{size:?} {activation:?} {is_fixed}");
        let (session, recorder) = recorded(dense(size, activation, is_fixed), devices);
        let [m, k, n] = size;
        let mut feeds = vec![("x", values(&[m, k], 1)), ("bias", values(&[n], 3))];
        if !is_fixed {
            feeds.push(("w", values(&[k, n], 2)));
        }
        let found = session.run(&feeds, &["y"]).unwrap();
        let (nodes, apart) = match activation {
            Some(_) => ("matmul, sum, y", &["y", "sum", "matmul"][..]),
            None => ("matmul, y", &["y", "matmul"][..]),
        };
        assert_eq!(
            joined(&recorder),
            [format!("_FusedMatMul computes {nodes}")],
            "{what}"
        );
        let expected = session.run(&feeds, apart).unwrap();
        if activation == Some("Tanh") {
            assert_close(&found[0], &expected[0], &what);
        } else {
            assert_eq!(found[0].shape(), expected[0].shape(), "{what}");
            assert_eq!(bits(&found[0]), bits(&expected[0]), "{what}");
        }
    }
}

/// Sums of ones, 257 or 2049, that lie between two numbers of the type. If the sum were rounded
/// first, down to 256 or 2048, the bias of 1 would be rounded away again. Rounded once, the result
/// is 1 more than the sum.
#[test]
#[needs(Sycl)]
fn f16_and_bf16_are_rounded_once() {
    let ways = Ways::open();
    for devices in ways.all() {
        let b = GraphBuilder::new("bfloat16");
        rounded_once(b, devices, bf16::ONE, 257, bf16::from_f32(258.0));
        let b = GraphBuilder::new("half");
        rounded_once(b, devices, f16::ONE, 2049, f16::from_f32(2050.0));
    }
}

fn rounded_once<T: Number + Scalar + Element>(
    b: GraphBuilder,
    devices: &Arc<DeviceSet>,
    one: T,
    k: usize,
    expected: T,
) {
    let x = b.placeholder::<T>("x", [2, k]).unwrap();
    let w = b.constant([k, 3], &vec![one; 3 * k]).unwrap();
    let bias = b.placeholder::<T>("bias", [3]).unwrap();
    let matmul = b.named("matmul").matmul(x, w).unwrap();
    let sum = b.named("sum").bias_add(matmul, bias).unwrap();
    b.named("y").relu(sum).unwrap();
    let (session, recorder) = recorded(b, devices);
    let feeds = [
        ("x", Tensor::from_values([2, k], &vec![one; 2 * k]).unwrap()),
        ("bias", Tensor::from_values([3], &[one; 3]).unwrap()),
    ];
    let found = session.run(&feeds, &["y"]).unwrap();
    assert_eq!(joined(&recorder), ["_FusedMatMul computes matmul, sum, y"]);
    assert_eq!(found[0].as_slice::<T>().unwrap(), [expected; 6]);
}

#[test]
#[needs(Sycl)]
fn convolutions_fuse_bias_and_activation() {
    let ways = Ways::open();
    let (vectors, groups) = (&ways.vectors, &ways.groups);
    // Channels of the image, of the filter, and of the result: the second case has groups.
    for ([given, taken, made], devices) in [
        ([3, 3, 7], vectors),
        ([8, 4, 34], vectors),
        ([8, 4, 34], groups),
        ([2, 2, 16], groups),
    ] {
        let b = GraphBuilder::new("image");
        let x = b.placeholder::<f32>("x", [2, 9, 8, given]).unwrap();
        let w = b.placeholder::<f32>("w", [3, 3, taken, made]).unwrap();
        let bias = b.placeholder::<f32>("bias", [made]).unwrap();
        let options = Conv2d::new(Padding::Same);
        let matmul = b.named("matmul").conv2d(x, w, options).unwrap();
        let sum = b.named("sum").bias_add(matmul, bias).unwrap();
        b.named("y").relu(sum).unwrap();
        let (session, recorder) = recorded(b, devices);
        let feeds = [
            ("x", values(&[2, 9, 8, given], 1)),
            ("w", values(&[3, 3, taken, made], 2)),
            ("bias", values(&[made], 3)),
        ];
        let found = session.run(&feeds, &["y"]).unwrap();
        assert_eq!(joined(&recorder), ["_FusedConv2D computes matmul, sum, y"]);
        let apart = session.run(&feeds, &["y", "sum", "matmul"]).unwrap();
        assert_eq!(bits(&found[0]), bits(&apart[0]), "{made} channels");
    }
}

#[test]
#[needs(Sycl)]
fn a_bias_of_a_wrong_shape_is_rejected_with_node_and_shapes() {
    let b = GraphBuilder::new("unknown");
    let x = b.placeholder::<f32>("x", [4, 8]).unwrap();
    let w = b.placeholder::<f32>("w", [8, 5]).unwrap();
    let bias = b.placeholder::<f32>("bias", PartialShape::unknown());
    let matmul = b.named("matmul").matmul(x, w).unwrap();
    b.named("y").bias_add(matmul, bias.unwrap()).unwrap();
    let (session, _) = recorded(b, &open(&options(1)));
    let feeds = |shape: &[usize]| {
        [
            ("x", values(&[4, 8], 1)),
            ("w", values(&[8, 5], 2)),
            ("bias", values(shape, 3)),
        ]
    };
    for shape in [&[4][..], &[1, 5], &[]] {
        let error = session.run(&feeds(shape), &["y"]).unwrap_err().to_string();
        assert!(
            error.contains("`y` (_FusedMatMul)") && error.contains("[4,5]"),
            "{error}"
        );
    }
    session.run(&feeds(&[5]), &["y"]).unwrap();
}

/// Shapes and permutations of both sides, whether the matmul then transposes them, and the
/// permutation of the result. An empty permutation means no node.
type Transposed = (
    ([usize; 4], Option<[i32; 4]>),
    ([usize; 4], Option<[i32; 4]>),
    [bool; 2],
    Option<[i32; 4]>,
);

#[test]
#[needs(Sycl)]
fn matmuls_fuse_transpositions_around_them() {
    let ways = Ways::open();
    let (vectors, groups) = (&ways.vectors, &ways.groups);
    let heads = Some([0, 2, 1, 3]);
    let cases: [Transposed; 7] = [
        // Attention: heads are adjacent in memory.
        (
            ([2, 9, 3, 5], heads),
            ([2, 7, 3, 5], heads),
            [false, true],
            None,
        ),
        (
            ([2, 3, 9, 7], None),
            ([2, 7, 3, 5], heads),
            [false; 2],
            heads,
        ),
        (
            ([2, 9, 3, 5], heads),
            ([2, 7, 3, 5], heads),
            [false, true],
            heads,
        ),
        // Columns that are not contiguous, and enough rows to pay for panels.
        (
            ([1, 300, 2, 8], heads),
            ([1, 40, 2, 8], Some([0, 2, 3, 1])),
            [false; 2],
            None,
        ),
        (
            ([6, 2, 4, 3], None),
            ([2, 6, 5, 3], Some([1, 0, 3, 2])),
            [false; 2],
            Some([2, 1, 0, 3]),
        ),
        // Broadcast sides.
        (
            ([2, 9, 1, 5], heads),
            ([2, 5, 3, 4], heads),
            [false; 2],
            heads,
        ),
        (
            ([2, 3, 9, 5], None),
            ([2, 4, 1, 5], heads),
            [false, true],
            Some([1, 0, 2, 3]),
        ),
    ];
    for (case, (x, y, is_transposed, output)) in cases.into_iter().enumerate() {
        let devices = if case % 2 == 0 { &vectors } else { &groups };
        let b = GraphBuilder::new("attention");
        let mut names = Vec::new();
        let mut side =
            |name: &'static str, (shape, permutation): ([usize; 4], Option<[i32; 4]>)| {
                let side = b.placeholder::<f32>(name, shape).unwrap();
                let Some(permutation) = permutation else {
                    return side;
                };
                let transposed = if name == "x" {
                    "x_transposed"
                } else {
                    "y_transposed"
                };
                names.push(transposed);
                let permutation = b.constant([4], &permutation).unwrap();
                let node = b
                    .op("Transpose")
                    .name(transposed)
                    .input(side)
                    .input(permutation);
                node.value::<f32>().unwrap()
            };
        let (left, right) = (side("x", x), side("y", y));
        let name = if output.is_some() { "matmul" } else { "result" };
        let matmul = b.op("BatchMatMulV2").name(name).input(left).input(right);
        let matmul = matmul
            .attr("adj_x", is_transposed[0])
            .attr("adj_y", is_transposed[1]);
        let matmul = matmul.value::<f32>().unwrap();
        if let Some(permutation) = output {
            names.push("matmul");
            let permutation = b.constant([4], &permutation).unwrap();
            let node = b.op("Transpose").name("result").input(matmul);
            node.input(permutation).finish().unwrap();
        }
        let (session, recorder) = recorded(b, devices);
        let feeds = [("x", values(&x.0, 1)), ("y", values(&y.0, 2))];
        let found = session.run(&feeds, &["result"]).unwrap();
        names.push("result");
        assert_eq!(
            joined(&recorder),
            [format!(
                "_FusedTransposeBatchMatMul computes {}",
                names.join(", ")
            )]
        );
        names.rotate_right(1);
        let expected = session.run(&feeds, &names).unwrap();
        assert_eq!(found[0].shape(), expected[0].shape(), "case {case}");
        assert_eq!(bits(&found[0]), bits(&expected[0]), "case {case}");
    }
}

#[test]
#[needs(Sycl)]
fn transpositions_that_pay_off_are_not_fused() {
    let devices = open(&options(1));
    // One right side for all rows of all matrices, and a left side whose rows would be read with a
    // stride.
    for (x, y, permutation, of_left) in [
        ([2, 3, 9, 5], [1, 1, 5, 7], [1, 0, 2, 3], false),
        ([2, 3, 5, 9], [2, 3, 5, 7], [0, 1, 3, 2], true),
    ] {
        let b = GraphBuilder::new("apart");
        let left = b.placeholder::<f32>("x", x).unwrap();
        let right = b.placeholder::<f32>("y", y).unwrap();
        let permutation = b.constant([4], &permutation).unwrap();
        if of_left {
            let left = b.transpose(left, permutation).unwrap();
            b.named("result").batch_matmul(left, right).unwrap();
        } else {
            let matmul = b.batch_matmul(left, right).unwrap();
            b.named("result").transpose(matmul, permutation).unwrap();
        }
        let (session, recorder) = recorded(b, &devices);
        let feeds = [("x", values(&x, 1)), ("y", values(&y, 2))];
        session.run(&feeds, &["result"]).unwrap();
        assert_eq!(joined(&recorder), [""; 0]);
    }
}
