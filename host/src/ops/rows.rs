//! Rows that are replaced, selected elements, and formats of images.

use super::definition::OpDef;
use super::definition::op;
use super::rules::same_as_input;
use super::work::free;
use super::work::per_input;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op(
            "Empty",
            "shape: int32",
            "output: dtype",
            "dtype: type; init: bool = false",
        )
        .stateful()
        .with_shape(|context| Ok(vec![context.shape_from_input(0)?])),
        op("DeepCopy", "x: T", "y: T", "T: type")
            .stateful()
            .with_shape(same_as_input),
        op("GuaranteeConst", "input: T", "output: T", "T: type")
            .stateful()
            .with_shape(same_as_input)
            .with_work(free),
        op(
            "NthElement",
            "input: T, n: int32",
            "values: T",
            "reverse: bool = false; T: realnumbertype",
        )
        .with_shape(|context| {
            let dims = context.dims_of_rank_at_least(0, 1)?;
            Ok(vec![dims.map_or_else(PartialShape::unknown, |dims| {
                PartialShape::new(&dims[..dims.len() - 1])
            })])
        })
        .with_work(per_input(4.0)),
        op(
            "ConcatOffset",
            "concat_dim: int32, shape: N * shape_type",
            "offset: N * shape_type",
            "N: int >= 2; shape_type: {int32, int64} = DT_INT32",
        )
        .with_shape(|context| {
            let n = context.n_inputs();
            Ok((1..n).map(|index| context.shape(index).clone()).collect())
        })
        .with_work(free),
    ];
    for name in ["InplaceUpdate", "InplaceAdd", "InplaceSub"] {
        ops.push(
            op(name, "x: T, i: int32, v: T", "y: T", "T: type")
                .with_shape(same_as_input)
                .with_work(per_input(1.0)),
        );
    }
    for name in ["DataFormatVecPermute", "DataFormatDimMap"] {
        ops.push(
            op(
                name,
                "x: T",
                "y: T",
                "T: {int32, int64} = DT_INT32; src_format: string = 'NHWC'; \
                 dst_format: string = 'NCHW'",
            )
            .with_shape(same_as_input)
            .with_work(free),
        );
    }
    ops
}
