//! Strings, one by one: hashes, numbers, cases, substrings, regular expressions.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::DecodePaddingMode;
use base64::engine::GeneralPurpose;
use base64::engine::GeneralPurposeConfig;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Broadcast;
use crate::kernels::Threads;
use crate::kernels::printf::Format;
use crate::kernels::printf::Notation;
use crate::kernels::regex;
use crate::kernels::regex::Rewrite;
use crate::kernels::scratch;
use crate::kernels::scratch::append;
use crate::kernels::spread::Spread;
use crate::kernels::spread::common_shape;
use crate::kernels::strings;
use crate::tensor::Boolean;
use crate::tensor::ByteString;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// The limit of width and precision of `AsString`, that of Rust's formats.
const WIDTH_MAX: i64 = 65_535;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("StringLower").with_factory(|node| cased(node, false)));
    registry.register(def("StringUpper").with_factory(|node| cased(node, true)));
    registry.register(
        def("StringStrip").with_factory(|_| {
            map_strings(|string, bytes| append(bytes, strings::stripped(string)))
        }),
    );
    registry.register(def("StringLength").with_factory(length));
    registry.register(
        def("Substr")
            .with_types("T", &INDICES)
            .with_factory(substring),
    );
    registry.register(def("StringToHashBucket").with_factory(|node| bucket(node, strings::hash)));
    registry.register(
        def("StringToHashBucketFast").with_factory(|node| bucket(node, strings::fingerprint)),
    );
    registry.register(def("StringToHashBucketStrong").with_factory(|node| {
        let key = ints_attr(node, "key", &[])?;
        let &[first, second] = key.as_slice() else {
            return Err(KernelError::invalid(format!(
                "Key must have 2 elements, found {}",
                key.len()
            )));
        };
        let key = [first, second].map(i64::cast_unsigned);
        bucket(node, move |string| strings::keyed_hash(string, key))
    }));
    registry.register(
        def("StringToNumber")
            .with_types(
                "out_type",
                &[
                    DType::F32,
                    DType::F64,
                    DType::I32,
                    DType::I64,
                    DType::U32,
                    DType::U64,
                ],
            )
            .with_factory(number),
    );
    let writable = [&ARITHMETIC[..], &[DType::Bool, DType::String]].concat();
    registry.register(
        def("AsString")
            .with_types("T", &writable)
            .with_factory(as_string),
    );
    registry.register(def("RegexReplace").with_factory(regex_replace));
    registry.register(def("StaticRegexReplace").with_factory(static_regex_replace));
    registry.register(def("RegexFullMatch").with_factory(|_| kernel(regex_full_match)));
    registry.register(def("StaticRegexFullMatch").with_factory(static_regex_full_match));
    registry.register(def("EncodeBase64").with_factory(|node| {
        let pads = bool_attr(node, "pad", false)?;
        let engine = base64_engine(pads);
        map_strings(move |string, bytes| append(bytes, engine.encode(string).as_bytes()))
    }));
    registry.register(
        def("Add")
            .with_types("T", &[DType::String])
            .with_factory(|_| kernel(add)),
    );
    registry.register(def("DecodeBase64").with_factory(|_| {
        let engine = base64_engine(false);
        map_strings(move |string, bytes| {
            // Padding is optional, but complete.
            if string.ends_with(b"=") && !string.len().is_multiple_of(4) {
                return Err(KernelError::invalid(
                    "Invalid character found in base64: incomplete padding",
                ));
            }
            let decoded = engine.decode(string).map_err(|error| {
                KernelError::invalid(format!("Invalid character found in base64: {error}"))
            })?;
            append(bytes, &decoded)
        })
    }));
}

/// TensorFlow `Add` of strings: joins pairs. Inputs are broadcast.
fn add(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (left, right) = (context.input(0)?, context.input(1)?);
    let shape = common_shape(&[left.shape(), right.shape()])?;
    shape.size_bytes(DType::String).map_err(TensorError::from)?;
    let (lefts, rights) = (left.as_strings()?, right.as_strings()?);
    let empty = ByteString::default();
    let mut strings = scratch::list(shape.n_elements())?;
    strings.extend(std::iter::repeat_n(empty, shape.n_elements()));
    let spread = Spread::new(&shape, [left.shape(), right.shape()])?;
    spread.fill(
        &mut strings,
        Threads::of(context),
        |offsets, advances, part| {
            for (at, slot) in part.iter_mut().enumerate() {
                let place =
                    |operand: usize| offsets[operand] + if advances[operand] { at } else { 0 };
                *slot = [&*lefts[place(0)], &*rights[place(1)]].concat().into();
            }
        },
    );
    context.set_output(0, Tensor::from_strings(shape, strings)?)
}

/// Base64 for file names and URLs; padding is optional when it is read.
fn base64_engine(pads: bool) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(pads)
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&URL_SAFE, config)
}

/// Sets an output to strings that are made one by one.
pub(super) fn set_strings(
    context: &KernelContext<'_>,
    index: usize,
    shape: &Shape,
    strings: impl Iterator<Item = Result<ByteString, KernelError>>,
) -> Result<(), KernelError> {
    shape.size_bytes(DType::String).map_err(TensorError::from)?;
    let mut list = scratch::list(shape.n_elements())?;
    for string in strings {
        list.push(string?);
    }
    context.set_output(index, Tensor::from_strings(shape.clone(), list)?)
}

/// Strings that take about 20 us on one thread.
const STRINGS_GRAIN: usize = 256;

/// Sets output 0 to strings of a shape, on several threads. `write` appends string `index` to the
/// empty `bytes`.
fn set_written(
    context: &KernelContext<'_>,
    shape: &Shape,
    write: impl Fn(usize, &mut Vec<u8>) -> Result<(), KernelError> + Sync,
) -> Result<(), KernelError> {
    shape.size_bytes(DType::String).map_err(TensorError::from)?;
    let n = shape.n_elements();
    let mut strings = scratch::list(n)?;
    strings.extend(std::iter::repeat_n(ByteString::default(), n));
    let written = Threads::of(context).try_fill(
        &mut strings,
        1,
        STRINGS_GRAIN,
        |start, part: &mut [ByteString]| {
            let mut bytes = scratch::list(0)?;
            for (index, string) in (start..).zip(part) {
                bytes.clear();
                write(index, &mut bytes)?;
                *string = bytes.as_slice().into();
            }
            Ok(())
        },
    );
    written.map_err(|error| {
        first_error(n, error, |index| {
            let mut bytes = scratch::list(0)?;
            write(index, &mut bytes)
        })
    })?;
    context.set_output(0, Tensor::from_strings(shape.clone(), strings)?)
}

/// Returns the error of the first one of `n` elements that has one: which one several threads find
/// is a matter of chance.
fn first_error(
    n: usize,
    found: KernelError,
    check: impl Fn(usize) -> Result<(), KernelError>,
) -> KernelError {
    let mut errors = (0..n).filter_map(|index| check(index).err());
    errors.next().unwrap_or(found)
}

/// Makes a kernel that maps each string of input 0 to another one, which `map` appends to the empty
/// `bytes`.
fn map_strings(
    map: impl Fn(&[u8], &mut Vec<u8>) -> Result<(), KernelError> + Send + Sync + 'static,
) -> Made {
    kernel(move |context| {
        let input = context.input(0)?;
        let strings = input.as_strings()?;
        set_written(context, input.shape(), |index, bytes| {
            map(&strings[index], bytes)
        })
    })
}

/// Sets output 0 to elements of the shape of input 0, one per string, on several threads.
fn set_mapped<T: Element>(
    context: &KernelContext<'_>,
    map: impl Fn(&[u8]) -> Result<T, KernelError> + Sync,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let strings = input.as_strings()?;
    let threads = Threads::of(context);
    context.fill_output(0, input.shape(), |out: &mut [T]| {
        let mapped = threads.try_fill(out, 1, 4 * STRINGS_GRAIN, |start, part| {
            for (slot, string) in part.iter_mut().zip(&strings[start..]) {
                *slot = map(string)?;
            }
            Ok(())
        });
        mapped.map_err(|error| {
            first_error(strings.len(), error, |index| map(&strings[index]).map(drop))
        })
    })
}

/// Makes a kernel that maps each string of input 0 to an element.
fn map_to<T: Element>(
    map: impl Fn(&[u8]) -> Result<T, KernelError> + Send + Sync + 'static,
) -> Made {
    kernel(move |context| set_mapped(context, &map))
}

/// TensorFlow `StringLower` and `StringUpper`.
fn cased(node: &KernelConstruction<'_>, is_upper: bool) -> Made {
    let encoding = string_attr(node, "encoding", "")?;
    match encoding {
        "" => map_strings(move |string, bytes| {
            append(bytes, string)?;
            match is_upper {
                true => bytes.make_ascii_uppercase(),
                false => bytes.make_ascii_lowercase(),
            }
            Ok(())
        }),
        "utf-8" => map_strings(move |string, bytes| {
            let text = String::from_utf8_lossy(string);
            let text = match is_upper {
                true => text.to_uppercase(),
                false => text.to_lowercase(),
            };
            append(bytes, text.as_bytes())
        }),
        other => Err(KernelError::invalid(format!(
            "only utf-8 or '' (no encoding) is supported, received {other}"
        ))),
    }
}

/// Returns whether attribute `unit` counts characters of UTF-8 instead of bytes.
fn counts_characters(node: &KernelConstruction<'_>) -> Result<bool, KernelError> {
    match string_attr(node, "unit", "BYTE")? {
        "BYTE" => Ok(false),
        "UTF8_CHAR" => Ok(true),
        other => Err(KernelError::invalid(format!(
            "invalid unit \"{other}\": must be one of BYTE, UTF8_CHAR"
        ))),
    }
}

/// TensorFlow `StringLength`.
fn length(node: &KernelConstruction<'_>) -> Made {
    let counts_characters = counts_characters(node)?;
    map_to(move |string| {
        let n = match counts_characters {
            true => strings::n_characters(string),
            false => string.len(),
        };
        Ok(i32::try_from(n).unwrap_or(i32::MAX))
    })
}

/// TensorFlow `Substr`.
fn substring(node: &KernelConstruction<'_>) -> Made {
    let counts_characters = counts_characters(node)?;
    kernel(move |context| {
        let (input, positions, lens) = (context.input(0)?, context.input(1)?, context.input(2)?);
        if positions.shape() != lens.shape() {
            return Err(KernelError::invalid(format!(
                "pos and len should have the same shape, got: {} vs. {}",
                positions.shape(),
                lens.shape()
            )));
        }
        let of_positions = positions.shape();
        let shape = Broadcast::new(input.shape(), of_positions)?.shape().clone();
        let strings = input.as_strings()?;
        let (positions, lens) = (indices(positions)?, indices(lens)?);
        set_written(context, &shape, |index, bytes| {
            let string = &strings[index_in(input.shape(), &shape, index)];
            let of_position = index_in(of_positions, &shape, index);
            let position = positions[of_position];
            let range = match counts_characters {
                true => strings::substring_of_characters(string, position, lens[of_position]),
                false => strings::substring(string, position, lens[of_position]),
            };
            let range = range.ok_or_else(|| {
                let shown = match counts_characters {
                    true => String::new(),
                    false => format!(" b'{}'", String::from_utf8_lossy(string)),
                };
                KernelError::invalid(format!(
                    "pos {position} out of range for string{shown} at index {index}"
                ))
            })?;
            append(bytes, &string[range])
        })
    })
}

/// Returns the index of an element of a tensor of this shape, of the index in the shape to which it
/// is broadcast.
fn index_in(shape: &Shape, result: &Shape, mut index: usize) -> usize {
    if shape == result {
        return index;
    }
    let (mut at, mut stride) = (0, 1);
    let dims = shape.dims().iter().rev();
    for (&size, &of_result) in dims.zip(result.dims().iter().rev()) {
        if size > 1 {
            at += index % of_result * stride;
        }
        stride *= size;
        index /= of_result.max(1);
    }
    at
}

/// TensorFlow `StringToHashBucket` and its variants.
fn bucket(
    node: &KernelConstruction<'_>,
    hash: impl Fn(&[u8]) -> u64 + Send + Sync + 'static,
) -> Made {
    let n_buckets = int_attr(node, "num_buckets", None)?;
    let n_buckets = u64::try_from(n_buckets).ok().filter(|&n| n > 0);
    let n_buckets =
        n_buckets.ok_or_else(|| KernelError::invalid("num_buckets must be positive"))?;
    map_to(move |string| Ok((hash(string) % n_buckets).cast_signed()))
}

/// TensorFlow `StringToNumber`.
fn number(node: &KernelConstruction<'_>) -> Made {
    fn made<T: Element>(parse: fn(&[u8]) -> Option<T>) -> Made {
        map_to(move |string| {
            parse(string).ok_or_else(|| {
                KernelError::invalid(format!(
                    "StringToNumberOp could not correctly convert string: {}",
                    String::from_utf8_lossy(string)
                ))
            })
        })
    }
    match type_attr(node, "out_type")? {
        DType::F32 => made::<f32>(strings::float),
        DType::F64 => made::<f64>(strings::float),
        DType::I32 => made::<i32>(strings::integer),
        DType::I64 => made::<i64>(strings::integer),
        DType::U32 => made::<u32>(strings::integer),
        DType::U64 => made::<u64>(strings::integer),
        other => Err(crate::backend::types::unsupported(other)),
    }
}

/// TensorFlow `AsString`.
fn as_string(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    let is_scientific = bool_attr(node, "scientific", false)?;
    let is_shortest = bool_attr(node, "shortest", false)?;
    let precision = int_attr(node, "precision", Some(-1))?;
    let width = int_attr(node, "width", Some(-1))?;
    let is_float = dtype.is_floating() || matches!(dtype, DType::Complex64 | DType::Complex128);
    if dtype != DType::String && !is_float {
        if is_scientific || is_shortest {
            return Err(KernelError::invalid(format!(
                "scientific and shortest format not supported for datatype {dtype}"
            )));
        }
        if precision >= 0 {
            return Err(KernelError::invalid(format!(
                "precision not supported for datatype {dtype}"
            )));
        }
    }
    if is_scientific && is_shortest {
        return Err(KernelError::invalid(
            "Cannot select both scientific and shortest notation",
        ));
    }
    if width.max(precision) > WIDTH_MAX {
        return Err(KernelError::invalid(format!(
            "width is {width} and precision is {precision}; at most {WIDTH_MAX} is supported"
        )));
    }
    let flag = match string_attr(node, "fill", "")?.as_bytes() {
        [] => None,
        &[flag @ (b' ' | b'+' | b'-' | b'0' | b'#')] => Some(flag),
        [_] => {
            return Err(KernelError::invalid(format!(
                "Fill argument not supported: \"{}\"",
                string_attr(node, "fill", "")?
            )));
        }
        _ => {
            return Err(KernelError::invalid(
                "Fill string must be one or fewer characters",
            ));
        }
    };
    let is_unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    let format = Format {
        // C's `%u` has no sign.
        flag: flag.filter(|flag| !(is_unsigned && matches!(flag, b' ' | b'+'))),
        width: usize::try_from(width).unwrap_or(0),
        precision: usize::try_from(precision).ok(),
    };
    let notation = match (is_scientific, is_shortest) {
        (true, _) => Notation::Scientific,
        (_, true) => Notation::Shortest,
        _ => Notation::Fixed,
    };
    let float = move |value: f64| format.float(value, notation);
    match dtype {
        DType::F16 => written(move |x: half::f16| float(x.into())),
        DType::BF16 => written(move |x: half::bf16| float(x.into())),
        DType::F32 => written(move |x: f32| float(x.into())),
        DType::F64 => written(float),
        DType::Complex64 => {
            written(move |x: Complex64| format!("({},{})", float(x.re.into()), float(x.im.into())))
        }
        DType::Complex128 => {
            written(move |x: Complex128| format!("({},{})", float(x.re), float(x.im)))
        }
        DType::Bool => written(|x: Boolean| if x.is_true() { "true" } else { "false" }.to_owned()),
        DType::String => map_strings(move |string, bytes| {
            format.string(string, bytes);
            Ok(())
        }),
        dtype => {
            dispatch_integer!(dtype, T => written(move |x: T| format.integer(i128::from(x))))
        }
    }
}

/// Makes a kernel that writes each element as a string.
fn written<T: Element>(write: impl Fn(T) -> String + Send + Sync + 'static) -> Made {
    kernel(move |context| {
        let input = context.input(0)?;
        let elements = input.as_slice::<T>()?;
        set_written(context, input.shape(), |index, bytes| {
            append(bytes, write(elements[index]).as_bytes())
        })
    })
}

/// Returns the string of a scalar. `what` names it in errors.
pub(super) fn scalar_string<'a>(
    context: &'a KernelContext<'_>,
    index: usize,
    what: &str,
) -> Result<&'a [u8], KernelError> {
    let input = context.input(index)?;
    match (input.shape().rank(), input.as_strings()?) {
        (0, [string]) => Ok(string),
        _ => Err(KernelError::invalid(format!(
            "{what} must be scalar, but received {}",
            input.shape()
        ))),
    }
}

fn compiled(pattern: &[u8], is_whole: bool) -> Result<::regex::bytes::Regex, KernelError> {
    let pattern = std::str::from_utf8(pattern)
        .map_err(|_| KernelError::invalid("Invalid pattern: it is not UTF-8"))?;
    regex::compile(pattern, is_whole).map_err(KernelError::InvalidArgument)
}

/// Sets output 0 to the strings of input 0 with their matches replaced.
fn replaced(
    context: &KernelContext<'_>,
    regex: &::regex::bytes::Regex,
    rewrite: &Rewrite,
    is_global: bool,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let strings = input.as_strings()?;
    set_written(context, input.shape(), |index, bytes| {
        rewrite.replace(regex, &strings[index], is_global, bytes);
        Ok(())
    })
}

/// TensorFlow `RegexReplace`.
fn regex_replace(node: &KernelConstruction<'_>) -> Made {
    let is_global = bool_attr(node, "replace_global", true)?;
    kernel(move |context| {
        let regex = compiled(scalar_string(context, 1, "Pattern")?, false)?;
        let rewrite = Rewrite::parse(scalar_string(context, 2, "Rewrite")?);
        let rewrite = rewrite.map_err(KernelError::InvalidArgument)?;
        replaced(context, &regex, &rewrite, is_global)
    })
}

/// TensorFlow `StaticRegexReplace`.
fn static_regex_replace(node: &KernelConstruction<'_>) -> Made {
    let is_global = bool_attr(node, "replace_global", true)?;
    let regex = compiled(string_attr(node, "pattern", "")?.as_bytes(), false)?;
    let rewrite = Rewrite::parse(string_attr(node, "rewrite", "")?.as_bytes());
    let rewrite = rewrite.map_err(KernelError::InvalidArgument)?;
    kernel(move |context| replaced(context, &regex, &rewrite, is_global))
}

/// Sets output 0 to whether the strings of input 0 match.
fn matched(context: &KernelContext<'_>, regex: &::regex::bytes::Regex) -> Result<(), KernelError> {
    set_mapped(context, |string| Ok(Boolean::from(regex.is_match(string))))
}

/// TensorFlow `RegexFullMatch`.
fn regex_full_match(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let regex = compiled(scalar_string(context, 1, "Pattern")?, true)?;
    matched(context, &regex)
}

/// TensorFlow `StaticRegexFullMatch`.
fn static_regex_full_match(node: &KernelConstruction<'_>) -> Made {
    let regex = compiled(string_attr(node, "pattern", "")?.as_bytes(), true)?;
    kernel(move |context| matched(context, &regex))
}
