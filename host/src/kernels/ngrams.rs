//! N-grams: strings of neighbours (TensorFlow `StringNGrams`).

use std::sync::Arc;

use crate::tensor::ByteString;

/// How n-grams are made.
#[derive(Debug, Clone)]
pub struct Ngrams {
    /// Between two strings.
    pub separator: ByteString,
    /// Before the first string of a row.
    pub left_pad: ByteString,
    /// Behind the last string of a row.
    pub right_pad: ByteString,
    /// Number of pads on each side; negative: one less than the width.
    pub pad_width: i64,
    /// Numbers of strings, all positive.
    pub widths: Arc<[i64]>,
    /// Whether a row that is shorter than every width is one n-gram.
    pub preserves_short: bool,
}

impl Ngrams {
    /// Calls `put` with all n-grams of a row.
    ///
    /// # Errors
    /// TensorFlow's message, for a short row whose padding is not known.
    pub fn of_row(&self, row: &[ByteString], put: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let len = i64::try_from(row.len()).unwrap_or(i64::MAX);
        let mut n = 0;
        for &width in &*self.widths {
            n += self.of_width(row, width, self.n_of_width(len, width), put);
        }
        if !self.preserves_short || n > 0 || len == 0 {
            return Ok(());
        }
        if self.pad_width < 0 {
            return Err(format!(
                "Pad width should be >= 0 when preserve_short_sequences is True and ngram_widths \
                 are not provided, got {}",
                self.pad_width
            ));
        }
        let width = len.saturating_add(self.pad_width.saturating_mul(2));
        self.of_width(row, width, 1, put);
        Ok(())
    }

    fn pads(&self, width: i64) -> i64 {
        match self.pad_width {
            ..0 => width - 1,
            pad_width => pad_width.min(width - 1),
        }
    }

    fn n_of_width(&self, len: i64, width: i64) -> i64 {
        let padded = len.saturating_add(self.pads(width).saturating_mul(2));
        padded.saturating_sub(width).saturating_add(1).max(0)
    }

    /// Makes the first `n` n-grams of this width.
    fn of_width(&self, row: &[ByteString], width: i64, n: i64, put: &mut dyn FnMut(&[u8])) -> i64 {
        let pads = self.pads(width);
        let mut ngram: smallvec::SmallVec<[u8; 64]> = smallvec::SmallVec::new();
        for index in 0..n {
            let n_left = (pads - index).max(0);
            let n_right = (pads - (n - (index + 1))).max(0);
            let n_strings = width - (n_left + n_right);
            let start = if n_left > 0 { 0 } else { index - pads };
            let start = usize::try_from(start).unwrap_or(0).min(row.len());
            let n_strings = usize::try_from(n_strings).unwrap_or(0);
            let strings = &row[start..start.saturating_add(n_strings).min(row.len())];
            ngram.clear();
            let repeat = |pad, n: i64| std::iter::repeat_n(pad, usize::try_from(n).unwrap_or(0));
            let parts = repeat(&self.left_pad, n_left)
                .chain(strings)
                .chain(repeat(&self.right_pad, n_right));
            for (place, part) in parts.enumerate() {
                if place > 0 {
                    ngram.extend_from_slice(&self.separator);
                }
                ngram.extend_from_slice(part);
            }
            put(&ngram);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ngrams(pad_width: i64, widths: &[i64], preserves_short: bool, row: &str) -> Vec<String> {
        let ngrams = Ngrams {
            separator: b"|"[..].into(),
            left_pad: b"L"[..].into(),
            right_pad: b"R"[..].into(),
            pad_width,
            widths: widths.into(),
            preserves_short,
        };
        let row: Vec<ByteString> = row
            .split_whitespace()
            .map(|s| s.as_bytes().into())
            .collect();
        let mut found = Vec::new();
        let mut put = |ngram: &[u8]| found.push(String::from_utf8(ngram.to_vec()).unwrap());
        ngrams.of_row(&row, &mut put).unwrap();
        found
    }

    #[test]
    fn neighbours_are_joined_and_padded() {
        assert_eq!(ngrams(0, &[2], false, "a b c"), ["a|b", "b|c"]);
        assert_eq!(
            ngrams(-1, &[3], false, "a b"),
            ["L|L|a", "L|a|b", "a|b|R", "b|R|R"]
        );
        assert_eq!(ngrams(0, &[1, 2], false, "a b"), ["a", "b", "a|b"]);
        assert_eq!(ngrams(0, &[3], false, "a b"), [""; 0]);
        assert_eq!(ngrams(0, &[3], true, "a b"), ["a|b"]);
        assert_eq!(ngrams(1, &[5], true, "a b"), ["L|a|b|R"]);
        assert_eq!(ngrams(0, &[3], true, ""), [""; 0]);
    }
}
