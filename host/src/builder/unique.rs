//! Names that no other node or scope of the graph has, as TensorFlow makes them.

use hashbrown::HashMap;

/// The names in use. Two names that differ by case alone are one name here, because they are one
/// file where graphs are written to disk.
#[derive(Debug, Default)]
pub(super) struct UniqueNames {
    /// By name in lower case, the number to try next.
    next: HashMap<String, u32>,
}

impl UniqueNames {
    /// The first of `name`, `name_1`, `name_2` ... that is not in use.
    pub(super) fn unique(&self, name: &str) -> String {
        self.find(name).0
    }

    /// The same, in use from now on.
    pub(super) fn take(&mut self, name: &str) -> String {
        let (unique, next) = self.find(name);
        self.next.insert(name.to_lowercase(), next);
        self.next.entry(unique.to_lowercase()).or_insert(1);
        unique
    }

    /// The name, and the number to try after it.
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
