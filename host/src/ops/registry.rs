//! The registry of ops for the graph builder and the importer.

use std::sync::Arc;

use hashbrown::HashMap;

use super::array;
use super::codec;
use super::control;
use super::crops;
use super::cross;
use super::definition::OpDef;
use super::definition::OpDefError;
use super::example;
use super::functional;
use super::joined;
use super::layout;
use super::linalg;
use super::lists;
use super::math;
use super::matrix;
use super::misc;
use super::nn;
use super::queues;
use super::random;
use super::reduce;
use super::rows;
use super::segments;
use super::selection;
use super::slice;
use super::sparse;
use super::special;
use super::state;
use super::strings;
use super::tables;
use super::volume;
use super::window;

/// Ops by name. A registry is a value rather than process-wide state: [`Self::default`] holds the
/// shipped ops, and apps add their own.
#[derive(Debug, Clone)]
pub struct OpRegistry {
    by_name: HashMap<Arc<str>, Arc<OpDef>>,
}

impl OpRegistry {
    /// Returns a registry without ops, for apps that define all their ops.
    pub fn empty() -> Self {
        Self {
            by_name: HashMap::new(),
        }
    }

    /// Returns the op of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<OpDef>> {
        self.by_name.get(name)
    }

    /// Adds an op.
    ///
    /// # Errors
    /// [`OpDefError::Duplicate`] if there is already an op of this name.
    pub fn register(&mut self, op: OpDef) -> Result<(), OpDefError> {
        if self.by_name.contains_key(op.name()) {
            return Err(OpDefError::Duplicate(op.name().to_owned()));
        }
        self.by_name.insert(op.name().into(), Arc::new(op));
        Ok(())
    }

    /// Returns all ops, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<OpDef>> {
        self.by_name.values()
    }
}

impl Default for OpRegistry {
    /// Returns the shipped ops.
    fn default() -> Self {
        let mut registry = Self::empty();
        let families = [
            array::ops(),
            codec::ops(),
            control::ops(),
            crops::ops(),
            cross::ops(),
            example::ops(),
            functional::ops(),
            joined::ops(),
            layout::ops(),
            linalg::ops(),
            lists::ops(),
            math::ops(),
            matrix::ops(),
            misc::ops(),
            nn::ops(),
            queues::ops(),
            random::ops(),
            reduce::ops(),
            rows::ops(),
            segments::ops(),
            selection::ops(),
            slice::ops(),
            sparse::ops(),
            special::ops(),
            state::ops(),
            strings::ops(),
            tables::ops(),
            volume::ops(),
            window::ops(),
        ];
        for op in families.into_iter().flatten() {
            registry
                .register(op)
                .expect("shipped definitions have distinct names");
        }
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_definitions_are_well_formed_and_distinct() {
        let registry = OpRegistry::default();
        assert!(registry.iter().len() > 200);
        assert!(registry.get("MatMul").is_some());
        assert!(registry.get("matmul").is_none());
    }

    #[test]
    fn apps_add_ops_and_a_second_one_of_a_name_is_refused() {
        let mut registry = OpRegistry::default();
        let own = || OpDef::new("Own", &["x: float"], &["y: float"], &[]).unwrap();
        registry.register(own()).unwrap();
        assert_eq!(
            registry.register(own()),
            Err(OpDefError::Duplicate("Own".to_owned()))
        );
    }
}
