//! Checks the interface metadata of a core module before it is parsed.
//!
//! A bindings generator embeds sections of metadata in a core module. Each is a component whose
//! types are the interfaces. Their parser sorts packages by dependency: it recurses once per
//! package, does not detect cycles, and merges each section with all earlier ones. So this module
//! counts packages and sections, and refuses cycles. Takes the core module; returns an error or
//! nothing.

use std::collections::HashMap;

use wasmparser::component_types::{
    ComponentAnyTypeId, ComponentDefinedType, ComponentEntityType, ComponentItem, ComponentValType,
};
use wasmparser::types::Types;
use wasmparser::{ComponentExternalKind, Parser, Payload, ValidPayload, Validator, WasmFeatures};

/// Custom sections that the encoder of core modules reads as components.
pub(super) const METADATA_SECTIONS: &str = "component-type";
/// The most sections in a module. A bindings generator makes one for each world that a crate uses.
const SECTIONS_MAX: usize = 64;
/// The most packages in all sections: the bits of a [`Packages`].
const PACKAGES_MAX: usize = u64::BITS as usize;

/// A set of packages: a bit for each, in the order in which they are first named.
type Packages = u64;

/// Refuses metadata whose parser would recurse without end, or for very long.
///
/// # Errors
/// The reason, for the policy's author.
pub(super) fn check(module: &[u8]) -> Result<(), String> {
    let mut graph = PackageGraph::default();
    let mut n_sections = 0;
    for payload in Parser::new(0).parse_all(module) {
        let Payload::CustomSection(section) = payload.map_err(|error| error.to_string())? else {
            continue;
        };
        if !section.name().starts_with(METADATA_SECTIONS) {
            continue;
        }
        n_sections += 1;
        if n_sections > SECTIONS_MAX {
            return Err(format!(
                "it has more than {SECTIONS_MAX} sections of metadata"
            ));
        }
        graph.add_section(section.data())?;
    }
    if graph.has_circle() {
        return Err("the packages of its interfaces depend on each other in a cycle".to_owned());
    }
    Ok(())
}

/// The dependencies between packages. All versions of a package count as one, because compatible
/// versions are merged.
#[derive(Debug, Default)]
struct PackageGraph {
    numbers: HashMap<String, usize>,
    /// Indexed by the package's number.
    needs: Vec<Packages>,
}

impl PackageGraph {
    fn add_section(&mut self, metadata: &[u8]) -> Result<(), String> {
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        let mut depth = 0_usize;
        let mut exported = Vec::new();
        for payload in Parser::new(0).parse_all(metadata) {
            let payload = payload.map_err(|error| error.to_string())?;
            match &payload {
                Payload::Version { .. } => depth += 1,
                Payload::End(_) => depth -= 1,
                Payload::ComponentExportSection(section) if depth == 1 => {
                    for export in section.clone() {
                        let export = export.map_err(|error| error.to_string())?;
                        if export.kind == ComponentExternalKind::Type {
                            exported.push(export.index);
                        }
                    }
                }
                _ => {}
            }
            let valid = validator.payload(&payload);
            if let ValidPayload::End(types) = valid.map_err(|error| error.to_string())?
                && depth == 0
            {
                for &index in &exported {
                    self.add_worlds(&types, types.component_any_type_at(index))?;
                }
            }
        }
        Ok(())
    }

    /// Reads the worlds that a component type exports, each under the name of its package.
    fn add_worlds(&mut self, types: &Types, wrapper: ComponentAnyTypeId) -> Result<(), String> {
        let ComponentAnyTypeId::Component(wrapper) = wrapper else {
            return Ok(());
        };
        for (name, item) in &types[wrapper].exports {
            let (ComponentEntityType::Component(world), Some(package)) =
                (item.ty, package_of(name))
            else {
                continue;
            };
            let home = self.number(package)?;
            let mut users = HashMap::new();
            let world = &types[world];
            for (name, item) in world.imports.iter().chain(&world.exports) {
                // An interface without a package belongs to the world.
                let name = item.implements.as_deref().unwrap_or(name);
                let package = match package_of(name) {
                    Some(package) => self.number(package)?,
                    None => home,
                };
                self.needs[home] |= 1 << package;
                self.needs[package] |= used_before(types, item, package, &mut users);
            }
        }
        Ok(())
    }

    fn number(&mut self, package: &str) -> Result<usize, String> {
        if let Some(&number) = self.numbers.get(package) {
            return Ok(number);
        }
        let number = self.needs.len();
        if number == PACKAGES_MAX {
            return Err(format!(
                "its interfaces are of more than {PACKAGES_MAX} packages"
            ));
        }
        self.numbers.insert(package.to_owned(), number);
        self.needs.push(0);
        Ok(number)
    }

    /// Returns whether the dependencies have a cycle.
    fn has_circle(&self) -> bool {
        let mut sorted: Packages = 0;
        loop {
            let ready = self.needs.iter().enumerate().filter(|&(number, needs)| {
                let itself = 1 << number;
                sorted & itself == 0 && needs & !(sorted | itself) == 0
            });
            let ready = ready.fold(0, |all, (number, _)| all | 1 << number);
            if ready == 0 {
                return sorted.count_ones() as usize != self.needs.len();
            }
            sorted |= ready;
        }
    }
}

/// Returns `ns:package` of `ns:package/interface@1.0.0`, or `None` for a name without a package.
fn package_of(name: &str) -> Option<&str> {
    Some(name.split_once('/')?.0)
}

/// Returns the packages that used a type of this item before. A parser assigns a type to the first
/// interface that has it, so these include all packages that the item's package then depends on.
///
/// Visits each type once per package: it marks visited types in `users`.
fn used_before(
    types: &Types,
    item: &ComponentItem,
    package: usize,
    users: &mut HashMap<ComponentAnyTypeId, Packages>,
) -> Packages {
    let mut before = 0;
    let mut open = Vec::new();
    push_entity(&item.ty, &mut open);
    while let Some(ty) = open.pop() {
        let users = users.entry(ty).or_default();
        if *users & 1 << package != 0 {
            continue;
        }
        if let ComponentAnyTypeId::Defined(_) | ComponentAnyTypeId::Resource(_) = ty {
            before |= *users;
        }
        *users |= 1 << package;
        open.extend(types.peel_alias(ty));
        match ty {
            ComponentAnyTypeId::Resource(_) => {}
            ComponentAnyTypeId::Defined(id) => push_parts(&types[id], &mut open),
            ComponentAnyTypeId::Func(id) => {
                let params = types[id].params.iter().map(|(_, ty)| ty);
                push_values(params.chain(&types[id].result), &mut open);
            }
            ComponentAnyTypeId::Instance(id) => {
                for item in types[id].exports.values() {
                    push_entity(&item.ty, &mut open);
                }
            }
            ComponentAnyTypeId::Component(id) => {
                for item in types[id].imports.values().chain(types[id].exports.values()) {
                    push_entity(&item.ty, &mut open);
                }
            }
        }
    }
    before & !(1 << package)
}

fn push_entity(entity: &ComponentEntityType, open: &mut Vec<ComponentAnyTypeId>) {
    match *entity {
        ComponentEntityType::Module(_) => {}
        ComponentEntityType::Func(id) => open.push(id.into()),
        ComponentEntityType::Value(ty) => push_values([&ty], open),
        ComponentEntityType::Type {
            referenced,
            created,
        } => open.extend([referenced, created]),
        ComponentEntityType::Instance(id) => open.push(id.into()),
        ComponentEntityType::Component(id) => open.push(id.into()),
    }
}

/// Returns the types that a value of this type consists of.
fn push_parts(ty: &ComponentDefinedType, open: &mut Vec<ComponentAnyTypeId>) {
    match ty {
        ComponentDefinedType::Primitive(_)
        | ComponentDefinedType::Flags(_)
        | ComponentDefinedType::Enum(_) => {}
        ComponentDefinedType::Record(record) => push_values(record.fields.values(), open),
        ComponentDefinedType::Variant(variant) => {
            push_values(variant.cases.values().flat_map(|case| &case.ty), open);
        }
        ComponentDefinedType::List { element, .. }
        | ComponentDefinedType::FixedLengthList { element, .. } => push_values([element], open),
        ComponentDefinedType::Map { key, value, .. } => push_values([key, value], open),
        ComponentDefinedType::Tuple(tuple) => push_values(tuple.types.iter(), open),
        ComponentDefinedType::Option { ty, .. } => push_values([ty], open),
        ComponentDefinedType::Result { ok, err, .. } => push_values(ok.iter().chain(err), open),
        ComponentDefinedType::Own(id) | ComponentDefinedType::Borrow(id) => open.push((*id).into()),
        ComponentDefinedType::Future { ty, .. } | ComponentDefinedType::Stream { ty, .. } => {
            push_values(ty, open);
        }
    }
}

fn push_values<'a>(
    values: impl IntoIterator<Item = &'a ComponentValType>,
    open: &mut Vec<ComponentAnyTypeId>,
) {
    for value in values {
        match value {
            ComponentValType::Primitive(_) => {}
            ComponentValType::Type(id) => open.push((*id).into()),
        }
    }
}
