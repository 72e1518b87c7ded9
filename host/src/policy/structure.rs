//! Checks the structure of a policy against limits before it is compiled.
//!
//! A kilobyte of WebAssembly can expand to gigabytes: components instantiate components, types
//! contain types, a table states its size. So the file is walked once, without compiling, in time
//! and memory proportional to its bytes. Everything that a compiler would repeat is only counted
//! here. Takes bytes and limits; returns an error or nothing.

use std::ops::Range;

use wasmparser::{
    CanonicalFunction, ComponentAlias, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, Encoding, Instance, Parser, Payload,
};

use super::effort::ModuleShape;
use super::error::PolicyErrorKind;
use super::form::damaged;
use super::limits::PolicyLimits;
use super::messages::truncate;
use super::metadata::METADATA_SECTIONS;
use super::type_sizes::TypeSizes;

/// This many bytes of types count as one definition.
const BYTES_OF_DECLARATIONS: u32 = 16;
/// Bytes of a section's name in an error.
const NAME_BYTES_MAX: usize = 64;

/// Walks a policy, a core module or a component, and refuses it if compiling it could exceed the
/// limits.
///
/// # Errors
/// [`PolicyErrorKind::TooComplex`] with the limit and the place; [`PolicyErrorKind::NotAPolicy`] if
/// the bytes are damaged.
pub(super) fn check(bytes: &[u8], limits: &PolicyLimits) -> Result<(), PolicyErrorKind> {
    walk(bytes, limits, true, Counts::default()).map(|_| ())
}

/// Returns the number of definitions in a part of a file. A parser keeps an entry for each.
pub(super) fn n_definitions(payload: &Payload<'_>) -> u64 {
    u64::from(match payload {
        Payload::TypeSection(section) => section.count(),
        Payload::ImportSection(section) => section.count(),
        Payload::TableSection(section) => section.count(),
        Payload::MemorySection(section) => section.count(),
        Payload::TagSection(section) => section.count(),
        Payload::GlobalSection(section) => section.count(),
        Payload::ExportSection(section) => section.count(),
        Payload::ElementSection(section) => section.count(),
        Payload::DataSection(section) => section.count(),
        Payload::InstanceSection(section) => section.count(),
        Payload::CoreTypeSection(section) => section.count(),
        Payload::ComponentInstanceSection(section) => section.count(),
        Payload::ComponentAliasSection(section) => section.count(),
        // A declaration of a type has two bytes, and is an entry too.
        Payload::ComponentTypeSection(section) => {
            let n_bytes = u32::try_from(section.range().len()).unwrap_or(u32::MAX);
            section
                .count()
                .saturating_add(n_bytes / BYTES_OF_DECLARATIONS)
        }
        Payload::ComponentCanonicalSection(section) => section.count(),
        Payload::ComponentImportSection(section) => section.count(),
        Payload::ComponentExportSection(section) => section.count(),
        _ => 0,
    })
}

/// Returns the error for more definitions than a file may have.
pub(super) fn too_many_definitions(found: u64, limits: &PolicyLimits) -> PolicyErrorKind {
    PolicyErrorKind::TooComplex {
        what: "items",
        place: None,
        found,
        limit: limits.items as u64,
    }
}

/// Walks sections of metadata too, but not sections inside them, which are never read: a file could
/// have a hundred thousand. Takes the counts so far, and returns them with those of `bytes`.
fn walk(
    bytes: &[u8],
    limits: &PolicyLimits,
    has_metadata: bool,
    counts: Counts,
) -> Result<Counts, PolicyErrorKind> {
    let mut walk = Walk::new(bytes, limits, has_metadata, counts);
    // The parser keeps a list of the open parts; it does not recurse.
    for payload in Parser::new(0).parse_all(bytes) {
        walk.payload(payload.map_err(|error| damaged(&error))?)?;
    }
    Ok(walk.counts)
}

/// The counts of one instance of a component, with all that it instantiates. Sums saturate: a file
/// can double them 64 times.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    items: u64,
    core_instances: u64,
    lowered: u64,
    /// The effort of checking imports and making adapters, in the unit of [`super::effort`].
    effort: u64,
}

/// The effort of an adapter for each field that it moves.
const EFFORT_OF_LOWERED_FIELD: u64 = 15;

impl Totals {
    fn add(&mut self, other: Self) {
        self.items = self.items.saturating_add(other.items);
        self.core_instances = self.core_instances.saturating_add(other.core_instances);
        self.lowered = self.lowered.saturating_add(other.lowered);
        self.add_effort(other.effort);
    }

    fn add_effort(&mut self, effort: u64) {
        self.effort = self.effort.saturating_add(effort);
    }
}

/// A module or component that is open.
enum Open {
    Module(ModuleShape),
    Component(Scope),
}

/// A component that is open: the meaning of its component indices, and the counts of an instance so
/// far.
#[derive(Debug, Default)]
struct Scope {
    /// `None` for one that this component imports, or gets from an instance.
    components: Vec<Option<Totals>>,
    totals: Totals,
}

struct Walk<'a> {
    bytes: &'a [u8],
    limits: &'a PolicyLimits,
    /// Whether the sections of metadata in this file are read.
    has_metadata: bool,
    open: Vec<Open>,
    type_sizes: TypeSizes<'a>,
    counts: Counts,
}

/// Sums over the whole file, including its sections of metadata.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    definitions: u64,
    parts: u64,
    nested_types: u64,
    tables: u64,
    memories: u64,
    effort: u64,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], limits: &'a PolicyLimits, has_metadata: bool, counts: Counts) -> Self {
        Self {
            bytes,
            limits,
            has_metadata,
            open: Vec::new(),
            type_sizes: TypeSizes::default(),
            counts,
        }
    }

    fn payload(&mut self, payload: Payload<'a>) -> Result<(), PolicyErrorKind> {
        self.counts.definitions += n_definitions(&payload);
        if self.counts.definitions > self.limits.items as u64 {
            return Err(too_many_definitions(self.counts.definitions, self.limits));
        }
        match payload {
            Payload::Version { encoding, .. } => self.open(encoding),
            Payload::End(_) => self.close(),
            Payload::CustomSection(section) if section.name().starts_with(METADATA_SECTIONS) => {
                if !self.has_metadata {
                    return Ok(());
                }
                // The encoder still reads an obsolete form of it (until 2023), which contains a
                // hidden component.
                if !Parser::is_component(section.data()) {
                    return Err(PolicyErrorKind::NotAPolicy {
                        what: format!(
                            "its section `{}` is not a component, which a description of interfaces must be",
                            truncate(section.name(), NAME_BYTES_MAX)
                        ),
                        remedy: "build it with the SDK or another bindings generator of this year",
                    });
                }
                self.counts = walk(section.data(), self.limits, false, self.counts)?;
                Ok(())
            }
            payload => match self.open.last_mut() {
                Some(Open::Module(_)) => self.in_module(payload),
                Some(Open::Component(_)) => self.in_component(payload),
                None => Ok(()),
            },
        }
    }

    fn open(&mut self, encoding: Encoding) -> Result<(), PolicyErrorKind> {
        self.counts.parts += 1;
        self.at_most("parts", None, self.counts.parts, self.limits.parts)?;
        self.open.push(match encoding {
            Encoding::Module => Open::Module(ModuleShape::default()),
            Encoding::Component => {
                self.type_sizes.open();
                Open::Component(Scope::default())
            }
        });
        let nesting = self.open.len() as u64 - 1;
        self.at_most("nesting", None, nesting, self.limits.nesting)
    }

    fn close(&mut self) -> Result<(), PolicyErrorKind> {
        let Some(Open::Component(closed)) = self.open.pop() else {
            return Ok(());
        };
        self.type_sizes.close();
        let Totals {
            items,
            core_instances,
            lowered,
            effort,
        } = closed.totals;
        match self.open.last_mut() {
            // A component that is not instantiated costs nothing, so the limits apply only to the
            // outermost.
            Some(Open::Component(outer)) => outer.components.push(Some(closed.totals)),
            _ => {
                self.at_most("items", None, items, self.limits.items)?;
                self.at_most("instances", None, core_instances, self.limits.instances)?;
                self.at_most(
                    "lowered_functions",
                    None,
                    lowered,
                    self.limits.lowered_functions,
                )?;
                let checked = self.type_sizes.checked();
                let effort = effort.saturating_add(checked);
                self.counts.effort = self.counts.effort.saturating_add(effort);
                self.at_most("effort", None, self.counts.effort, self.limits.effort)?;
            }
        }
        Ok(())
    }

    fn in_module(&mut self, payload: Payload<'a>) -> Result<(), PolicyErrorKind> {
        let Some(Open::Module(module)) = self.open.last_mut() else {
            return Ok(());
        };
        match payload {
            Payload::TypeSection(section) => {
                module.add_types(section).map_err(|error| damaged(&error))
            }
            Payload::ImportSection(section) => {
                module.add_imports(section).map_err(|error| damaged(&error))
            }
            Payload::FunctionSection(section) => module
                .add_functions(section)
                .map_err(|error| damaged(&error)),
            Payload::CodeSectionEntry(body) => {
                let function = module.next_function();
                let effort = module.add_body(&body).map_err(|error| damaged(&error))?;
                self.counts.effort = self.counts.effort.saturating_add(effort);
                let limit = self.limits.function_effort;
                self.at_most("function_effort", Some(function), effort, limit)?;
                self.at_most("effort", None, self.counts.effort, self.limits.effort)
            }
            Payload::TableSection(section) => {
                self.counts.tables += u64::from(section.count());
                self.at_most("tables", None, self.counts.tables, self.limits.tables)?;
                for table in section {
                    let initial = table.map_err(|error| damaged(&error))?.ty.initial;
                    self.at_most("table_elements", None, initial, self.limits.table_elements)?;
                }
                Ok(())
            }
            Payload::MemorySection(section) => {
                self.counts.memories += u64::from(section.count());
                self.at_most("memories", None, self.counts.memories, self.limits.memories)
            }
            _ => Ok(()),
        }
    }

    fn in_component(&mut self, payload: Payload<'a>) -> Result<(), PolicyErrorKind> {
        if let Payload::ComponentTypeSection(section) = &payload {
            self.count_nested_types(section.range())?;
        }
        // Count before reading the section: reading repeats nothing, but a scope is borrowed below.
        let Some(index) = self.open.len().checked_sub(1) else {
            return Ok(());
        };
        let (outer, inner) = self.open.split_at_mut(index);
        let Some(Open::Component(scope)) = inner.first_mut() else {
            return Ok(());
        };
        scope.read(payload, outer, &mut self.type_sizes)?;
        let effort = self.counts.effort.saturating_add(self.type_sizes.checked());
        self.at_most("effort", None, effort, self.limits.effort)
    }

    /// Bounds the recursion of the type parser: a type that is declared within a type takes some of
    /// its stack. Each such declaration has a byte for "type" and one for "component" or
    /// "instance", so their number bounds the depth. Other data can look the same, but a
    /// section of types has little of it.
    fn count_nested_types(&mut self, section: Range<usize>) -> Result<(), PolicyErrorKind> {
        const TYPE: u8 = 0x01;
        const COMPONENT_OR_INSTANCE: [u8; 2] = [0x41, 0x42];
        let bytes = self.bytes.get(section).unwrap_or_default();
        let declared = bytes
            .windows(2)
            .filter(|pair| pair[0] == TYPE && COMPONENT_OR_INSTANCE.contains(&pair[1]));
        self.counts.nested_types += declared.count() as u64;
        let limit = self.limits.nested_types;
        self.at_most("nested_types", None, self.counts.nested_types, limit)
    }

    fn at_most(
        &self,
        what: &'static str,
        function: Option<usize>,
        found: u64,
        limit: usize,
    ) -> Result<(), PolicyErrorKind> {
        if found <= limit as u64 {
            return Ok(());
        }
        // For limits that a store also checks, return the store's error.
        match what {
            "instances" | "tables" | "memories" => {
                return Err(PolicyErrorKind::InstanceLimit { what, limit });
            }
            "table_elements" => {
                let requested = usize::try_from(found).unwrap_or(usize::MAX);
                return Err(PolicyErrorKind::TableLimit { requested, limit });
            }
            _ => {}
        }
        let part = match self.counts.parts {
            // A core module, or a component without parts, needs no place.
            0 | 1 => None,
            n => Some(format!("part {} of the file", n - 1)),
        };
        let function = function.map(|index| format!("function {index}"));
        let place: Vec<String> = function.into_iter().chain(part).collect();
        Err(PolicyErrorKind::TooComplex {
            what,
            place: (!place.is_empty()).then(|| place.join(" of ")),
            found,
            limit: limit as u64,
        })
    }
}

impl Scope {
    fn read<'a>(
        &mut self,
        payload: Payload<'a>,
        outer: &[Open],
        type_sizes: &mut TypeSizes<'a>,
    ) -> Result<(), PolicyErrorKind> {
        let items = |totals: &mut Totals, n: u32| {
            totals.items = totals.items.saturating_add(u64::from(n));
        };
        match payload {
            Payload::ComponentTypeSection(section) => {
                for ty in section {
                    items(&mut self.totals, 1);
                    type_sizes.declare(&ty.map_err(|error| damaged(&error))?);
                }
            }
            Payload::CoreTypeSection(section) => items(&mut self.totals, section.count()),
            Payload::InstanceSection(section) => {
                for instance in section {
                    let n = match instance.map_err(|error| damaged(&error))? {
                        Instance::Instantiate { args, .. } => {
                            self.totals.core_instances += 1;
                            args.len()
                        }
                        Instance::FromExports(exports) => exports.len(),
                    };
                    self.totals.items = self.totals.items.saturating_add(1 + n as u64);
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    let alias = alias.map_err(|error| damaged(&error))?;
                    items(&mut self.totals, 1);
                    type_sizes.alias(&alias);
                    self.alias(&alias, outer);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    let import = import.map_err(|error| damaged(&error))?;
                    items(&mut self.totals, 1);
                    self.totals.add_effort(type_sizes.bind(&import.ty));
                    if let ComponentTypeRef::Component(_) = import.ty {
                        self.components.push(None);
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    let export = export.map_err(|error| damaged(&error))?;
                    items(&mut self.totals, 1);
                    type_sizes.export(export.kind, export.index);
                    if export.kind == ComponentExternalKind::Component {
                        let same = self.components.get(export.index as usize);
                        self.components.push(same.copied().flatten());
                    }
                }
            }
            Payload::ComponentCanonicalSection(section) => {
                for function in section {
                    items(&mut self.totals, 1);
                    if let CanonicalFunction::Lower { .. } =
                        function.map_err(|error| damaged(&error))?
                    {
                        self.totals.lowered += 1;
                        let fields = type_sizes.largest_moved();
                        let effort = fields.saturating_mul(EFFORT_OF_LOWERED_FIELD);
                        self.totals.add_effort(effort);
                    }
                }
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    let instance = instance.map_err(|error| damaged(&error))?;
                    self.instance(&instance)?;
                    type_sizes.instantiate(&instance);
                    // Its arguments are compared with its imports.
                    self.totals.add_effort(type_sizes.largest());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>, outer: &[Open]) {
        match alias {
            ComponentAlias::Outer {
                kind: ComponentOuterAliasKind::Component,
                count,
                index,
            } => {
                let scope = match (*count as usize).checked_sub(1) {
                    None => Some(&*self),
                    Some(up) => outer.iter().rev().nth(up).and_then(|open| match open {
                        Open::Component(scope) => Some(scope),
                        Open::Module(_) => None,
                    }),
                };
                let same = scope.and_then(|scope| scope.components.get(*index as usize));
                let same = same.copied().flatten();
                self.components.push(same);
            }
            ComponentAlias::InstanceExport {
                kind: ComponentExternalKind::Component,
                ..
            } => self.components.push(None),
            _ => {}
        }
    }

    fn instance(&mut self, instance: &ComponentInstance<'_>) -> Result<(), PolicyErrorKind> {
        let n = match instance {
            ComponentInstance::Instantiate {
                component_index,
                args,
            } => {
                let Some(component) = self
                    .components
                    .get(*component_index as usize)
                    .copied()
                    .flatten()
                else {
                    return Err(PolicyErrorKind::NotAPolicy {
                        what: format!(
                            "it instantiates its component {component_index}, which it does not define itself, so nobody can say what that takes"
                        ),
                        remedy: "define the components that are instantiated in the file, as `wac` and `wasm-tools compose` do",
                    });
                };
                self.totals.add(component);
                args.len()
            }
            ComponentInstance::FromExports(exports) => exports.len(),
        };
        self.totals.items = self.totals.items.saturating_add(1 + n as u64);
        Ok(())
    }
}
