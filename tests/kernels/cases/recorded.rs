//! Calls that `tests/kernels/recorded` recorded in TensorFlow.

use std::sync::Arc;

use placewright::graph::AttrValue;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use serde_json::Value;

use crate::case::Case;
use crate::case::case;

/// Deviation of floating-point results: sums may have another order.
const TOLERANCE: f64 = 1e-6;

/// The same for `half`, which TensorFlow rounds after each operation.
const HALF_TOLERANCE: f64 = 2e-3;

/// Returns the cases of a file.
pub(crate) fn cases_of(file: &'static str) -> Vec<Case> {
    file.lines().map(recorded).collect()
}

fn recorded(line: &'static str) -> Case {
    let call: Value = serde_json::from_str(line).expect("a line of JSON");
    // The names of ops and attributes live as long as the suite.
    let op = text(&call["op"]).to_owned().leak();
    let mut case = case(&format!("{op}: {}", text(&call["name"])), op);
    for (key, value) in call["attrs"].as_object().expect("attributes") {
        case = case.attr(key.clone().leak(), attr(value));
    }
    for input in list(&call["inputs"]) {
        case = case.input(tensor(input));
    }
    if let Some(part) = call["refused"].as_str() {
        let n_outputs = call["n_outputs"].as_u64().expect("a number of outputs");
        let n_outputs = usize::try_from(n_outputs).expect("a small number");
        return case.with_outputs(n_outputs).refused(part.to_owned().leak());
    }
    let outputs: Vec<Tensor> = list(&call["outputs"]).iter().map(tensor).collect();
    let of_output = |output: &Tensor| match output.dtype() {
        DType::F16 => HALF_TOLERANCE,
        DType::Complex64 | DType::Complex128 => TOLERANCE,
        dtype if dtype.is_floating() => TOLERANCE,
        _ => 0.0,
    };
    let tolerance = outputs.iter().map(of_output).fold(0.0, f64::max);
    case.gives_all_within(outputs, tolerance)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn dtype(value: &Value) -> DType {
    DType::from_name(text(value)).expect("the name of a type")
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = text(hex).as_bytes().chunks_exact(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hexadecimal digits")
        })
        .collect()
}

fn tensor(value: &Value) -> Tensor {
    let dims = list(&value["shape"]).iter().map(|dim| {
        let dim = dim.as_u64().expect("a size");
        usize::try_from(dim).expect("a small size")
    });
    let shape: Shape = dims.collect();
    match dtype(&value["dtype"]) {
        DType::String => {
            let strings = list(&value["elements"]).iter();
            let strings = strings.map(|string| bytes(string).into()).collect();
            Tensor::from_strings(shape, strings)
        }
        dtype => Tensor::from_bytes(dtype, shape, &bytes(&value["elements"])),
    }
    .expect("as many elements as the shape holds")
}

fn attr(value: &Value) -> AttrValue {
    let (kind, value) = value
        .as_object()
        .and_then(|value| value.iter().next())
        .expect("a kind and a value");
    match kind.as_str() {
        "i" => AttrValue::Int(value.as_i64().expect("an integer")),
        #[expect(clippy::cast_possible_truncation, reason = "it was a `float`")]
        "f" => AttrValue::Float(value.as_f64().expect("a number") as f32),
        "b" => AttrValue::Bool(value.as_bool().expect("true or false")),
        "s" => AttrValue::Bytes(bytes(value).into()),
        "type" => AttrValue::Type {
            dtype: dtype(value),
            is_ref: false,
        },
        "shape" => AttrValue::Shape(match value.as_array() {
            None => PartialShape::unknown(),
            Some(dims) => dims
                .iter()
                .map(|dim| usize::try_from(dim.as_i64().expect("a size")).ok())
                .collect(),
        }),
        "list" => {
            let items: Arc<[AttrValue]> = list(value).iter().map(attr).collect();
            AttrValue::List(items)
        }
        kind => unreachable!("`{kind}` is not recorded"),
    }
}
