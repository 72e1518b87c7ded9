//! Which ops run on which device types.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

use super::error::KernelError;
use super::kernel::{Kernel, KernelConstruction};
use crate::graph::{AttrSet, AttrValue};
use crate::tensor::DType;

/// Makes the kernel of one node.
pub type KernelFactory =
    Arc<dyn Fn(&KernelConstruction<'_>) -> Result<Box<dyn Kernel>, KernelError> + Send + Sync>;

/// One registration (TensorFlow `KernelDef`).
#[derive(Clone)]
pub struct KernelDef {
    /// Op.
    pub op: String,
    /// Device type; `DEFAULT` = any type that has no registration of its own.
    pub device_type: String,
    /// Only nodes whose attribute `_kernel` says the same see it; empty = nodes without one.
    pub label: String,
    /// Larger wins.
    pub priority: i32,
    /// Per type attribute the element types that it takes.
    pub constraints: Vec<(String, Vec<DType>)>,
    /// Arguments (inputs or outputs, by the op's name for them) that are in host memory.
    pub host_memory_args: Vec<String>,
    /// Makes the kernel; `None` = placement only (another process executes).
    pub factory: Option<KernelFactory>,
}

/// Why the registry cannot say which kernel a node takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelLookupError {
    /// Two registrations of equal priority match.
    #[error(
        "multiple kernels of priority {priority} match op `{op}` on device type {device_type}: {first} and {second}"
    )]
    Ambiguous {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// The priority that both have.
        priority: i32,
        /// One of them.
        first: String,
        /// The other one.
        second: String,
    },
    /// A registration constrains an attribute that the node lacks, or that is no type.
    #[error(
        "op `{op}`: kernel for {device_type} constrains attribute `{attr}`, which the node {problem}"
    )]
    BadConstraint {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// The attribute.
        attr: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// All registrations. A value, not process-wide state.
#[derive(Debug, Clone, Default)]
pub struct KernelRegistry {
    /// All that a look-up finds, copies included.
    by_op: HashMap<Box<str>, Vec<Arc<KernelDef>>>,
    /// What was registered, in that order.
    originals: Vec<Arc<KernelDef>>,
    /// From which device type to which registrations are copied.
    mirrors: Vec<(String, String)>,
}

impl KernelDef {
    /// An unlabelled, unconstrained kernel of priority 0 without host-memory arguments.
    pub fn new(op: impl Into<String>, device_type: impl Into<String>) -> Self {
        Self {
            op: op.into(),
            device_type: device_type.into(),
            label: String::new(),
            priority: 0,
            constraints: Vec::new(),
            host_memory_args: Vec::new(),
            factory: None,
        }
    }

    /// The same, taking only these element types for type attribute `attr`.
    #[must_use]
    pub fn with_types(mut self, attr: impl Into<String>, dtypes: &[DType]) -> Self {
        self.constraints.push((attr.into(), dtypes.to_vec()));
        self
    }

    /// The same, with argument `arg` in host memory.
    #[must_use]
    pub fn with_host_memory(mut self, arg: impl Into<String>) -> Self {
        self.host_memory_args.push(arg.into());
        self
    }

    /// The same, with this priority.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The same, seen only by nodes whose attribute `_kernel` is `label`.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The same, with a kernel to execute.
    #[must_use]
    pub fn with_factory<F>(mut self, factory: F) -> Self
    where
        F: Fn(&KernelConstruction<'_>) -> Result<Box<dyn Kernel>, KernelError>
            + Send
            + Sync
            + 'static,
    {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// Whether a node with these attributes may use it.
    fn matches(&self, attrs: &AttrSet) -> Result<bool, KernelLookupError> {
        let problem = |attr: &str, problem| {
            Err(KernelLookupError::BadConstraint {
                op: self.op.clone(),
                device_type: self.device_type.clone(),
                attr: attr.to_owned(),
                problem,
            })
        };
        for (attr, allowed) in &self.constraints {
            let allows = |value: &AttrValue| match value {
                AttrValue::Type { dtype, .. } => Some(allowed.contains(dtype)),
                _ => None,
            };
            let matched = match attrs.get(attr) {
                None => return problem(attr, "does not have"),
                Some(AttrValue::List(values)) => values
                    .iter()
                    .map(allows)
                    .try_fold(true, |all, one| one.map(|one| all && one)),
                Some(value) => allows(value),
            };
            match matched {
                None => return problem(attr, "has as something other than a type"),
                Some(false) => return Ok(false),
                Some(true) => {}
            }
        }
        Ok(true)
    }
}

impl fmt::Debug for KernelDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for KernelDef {
    /// `device='CPU', label='L', T in [float, double]`, as TensorFlow lists registrations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device='{}'", self.device_type)?;
        if !self.label.is_empty() {
            write!(f, ", label='{}'", self.label)?;
        }
        for (attr, dtypes) in &self.constraints {
            let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
            write!(f, ", {attr} in [{}]", names.join(", "))?;
        }
        Ok(())
    }
}

impl KernelRegistry {
    /// A registry without kernels.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Registers all kernels of one device type for another one, too, those that are registered later and those that are copied
    /// from a third type included: what XLA's device types do with the kernels of their symbolic types, as
    /// `mirror("XLA_CPU_JIT", "XLA_CPU")`. A copy keeps label, priority, constraints, host-memory arguments and what makes the
    /// kernel. The factory of such a type calls this in
    /// [`DeviceFactory::register_kernels`](super::DeviceFactory::register_kernels). A kernel that is registered for `to` itself
    /// must differ from the copy in priority, as any two must.
    #[doc(alias = "RegisterCompilationKernels")]
    pub fn mirror(&mut self, from: &str, to: &str) {
        self.mirrors.push((from.to_owned(), to.to_owned()));
        self.by_op.clear();
        for def in self.originals.clone() {
            self.file(&def);
        }
    }

    /// Adds a registration.
    pub fn register(&mut self, def: KernelDef) {
        let def = Arc::new(def);
        self.file(&def);
        self.originals.push(def);
    }

    /// Makes a registration be found, and its copies.
    fn file(&mut self, def: &Arc<KernelDef>) {
        let copies = self.mirrors_of(&def.device_type);
        let filed = self.by_op.entry_ref(def.op.as_str()).or_default();
        filed.push(Arc::clone(def));
        filed.extend(copies.into_iter().map(|device_type| {
            Arc::new(KernelDef {
                device_type,
                ..(**def).clone()
            })
        }));
    }

    /// The types that kernels of this one are copied to, directly or by way of others; each once, and never itself.
    fn mirrors_of(&self, device_type: &str) -> Vec<String> {
        let mut reached = vec![device_type.to_owned()];
        let mut n_followed = 0;
        while let Some(from) = reached.get(n_followed).cloned() {
            for (_, to) in self.mirrors.iter().filter(|(other, _)| *other == from) {
                if !reached.contains(to) {
                    reached.push(to.clone());
                }
            }
            n_followed += 1;
        }
        reached.split_off(1)
    }

    /// All registrations of an op.
    pub fn of_op(&self, op: &str) -> &[Arc<KernelDef>] {
        self.by_op.get(op).map_or(&[], Vec::as_slice)
    }

    /// All ops with a registration, sorted.
    pub fn ops(&self) -> Vec<&str> {
        let mut ops: Vec<&str> = self.by_op.keys().map(AsRef::as_ref).collect();
        ops.sort_unstable();
        ops
    }

    /// The kernel that a node of this op with these attributes takes on a device type: the highest priority of those
    /// that match, else the same among the `DEFAULT` registrations (not for symbolic `*_JIT` types).
    ///
    /// # Errors
    /// [`KernelLookupError`] if two of equal priority match, or a constraint does not fit the node.
    pub fn find(
        &self,
        op: &str,
        device_type: &str,
        attrs: &AttrSet,
    ) -> Result<Option<Arc<KernelDef>>, KernelLookupError> {
        let found = self.find_exact(op, device_type, attrs)?;
        if found.is_some() || device_type.ends_with("_JIT") {
            return Ok(found);
        }
        self.find_exact(op, "DEFAULT", attrs)
    }

    fn find_exact(
        &self,
        op: &str,
        device_type: &str,
        attrs: &AttrSet,
    ) -> Result<Option<Arc<KernelDef>>, KernelLookupError> {
        let label = attrs.text("_kernel").unwrap_or("");
        let mut best: Option<&Arc<KernelDef>> = None;
        for def in self.of_op(op) {
            if def.device_type != device_type || def.label != label || !def.matches(attrs)? {
                continue;
            }
            match best {
                Some(other) if other.priority == def.priority => {
                    return Err(KernelLookupError::Ambiguous {
                        op: op.to_owned(),
                        device_type: device_type.to_owned(),
                        priority: def.priority,
                        first: other.to_string(),
                        second: def.to_string(),
                    });
                }
                Some(other) if other.priority > def.priority => {}
                _ => best = Some(def),
            }
        }
        Ok(best.map(Arc::clone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jit(op: &str) -> KernelDef {
        KernelDef::new(op, "XLA_CPU_JIT")
            .with_types("T", &[DType::F32])
            .with_host_memory("shape")
            .with_priority(3)
    }

    fn types_of(registry: &KernelRegistry, op: &str) -> Vec<String> {
        let defs = registry.of_op(op).iter();
        let mut types: Vec<_> = defs.map(|def| def.device_type.clone()).collect();
        types.sort();
        types
    }

    #[test]
    fn mirrored_kernels_are_those_before_and_after_with_all_that_they_say() {
        let mut registry = KernelRegistry::empty();
        registry.register(jit("Before").with_label("fast"));
        registry.register(KernelDef::new("Other", "CPU"));
        registry.mirror("XLA_CPU_JIT", "XLA_CPU");
        registry.register(jit("After"));
        assert_eq!(types_of(&registry, "Before"), ["XLA_CPU", "XLA_CPU_JIT"]);
        assert_eq!(types_of(&registry, "After"), ["XLA_CPU", "XLA_CPU_JIT"]);
        assert_eq!(types_of(&registry, "Other"), ["CPU"]);
        let find = |label: Option<&str>, dtype| {
            let label_attr = label.map(|label| ("_kernel".into(), AttrValue::from(label)));
            let constrained = ("T".into(), AttrValue::from(dtype));
            let attrs = AttrSet::new([constrained].into_iter().chain(label_attr));
            let op = if label.is_some() { "Before" } else { "After" };
            registry.find(op, "XLA_CPU", &attrs).unwrap()
        };
        let labelled = find(Some("fast"), DType::F32).unwrap();
        assert_eq!((labelled.priority, labelled.label.as_str()), (3, "fast"));
        assert_eq!(labelled.host_memory_args, ["shape"]);
        assert!(find(None, DType::F32).is_some());
        assert!(find(None, DType::F64).is_none(), "constraints are kept");
        assert!(find(Some("slow"), DType::F32).is_none());
    }

    #[test]
    fn mirrors_of_mirrors_and_circles_copy_once() {
        let mut registry = KernelRegistry::empty();
        registry.register(KernelDef::new("Op", "A"));
        for (from, to) in [
            ("A", "B"),
            ("B", "C"),
            ("A", "C"),
            ("C", "A"),
            ("A", "A"),
            ("A", "B"),
        ] {
            registry.mirror(from, to);
        }
        assert_eq!(types_of(&registry, "Op"), ["A", "B", "C"]);
        registry.register(KernelDef::new("Other", "C"));
        assert_eq!(types_of(&registry, "Other"), ["A", "B", "C"]);
    }

    #[test]
    fn a_kernel_of_the_type_itself_is_told_from_a_copy_by_its_priority() {
        let mut registry = KernelRegistry::empty();
        registry.mirror("XLA_CPU_JIT", "XLA_CPU");
        registry.register(KernelDef::new("Op", "XLA_CPU_JIT"));
        let own = KernelDef::new("Op", "XLA_CPU").with_host_memory("x");
        registry.register(own.clone().with_priority(1));
        let find = |registry: &KernelRegistry| registry.find("Op", "XLA_CPU", &AttrSet::default());
        let found = find(&registry).unwrap().unwrap();
        assert_eq!(found.host_memory_args, ["x"]);
        registry.register(own);
        assert!(find(&registry).is_ok(), "the higher priority is alone");
        let mut equal = KernelRegistry::empty();
        equal.mirror("XLA_CPU_JIT", "XLA_CPU");
        equal.register(KernelDef::new("Op", "XLA_CPU_JIT"));
        equal.register(KernelDef::new("Op", "XLA_CPU"));
        let error = find(&equal).unwrap_err();
        assert!(matches!(error, KernelLookupError::Ambiguous { .. }));
    }
}
