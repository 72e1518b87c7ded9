//! Cases, and the comparison of results.

use std::sync::Arc;

use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::tensor::Complex64;
use placewright::tensor::Complex128;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::Tensor;

/// One execution of one op.
pub(crate) struct Case {
    /// `family::description`.
    pub(crate) name: String,
    pub(crate) op: &'static str,
    attrs: Vec<(&'static str, AttrValue)>,
    /// Data inputs, with the op's names for those that may be host-memory arguments.
    pub(crate) inputs: Vec<(&'static str, Tensor)>,
    pub(crate) n_outputs: usize,
    pub(crate) expected: Expected,
}

/// The expected result.
pub(crate) enum Expected {
    Tensors(Vec<Tensor>, Tolerance),
    /// An error that contains this part.
    Refusal(&'static str),
    /// Not set: the case fails.
    Unsaid,
}

/// The allowed deviation from the expected result. NaN always equals NaN.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tolerance {
    /// Equal numbers; `-0` equals `0`.
    Exact,
    /// Equal bits, including the sign of 0, except for NaNs.
    Bits,
    /// A deviation of at most this much, absolute or relative. The case explains why.
    Within(f64),
}

/// Starts a case; finish it with [`Case::gives`], [`Case::gives_within`] or [`Case::refused`].
pub(crate) fn case(name: &str, op: &'static str) -> Case {
    Case {
        name: name.to_owned(),
        op,
        attrs: Vec::new(),
        inputs: Vec::new(),
        n_outputs: 1,
        expected: Expected::Unsaid,
    }
}

impl Case {
    pub(crate) fn attr(mut self, name: &'static str, value: AttrValue) -> Self {
        self.attrs.push((name, value));
        self
    }

    pub(crate) fn typed(self, name: &'static str, dtype: DType) -> Self {
        self.attr(
            name,
            AttrValue::Type {
                dtype,
                is_ref: false,
            },
        )
    }

    pub(crate) fn text(self, name: &'static str, value: &str) -> Self {
        self.attr(name, AttrValue::Bytes(value.as_bytes().into()))
    }

    pub(crate) fn int(self, name: &'static str, value: i64) -> Self {
        self.attr(name, AttrValue::Int(value))
    }

    pub(crate) fn float(self, name: &'static str, value: f32) -> Self {
        self.attr(name, AttrValue::Float(value))
    }

    pub(crate) fn bool(self, name: &'static str, value: bool) -> Self {
        self.attr(name, AttrValue::Bool(value))
    }

    pub(crate) fn ints(self, name: &'static str, values: &[i64]) -> Self {
        self.attr(
            name,
            AttrValue::List(values.iter().map(|&value| AttrValue::Int(value)).collect()),
        )
    }

    pub(crate) fn input(self, tensor: Tensor) -> Self {
        self.named_input("", tensor)
    }

    pub(crate) fn named_input(mut self, name: &'static str, tensor: Tensor) -> Self {
        self.inputs.push((name, tensor));
        self
    }

    pub(crate) fn gives(mut self, tensor: Tensor) -> Self {
        self.expected = Expected::Tensors(vec![tensor], Tolerance::Exact);
        self
    }

    pub(crate) fn gives_bits(mut self, tensor: Tensor) -> Self {
        self.expected = Expected::Tensors(vec![tensor], Tolerance::Bits);
        self
    }

    pub(crate) fn gives_within(mut self, tensor: Tensor, tolerance: f64) -> Self {
        self.expected = Expected::Tensors(vec![tensor], Tolerance::Within(tolerance));
        self
    }

    pub(crate) fn gives_all(mut self, tensors: Vec<Tensor>) -> Self {
        self.n_outputs = tensors.len();
        self.expected = Expected::Tensors(tensors, Tolerance::Exact);
        self
    }

    pub(crate) fn gives_all_within(mut self, tensors: Vec<Tensor>, tolerance: f64) -> Self {
        self.n_outputs = tensors.len();
        self.expected = Expected::Tensors(tensors, Tolerance::Within(tolerance));
        self
    }

    /// Sets the number of outputs, for errors of ops with several outputs.
    pub(crate) fn with_outputs(mut self, n_outputs: usize) -> Self {
        self.n_outputs = n_outputs;
        self
    }

    pub(crate) fn gives_nothing(mut self) -> Self {
        self.n_outputs = 0;
        self.expected = Expected::Tensors(Vec::new(), Tolerance::Exact);
        self
    }

    pub(crate) fn refused(mut self, part: &'static str) -> Self {
        assert!(!part.is_empty(), "any error contains the empty string");
        self.expected = Expected::Refusal(part);
        self
    }

    /// Returns the element types of attributes and inputs.
    pub(crate) fn dtypes(&self) -> Vec<DType> {
        let of_attrs = self.attrs.iter().filter_map(|(_, value)| match value {
            AttrValue::Type { dtype, .. } => Some(*dtype),
            _ => None,
        });
        let of_inputs = self.inputs.iter().map(|(_, tensor)| tensor.dtype());
        of_attrs.chain(of_inputs).collect()
    }

    pub(crate) fn attrs(&self) -> AttrSet {
        AttrSet::new(
            self.attrs
                .iter()
                .map(|(name, value)| (Arc::from(*name), value.clone())),
        )
    }
}

/// Creates a tensor with these dimensions and values.
pub(crate) fn tensor<T: Element>(dims: &[usize], values: &[T]) -> Tensor {
    Tensor::from_values(dims, values).expect("a case gives as many values as its shape holds")
}

/// All types whose elements are moved without being interpreted.
pub(crate) const MOVED: [DType; 16] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Complex64,
    DType::Complex128,
    DType::Bool,
    DType::String,
];

/// Creates a tensor of any type: element `i` is the number `values[i]`, its bit 0, or its string (0
/// is the empty string).
pub(crate) fn typed_tensor(dtype: DType, dims: &[usize], values: &[u8]) -> Tensor {
    let float = |&v: &u8| f32::from(v);
    let bytes: Vec<u8> = match dtype {
        DType::String => {
            let text = |&v: &u8| vec![b'x'; v.into()].into();
            let strings = values.iter().map(text).collect();
            return Tensor::from_strings(dims.into(), strings)
                .expect("as many strings as elements");
        }
        DType::F32 => values.iter().flat_map(|v| float(v).to_le_bytes()).collect(),
        DType::F64 => values
            .iter()
            .flat_map(|&v| f64::from(v).to_le_bytes())
            .collect(),
        DType::F16 => values
            .iter()
            .flat_map(|v| half::f16::from_f32(float(v)).to_le_bytes())
            .collect(),
        DType::BF16 => values
            .iter()
            .flat_map(|v| half::bf16::from_f32(float(v)).to_le_bytes())
            .collect(),
        DType::Complex64 => values
            .iter()
            .flat_map(|v| [float(v), 0.5 * float(v)])
            .flat_map(f32::to_le_bytes)
            .collect(),
        DType::Complex128 => values
            .iter()
            .flat_map(|&v| [f64::from(v), 0.5 * f64::from(v)])
            .flat_map(f64::to_le_bytes)
            .collect(),
        DType::Bool => values.iter().map(|v| v & 1).collect(),
        integer => {
            let size = integer.size_bytes().expect("an integer");
            values
                .iter()
                .flat_map(|&v| std::iter::once(v).chain(std::iter::repeat_n(0, size - 1)))
                .collect()
        }
    };
    Tensor::from_bytes(dtype, dims.into(), &bytes).expect("as many values as the shape holds")
}

/// Creates a constant with these dimensions and values.
pub(crate) fn literal<T: Element>(dims: &[usize], values: &[T]) -> Arc<Literal> {
    let bytes: Vec<u8> = tensor(dims, values)
        .as_bytes()
        .expect("on the host")
        .to_vec();
    let data = LiteralData::Dense(Arc::new(bytes));
    Arc::new(Literal::new(T::DTYPE, dims.into(), data).expect("as many bytes as the shape holds"))
}

/// Returns pseudo-random values in `-1..1`, always the same ones.
pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).expect("16 bits")) / 32_768.0 - 1.0
        })
        .collect()
}

/// Compares two tensors; the error describes the difference.
pub(crate) fn compare(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
) -> Result<(), String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("found {found:?}, expected {expected:?}"));
    }
    if found.dtype() == DType::String {
        let (f, e) = (found.as_strings(), expected.as_strings());
        return if f == e {
            Ok(())
        } else {
            Err(format!("found {f:?}, expected {e:?}"))
        };
    }
    if !found.dtype().is_floating() && !is_complex(found.dtype()) {
        let same = found.as_bytes().ok() == expected.as_bytes().ok();
        let message = || {
            format!(
                "found {:?}, expected {:?}",
                found.as_bytes(),
                expected.as_bytes()
            )
        };
        return if same { Ok(()) } else { Err(message()) };
    }
    for (index, (f, e)) in doubles(found)
        .into_iter()
        .zip(doubles(expected))
        .enumerate()
    {
        let close = match tolerance {
            Tolerance::Exact => f == e,
            Tolerance::Bits => f.to_bits() == e.to_bits(),
            Tolerance::Within(limit) => f == e || (f - e).abs() <= limit * e.abs().max(1.0),
        };
        if !(close || f.is_nan() && e.is_nan()) {
            return Err(format!(
                "element {index} of {found:?} is {f:e}, expected {e:e} ({tolerance:?})"
            ));
        }
    }
    Ok(())
}

fn is_complex(dtype: DType) -> bool {
    matches!(dtype, DType::Complex64 | DType::Complex128)
}

/// Returns the elements as doubles; complex ones as two, real and imaginary part.
fn doubles(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::Complex64 => tensor.as_slice::<Complex64>().map(|s| {
            s.iter()
                .flat_map(|z| [f64::from(z.re), f64::from(z.im)])
                .collect()
        }),
        DType::Complex128 => tensor
            .as_slice::<Complex128>()
            .map(|s| s.iter().flat_map(|z| [z.re, z.im]).collect()),
        DType::F32 => tensor
            .as_slice::<f32>()
            .map(|s| s.iter().map(|&x| x.into()).collect()),
        DType::F64 => tensor.as_slice::<f64>().map(<[f64]>::to_vec),
        DType::F16 => tensor
            .as_slice::<half::f16>()
            .map(|s| s.iter().map(|&x| x.into()).collect()),
        _ => tensor
            .as_slice::<half::bf16>()
            .map(|s| s.iter().map(|&x| x.into()).collect()),
    }
    .expect("results are on the host and of a floating type")
}
