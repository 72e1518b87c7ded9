//! Unique names of nodes and scopes, numbered as in TensorFlow.

use hashbrown::HashMap;

/// The names in use. Names that differ only by case count as equal, because they would be one file
/// when graphs are written to disk.
#[derive(Debug, Default)]
pub(super) struct UniqueNames {
    /// For each name in lower case, the number to try next.
    next: HashMap<String, u32>,
}

impl UniqueNames {
    /// Returns the first of `name`, `name_1`, `name_2` ... that is not in use.
    pub(super) fn unique(&self, name: &str) -> String {
        self.find(name).0
    }

    /// Returns the first name that is not in use, and marks it as used.
    pub(super) fn take(&mut self, name: &str) -> String {
        let (unique, next) = self.find(name);
        self.next.insert(name.to_lowercase(), next);
        self.next.entry(unique.to_lowercase()).or_insert(1);
        unique
    }

    /// Returns the name, and the number to try after it.
    fn find(&self, name: &str) -> (String, u32) {
        let base = name.to_lowercase();
        let Some(&first) = self.next.get(&base) else {
            return (name.to_owned(), 1);
        };
        let mut number = first;
        while self.next.contains_key(&format!("{base}_{number}")) {
            number += 1;
        }
        (format!("{name}_{number}"), number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_as_in_tensorflow() {
        let mut names = UniqueNames::default();
        // Numbered by the rule of `Graph.unique_name` of TensorFlow 2.
        for (name, expected) in [
            ("add", "add"),
            ("add", "add_1"),
            ("Add", "Add_2"),
            ("add_1", "add_1_1"),
            ("add_3", "add_3"),
            ("add", "add_4"),
            ("layer/add", "layer/add"),
        ] {
            assert_eq!(names.unique(name), expected);
            assert_eq!(names.take(name), expected);
        }
    }
}
