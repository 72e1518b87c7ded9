//! The first elements of a tensor, for display.

use serde_json::Value;

use crate::tensor::DType;
use crate::tensor::Tensor;

/// Returns the first `n` elements, row-major: numbers, `true` and `false`, or strings if JSON has
/// no such number. Complex numbers are strings too. Empty if the host cannot read them.
pub(super) fn first_values(tensor: &Tensor, n: usize) -> Vec<Value> {
    fn whole<T: crate::tensor::Element + Into<Value>>(tensor: &Tensor, n: usize) -> Vec<Value> {
        let values = tensor.as_slice::<T>().unwrap_or_default();
        values.iter().take(n).map(|&value| value.into()).collect()
    }
    fn real<T: crate::tensor::Element + Into<f64>>(tensor: &Tensor, n: usize) -> Vec<Value> {
        let values = tensor.as_slice::<T>().unwrap_or_default();
        values
            .iter()
            .take(n)
            .map(|&value| number(value.into()))
            .collect()
    }
    match tensor.dtype() {
        // Through the shortest string: as an f64, 0.1f32 would show sixteen digits.
        DType::F32 => {
            let values = tensor.as_slice::<f32>().unwrap_or_default();
            let shortest = |value: &f32| value.to_string().parse().unwrap_or(f64::NAN);
            values.iter().take(n).map(shortest).map(number).collect()
        }
        DType::F64 => real::<f64>(tensor, n),
        DType::F16 => real::<half::f16>(tensor, n),
        DType::BF16 => real::<half::bf16>(tensor, n),
        DType::I8 => whole::<i8>(tensor, n),
        DType::I16 => whole::<i16>(tensor, n),
        DType::I32 => whole::<i32>(tensor, n),
        DType::I64 => whole::<i64>(tensor, n),
        DType::U8 => whole::<u8>(tensor, n),
        DType::U16 => whole::<u16>(tensor, n),
        DType::U32 => whole::<u32>(tensor, n),
        DType::U64 => whole::<u64>(tensor, n),
        DType::Bool => {
            let values = tensor.as_bools().unwrap_or_default();
            values
                .iter()
                .take(n)
                .map(|&value| (value != 0).into())
                .collect()
        }
        DType::Complex64 => {
            let (values, _) = tensor.as_bytes().unwrap_or_default().as_chunks::<8>();
            let complex = |bytes: &[u8; 8]| {
                let [re, im]: [f32; 2] = bytemuck::pod_read_unaligned(bytes);
                format!("{re}{im:+}i").into()
            };
            values.iter().take(n).map(complex).collect()
        }
        DType::Complex128 => {
            let (values, _) = tensor.as_bytes().unwrap_or_default().as_chunks::<16>();
            let complex = |bytes: &[u8; 16]| {
                let [re, im]: [f64; 2] = bytemuck::pod_read_unaligned(bytes);
                format!("{re}{im:+}i").into()
            };
            values.iter().take(n).map(complex).collect()
        }
        DType::String => {
            let values = tensor.as_strings().unwrap_or_default();
            let strings = values.iter().take(n);
            strings.map(|string| shown(string).into()).collect()
        }
        DType::Resource | DType::Variant => Vec::new(),
    }
}

/// Characters shown of a string.
const STRING_CHARS_MAX: usize = 100;

/// Shows the start of a string, with how much was left out.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut shown = String::new();
    let (mut n_chars, mut n_bytes) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        let unreadable = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        let chars = chunk.valid().chars().map(|c| (c, c.len_utf8()));
        for (c, of_bytes) in chars.chain(unreadable.map(|c| (c, chunk.invalid().len()))) {
            if n_chars == STRING_CHARS_MAX {
                return format!("{shown}.. [{} bytes more]", bytes.len() - n_bytes);
            }
            shown.push(c);
            n_chars += 1;
            n_bytes += of_bytes;
        }
    }
    shown
}

/// A number as JSON. JSON has no infinities and no NaN: those are strings.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn values_are_shown_as_short_as_they_are() {
        let floats =
            Tensor::from_values([3], &[0.1f32, f32::NAN, f32::NEG_INFINITY]).expect("fits");
        assert_eq!(
            first_values(&floats, 9),
            [json!(0.1), json!("NaN"), json!("-inf")]
        );
        let integers = Tensor::from_values([2], &[i64::MIN, 1]).expect("fits");
        assert_eq!(first_values(&integers, 1), [json!(i64::MIN)]);
        let booleans = Tensor::from_bools([2], &[true, false]).expect("fits");
        assert_eq!(first_values(&booleans, 9), [json!(true), json!(false)]);
        let complex = [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat();
        let complex =
            Tensor::from_bytes(DType::Complex64, Shape::new(&[1]), &complex).expect("fits");
        assert_eq!(first_values(&complex, 9), [json!("1-2i")]);
        let strings =
            Tensor::from_strings(Shape::new(&[1]), vec![b"a".as_slice().into()]).expect("fits");
        assert_eq!(first_values(&strings, 9), [json!("a")]);
    }

    #[test]
    fn long_strings_are_cut() {
        assert_eq!(shown(b"short \xff"), "short \u{fffd}");
        assert_eq!(
            shown(&[b'x'; STRING_CHARS_MAX]),
            "x".repeat(STRING_CHARS_MAX)
        );
        let long = [&[0xff_u8, b'a'][..], &vec![b'x'; 10 << 20]].concat();
        let expected = format!("\u{fffd}a{}.. [10485662 bytes more]", "x".repeat(98));
        assert_eq!(shown(&long), expected);
    }
}
