//! The sizes of a component's types, including the types that they refer to.
//!
//! Checking an import takes time for each declaration of its type, and the adapter of a lowered
//! function moves each field of its parameters and results. A file refers to a type by number, so a
//! few bytes can cause all of this work.

use std::collections::HashMap;
use std::rc::Rc;

use wasmparser::{
    ComponentAlias, ComponentDefinedType, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentType, ComponentTypeDeclaration, ComponentTypeRef,
    ComponentValType, InstanceTypeDeclaration, TypeBounds,
};

/// Sizes of types: the fields of a value, the declarations of an instance, including those of the
/// types that they refer to.
#[derive(Debug, Default)]
pub(super) struct TypeSizes<'a> {
    /// One per open component or type, outermost first.
    scopes: Vec<Scope<'a>>,
    largest_moved: u64,
    largest: u64,
    checked: u64,
}

/// The meaning of the indices of a component, or of a type that declares types.
#[derive(Debug, Default)]
struct Scope<'a> {
    types: Vec<Known<'a>>,
    instances: Vec<Exports<'a>>,
}

/// A type, as far as it is known.
#[derive(Debug, Clone)]
struct Known<'a> {
    size: u64,
    exports: Exports<'a>,
}

/// The types and instances that an instance exports; `None` if only the validator knows.
type Exports<'a> = Option<Rc<HashMap<&'a str, Known<'a>>>>;

impl Known<'_> {
    fn value(size: u64) -> Self {
        Self {
            size,
            exports: None,
        }
    }
}

impl<'a> TypeSizes<'a> {
    /// Opens a component, or a type that declares types.
    pub(super) fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    /// Closes it.
    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Returns the largest type of a value or function so far, in the whole file.
    pub(super) fn largest_moved(&self) -> u64 {
        self.largest_moved
    }

    /// Returns the largest type so far, in the whole file.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns the sizes so far of all imports, exports of types and aliases in the whole file. A
    /// validator visits all of each, whether it is instantiated or not.
    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Declares a type and returns its size. Recurses as deep as types are declared within types,
    /// which [`super::limits::PolicyLimits::nested_types`] bounds.
    pub(super) fn declare(&mut self, ty: &ComponentType<'a>) -> u64 {
        let known = match ty {
            ComponentType::Defined(ty) => Known::value(self.defined(ty)),
            ComponentType::Func(ty) => {
                let params = ty.params.iter().map(|(_, ty)| *ty);
                Known::value(self.values(params.chain(ty.result)))
            }
            ComponentType::Component(declarations) => {
                self.open();
                let mut size = 1_u64;
                for declaration in declarations {
                    size = size.saturating_add(match declaration {
                        ComponentTypeDeclaration::CoreType(_) => 1,
                        ComponentTypeDeclaration::Type(ty) => self.declare(ty),
                        ComponentTypeDeclaration::Alias(alias) => self.alias(alias),
                        ComponentTypeDeclaration::Export { ty, .. } => self.bind(ty),
                        ComponentTypeDeclaration::Import(import) => self.bind(&import.ty),
                    });
                }
                self.close();
                Known::value(size)
            }
            ComponentType::Instance(declarations) => {
                self.open();
                let mut size = 1_u64;
                let mut exports = HashMap::new();
                for declaration in declarations {
                    size = size.saturating_add(match declaration {
                        InstanceTypeDeclaration::CoreType(_) => 1,
                        InstanceTypeDeclaration::Type(ty) => self.declare(ty),
                        InstanceTypeDeclaration::Alias(alias) => self.alias(alias),
                        InstanceTypeDeclaration::Export { name, ty } => {
                            let known = self.bound(ty);
                            let size = known.size;
                            exports.insert(name.name, known);
                            size
                        }
                    });
                }
                self.close();
                Known {
                    size,
                    exports: Some(Rc::new(exports)),
                }
            }
            ComponentType::Resource { .. } => Known::value(1),
        };
        let size = known.size;
        if let ComponentType::Defined(_) | ComponentType::Func(_) = ty {
            self.largest_moved = self.largest_moved.max(size);
        }
        self.largest = self.largest.max(size);
        self.push(known);
        size
    }

    /// Adds an import, or an export of a type. Returns the size of its type.
    pub(super) fn bind(&mut self, ty: &ComponentTypeRef) -> u64 {
        self.bound(ty).size
    }

    /// Adds an export of a component, which assigns another number.
    pub(super) fn export(&mut self, kind: ComponentExternalKind, index: u32) {
        match kind {
            ComponentExternalKind::Type => {
                let known = self.of(index);
                self.push(known);
            }
            ComponentExternalKind::Instance => {
                let exports = self.instance(index);
                self.push_instance(exports);
            }
            _ => {}
        }
    }

    /// Adds an instance.
    pub(super) fn instantiate(&mut self, instance: &ComponentInstance<'a>) {
        let exports = match instance {
            ComponentInstance::Instantiate { .. } => None,
            ComponentInstance::FromExports(exports) => {
                let exports = exports.iter().filter_map(|export| {
                    let known = match export.kind {
                        ComponentExternalKind::Type => self.of(export.index),
                        ComponentExternalKind::Instance => Known {
                            size: 1,
                            exports: self.instance(export.index),
                        },
                        _ => return None,
                    };
                    Some((export.name.name, known))
                });
                Some(Rc::new(exports.collect()))
            }
        };
        self.push_instance(exports);
    }

    /// Adds an alias, which assigns another number. Returns the size of its cost.
    pub(super) fn alias(&mut self, alias: &ComponentAlias<'a>) -> u64 {
        match *alias {
            ComponentAlias::Outer {
                kind: ComponentOuterAliasKind::Type,
                count,
                index,
            } => {
                let up = self.scopes.iter().rev().nth(count as usize);
                let known = up.and_then(|scope| scope.types.get(index as usize));
                let known = known.cloned().unwrap_or_else(|| self.unknown());
                self.checked = self.checked.saturating_add(known.size);
                self.push(known);
            }
            ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Type,
                instance_index,
                name,
            } => {
                let exports = self.instance(instance_index);
                let known = exports.and_then(|exports| exports.get(name).cloned());
                let known = known.unwrap_or_else(|| self.unknown());
                self.push(known);
            }
            ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Instance,
                instance_index,
                name,
            } => {
                let exports = self.instance(instance_index);
                let inner = exports.and_then(|exports| exports.get(name)?.exports.clone());
                self.push_instance(inner);
            }
            _ => {}
        }
        1
    }

    fn bound(&mut self, ty: &ComponentTypeRef) -> Known<'a> {
        let known = self.named(ty);
        self.checked = self.checked.saturating_add(known.size);
        known
    }

    fn named(&mut self, ty: &ComponentTypeRef) -> Known<'a> {
        match *ty {
            ComponentTypeRef::Type(TypeBounds::Eq(index)) => {
                let known = self.of(index);
                self.push(known.clone());
                known
            }
            ComponentTypeRef::Type(TypeBounds::SubResource) => {
                self.push(Known::value(1));
                Known::value(1)
            }
            ComponentTypeRef::Instance(index) => {
                let known = self.of(index);
                self.push_instance(known.exports.clone());
                known
            }
            ComponentTypeRef::Func(index) | ComponentTypeRef::Component(index) => self.of(index),
            ComponentTypeRef::Value(ty) => Known::value(self.size_of(ty)),
            ComponentTypeRef::Module(_) => Known::value(1),
        }
    }

    fn defined(&self, ty: &ComponentDefinedType<'_>) -> u64 {
        match ty {
            ComponentDefinedType::Record(fields) => self.values(fields.iter().map(|(_, ty)| *ty)),
            ComponentDefinedType::Variant(cases) => {
                let sizes = cases.iter().map(|case| self.values(case.ty.into_iter()));
                sizes.fold(1, u64::saturating_add)
            }
            ComponentDefinedType::Tuple(types) => self.values(types.iter().copied()),
            ComponentDefinedType::Flags(names) | ComponentDefinedType::Enum(names) => {
                1 + names.len() as u64
            }
            ComponentDefinedType::List(ty) | ComponentDefinedType::Option(ty) => {
                self.values([*ty].into_iter())
            }
            ComponentDefinedType::FixedLengthList(ty, n) => {
                self.values([*ty].into_iter()).saturating_mul(u64::from(*n))
            }
            ComponentDefinedType::Map(key, value) => self.values([*key, *value].into_iter()),
            ComponentDefinedType::Result { ok, err } => self.values(ok.iter().chain(err).copied()),
            ComponentDefinedType::Future(ty) | ComponentDefinedType::Stream(ty) => {
                self.values(ty.iter().copied())
            }
            ComponentDefinedType::Primitive(_)
            | ComponentDefinedType::Own(_)
            | ComponentDefinedType::Borrow(_) => 1,
        }
    }

    /// One, and the values.
    fn values(&self, types: impl Iterator<Item = ComponentValType>) -> u64 {
        types
            .map(|ty| self.size_of(ty))
            .fold(1, u64::saturating_add)
    }

    fn size_of(&self, ty: ComponentValType) -> u64 {
        match ty {
            ComponentValType::Primitive(_) => 1,
            ComponentValType::Type(index) => self.of(index).size,
        }
    }

    fn of(&self, index: u32) -> Known<'a> {
        let scope = self.scopes.last();
        let known = scope.and_then(|scope| scope.types.get(index as usize));
        known.cloned().unwrap_or_else(|| self.unknown())
    }

    /// For a component that the file does not define, or an index that the validator refuses.
    fn unknown(&self) -> Known<'a> {
        Known::value(self.largest)
    }

    fn instance(&self, index: u32) -> Exports<'a> {
        self.scopes.last()?.instances.get(index as usize)?.clone()
    }

    fn push(&mut self, known: Known<'a>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.types.push(known);
        }
    }

    fn push_instance(&mut self, exports: Exports<'a>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.instances.push(exports);
        }
    }
}
