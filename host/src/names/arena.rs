//! An arena of names that are looked up by string.

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use hashbrown::HashTable;

use crate::names::strings::Strings;

/// Distinct names in one allocation, numbered in insertion order. A lookup allocates nothing, and
/// the index does not store the names a second time.
#[derive(Debug, Clone, Default)]
pub struct NameArena {
    names: Strings,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameArena {
    /// Returns the number of a name and whether it was added. A name that is already present is not
    /// added again. `None` if the names together exceed 4 GiB.
    pub fn insert(&mut self, name: &str) -> Option<(u32, bool)> {
        if let Some(id) = self.find(name) {
            return Some((id, false));
        }
        Some((self.push(name)?, true))
    }

    /// Adds a name that is known to be absent, without looking it up.
    pub(crate) fn push(&mut self, name: &str) -> Option<u32> {
        debug_assert!(self.find(name).is_none(), "`{name}` is already present");
        let id = u32::try_from(self.names.len()).ok()?;
        self.names.push(name)?;
        let (names, hasher) = (&self.names, &self.hasher);
        self.index.insert_unique(hasher.hash_one(name), id, |&id| {
            hasher.hash_one(names.get(id as usize))
        });
        Some(id)
    }

    /// Returns the number of a name.
    pub fn find(&self, name: &str) -> Option<u32> {
        let is_it = |&id: &u32| self.names.get(id as usize) == name;
        self.index.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// Returns all names, by number.
    pub fn names(&self) -> &Strings {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_keep_their_numbers() {
        let mut arena = NameArena::default();
        assert_eq!(arena.insert("a"), Some((0, true)));
        assert_eq!(arena.insert(""), Some((1, true)));
        assert_eq!(arena.insert("a"), Some((0, false)));
        assert_eq!(arena.find("b"), None);
        assert_eq!(arena.names().iter().collect::<Vec<_>>(), ["a", ""]);
    }

    proptest! {
        #[test]
        fn names_are_found_at_their_first_position(names in proptest::collection::vec("[ab]{0,4}", 0..80)) {
            let mut arena = NameArena::default();
            let mut distinct: Vec<&str> = Vec::new();
            for name in &names {
                let known = distinct.iter().position(|other| other == name);
                let expected = known.unwrap_or(distinct.len()) as u32;
                prop_assert_eq!(arena.insert(name), Some((expected, known.is_none())));
                if known.is_none() {
                    distinct.push(name);
                }
            }
            for (id, name) in distinct.iter().enumerate() {
                prop_assert_eq!(arena.find(name), Some(id as u32));
                prop_assert_eq!(arena.names().get(id), *name);
            }
            prop_assert_eq!(arena.find("c"), None);
        }
    }
}
