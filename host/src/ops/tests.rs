//! Shape rules and work formulas of the shipped ops, one row per case.

use std::sync::Arc;

use super::InferenceContext;
use super::IntTensor;
use super::Known;
use super::OpInput;
use super::OpRegistry;
use super::ShapeError;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

/// An input of shape `[2,?]`, `?` for unknown rank, or a vector of values `=1,2` or scalar `=3`.
fn input(text: &str) -> OpInput {
    if let Some(values) = text.strip_prefix('=') {
        let parse = |value: &str| value.trim().parse().ok();
        let ints = match values.strip_suffix(',') {
            Some(values) => IntTensor::vector(values.split(',').map(parse).collect()).unwrap(),
            None => IntTensor::scalar(parse(values)),
        };
        return OpInput {
            dtype: DType::I32,
            shape: PartialShape::from(ints.shape()),
            known: Known::Ints(Arc::new(ints)),
        };
    }
    OpInput {
        dtype: DType::F32,
        shape: shape(text),
        known: Known::Nothing,
    }
}

fn shape(text: &str) -> PartialShape {
    let Some(dims) = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    else {
        return PartialShape::unknown();
    };
    let dims = dims.split(',').filter(|dim| !dim.is_empty());
    dims.map(|dim| dim.parse().ok()).collect()
}

/// Parses `name=value` pairs: numbers, `[1,2]`, `true` or strings; types are float.
fn attrs(op: &super::OpDef, given: &str) -> AttrSet {
    let float = AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let types = op
        .attrs()
        .iter()
        .filter(|a| a.default.is_none() && !a.is_list);
    let mut all: Vec<_> = types.map(|a| (a.name.clone(), float.clone())).collect();
    let defaults = op.attrs().iter();
    all.extend(defaults.filter_map(|a| Some((a.name.clone(), a.default.clone()?))));
    for pair in given.split_whitespace() {
        let (name, text) = pair.split_once('=').unwrap();
        let value = if let Some(list) = text.strip_prefix('[') {
            let items = list
                .trim_end_matches(']')
                .split(',')
                .filter(|item| !item.is_empty());
            AttrValue::List(
                items
                    .map(|item| AttrValue::Int(item.parse().unwrap()))
                    .collect(),
            )
        } else if let Ok(number) = text.parse() {
            AttrValue::Int(number)
        } else if let Ok(truth) = text.parse() {
            AttrValue::Bool(truth)
        } else {
            AttrValue::Bytes(text.as_bytes().into())
        };
        all.push((name.into(), value));
    }
    AttrSet::new(all)
}

fn infer(
    op: &str,
    given: &str,
    inputs: &[&str],
) -> Result<(Vec<Output>, Vec<Known>, Work), ShapeError> {
    let registry = OpRegistry::default();
    let op = registry.get(op).unwrap();
    let attrs = attrs(op, given);
    let inputs: Vec<_> = inputs.iter().map(|text| input(text)).collect();
    assert_eq!(op.n_inputs(&attrs).unwrap(), inputs.len(), "{}", op.name());
    let context = InferenceContext::new(op, &attrs, &inputs, 2000);
    let shapes = op.infer_shapes(&context, op.n_outputs(&attrs).unwrap())?;
    // Inputs that hold sizes get elements.
    let dtype = inputs.iter().map(|input| input.dtype);
    let dtype = dtype
        .max_by_key(|&dtype| dtype == DType::I32)
        .unwrap_or(DType::F32);
    let outputs: Vec<_> = shapes
        .into_iter()
        .map(|shape| Output {
            dtype,
            is_ref: false,
            shape,
        })
        .collect();
    let known = op.fold(&context, &outputs);
    let work = op.work(&context, &outputs);
    Ok((outputs, known, work))
}

#[test]
fn shapes_follow_tensorflows_rules() {
    let rows: &[(&str, &str, &[&str], &str)] = &[
        ("AddV2", "", &["[2,1,?]", "[3,1]"], "[2,3,?]"),
        ("AddV2", "", &["[?]", "[4]"], "[4]"),
        ("AddV2", "", &["[2]", "[3]"], "error"),
        ("AddV2", "", &["?", "[3]"], "?"),
        (
            "Equal",
            "incompatible_shape_error=false",
            &["[2]", "[3]"],
            "[]",
        ),
        ("MatMul", "transpose_a=true", &["[3,2]", "[3,4]"], "[2,4]"),
        ("MatMul", "", &["[2,3]", "[4,5]"], "error"),
        ("MatMul", "", &["[2]", "[2,3]"], "error"),
        ("MatMul", "", &["?", "[3,4]"], "[?,?]"),
        (
            "BatchMatMulV2",
            "adj_y=true",
            &["[5,1,2,3]", "[7,4,3]"],
            "[5,7,2,4]",
        ),
        ("BatchMatMul", "", &["[5,2,3]", "[7,3,4]"], "error"),
        (
            "Einsum",
            "N=2 equation=bhqd,hdk->bqk",
            &["[2,3,4,5]", "[3,5,6]"],
            "[2,4,6]",
        ),
        (
            "Einsum",
            "N=2 equation=...ij,...jk->...ik",
            &["[7,1,2,3]", "[8,3,4]"],
            "[7,8,2,4]",
        ),
        (
            "Einsum",
            "N=2 equation=ij,jk->ik",
            &["[2,3]", "[4,5]"],
            "error",
        ),
        ("Sum", "", &["[2,3,4]", "=0,-1,"], "[3]"),
        ("Sum", "keep_dims=true", &["[2,3,4]", "=1"], "[2,1,4]"),
        ("Sum", "", &["[2,3]", "=2"], "error"),
        ("Sum", "keep_dims=true", &["[2,3]", "[1]"], "[?,?]"),
        ("ArgMax", "", &["[2,3,4]", "=-2"], "[2,4]"),
        ("Reshape", "", &["[2,3,4]", "=-1,6,"], "[4,6]"),
        ("Reshape", "", &["[2,3,4]", "=5,-1,"], "error"),
        ("Reshape", "", &["[?,4]", "=-1,2,"], "[?,2]"),
        ("Reshape", "", &["[6]", "=3,x,"], "[3,2]"),
        ("Reshape", "", &["[6]", "=3,3,"], "error"),
        ("Squeeze", "squeeze_dims=[]", &["[1,2,1]"], "[2]"),
        ("Squeeze", "squeeze_dims=[-1]", &["[1,2,1]"], "[1,2]"),
        ("Squeeze", "squeeze_dims=[1]", &["[1,2,1]"], "error"),
        ("ExpandDims", "", &["[2,3]", "=-1"], "[2,3,1]"),
        ("Transpose", "", &["[2,?,4]", "=2,0,1,"], "[4,2,?]"),
        ("Transpose", "", &["[2,3]", "=0,0,"], "error"),
        ("ConcatV2", "N=2", &["[2,3]", "[2,?]", "=1"], "[2,?]"),
        ("ConcatV2", "N=2", &["[2,3]", "[4,3]", "=0"], "[6,3]"),
        ("ConcatV2", "N=2", &["[2,3]", "[4,5]", "=0"], "error"),
        ("Pack", "N=2 axis=-1", &["[2,3]", "[2,3]"], "[2,3,2]"),
        ("Tile", "", &["[2,3]", "=2,1,"], "[4,3]"),
        ("Pad", "", &["[2,3]", "[2,2]"], "[?,?]"),
        ("Range", "", &["=0", "=10", "=3"], "[4]"),
        ("Range", "", &["=5", "=0", "=-2"], "[3]"),
        ("Range", "", &["=5", "=0", "=1"], "error"),
        ("Range", "", &["=1", "=0", "=5"], "error"),
        ("Range", "", &["=3", "=3", "=-2"], "[0]"),
        ("OneHot", "axis=0", &["[2,3]", "=5", "[]", "[]"], "[5,2,3]"),
        ("BroadcastTo", "", &["[3,1]", "=2,3,4,"], "[2,3,4]"),
        ("BroadcastTo", "", &["[3]", "=4,"], "error"),
        ("Slice", "", &["[5,6]", "=1,2,", "=-1,3,"], "[4,3]"),
        ("Slice", "", &["[5,6]", "=3,2,", "=3,3,"], "error"),
        (
            "StridedSlice",
            "begin_mask=1 end_mask=1",
            &["[5,6]", "=0,4,", "=0,1,", "=2,-1,"],
            "[3,3]",
        ),
        (
            "StridedSlice",
            "shrink_axis_mask=1",
            &["[5,6]", "=-1,", "=0,", "=1,"],
            "[6]",
        ),
        (
            "StridedSlice",
            "shrink_axis_mask=1",
            &["[5,6]", "=5,", "=6,", "=1,"],
            "error",
        ),
        (
            "StridedSlice",
            "new_axis_mask=1 ellipsis_mask=2",
            &["[5,6]", "=0,0,0,", "=0,0,2,", "=1,1,1,"],
            "[1,5,2]",
        ),
        ("GatherV2", "", &["[5,6,7]", "[2,3]", "=1"], "[5,2,3,7]"),
        (
            "GatherV2",
            "batch_dims=1",
            &["[5,6,7]", "[5,3]", "=1"],
            "[5,3,7]",
        ),
        // Counted from the rank of the indices: no batch dimension, and one.
        (
            "GatherV2",
            "batch_dims=-1",
            &["[3,4]", "[2]", "=1"],
            "[3,2]",
        ),
        (
            "GatherV2",
            "batch_dims=-1",
            &["[5,6,7]", "[5,3]", "=1"],
            "[5,3,7]",
        ),
        (
            "GatherV2",
            "batch_dims=-3",
            &["[5,6,7]", "[5,3]", "=1"],
            "error",
        ),
        ("GatherNd", "", &["[5,6,7]", "[3,2]"], "[3,7]"),
        ("GatherNd", "", &["[5]", "[3,2]"], "error"),
        (
            "Conv2D",
            "strides=[1,2,2,1] padding=SAME",
            &["[1,9,11,4]", "[3,3,4,8]"],
            "[1,5,6,8]",
        ),
        (
            "Conv2D",
            "strides=[1,2,2,1] padding=VALID",
            &["[1,9,11,4]", "[3,3,4,8]"],
            "[1,4,5,8]",
        ),
        (
            "Conv2D",
            "strides=[1,1,1,1] padding=VALID dilations=[1,2,2,1]",
            &["[1,9,11,4]", "[3,3,4,8]"],
            "[1,5,7,8]",
        ),
        (
            "Conv2D",
            "strides=[1,1,1,1] padding=EXPLICIT explicit_paddings=[0,0,2,1,0,1,0,0]",
            &["[1,9,11,4]", "[3,3,4,8]"],
            "[1,10,10,8]",
        ),
        (
            "Conv2D",
            "strides=[1,1,2,2] padding=SAME data_format=NCHW",
            &["[1,4,9,11]", "[3,3,4,8]"],
            "[1,8,5,6]",
        ),
        (
            "Conv2D",
            "strides=[1,1,1,1] padding=SAME",
            &["[1,9,11,5]", "[3,3,4,8]"],
            "error",
        ),
        (
            "Conv2D",
            "strides=[1,0,1,1] padding=SAME",
            &["[1,9,11,4]", "[3,3,4,8]"],
            "error",
        ),
        (
            "DepthwiseConv2dNative",
            "strides=[1,1,1,1] padding=SAME",
            &["[1,9,11,4]", "[3,3,4,2]"],
            "[1,9,11,8]",
        ),
        (
            "MaxPool",
            "ksize=[1,2,2,1] strides=[1,2,2,1] padding=VALID",
            &["[?,28,28,6]"],
            "[?,14,14,6]",
        ),
        (
            "BiasAdd",
            "data_format=NCHW",
            &["[1,4,2,2]", "[4]"],
            "[1,4,2,2]",
        ),
        ("BiasAdd", "", &["[1,4]", "[5]"], "error"),
        ("TopKV2", "", &["[3,9]", "=2"], "[3,2]"),
        ("TopKV2", "", &["[3,9]", "=10"], "error"),
        (
            "SpaceToDepth",
            "block_size=2 data_format=NHWC",
            &["[1,4,6,3]"],
            "[1,2,3,12]",
        ),
        (
            "DepthToSpace",
            "block_size=2 data_format=NHWC",
            &["[1,2,3,12]"],
            "[1,4,6,3]",
        ),
        ("SpaceToBatchND", "", &["[1,4,6,3]", "=2,2,", "[2,2]"], "?"),
        ("ResizeBilinear", "", &["[1,4,6,3]", "=8,x,"], "[1,8,?,3]"),
        ("Fill", "", &["=2,3,", "[]"], "[2,3]"),
        ("Where", "", &["[2,3]"], "[?,2]"),
    ];
    for (op, given, inputs, expected) in rows {
        let found = infer(op, given, inputs);
        let what = format!("{op} {given} {inputs:?}");
        match found {
            Ok((outputs, ..)) => {
                assert_eq!(outputs[0].shape, shape(expected), "{what}: not {expected}")
            }
            Err(error) => assert_eq!("error", *expected, "{what}: {error}"),
        }
        if *expected == "error" {
            assert!(infer(op, given, inputs).is_err(), "{what}");
        }
    }
}

#[test]
fn all_outputs_of_rarer_ops_have_shapes() {
    let rows: &[(&str, &str, &[&str], &str)] = &[
        (
            "DynamicPartition",
            "num_partitions=2",
            &["[4,3,5]", "[4,3]"],
            "[?,5] [?,5]",
        ),
        (
            "DynamicPartition",
            "num_partitions=1",
            &["[4]", "[3]"],
            "error",
        ),
        (
            "DynamicStitch",
            "N=2",
            &["=0,2,", "=4", "[2,7]", "[7]"],
            "[5,7]",
        ),
        ("DynamicStitch", "N=1", &["[2]", "[2,?]"], "[?,?]"),
        (
            "DynamicStitch",
            "N=2",
            &["[2]", "[]", "[2,7]", "[6]"],
            "error",
        ),
        ("Bincount", "", &["[2,2]", "=5", "[0]"], "[5]"),
        ("DenseBincount", "", &["[3,2]", "=5", "[0]"], "[3,5]"),
        ("DenseBincount", "", &["[3,2,1]", "=5", "[0]"], "error"),
        ("HistogramFixedWidth", "", &["[3]", "[2]", "=7"], "[7]"),
        ("ListDiff", "", &["[3]", "[2]"], "[?] [?]"),
        ("LowerBound", "", &["[2,9]", "[?,4]"], "[2,4]"),
        ("UniqueWithCountsV2", "", &["[2,9]", "[1]"], "[?,?] [?] [?]"),
        (
            "NonMaxSuppressionV4",
            "pad_to_max_output_size=true",
            &["[9,4]", "[9]", "=5", "[]", "[]"],
            "[5] []",
        ),
        (
            "NonMaxSuppressionV5",
            "",
            &["[9,4]", "[9]", "=5", "[]", "[]", "[]"],
            "[?] [?] []",
        ),
        (
            "NonMaxSuppressionV5",
            "",
            &["[9,4]", "[8]", "=5", "[]", "[]", "[]"],
            "error",
        ),
        (
            "CombinedNonMaxSuppression",
            "",
            &["[2,9,1,4]", "[2,9,3]", "=5", "=8", "[]", "[]"],
            "[2,8,4] [2,8] [2,8] [2]",
        ),
        (
            "CombinedNonMaxSuppression",
            "pad_per_class=true",
            &["[2,9,3,4]", "[2,9,3]", "=2", "=8", "[]", "[]"],
            "[2,6,4] [2,6] [2,6] [2]",
        ),
        (
            "Conv3D",
            "strides=[1,1,2,2,1] padding=SAME",
            &["[2,4,5,6,3]", "[3,3,3,3,8]"],
            "[2,4,3,3,8]",
        ),
        (
            "Conv3D",
            "strides=[1,1,1,1,1] padding=VALID",
            &["[2,4,5,6,3]", "[3,3,3,2,8]"],
            "error",
        ),
        (
            "Conv3DBackpropInputV2",
            "strides=[1,1,1,1,1] padding=SAME",
            &["=2,4,5,6,3,", "[3,3,3,3,8]", "[2,4,5,6,8]"],
            "[2,4,5,6,3]",
        ),
        (
            "MaxPool3D",
            "ksize=[1,2,2,2,1] strides=[1,2,2,2,1] padding=VALID",
            &["[2,4,5,6,3]"],
            "[2,2,2,3,3]",
        ),
        (
            "MaxPoolV2",
            "padding=SAME",
            &["[2,5,6,3]", "=1,2,2,1,", "=1,2,2,1,"],
            "[2,3,3,3]",
        ),
        (
            "MaxPoolWithArgmax",
            "ksize=[1,2,2,1] strides=[1,2,2,1] padding=VALID",
            &["[2,5,6,3]"],
            "[2,2,3,3] [2,2,3,3]",
        ),
        (
            "Dilation2D",
            "strides=[1,1,1,1] rates=[1,2,2,1] padding=VALID",
            &["[2,7,7,3]", "[3,3,3]"],
            "[2,3,3,3]",
        ),
        (
            "ExtractImagePatches",
            "ksizes=[1,3,3,1] strides=[1,2,2,1] rates=[1,1,1,1] padding=VALID",
            &["[2,7,7,3]"],
            "[2,3,3,27]",
        ),
        ("AdjustHue", "", &["[2,7,7,4]", "[]"], "error"),
        (
            "ImageProjectiveTransformV3",
            "interpolation=NEAREST",
            &["[2,7,7,3]", "[1,8]", "=4,5,", "[]"],
            "[2,4,5,3]",
        ),
        ("MatrixDiag", "", &["[2,3]"], "[2,3,3]"),
        ("MatrixDiagPart", "", &["[2,3,5]"], "[2,3]"),
        (
            "MatrixDiagPartV3",
            "",
            &["[2,3,5]", "=-1,2,", "[]"],
            "[2,4,3]",
        ),
        ("MatrixDiagPartV3", "", &["[2,3,5]", "=3", "[]"], "[2,2]"),
        ("MatrixDiagPartV3", "", &["[2,3,5]", "=5", "[]"], "error"),
        (
            "MatrixDiagV3",
            "",
            &["[2,3]", "=1", "=-1", "=-1", "[]"],
            "[2,4,4]",
        ),
        (
            "MatrixDiagV3",
            "",
            &["[4,3]", "=-1,2,", "=3", "=4", "[]"],
            "[3,4]",
        ),
        ("Cross", "", &["[2,3]", "[?,3]"], "[2,3]"),
        ("Cholesky", "", &["[7,?,3]"], "[7,3,3]"),
        ("Cholesky", "", &["[7,2,3]"], "error"),
        ("Qr", "", &["[7,5,3]"], "[7,5,3] [7,3,3]"),
        ("Qr", "full_matrices=true", &["[7,5,3]"], "[7,5,5] [7,5,3]"),
        ("Svd", "", &["[7,5,3]"], "[7,3] [7,5,3] [7,3,3]"),
        ("Svd", "compute_uv=false", &["[7,5,3]"], "[7,3] [] []"),
        ("SelfAdjointEigV2", "", &["[7,3,3]"], "[7,3] [7,3,3]"),
        ("LogMatrixDeterminant", "", &["[7,3,3]"], "[7] [7]"),
        ("Lu", "", &["[7,3,3]"], "[7,3,3] [7,3]"),
        ("MatrixSolve", "", &["[7,3,3]", "[7,3,2]"], "[7,3,2]"),
        ("MatrixSolve", "", &["[7,3,3]", "[1,3,2]"], "error"),
        (
            "MatrixTriangularSolve",
            "",
            &["[3,3]", "[7,3,2]"],
            "[7,3,2]",
        ),
        ("FFT2D", "", &["[7,3,2]"], "[7,3,2]"),
        ("FFT2D", "", &["[7]"], "error"),
        ("RFFT2D", "", &["[7,3,2]", "=5,8,"], "[7,5,5]"),
        ("IRFFT", "", &["[7,3]", "=8,"], "[7,8]"),
        ("Betainc", "", &["[]", "[2,?]", "[?,3]"], "[2,3]"),
        (
            "FakeQuantWithMinMaxVarsPerChannel",
            "",
            &["[2,?]", "[3]", "[3]"],
            "[2,3]",
        ),
        (
            "LSTMBlockCell",
            "",
            &[
                "[2,5]", "[2,3]", "[2,3]", "[8,12]", "[3]", "[3]", "[3]", "[12]",
            ],
            "[2,3] [2,3] [2,3] [2,3] [2,3] [2,3] [2,3]",
        ),
        (
            "CTCGreedyDecoder",
            "",
            &["[9,2,5]", "[2]"],
            "[?,2] [?] [2] [2,1]",
        ),
        ("DecodeRaw", "", &["[2]"], "[2,?]"),
    ];
    for (op, given, inputs, expected) in rows {
        let what = format!("{op} {given} {inputs:?}");
        match infer(op, given, inputs) {
            Ok((outputs, _, work)) => {
                let expected: Vec<_> = expected.split(' ').map(shape).collect();
                let found: Vec<_> = outputs.into_iter().map(|output| output.shape).collect();
                assert_eq!(found, expected, "{what}");
                assert!(work.flops.is_finite() && work.flops >= 0.0, "{what}");
            }
            Err(error) => assert_eq!("error", *expected, "{what}: {error}"),
        }
    }
}

#[test]
fn all_outputs_of_a_batch_normalisation_have_shapes() {
    let inputs = ["[2,3,3,4]", "[4]", "[?]", "[0]", "[0]"];
    let (outputs, ..) = infer("FusedBatchNormV3", "", &inputs).unwrap();
    let shapes = ["[2,3,3,4]", "[4]", "[4]", "[4]", "[4]", "[]"].map(shape);
    let found: Vec<_> = outputs.into_iter().map(|output| output.shape).collect();
    assert_eq!(found, shapes);
}

#[test]
fn ranges_of_floats_have_as_many_elements_as_kernels_compute() {
    let registry = OpRegistry::default();
    let op = registry.get("Range").unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let single = |value: f64| value as f32;
    let sized = |dtype: DType, values: [f64; 3]| {
        let bytes = |value: f64| match dtype {
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
            DType::F32 => single(value).to_le_bytes().to_vec(),
            other => unreachable!("{other}"),
        };
        let inputs = values.map(|value| {
            let data = LiteralData::Dense(Arc::new(bytes(value)));
            let literal = Literal::new(dtype, Shape::scalar(), data).unwrap();
            OpInput {
                dtype,
                shape: PartialShape::scalar(),
                known: Known::Literal(Arc::new(literal)),
            }
        });
        let attrs = attrs(op, "");
        let context = InferenceContext::new(op, &attrs, &inputs, 0);
        op.infer_shapes(&context, 1)
            .map(|shapes| shapes[0].to_string())
    };
    for (dtype, values, expected) in [
        (DType::F32, [0.0, 1.0, 0.1], "[10]"),
        // Rounded down to 10 in the type of the range; in a wider one they are above 10.
        (DType::F32, [0.0, 7.0, 0.7], "[10]"),
        (DType::F16, [0.0, 1.0, 0.1], "[10]"),
        (DType::BF16, [0.0, 7.0, 0.7], "[10]"),
        (DType::F64, [0.0, 1e10, 1.0], "[10000000000]"),
        (DType::F64, [5.0, 0.0, -2.0], "[3]"),
        (DType::F16, [0.0, 1.0, 0.25], "[4]"),
        (DType::BF16, [2.0, 2.0, 1.0], "[0]"),
    ] {
        assert_eq!(
            sized(dtype, values).unwrap(),
            expected,
            "{dtype} {values:?}"
        );
    }
    for values in [
        [0.0, 1.0, 0.0],
        [0.0, 1.0, -1.0],
        [0.0, f64::INFINITY, 1.0],
        [0.0, f64::NAN, 1.0],
        [0.0, 1e300, 1.0],
    ] {
        assert!(sized(DType::F64, values).is_err(), "{values:?}");
    }
}

#[test]
fn sizes_travel_through_shape_arithmetic() {
    let rows: &[(&str, &str, &[&str], usize, &str)] = &[
        ("Shape", "", &["[2,?,4]"], 0, "2 ? 4"),
        ("Size", "", &["[2,3]"], 0, "6"),
        ("Rank", "", &["[2,?]"], 0, "2"),
        ("Pack", "N=3 axis=0", &["=2", "=x", "[]"], 0, "2 ? ?"),
        ("Unpack", "num=3 axis=0", &["=2,x,4,"], 2, "4"),
        ("ConcatV2", "N=2", &["=1,2,", "=3,", "=0"], 0, "1 2 3"),
        (
            "StridedSlice",
            "",
            &["=1,2,3,4,", "=3,", "=0,", "=-2,"],
            0,
            "4 2",
        ),
        (
            "StridedSlice",
            "shrink_axis_mask=1",
            &["=1,2,3,", "=-1,", "=0,", "=1,"],
            0,
            "3",
        ),
        ("Slice", "", &["=1,2,3,", "=1,", "=2,"], 0, "2 3"),
        ("GatherV2", "", &["=5,6,7,", "=2,0,", "=0"], 0, "7 5"),
        ("Range", "", &["=1", "=6", "=2"], 0, "1 3 5"),
        ("Reshape", "", &["=1,2,", "=2,1,"], 0, "1 2"),
        ("Prod", "", &["=2,3,4,", "=0"], 0, "24"),
        ("Sum", "", &["=2,3,4,", "=0,"], 0, "9"),
        ("AddV2", "", &["=1,2,", "=10"], 0, "11 12"),
        ("FloorDiv", "", &["=7,x,", "=2"], 0, "3 ?"),
        ("Neg", "", &["=7"], 0, "-7"),
        ("Fill", "", &["=2,", "=9"], 0, "9 9"),
    ];
    for (op, given, inputs, slot, expected) in rows {
        let (_, known, _) = infer(op, given, inputs).unwrap();
        let Some(Known::Ints(value)) = known.get(*slot) else {
            panic!("{op} {inputs:?}: nothing is known");
        };
        let element = |value: &Option<i64>| value.map_or("?".to_owned(), |value| value.to_string());
        let found: Vec<_> = value.values().iter().map(element).collect();
        assert_eq!(found.join(" "), *expected, "{op} {inputs:?}");
    }
}

#[test]
fn arithmetic_that_overflows_its_type_is_not_known() {
    for (op, inputs) in [
        ("Mul", &["=2147483647", "=2"]),
        ("Prod", &["=65536,65536,", "=0"]),
        ("Fill", &["=1,", "=3000000000"]),
    ] {
        let (_, known, _) = infer(op, "", inputs).unwrap();
        assert!(matches!(known[..], [Known::Nothing]), "{op} {known:?}");
    }
    let (_, known, _) = infer("Neg", "", &["=-2147483648"]).unwrap();
    assert!(matches!(known[..], [Known::Nothing]), "{known:?}");
}

#[test]
fn what_kernels_would_refuse_is_refused_before() {
    let refused = |op, given, inputs: &[&str]| infer(op, given, inputs).unwrap_err().to_string();
    let conv = "strides=[1,9223372036854775807,1,1] padding=VALID";
    let problem = refused("Conv2D", conv, &["[1,9,9,1]", "[1,1,1,1]"]);
    assert!(problem.contains("below 2^31"), "{problem}");
    let problem = refused("BroadcastTo", "", &["[3]", "=1,"]);
    assert!(problem.contains("cannot be broadcast"), "{problem}");
    let dims = vec!["1"; 200].join(",");
    let problem = refused("Gather", "", &[&format!("[{dims}]"), &format!("[{dims}]")]);
    assert_eq!(
        problem,
        "an output has 399 dimensions; at most 254 are supported"
    );
}

#[test]
fn work_is_by_the_formula() {
    let conv = "strides=[1,1,1,1] padding=SAME";
    let pool = "ksize=[1,2,2,1] strides=[1,2,2,1] padding=VALID";
    // Per row: the operations, and the elements read and written (of 4 bytes).
    let rows: &[(&str, &str, &[&str], f64, u64)] = &[
        (
            "MatMul",
            "",
            &["[2,3]", "[3,4]"],
            2.0 * 2.0 * 3.0 * 4.0,
            6 + 12 + 8,
        ),
        (
            "MatMul",
            "transpose_a=true",
            &["[3,2]", "[3,4]"],
            48.0,
            6 + 12 + 8,
        ),
        (
            "BatchMatMulV2",
            "",
            &["[5,2,3]", "[3,4]"],
            5.0 * 48.0,
            30 + 12 + 40,
        ),
        (
            "Einsum",
            "N=2 equation=ij,jk->ik",
            &["[2,3]", "[3,4]"],
            48.0,
            6 + 12 + 8,
        ),
        // 2 n oh ow oc kh kw ic
        (
            "Conv2D",
            conv,
            &["[2,8,8,4]", "[3,3,4,16]"],
            2.0 * 2.0 * 64.0 * 16.0 * 36.0,
            512 + 576 + 2048,
        ),
        (
            "Conv2D",
            conv,
            &["[2,8,8,8]", "[3,3,4,16]"],
            2.0 * 2.0 * 64.0 * 16.0 * 36.0,
            1024 + 576 + 2048,
        ),
        (
            "DepthwiseConv2dNative",
            conv,
            &["[1,8,8,4]", "[3,3,4,2]"],
            2.0 * 64.0 * 8.0 * 9.0,
            256 + 72 + 512,
        ),
        ("MaxPool", pool, &["[1,8,8,4]"], 64.0 * 4.0, 256 + 64),
        ("AddV2", "", &["[2,3]", "[3]"], 6.0, 6 + 3 + 6),
        ("Relu", "", &["[2,3]"], 6.0, 12),
        ("Softmax", "", &["[2,3]"], 24.0 * 6.0, 12),
        ("Sum", "", &["[2,3]", "=0"], 6.0, 6 + 1 + 3),
        ("Reshape", "", &["[2,3]", "=6,"], 0.0, 0),
        // Only the selected rows are read.
        (
            "GatherV2",
            "",
            &["[1000,8]", "[4]", "=0"],
            0.0,
            4 + 1 + 32 + 32,
        ),
        ("MatMul", "", &["[?,3]", "[3,4]"], 0.0, 12),
    ];
    for (op, given, inputs, flops, n_elements) in rows {
        let (_, _, work) = infer(op, given, inputs).unwrap();
        let found = (work.flops, work.traffic_bytes);
        assert_eq!(found, (*flops, 4 * n_elements), "{op} {given} {inputs:?}");
    }
}
