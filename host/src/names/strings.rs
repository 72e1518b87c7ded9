//! Many short strings in one allocation.

/// String `i` is bytes `offsets[i]..offsets[i + 1]` of one buffer.
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
    /// Appends a string; `None` if the strings together exceed 4 GiB.
    pub fn push(&mut self, text: &str) -> Option<()> {
        let end = u32::try_from(self.text.len() + text.len()).ok()?;
        self.text.push_str(text);
        self.offsets.push(end);
        Some(())
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns string `index`.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn get(&self, index: usize) -> &str {
        &self.text[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    /// Iterates over all strings.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns the start of each string, in bytes, and the end of the last one.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// Returns all strings, concatenated.
    pub fn text(&self) -> &str {
        &self.text
    }
}
