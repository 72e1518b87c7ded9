//! Constants, feeds, nodes that forward their input.

use placewright::graph::AttrValue;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::literal;
use crate::case::tensor;

fn constant<T: Element>(name: &str, dims: &[usize], values: &[T]) -> Case {
    case(name, "Const")
        .typed("dtype", T::DTYPE)
        .attr("value", AttrValue::Tensor(literal(dims, values)))
}

pub(crate) fn cases() -> Vec<Case> {
    let shape = PartialShape::from(&Shape::from([1, 4]));
    let mut cases = vec![
        constant(
            "a constant",
            &[2, 2],
            &[1.0f32, -0.0, f32::NAN, f32::INFINITY],
        )
        .gives_bits(tensor(&[2, 2], &[1.0f32, -0.0, f32::NAN, f32::INFINITY])),
        constant("a constant integer", &[], &[7i64]).gives(tensor(&[], &[7i64])),
        constant("an empty constant", &[0, 3], &[] as &[u8]).gives(tensor::<u8>(&[0, 3], &[])),
        case("a constant without value", "Const")
            .typed("dtype", DType::F32)
            .refused("attribute `value` of Const should be a tensor, found: is missing"),
        case("a constant of another type", "Const")
            .typed("dtype", DType::F32)
            .attr("value", AttrValue::Tensor(literal(&[1], &[1i32])))
            .refused("attribute `value` holds int32, attribute `dtype` says float"),
        case("a placeholder that is not fed", "Placeholder")
            .typed("dtype", DType::F32)
            .attr("shape", AttrValue::Shape(shape))
            .refused(
                "you must feed a value for placeholder `node` with dtype float and shape [1,4]",
            ),
        case("no operation", "NoOp").gives_nothing(),
        case("identity of booleans", "Identity")
            .typed("T", DType::Bool)
            .input(Tensor::from_bools([2], &[true, false]).expect("two values"))
            .gives(Tensor::from_bools([2], &[true, false]).expect("two values")),
        case("identity without input", "Identity")
            .typed("T", DType::F32)
            .refused("input 0 does not exist"),
    ];
    for op in [
        "Identity",
        "PlaceholderWithDefault",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
    ] {
        cases.push(
            case(&format!("{op} hands on its input"), op)
                .typed("T", DType::F32)
                .typed("dtype", DType::F32)
                .input(tensor(&[3], &[1.0f32, -0.0, f32::NAN]))
                .gives_bits(tensor(&[3], &[1.0f32, -0.0, f32::NAN])),
        );
    }
    cases
}
