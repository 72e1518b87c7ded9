//! A cache of limited size that drops the entries used longest ago. Independent of the types in it.

use std::hash::Hash;

use hashbrown::HashMap;

/// Values by key. If there are too many, the one used longest ago is dropped.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    /// Values with the time of their last use.
    values: HashMap<K, (u64, V)>,
    n_values_max: usize,
    /// Counts uses.
    now: u64,
}

impl<K: Eq + Hash + Clone, V> Recent<K, V> {
    /// Creates a cache for so many values, at least one.
    pub(super) fn new(n_values_max: usize) -> Self {
        Self {
            values: HashMap::new(),
            n_values_max: n_values_max.max(1),
            now: 0,
        }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        self.now += 1;
        let (used, value) = self.values.get_mut(key)?;
        *used = self.now;
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.now += 1;
        if !self.values.contains_key(&key) && self.values.len() >= self.n_values_max {
            let oldest = self.values.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.values.remove(&oldest);
            }
        }
        self.values.insert(key, (self.now, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut recent = Recent::new(2);
        recent.insert("a", 1);
        recent.insert("b", 2);
        assert_eq!(recent.get(&"a"), Some(&1));
        recent.insert("c", 3);
        assert_eq!(recent.get(&"b"), None);
        assert_eq!(recent.get(&"a"), Some(&1));
        assert_eq!(recent.get(&"c"), Some(&3));
        // A value in the place of another one drops none.
        recent.insert("c", 4);
        assert_eq!(recent.get(&"a"), Some(&1));
        assert_eq!(recent.get(&"c"), Some(&4));
        assert_eq!(recent.values.len(), 2);
    }
}
