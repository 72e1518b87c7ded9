//! Many short strings in one allocation.

/// Text `i` is bytes `offsets[i]..offsets[i + 1]` of one string.
#[derive(Debug, Clone)]
pub struct Strings {
    offsets: Vec<u32>,
    text: String,
}

impl Default for Strings {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            text: String::new(),
        }
    }
}

impl Strings {
    /// Appends a text; `None` once all together exceed 4 GiB.
    pub fn push(&mut self, text: &str) -> Option<()> {
        let end = u32::try_from(self.text.len() + text.len()).ok()?;
        self.text.push_str(text);
        self.offsets.push(end);
        Some(())
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Text `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn get(&self, index: usize) -> &str {
        &self.text[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    /// All strings.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Where each text starts, in bytes, and the end.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// All strings, one after the other.
    pub fn text(&self) -> &str {
        &self.text
    }
}
