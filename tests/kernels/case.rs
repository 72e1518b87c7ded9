//! What a case is, and when a result is the expected one.

use std::sync::Arc;

use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::Tensor;

/// One execution of one op.
pub(crate) struct Case {
    /// `family::what it shows`.
    pub(crate) name: String,
    pub(crate) op: &'static str,
    attrs: Vec<(&'static str, AttrValue)>,
    /// Data inputs, with the op's names for those that may be host-memory arguments.
    pub(crate) inputs: Vec<(&'static str, Tensor)>,
    pub(crate) n_outputs: usize,
    pub(crate) expected: Expected,
}

/// What must come out.
pub(crate) enum Expected {
    Tensors(Vec<Tensor>, Tolerance),
    /// An error that contains these words.
    Refusal(&'static str),
    /// The case was not ended: it fails.
    Unsaid,
}

/// How far a result may be from the expected one. NaN is NaN always.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tolerance {
    /// Equal numbers; `-0` equals `0`.
    Exact,
    /// Equal bits but for NaNs: also the sign of 0.
    Bits,
    /// Apart by at most this much, absolutely or relatively. The case says why.
    Within(f64),
}

/// The start of a case; ends with [`Case::gives`], [`Case::gives_within`] or [`Case::refused`].
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

    pub(crate) fn gives_nothing(mut self) -> Self {
        self.n_outputs = 0;
        self.expected = Expected::Tensors(Vec::new(), Tolerance::Exact);
        self
    }

    pub(crate) fn refused(mut self, words: &'static str) -> Self {
        assert!(!words.is_empty(), "any error has no words");
        self.expected = Expected::Refusal(words);
        self
    }

    pub(crate) fn attrs(&self) -> AttrSet {
        AttrSet::new(
            self.attrs
                .iter()
                .map(|(name, value)| (Arc::from(*name), value.clone())),
        )
    }
}

/// A tensor of these dimensions and values.
pub(crate) fn tensor<T: Element>(dims: &[usize], values: &[T]) -> Tensor {
    Tensor::from_values(dims, values).expect("a case gives as many values as its shape holds")
}

/// A constant of these dimensions and values.
pub(crate) fn literal<T: Element>(dims: &[usize], values: &[T]) -> Arc<Literal> {
    let bytes: Vec<u8> = tensor(dims, values)
        .as_bytes()
        .expect("on the host")
        .to_vec();
    let data = LiteralData::Dense(Arc::new(bytes));
    Arc::new(Literal::new(T::DTYPE, dims.into(), data).expect("as many bytes as the shape holds"))
}

/// Values that look random and are the same always, in `-1..1`.
pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).expect("16 bits")) / 32_768.0 - 1.0
        })
        .collect()
}

/// Says what differs.
pub(crate) fn compare(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
) -> Result<(), String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("found {found:?}, expected {expected:?}"));
    }
    if !found.dtype().is_floating() {
        let same = found.as_bytes().ok() == expected.as_bytes().ok();
        let words = || {
            format!(
                "found {:?}, expected {:?}",
                found.as_bytes(),
                expected.as_bytes()
            )
        };
        return if same { Ok(()) } else { Err(words()) };
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

fn doubles(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
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
