//! The attributes of windows over images.

use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::string_attr;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::ops::Padding;

/// Checks that images have channels last, the only layout of TensorFlow's CPU kernels.
pub(in crate::backend) fn channels_last(node: &KernelConstruction<'_>) -> Result<(), KernelError> {
    match string_attr(node, "data_format", "NHWC")? {
        "NHWC" => Ok(()),
        other => Err(KernelError::Unimplemented(format!(
            "{} with data_format `{other}`; only NHWC is implemented",
            node.op
        ))),
    }
}

/// Returns the row and column entries of a list of four, whose batch and channel entries must be 1.
pub(in crate::backend) fn spatial(
    node: &KernelConstruction<'_>,
    name: &str,
    default: Option<&[i64]>,
) -> Result<[usize; 2], KernelError> {
    let list = ints_attr(node, name, default.unwrap_or(&[]))?;
    let &[batch, rows, columns, channels] = &list[..] else {
        return Err(KernelError::invalid(format!(
            "attribute `{name}` must have 4 elements, found {list:?}"
        )));
    };
    if batch != 1 || channels != 1 {
        return Err(KernelError::Unimplemented(format!(
            "`{name}` {list:?}: batch and depth dimensions must be 1"
        )));
    }
    let positive = |value: i64| {
        if value > i64::from(i32::MAX) {
            return Err(KernelError::invalid(format!(
                "attribute `{name}` has value {value} out of range for an int32: {list:?}"
            )));
        }
        usize::try_from(value)
            .ok()
            .filter(|&value| value > 0)
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "attribute `{name}` must be positive, found {list:?}"
                ))
            })
    };
    Ok([positive(rows)?, positive(columns)?])
}

/// Returns the padding of rows and columns.
pub(in crate::backend) fn paddings(
    node: &KernelConstruction<'_>,
) -> Result<[Padding; 2], KernelError> {
    let list = ints_attr(node, "explicit_paddings", &[])?;
    let padding = string_attr(node, "padding", "")?;
    match padding {
        "SAME" | "VALID" if !list.is_empty() => Err(KernelError::invalid(format!(
            "explicit_paddings must be empty with padding `{padding}`, found {list:?}"
        ))),
        "SAME" => Ok([Padding::Same; 2]),
        "VALID" => Ok([Padding::Valid; 2]),
        "EXPLICIT" => {
            if let Some(size) = list.iter().find(|&&size| size > i64::from(i32::MAX)) {
                return Err(KernelError::invalid(format!(
                    "attribute `explicit_paddings` has value {size} out of range for an int32: {list:?}"
                )));
            }
            let sizes: Vec<usize> = list
                .iter()
                .filter_map(|&size| usize::try_from(size).ok())
                .collect();
            match sizes[..] {
                [0, 0, top, bottom, left, right, 0, 0] => Ok([
                    Padding::Explicit(top, bottom),
                    Padding::Explicit(left, right),
                ]),
                _ => Err(KernelError::invalid(format!(
                    "explicit_paddings must be 8 sizes from 0, with 0 for batch and depth, found {list:?}"
                ))),
            }
        }
        other => Err(KernelError::invalid(format!(
            "attribute `padding` is `{other}`; expected `SAME`, `VALID` or `EXPLICIT`"
        ))),
    }
}
