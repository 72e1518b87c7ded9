//! Strings as characters, and in other encodings.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::cpu::kernels::strings::set_strings;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::scratch;
use crate::kernels::unicode::Encoding;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["UnicodeDecode", "UnicodeDecodeWithOffsets"] {
        registry.register(
            def(op)
                .with_types("Tsplits", &INDICES)
                .with_factory(move |node| decode(node, op == "UnicodeDecodeWithOffsets")),
        );
    }
    registry.register(
        def("UnicodeEncode")
            .with_types("Tsplits", &INDICES)
            .with_factory(encode),
    );
    registry.register(def("UnicodeTranscode").with_factory(transcode));
}

/// What happens to bytes that are no character, and to control characters.
#[derive(Debug, Clone, Copy)]
struct Errors {
    is_strict: bool,
    ignores: bool,
    replacement: u32,
    replaces_controls: bool,
}

impl Errors {
    fn of(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let replacement = int_attr(node, "replacement_char", Some(0xfffd))?;
        let replacement = u32::try_from(replacement).ok().filter(|&c| c <= 0x10_ffff);
        let policy = string_attr(node, "errors", "replace")?;
        Ok(Self {
            is_strict: policy == "strict",
            ignores: policy == "ignore",
            replacement: replacement.ok_or_else(|| {
                KernelError::invalid("replacement_char out of unicode codepoint range")
            })?,
            replaces_controls: bool_attr(node, "replace_control_characters", false)?,
        })
    }

    /// Returns the character to use; `None` if it is left out. Controls that are to be replaced
    /// are errors like others if `refuses_controls`.
    fn resolve(
        self,
        character: u32,
        is_wrong: bool,
        refuses_controls: bool,
    ) -> Result<Option<u32>, KernelError> {
        let is_control = self.replaces_controls && character <= 0x1f;
        if !is_wrong && !is_control {
            return Ok(Some(character));
        }
        if self.is_strict && (is_wrong || refuses_controls) {
            return Err(KernelError::invalid("Invalid formatting on input string"));
        }
        Ok((!self.ignores).then_some(self.replacement))
    }
}

fn encoding(node: &KernelConstruction<'_>, attr: &str) -> Result<Encoding, KernelError> {
    let name = string_attr(node, attr, "UTF-8")?;
    Encoding::from_name(name).ok_or_else(|| {
        KernelError::invalid(format!(
            "Could not create converter for input encoding: {name}; UTF-8, UTF-16-BE, UTF-16-LE, \
             UTF-32-BE, UTF-32-LE, US-ASCII and ISO-8859-1 are supported"
        ))
    })
}

/// TensorFlow `UnicodeDecode` and `UnicodeDecodeWithOffsets`.
fn decode(node: &KernelConstruction<'_>, has_offsets: bool) -> Made {
    let (encoding, errors) = (encoding(node, "input_encoding")?, Errors::of(node)?);
    let is_wide = type_attr(node, "Tsplits")? == DType::I64;
    kernel(move |context| {
        let rows = context.input(0)?.as_strings()?;
        let mut splits = scratch::list::<i64>(rows.len() + 1)?;
        let (mut characters, mut offsets) = (scratch::list::<i64>(0)?, scratch::list::<i64>(0)?);
        splits.push(0);
        for row in rows {
            let (mut at, mut failure) = (0, None);
            encoding.decode(row, |character, n_bytes, is_wrong| {
                match errors.resolve(character, is_wrong, false) {
                    Ok(Some(character)) => {
                        characters.push(character.into());
                        offsets.push(at);
                    }
                    Ok(None) => {}
                    Err(error) => failure = Some(error),
                }
                at += i64::try_from(n_bytes).unwrap_or(i64::MAX);
            });
            if let Some(error) = failure {
                return Err(error);
            }
            splits.push(i64::try_from(characters.len()).unwrap_or(i64::MAX));
        }
        set_indices(context, 0, &Shape::new(&[splits.len()]), &splits, is_wide)?;
        let shape = Shape::new(&[characters.len()]);
        set_indices(context, 1, &shape, &characters, false)?;
        if has_offsets {
            set_indices(context, 2, &shape, &offsets, true)?;
        }
        Ok(())
    })
}

/// TensorFlow `UnicodeEncode`.
fn encode(node: &KernelConstruction<'_>) -> Made {
    let (encoding, errors) = (encoding(node, "output_encoding")?, Errors::of(node)?);
    kernel(move |context| {
        let characters = context.input(0)?.as_slice::<i32>()?;
        let splits = indices(context.input(1)?)?;
        let shape = Shape::new(&[splits.len().saturating_sub(1)]);
        if splits.first().is_some_and(|&first| first != 0) {
            return Err(KernelError::invalid(format!(
                "First value in input_splits must be zero, got {}",
                splits[0]
            )));
        }
        let rows = splits.windows(2).map(|row| {
            let range = usize::try_from(row[0])
                .ok()
                .zip(usize::try_from(row[1]).ok());
            let row_characters = range.and_then(|(start, end)| characters.get(start..end));
            let row_characters = row_characters.ok_or_else(|| {
                KernelError::invalid(format!(
                    "Values in input_splits must be less than or equal to input_tensor length, and \
                     must be equal or in ascending order, got {} to {} of {}",
                    row[0],
                    row[1],
                    characters.len()
                ))
            })?;
            let mut string = scratch::list::<u8>(row_characters.len())?;
            for &character in row_characters {
                let character = u32::try_from(character).ok();
                let character = character.filter(|&c| char::from_u32(c).is_some());
                if character.is_none() && errors.is_strict {
                    return Err(KernelError::invalid(
                        "Code point is out of range for Unicode, or a noncharacter.",
                    ));
                }
                match character {
                    None if errors.ignores => {}
                    character => {
                        encoding.encode(character.unwrap_or(errors.replacement), &mut string);
                    }
                }
            }
            Ok(ByteString::from(string))
        });
        set_strings(context, 0, &shape, rows)
    })
}

/// TensorFlow `UnicodeTranscode`.
fn transcode(node: &KernelConstruction<'_>) -> Made {
    let (from, errors) = (encoding(node, "input_encoding")?, Errors::of(node)?);
    let to = encoding(node, "output_encoding")?;
    kernel(move |context| {
        let input = context.input(0)?;
        let strings = input.as_strings()?.iter().map(|string| {
            let mut out = scratch::list::<u8>(string.len())?;
            let mut failure = None;
            from.decode(string, |character, _, is_wrong| {
                match errors.resolve(character, is_wrong, true) {
                    Ok(Some(character)) => to.encode(character, &mut out),
                    Ok(None) => {}
                    Err(error) => failure = Some(error),
                }
            });
            failure.map_or_else(|| Ok(ByteString::from(out)), Err)
        });
        set_strings(context, 0, input.shape(), strings)
    })
}
