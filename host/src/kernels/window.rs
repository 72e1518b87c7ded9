//! Sliding windows over an axis: output sizes and padding of convolutions and pools.

use crate::device::KernelError;
use crate::ops::Padding;

/// Window parameters of one axis, from the attributes of the op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec {
    /// Number of elements of the window.
    pub size: usize,
    /// Distance of two windows, in elements; not 0.
    pub stride: usize,
    /// Distance of two elements of the window, in input elements; not 0.
    pub dilation: usize,
    /// The padding.
    pub padding: Padding,
}

/// A window on an axis of known length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowAxis {
    /// Number of elements of the input.
    pub input: usize,
    /// Number of elements of the window.
    pub size: usize,
    /// Distance of two windows, in elements.
    pub stride: usize,
    /// Distance of two elements of the window, in input elements.
    pub dilation: usize,
    /// Padding before the first element.
    pub pad_before: usize,
    /// Number of windows.
    pub output: usize,
}

impl WindowSpec {
    /// Resolves the windows on an axis of `input` elements (TensorFlow `GetWindowedOutputSize`).
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the window is larger than the padded input by a stride
    /// or more, or the sizes exceed the address space.
    pub fn over(self, input: usize) -> Result<WindowAxis, KernelError> {
        let too_large = || {
            KernelError::invalid(format!(
                "the window {self:?} over {input} elements exceeds the address space"
            ))
        };
        let signed = |value: usize| i64::try_from(value).map_err(|_| too_large());
        let (size, stride, dilation, length) = (
            signed(self.size)?,
            signed(self.stride)?,
            signed(self.dilation)?,
            signed(input)?,
        );
        if stride < 1 || dilation < 1 || size < 1 {
            return Err(KernelError::invalid(format!(
                "window size {size}, stride {stride} and dilation {dilation} must be positive"
            )));
        }
        let effective = (size - 1)
            .checked_mul(dilation)
            .and_then(|span| span.checked_add(1))
            .ok_or_else(too_large)?;
        let (output, pad_before) = match self.padding {
            Padding::Same => {
                let output = length / stride + i64::from(length % stride != 0);
                let needed = (output - 1)
                    .checked_mul(stride)
                    .and_then(|span| span.checked_add(effective))
                    .ok_or_else(too_large)?
                    - length;
                (output, needed.max(0) / 2)
            }
            Padding::Valid => (windows(length, effective, stride), 0),
            Padding::Explicit(before, after) => {
                let (before, after) = (signed(before)?, signed(after)?);
                let padded = length
                    .checked_add(before)
                    .and_then(|sum| sum.checked_add(after))
                    .ok_or_else(too_large)?;
                (windows(padded, effective, stride), before)
            }
        };
        let output = usize::try_from(output).map_err(|_| {
            KernelError::invalid(format!(
                "computed output size would be negative: {output} [input_size: {input}, effective_filter_size: {effective}, stride: {stride}]"
            ))
        })?;
        Ok(WindowAxis {
            input,
            size: self.size,
            stride: self.stride,
            dilation: self.dilation,
            pad_before: usize::try_from(pad_before).map_err(|_| too_large())?,
            output,
        })
    }
}

/// Returns the number of windows, rounded towards zero: a window that is too large by less than a
/// stride gives no output rather than an error.
fn windows(length: i64, effective: i64, stride: i64) -> i64 {
    // Strides may be up to 2^63, where a sum would wrap.
    length.saturating_sub(effective).saturating_add(stride) / stride
}

impl WindowAxis {
    /// Returns the number of elements that `n_windows` consecutive windows cover.
    pub(crate) fn span(&self, n_windows: usize) -> usize {
        match (n_windows, self.size) {
            (0, _) | (_, 0) => 0,
            _ => (n_windows - 1) * self.stride + (self.size - 1) * self.dilation + 1,
        }
    }

    /// Returns whether no window reaches into the padding.
    pub(crate) fn is_inside(&self) -> bool {
        self.pad_before == 0 && self.span(self.output) <= self.input
    }

    /// Returns the input element under element `tap` of window `output`; `None` in the padding.
    #[inline]
    pub fn input_of(&self, output: usize, tap: usize) -> Option<usize> {
        (output * self.stride + tap * self.dilation)
            .checked_sub(self.pad_before)
            .filter(|&position| position < self.input)
    }

    /// Returns the taps of window `output` outside the padding; only for windows that are not
    /// dilated.
    #[inline]
    pub fn inputs_of(&self, output: usize) -> std::ops::Range<usize> {
        let start = output * self.stride;
        let end = (start + self.size).saturating_sub(self.pad_before);
        start.saturating_sub(self.pad_before)..end.min(self.input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(size: usize, stride: usize, dilation: usize, padding: Padding) -> WindowSpec {
        WindowSpec {
            size,
            stride,
            dilation,
            padding,
        }
    }

    #[test]
    fn sizes_and_padding_are_tensorflows() {
        // (input, size, stride, dilation, padding) -> (output, pad before); from tensorflow-cpu
        // 2.21.
        for (input, window, expected) in [
            (28, spec(5, 1, 1, Padding::Same), (28, 2)),
            (28, spec(5, 1, 1, Padding::Valid), (24, 0)),
            (7, spec(2, 2, 1, Padding::Same), (4, 0)),
            (7, spec(3, 2, 1, Padding::Same), (4, 1)),
            (6, spec(3, 2, 1, Padding::Same), (3, 0)),
            (3, spec(2, 4, 1, Padding::Same), (1, 0)),
            (9, spec(3, 1, 2, Padding::Valid), (5, 0)),
            (3, spec(2, 1, 1, Padding::Explicit(1, 0)), (3, 1)),
            (2, spec(3, 1, 1, Padding::Valid), (0, 0)),
            (0, spec(3, 1, 1, Padding::Same), (0, 1)),
        ] {
            let axis = window.over(input).unwrap();
            assert_eq!(
                (axis.output, axis.pad_before),
                expected,
                "{input} {window:?}"
            );
        }
    }

    #[test]
    fn a_window_that_is_too_large_is_refused() {
        let error = spec(3, 1, 1, Padding::Valid).over(1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "computed output size would be negative: -1 [input_size: 1, effective_filter_size: 3, stride: 1]"
        );
        assert!(spec(3, 0, 1, Padding::Same).over(9).is_err());
        assert!(spec(usize::MAX, 1, 1, Padding::Valid).over(9).is_err());
        assert!(spec(1 << 40, 1, 1 << 40, Padding::Valid).over(9).is_err());
        assert!(
            spec(3, 1, 1, Padding::Explicit(usize::MAX >> 1, 5))
                .over(9)
                .is_err()
        );
    }

    #[test]
    fn taps_in_the_padding_have_no_input() {
        let axis = spec(3, 2, 1, Padding::Same).over(7).unwrap();
        assert_eq!(
            [0, 1, 2].map(|tap| axis.input_of(0, tap)),
            [None, Some(0), Some(1)]
        );
        assert_eq!(
            [0, 1, 2].map(|tap| axis.input_of(3, tap)),
            [Some(5), Some(6), None]
        );
        assert_eq!(axis.inputs_of(0), 0..2);
        assert_eq!(axis.inputs_of(3), 5..7);
    }
}
