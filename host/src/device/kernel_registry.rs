//! The registry of kernels: which ops run on which device types.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

use super::error::KernelError;
use super::kernel::{Kernel, KernelConstruction};
use crate::graph::{AttrSet, AttrValue};
use crate::tensor::DType;

/// Registrations for this type apply to all device types without a matching registration.
const DEFAULT_TYPE: &str = "DEFAULT";

/// Creates the kernel of one node.
pub type KernelFactory =
    Arc<dyn Fn(&KernelConstruction<'_>) -> Result<Box<dyn Kernel>, KernelError> + Send + Sync>;

/// A registration (TensorFlow `KernelDef`).
#[derive(Clone)]
pub struct KernelDef {
    /// Op.
    pub op: String,
    /// Device type; `DEFAULT` means any type that has no registration of its own.
    pub device_type: String,
    /// Only nodes whose attribute `_kernel` is this label use it. Empty means nodes without that
    /// attribute, or whose `_kernel` is not a string.
    pub label: String,
    /// Larger wins.
    pub priority: i32,
    /// Per attribute of kind `type` or `list(type)`, the element types that it accepts, at least
    /// one. All types of a list must be among them; references never are.
    pub constraints: Vec<(String, Vec<DType>)>,
    /// Arguments (inputs or outputs, by their names in the op) that are in host memory.
    pub host_memory_args: Vec<String>,
    /// Creates the kernel; `None` means placement only (another process executes).
    pub factory: Option<KernelFactory>,
}

/// Why no kernel can be selected for a node. Callers add the node's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelLookupError {
    /// Two registrations of equal priority match.
    #[error(
        "multiple kernels of priority {priority} match op `{op}` on device type {device_type}: {first} and {second}; give one another priority"
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
    /// The type has no matching registration, and two registrations for `DEFAULT` match. Priorities
    /// do not apply there.
    #[error(
        "multiple DEFAULT kernels match op `{op}`, which has none for device type {device_type}: {first} and {second}; constrain one, or register it for the type"
    )]
    AmbiguousDefault {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// One of them.
        first: String,
        /// The other one.
        second: String,
    },
    /// A registration constrains an attribute that the node lacks, or that is not a type.
    #[error(
        "op `{op}`: kernel for {device_type} constrains attribute `{attr}`, which the node {problem}; only attributes of kind type or list(type) can be constrained"
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
    /// A registration constrains an attribute to no type.
    #[error(
        "op `{op}`: kernel for {device_type} constrains attribute `{attr}` without listing a type; list those that it takes, or leave the constraint out"
    )]
    EmptyConstraint {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// The attribute.
        attr: String,
    },
    /// A registration has a host-memory argument that the op does not have.
    #[error(
        "op `{op}`: kernel for {device_type} keeps argument `{arg}` in host memory, but the op has neither an input nor an output of this name"
    )]
    UnknownHostMemoryArg {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// The argument.
        arg: String,
    },
}

/// The result of [`KernelRegistry::look_up`].
#[derive(Debug, Clone, Default)]
pub struct KernelMatch {
    /// The kernel of the node.
    pub kernel: Option<Arc<KernelDef>>,
    /// Whether a registration of the type (or of `DEFAULT`, if those were searched) does not accept
    /// the node's attributes.
    pub has_mismatch: bool,
}

/// All registrations. A value rather than process-wide state.
#[derive(Debug, Clone, Default)]
pub struct KernelRegistry {
    /// All registrations that can be found, including copies.
    by_op: HashMap<Box<str>, Vec<Arc<KernelDef>>>,
    /// The registrations without copies, in order.
    originals: Vec<Arc<KernelDef>>,
    /// Pairs of device types: registrations of the first are copied to the second.
    mirrors: Vec<(String, String)>,
}

impl KernelDef {
    /// Returns an unlabelled, unconstrained kernel of priority 0 without host-memory arguments.
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

    /// Accepts only these element types for type attribute `attr`.
    #[must_use]
    pub fn with_types(mut self, attr: impl Into<String>, dtypes: &[DType]) -> Self {
        self.constraints.push((attr.into(), dtypes.to_vec()));
        self
    }

    /// Keeps argument `arg` in host memory.
    #[must_use]
    pub fn with_host_memory(mut self, arg: impl Into<String>) -> Self {
        self.host_memory_args.push(arg.into());
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Restricts it to nodes whose attribute `_kernel` is `label`.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the factory of the kernel.
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

    /// Returns whether a node with these attributes may use it.
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
            if allowed.is_empty() {
                return Err(KernelLookupError::EmptyConstraint {
                    op: self.op.clone(),
                    device_type: self.device_type.clone(),
                    attr: attr.clone(),
                });
            }
            let allows = |value: &AttrValue| match value {
                AttrValue::Type { dtype, is_ref } => Some(!is_ref && allowed.contains(dtype)),
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

    /// Checks that the op has all host-memory arguments, which `has_argument` decides.
    ///
    /// # Errors
    /// [`KernelLookupError::UnknownHostMemoryArg`] with the first that it lacks.
    pub fn check_host_memory_args(
        &self,
        has_argument: impl Fn(&str) -> bool,
    ) -> Result<(), KernelLookupError> {
        match self.host_memory_args.iter().find(|arg| !has_argument(arg)) {
            None => Ok(()),
            Some(arg) => Err(KernelLookupError::UnknownHostMemoryArg {
                op: self.op.clone(),
                device_type: self.device_type.clone(),
                arg: arg.clone(),
            }),
        }
    }
}

impl fmt::Debug for KernelDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for KernelDef {
    /// Writes `device='CPU'; label='L'; T in [DT_FLOAT, DT_DOUBLE]`, as TensorFlow lists
    /// registrations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device='{}'", self.device_type)?;
        if !self.label.is_empty() {
            write!(f, "; label='{}'", self.label)?;
        }
        for (attr, dtypes) in &self.constraints {
            let names: Vec<String> = dtypes.iter().map(|&dtype| enum_name(dtype)).collect();
            write!(f, "; {attr} in [{}]", names.join(", "))?;
        }
        Ok(())
    }
}

/// Returns `DT_FLOAT`, as attributes write the type.
fn enum_name(dtype: DType) -> String {
    format!("DT_{}", dtype.name().to_uppercase())
}

impl KernelRegistry {
    /// Returns a registry without kernels.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Registers all kernels of one device type for another one, too, including those that are
    /// registered later and those that are copied from a third type. XLA's device types use the
    /// kernels of their symbolic types in this way: `mirror("XLA_CPU_JIT", "XLA_CPU")`. A copy has
    /// the same label, priority, constraints, host-memory arguments and factory. The factory of
    /// such a type calls this in
    /// [`DeviceFactory::register_kernels`](super::DeviceFactory::register_kernels). A kernel that
    /// is registered for `to` itself must have another priority than the copy, as for any two
    /// kernels.
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

    /// Adds a registration and its copies to those that can be found.
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

    /// Returns the types to which kernels of this one are copied, directly or through others; each
    /// once, and never the type itself.
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

    /// Returns all registrations of an op.
    pub fn of_op(&self, op: &str) -> &[Arc<KernelDef>] {
        self.by_op.get(op).map_or(&[], Vec::as_slice)
    }

    /// Returns all ops with a registration, sorted.
    pub fn ops(&self) -> Vec<&str> {
        let mut ops: Vec<&str> = self.by_op.keys().map(AsRef::as_ref).collect();
        ops.sort_unstable();
        ops
    }

    /// Returns all registrations of an op, each on a new, indented line: text to follow
    /// `registered:`.
    pub fn listing(&self, op: &str) -> String {
        let defs = self.of_op(op);
        if defs.is_empty() {
            return "\n  <no registered kernels>".to_owned();
        }
        defs.iter().map(|def| format!("\n  {def}")).collect()
    }

    /// Returns the kernel of a node of this op with these attributes on a device type, selected as
    /// by [`Self::look_up`].
    ///
    /// # Errors
    /// As [`Self::look_up`].
    pub fn find(
        &self,
        op: &str,
        device_type: &str,
        attrs: &AttrSet,
    ) -> Result<Option<Arc<KernelDef>>, KernelLookupError> {
        Ok(self.look_up(op, device_type, attrs)?.kernel)
    }

    /// Selects the kernel of a node of this op with these attributes on a device type: among the
    /// registrations of the type that have the node's label and accept its attributes, the one of
    /// highest priority; if there is none, and the type is not symbolic (`*_JIT`), the `DEFAULT`
    /// registration.
    ///
    /// # Errors
    /// [`KernelLookupError`] if two registrations of equal priority match, or two of `DEFAULT`, or
    /// a constraint does not fit the node.
    pub fn look_up(
        &self,
        op: &str,
        device_type: &str,
        attrs: &AttrSet,
    ) -> Result<KernelMatch, KernelLookupError> {
        let mut found = KernelMatch::default();
        for def in self.labelled(op, device_type, attrs) {
            if !def.matches(attrs)? {
                found.has_mismatch = true;
                continue;
            }
            match &found.kernel {
                Some(best) if best.priority == def.priority => {
                    return Err(KernelLookupError::Ambiguous {
                        op: op.to_owned(),
                        device_type: device_type.to_owned(),
                        priority: def.priority,
                        first: best.to_string(),
                        second: def.to_string(),
                    });
                }
                Some(best) if best.priority > def.priority => {}
                _ => found.kernel = Some(Arc::clone(def)),
            }
        }
        if found.kernel.is_some() || is_symbolic(device_type) {
            return Ok(found);
        }
        for def in self.labelled(op, DEFAULT_TYPE, attrs) {
            if !def.matches(attrs)? {
                found.has_mismatch = true;
                continue;
            }
            if let Some(first) = &found.kernel {
                return Err(KernelLookupError::AmbiguousDefault {
                    op: op.to_owned(),
                    device_type: device_type.to_owned(),
                    first: first.to_string(),
                    second: def.to_string(),
                });
            }
            found.kernel = Some(Arc::clone(def));
        }
        Ok(found)
    }

    /// Returns the registrations for an op, a device type, and the label that the node requests.
    fn labelled<'a>(
        &'a self,
        op: &str,
        device_type: &'a str,
        attrs: &'a AttrSet,
    ) -> impl Iterator<Item = &'a Arc<KernelDef>> {
        let label = match attrs.get("_kernel") {
            Some(AttrValue::Bytes(label)) => &**label,
            _ => b"",
        };
        let defs = self.of_op(op).iter();
        defs.filter(move |def| def.device_type == device_type && def.label.as_bytes() == label)
    }
}

/// Returns whether a device type stands for compilation rather than for devices.
fn is_symbolic(device_type: &str) -> bool {
    device_type.ends_with("_JIT")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::status::StatusCode;

    fn attrs<const N: usize>(attrs: [(&str, AttrValue); N]) -> AttrSet {
        AttrSet::new(attrs.map(|(name, value)| (name.into(), value)))
    }

    fn registry(defs: impl IntoIterator<Item = KernelDef>) -> KernelRegistry {
        let mut registry = KernelRegistry::empty();
        for def in defs {
            registry.register(def);
        }
        registry
    }

    fn cpu() -> KernelDef {
        KernelDef::new("Op", "CPU")
    }

    fn priority(registry: &KernelRegistry, device_type: &str, attrs: &AttrSet) -> Option<i32> {
        let found = registry.find("Op", device_type, attrs).unwrap();
        found.map(|def| def.priority)
    }

    fn refusal(registry: &KernelRegistry, device_type: &str, attrs: &AttrSet) -> KernelLookupError {
        registry.look_up("Op", device_type, attrs).unwrap_err()
    }

    #[test]
    fn labelled_kernels_and_unlabelled_nodes_do_not_see_each_other() {
        let registry = registry([
            cpu().with_priority(1),
            cpu().with_priority(2).with_label("fast"),
        ]);
        let label = |value| attrs([("_kernel", value)]);
        let text = |text: &[u8]| label(AttrValue::Bytes(text.into()));
        assert_eq!(priority(&registry, "CPU", &attrs([])), Some(1));
        assert_eq!(priority(&registry, "CPU", &text(b"fast")), Some(2));
        assert_eq!(priority(&registry, "CPU", &text(b"slow")), None);
        assert_eq!(priority(&registry, "CPU", &text(b"\xff")), None);
        assert_eq!(priority(&registry, "CPU", &text(b"")), Some(1));
        // What is no string is no label.
        assert_eq!(
            priority(&registry, "CPU", &label(AttrValue::Int(1))),
            Some(1)
        );
    }

    #[test]
    fn constraints_hold_for_types_and_for_every_type_of_a_list() {
        let registry = registry([cpu().with_types("T", &[DType::F32, DType::F64])]);
        let of = |value: AttrValue| {
            let found = registry
                .look_up("Op", "CPU", &attrs([("T", value)]))
                .unwrap();
            (found.kernel.is_some(), found.has_mismatch)
        };
        let list = |dtypes: &[DType]| AttrValue::List(dtypes.iter().map(|&d| d.into()).collect());
        assert_eq!(of(DType::F64.into()), (true, false));
        assert_eq!(of(DType::I32.into()), (false, true));
        assert_eq!(of(list(&[DType::F32, DType::F64])), (true, false));
        assert_eq!(of(list(&[DType::F32, DType::I32])), (false, true));
        assert_eq!(of(list(&[])), (true, false));
        let reference = AttrValue::Type {
            dtype: DType::F32,
            is_ref: true,
        };
        assert_eq!(of(reference), (false, true));
    }

    #[test]
    fn constraints_that_cannot_be_judged_are_errors() {
        let constrained = registry([cpu().with_types("T", &[DType::F32])]);
        let missing = refusal(&constrained, "CPU", &attrs([]));
        assert_eq!(missing.code(), StatusCode::InvalidArgument);
        assert!(
            missing
                .to_string()
                .contains("`T`, which the node does not have")
        );
        for value in [
            AttrValue::Int(1),
            AttrValue::List([AttrValue::Int(1)].into()),
        ] {
            let other = refusal(&constrained, "CPU", &attrs([("T", value)]));
            assert_eq!(other.code(), StatusCode::InvalidArgument);
            assert!(other.to_string().contains("other than a type"), "{other}");
        }
        // Judged before the node is looked at.
        let empty = registry([cpu().with_types("T", &[])]);
        let error = refusal(&empty, "CPU", &attrs([]));
        assert_eq!(error.code(), StatusCode::Unimplemented);
        assert!(error.to_string().contains("without listing a type"));
        // A constraint before it that refuses the node hides it, as it does in TensorFlow.
        let hidden = registry([cpu().with_types("T", &[DType::F32]).with_types("U", &[])]);
        let found = hidden.look_up("Op", "CPU", &attrs([("T", DType::I32.into())]));
        assert!(found.unwrap().kernel.is_none());
    }

    #[test]
    fn the_highest_priority_wins_and_equal_ones_are_an_error() {
        let none = attrs([]);
        let ranked = registry([1, 3, 2].map(|priority| cpu().with_priority(priority)));
        assert_eq!(priority(&ranked, "CPU", &none), Some(3));
        // Two that tie below the best one do not matter once the best is known.
        let late_tie = registry([3, 1, 1].map(|priority| cpu().with_priority(priority)));
        assert_eq!(priority(&late_tie, "CPU", &none), Some(3));
        let tie = registry([
            cpu().with_types("T", &[DType::F32]),
            cpu().with_types("T", &[DType::F32, DType::F64]),
        ]);
        assert_eq!(
            priority(&tie, "CPU", &attrs([("T", DType::F64.into())])),
            Some(0)
        );
        let error = refusal(&tie, "CPU", &attrs([("T", DType::F32.into())]));
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.starts_with("multiple kernels of priority 0 match op `Op`"),
            "{text}"
        );
        assert!(text.contains(
            "device='CPU'; T in [DT_FLOAT] and device='CPU'; T in [DT_FLOAT, DT_DOUBLE]"
        ));
    }

    #[test]
    fn default_kernels_serve_types_without_a_match_but_no_symbolic_ones() {
        let any = || KernelDef::new("Op", "DEFAULT");
        let float = attrs([("T", DType::F32.into())]);
        let one = registry([
            cpu().with_types("T", &[DType::I32]).with_priority(1),
            any().with_priority(7),
            any().with_label("other"),
        ]);
        assert_eq!(
            priority(&one, "CPU", &attrs([("T", DType::I32.into())])),
            Some(1)
        );
        assert_eq!(priority(&one, "CPU", &float), Some(7));
        assert_eq!(priority(&one, "GPU", &float), Some(7));
        assert_eq!(priority(&one, "XLA_GPU_JIT", &float), None);
        // Their priorities do not decide.
        let two = registry([any(), any().with_priority(1)]);
        let error = refusal(&two, "GPU", &float);
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(
            error
                .to_string()
                .starts_with("multiple DEFAULT kernels match op `Op`")
        );
        assert!(two.look_up("Op", "XLA_CPU_JIT", &float).is_ok());
        let mismatch = registry([any().with_types("T", &[DType::I32])]);
        assert!(mismatch.look_up("Op", "GPU", &float).unwrap().has_mismatch);
    }

    #[test]
    fn registrations_are_listed_as_tensorflow_does() {
        let registry = registry([
            cpu()
                .with_label("fast")
                .with_types("T", &[DType::F32, DType::F16]),
            KernelDef::new("Op", "GPU"),
        ]);
        assert_eq!(
            registry.listing("Op"),
            "\n  device='CPU'; label='fast'; T in [DT_FLOAT, DT_HALF]\n  device='GPU'"
        );
        assert_eq!(registry.listing("None"), "\n  <no registered kernels>");
    }

    #[test]
    fn host_memory_arguments_must_be_the_ops() {
        let def = cpu().with_host_memory("shape").with_host_memory("axis");
        assert_eq!(def.check_host_memory_args(|_| true), Ok(()));
        let error = def
            .check_host_memory_args(|arg| arg == "shape")
            .unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(error.to_string().contains("keeps argument `axis`"));
    }
}

#[cfg(test)]
mod mirror_tests {
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
