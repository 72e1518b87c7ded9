//! Tensors as JSON: the feeds of a run, and its results.
//!
//! A file is an object. Its keys are the names of feeds or fetches; its values are nested lists,
//! whose lengths are the dimensions. A string that is not UTF-8 is `{"b64": ".."}`, as in
//! TensorFlow Serving. Infinities and NaN, which JSON does not have, are strings.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::feeds::Feeds;
use super::feeds::wanted;
use super::feeds::wanted_feeds;
use super::npz::Wanted;
use super::npz::feed_memory;
use super::output_file;
use super::values::first_values;
use crate::error::NameRole;
use crate::graph::Graph;
use crate::session::find_tensor;
use crate::tensor::Allocator;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The key of a string that is not UTF-8.
const BASE64: &str = "b64";

/// Whether the name of a file says that it is JSON.
pub(super) fn is_json(path: &Path) -> bool {
    path.extension()
        .is_some_and(|it| it.eq_ignore_ascii_case("json"))
}

/// Reads all feeds of a file, by the tensor that they feed.
pub(super) fn read_json_feeds(path: &Path, graph: &Graph) -> Result<Feeds> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    feeds_of(&bytes, graph).with_context(|| path.display().to_string())
}

fn feeds_of(bytes: &[u8], graph: &Graph) -> Result<Feeds> {
    let expected = || {
        let names = wanted_feeds(graph);
        let names = names.iter().map(|name| name.trim_start_matches("in/"));
        format!(
            "expected an object with a list of values for each of: {}",
            names.collect::<Vec<_>>().join(", ")
        )
    };
    let value: Value = serde_json::from_slice(bytes).with_context(expected)?;
    let Value::Object(arrays) = value else {
        bail!("{}", expected());
    };
    if arrays.is_empty() {
        bail!("there are no feeds; {}", expected());
    }
    let memory = feed_memory();
    let mut feeds = Feeds::new();
    for (key, value) in &arrays {
        let name = key.strip_prefix("in/").unwrap_or(key);
        let tensor = find_tensor(graph, NameRole::Feed, name)?;
        let value = read(value, &wanted(graph, tensor), &memory);
        let value = value.with_context(|| format!("value of `{key}`"))?;
        let name = graph.tensor_name(tensor);
        if feeds.insert(name.clone(), value).is_some() {
            bail!("two values feed tensor `{name}`, one of them `{key}`; keep one");
        }
    }
    Ok(feeds)
}

/// Converts nested lists to a tensor of the wanted type.
fn read(value: &Value, wanted: &Wanted, memory: &dyn Allocator) -> Result<Tensor> {
    let mut dims = Vec::new();
    let mut inner = value;
    while let Value::Array(values) = inner {
        dims.push(values.len());
        match values.first() {
            Some(first) => inner = first,
            None => break,
        }
    }
    let shape = Shape::new(&dims);
    if !wanted.shape.matches(&shape) {
        bail!(
            "its shape is {shape}, and the graph expects {} of shape {}",
            wanted.dtype,
            wanted.shape
        );
    }
    if wanted.dtype == DType::String {
        let mut strings: Vec<ByteString> = Vec::new();
        each(value, &dims, &mut |value| {
            strings.push(string(value)?);
            Ok(())
        })?;
        return Ok(Tensor::from_strings(shape, strings)?);
    }
    let Some(size) = wanted.dtype.size_bytes() else {
        bail!("a {} tensor cannot be fed", wanted.dtype);
    };
    let mut tensor = Tensor::zeros(memory, wanted.dtype, shape)?;
    let mut slots = tensor
        .as_bytes_mut()
        .context("memory of the host")?
        .chunks_exact_mut(size);
    each(value, &dims, &mut |value| {
        let slot = slots.next().context("more values than the shape has")?;
        write_number(value, wanted.dtype, slot)
    })?;
    Ok(tensor)
}

/// Calls `visit` for each element of nested lists with these lengths.
fn each(value: &Value, dims: &[usize], visit: &mut dyn FnMut(&Value) -> Result<()>) -> Result<()> {
    let Some((&length, rest)) = dims.split_first() else {
        return visit(value);
    };
    let Value::Array(values) = value else {
        bail!(
            "the lists are of different depths: {} is beside a list",
            shown(value)
        );
    };
    if values.len() != length {
        bail!(
            "the lists are of different lengths, {length} and {}; all of a dimension must be equal",
            values.len()
        );
    }
    values.iter().try_for_each(|value| each(value, rest, visit))
}

/// The start of a value, for an error.
fn shown(value: &Value) -> String {
    super::values::shown(value.to_string().as_bytes())
}

/// The bytes of a string.
fn string(value: &Value) -> Result<ByteString> {
    match value {
        Value::String(text) => Ok(text.as_bytes().into()),
        Value::Object(object) if object.len() == 1 && object.contains_key(BASE64) => {
            let text = object[BASE64].as_str().unwrap_or_default();
            let bytes = STANDARD.decode(text);
            let bytes = bytes.map_err(|err| anyhow!("{} is not base64: {err}", shown(value)))?;
            Ok(bytes.into())
        }
        _ => bail!(
            "{} is not a string, nor an object with the key `b64`",
            shown(value)
        ),
    }
}

/// Writes a number or a boolean as an element of type `dtype`.
fn write_number(value: &Value, dtype: DType, slot: &mut [u8]) -> Result<()> {
    let wrong = || anyhow!("{} is not a value of type {dtype}", shown(value));
    if dtype == DType::Bool {
        slot[0] = u8::from(value.as_bool().ok_or_else(wrong)?);
        return Ok(());
    }
    let real = || match value {
        Value::String(text) => text.parse::<f64>().ok().filter(|it| !it.is_finite()),
        _ => value.as_f64(),
    };
    macro_rules! whole {
        ($T:ty) => {{
            let signed = value.as_i64().map(i128::from);
            let number = signed
                .or_else(|| value.as_u64().map(i128::from))
                .ok_or_else(wrong)?;
            slot.copy_from_slice(&<$T>::try_from(number).map_err(|_| wrong())?.to_le_bytes());
        }};
    }
    match dtype {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounded to the type of the tensor"
        )]
        DType::F32 => slot.copy_from_slice(&(real().ok_or_else(wrong)? as f32).to_le_bytes()),
        DType::F64 => slot.copy_from_slice(&real().ok_or_else(wrong)?.to_le_bytes()),
        DType::F16 => {
            let number = half::f16::from_f64(real().ok_or_else(wrong)?);
            slot.copy_from_slice(&number.to_le_bytes());
        }
        DType::BF16 => {
            let number = half::bf16::from_f64(real().ok_or_else(wrong)?);
            slot.copy_from_slice(&number.to_le_bytes());
        }
        DType::I8 => whole!(i8),
        DType::I16 => whole!(i16),
        DType::I32 => whole!(i32),
        DType::I64 => whole!(i64),
        DType::U8 => whole!(u8),
        DType::U16 => whole!(u16),
        DType::U32 => whole!(u32),
        DType::U64 => whole!(u64),
        _ => bail!("JSON has no {dtype} numbers; feed the tensor from an archive (.npz)"),
    }
    Ok(())
}

/// Writes tensors by name.
///
/// # Errors
/// If a tensor has no values that the host can read, or the file cannot be written.
pub(super) fn write_json(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let mut object = Map::new();
    for (name, tensor) in tensors {
        let dims = tensor.shape().dims();
        let values = match tensor.dtype() {
            DType::String => tensor.as_strings()?.iter().map(|it| text(it)).collect(),
            _ => first_values(tensor, usize::MAX),
        };
        if values.len() != tensor.shape().n_elements() {
            bail!(
                "`{name}` is a {} tensor, which has no values in JSON",
                tensor.dtype()
            );
        }
        object.insert(name.clone(), nested(&mut values.into_iter(), dims));
    }
    output_file::write(path, |file| {
        serde_json::to_writer(&mut *file, &object)?;
        Ok(file.write_all(b"\n")?)
    })
}

fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ BASE64: STANDARD.encode(bytes) }),
    }
}

/// Takes the values of a tensor with these dimensions, as nested lists.
fn nested(values: &mut dyn Iterator<Item = Value>, dims: &[usize]) -> Value {
    match dims.split_first() {
        None => values.next().unwrap_or_default(),
        Some((&length, rest)) => (0..length).map(|_| nested(values, rest)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::HostAllocator;
    use crate::tensor::PartialShape;

    fn tensor(dtype: DType, text: &str) -> Result<Tensor> {
        let wanted = Wanted {
            dtype,
            shape: PartialShape::unknown(),
        };
        let value = serde_json::from_str(text).expect("JSON");
        read(&value, &wanted, &HostAllocator::new("feeds", 1 << 20))
    }

    #[test]
    fn tensors_survive_a_round_trip() {
        for (dtype, text) in [
            (DType::F32, r#"[[0.1,2.0],[-3.5,"NaN"]]"#),
            (DType::F64, r#"["inf","-inf",1e300]"#),
            (DType::F16, "[0.5]"),
            (DType::BF16, "[[[1.0]]]"),
            (DType::I8, "[-128,127]"),
            (DType::U8, "[255]"),
            (DType::I16, "[-32768]"),
            (DType::U16, "[65535]"),
            (DType::I32, "-2147483648"),
            (DType::U32, "4294967295"),
            (DType::I64, "[-9223372036854775808]"),
            (DType::U64, "[18446744073709551615]"),
            (DType::Bool, "[true,false]"),
            (DType::String, r#"[["a",""],["\u00e9",{"b64":"AP8="}]]"#),
            (DType::F32, "[]"),
            (DType::String, "[[],[]]"),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("out.json");
            let made = tensor(dtype, text).expect(text);
            write_json(&path, &[("x".to_owned(), made)]).expect("written");
            let found: Value =
                serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON");
            let expected: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(found, json!({ "x": expected }), "{dtype}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        for (dtype, text, part) in [
            (DType::F32, "[[1],[2,3]]", "different lengths, 1 and 2"),
            (DType::F32, "[[1],2]", "2 is beside a list"),
            (DType::F32, "[1,[2]]", "[2] is not a value of type float"),
            (DType::F32, r#"["1"]"#, "is not a value of type float"),
            (DType::I8, "[128]", "128 is not a value of type int8"),
            (DType::I32, "[1.5]", "1.5 is not a value of type int32"),
            (DType::U8, "[-1]", "-1 is not a value of type uint8"),
            (DType::Bool, "[1]", "1 is not a value of type bool"),
            (DType::String, "[1]", "1 is not a string"),
            (DType::String, r#"[{"b64":"?"}]"#, "is not base64"),
            (DType::Complex64, "[1]", "no complex64 numbers"),
            (DType::Resource, "[1]", "cannot be fed"),
        ] {
            let error = tensor(dtype, text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
