//! Function bodies that conform to the canonical ABI, for some functions of a random module.

use arbitrary::{Result, Unstructured};
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, InstructionSink, MemArg,
    MemoryType, Module, ValType,
};
use wasmparser::{
    CodeSectionReader, CompositeInnerType, Export, ExportSectionReader, ExternalKind, FuncType,
    FunctionSectionReader, Parser, Payload, TypeRef,
};

/// The address of results: zeroes, which mean "ok", "none" or an empty list.
const RESULT: i32 = 16;
const RESULT_BYTES: i32 = 64;
/// The address of a plan's numbers.
const NUMBERS: i32 = 1024;
/// Enough pages for a plan of any requested graph.
const PAGES: u64 = 2;

const PLANNING: &str = "placewright:policy/planning@0.1.0";
const PLACE: &str = "placewright:policy/whole-graph@0.1.0#place";

/// The parts of a module, by name.
#[derive(Default)]
struct Parts {
    types: Vec<FuncType>,
    /// Type of each function, imported ones first.
    functions: Vec<u32>,
    imports: Vec<(String, String)>,
    /// Exported functions.
    exports: Vec<(String, u32)>,
}

impl Parts {
    fn of(module: &[u8]) -> Self {
        let mut parts = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload.expect("the generator makes valid modules") {
                Payload::TypeSection(section) => {
                    for group in section {
                        for ty in group.expect("valid").into_types() {
                            let CompositeInnerType::Func(ty) = ty.composite_type.inner else {
                                panic!("only functions are asked for");
                            };
                            parts.types.push(ty);
                        }
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import.expect("valid");
                        if let TypeRef::Func(ty) = import.ty {
                            parts.functions.push(ty);
                            let name = (import.module.to_owned(), import.name.to_owned());
                            parts.imports.push(name);
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    parts
                        .functions
                        .extend(section.into_iter().map(|ty| ty.expect("valid")));
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export.expect("valid");
                        if export.kind == ExternalKind::Func {
                            parts.exports.push((export.name.to_owned(), export.index));
                        }
                    }
                }
                _ => {}
            }
        }
        parts
    }

    fn import(&self, module: &str, name: &str) -> u32 {
        let found = self
            .imports
            .iter()
            .position(|(m, n)| m == module && n == name);
        found.unwrap_or_else(|| panic!("{module} has no {name}")) as u32
    }

    fn type_of(&self, function: u32) -> &FuncType {
        &self.types[self.functions[function as usize] as usize]
    }
}

/// Gives most functions except `place` a valid body, and usually makes `place` end by offering a
/// plan.
pub(crate) fn replace(
    u: &mut Unstructured<'_>,
    module: &mut Vec<u8>,
    n_nodes: u32,
    n_devices: u32,
) -> Result<()> {
    let parts = Parts::of(module);
    let mut sound = Sound {
        exports: Vec::new(),
        bodies: Vec::new(),
        n_before: parts.functions.len() as u32,
    };
    for (name, index) in &parts.exports {
        let ty = parts.type_of(*index);
        let is_replaced = match name.rsplit('#').next() {
            _ if name == PLACE => u.ratio(7, 8)?,
            Some("describe" | "settings" | "configure") => u.ratio(31, 32)?,
            Some("begin" | "pick" | "pick-batch" | "observe" | "end") => u.ratio(1, 2)?,
            // Allocation, and the functions called after a result is read.
            _ => u.ratio(15, 16)?,
        };
        if !is_replaced {
            continue;
        }
        let mut body = Function::new([(1, ValType::I32)]);
        let mut code = body.instructions();
        if name == PLACE {
            if u.ratio(1, 3)? {
                for local in 0..4 {
                    code.local_get(local);
                }
                code.call(*index).drop();
            }
            offer(u, &parts, &mut code, n_nodes, n_devices)?;
            result(&mut code);
        } else if name == "cabi_realloc" {
            realloc(&mut code);
        } else if ty.results() == [wasmparser::ValType::I32] {
            result(&mut code);
        }
        code.end();
        sound.exports.push(name.clone());
        sound.bodies.push((parts.functions[*index as usize], body));
    }
    let mut changed = Module::new();
    sound
        .parse_core_module(&mut changed, Parser::new(0), module)
        .expect("a valid module can be written again");
    *module = changed.finish();
    Ok(())
}

const fn at(offset: u64) -> MemArg {
    MemArg {
        offset,
        align: 0,
        memory_index: 0,
    }
}

/// Writes zeroes, and returns their address.
fn result(code: &mut InstructionSink<'_>) {
    for offset in (0..RESULT_BYTES).step_by(8) {
        code.i32_const(RESULT + offset)
            .i64_const(0)
            .i64_store(at(0));
    }
    code.i32_const(RESULT);
}

/// Allocates new pages for each call, and copies the old contents.
fn realloc(code: &mut InstructionSink<'_>) {
    // (old address, old size, alignment, new size)
    code.local_get(3).i32_const(16).i32_shr_u();
    code.i32_const(1).i32_add().memory_grow(0).local_tee(4);
    code.i32_const(-1).i32_eq();
    code.if_(wasm_encoder::BlockType::Empty).unreachable().end();
    code.local_get(4).i32_const(16).i32_shl().local_tee(4);
    code.local_get(0).local_get(1).memory_copy(0, 0);
    code.local_get(4);
}

/// Sets columns of a plan to random numbers, mostly valid ones, and offers it, several times.
fn offer(
    u: &mut Unstructured<'_>,
    parts: &Parts,
    code: &mut InstructionSink<'_>,
    n_nodes: u32,
    n_devices: u32,
) -> Result<()> {
    const PLAN: u32 = 2;
    let call = |code: &mut InstructionSink<'_>, method: &str| {
        code.call(parts.import(PLANNING, &format!("[method]plan.{method}")));
    };
    // The last device can run every node, so the following changes start from a legal plan.
    if u.arbitrary()? {
        for node in 0..n_nodes {
            code.i32_const(NUMBERS + 4 * node.cast_signed())
                .i32_const(n_devices.cast_signed() - 1)
                .i32_store(at(0));
        }
        code.local_get(PLAN)
            .i32_const(NUMBERS)
            .i32_const(n_nodes.cast_signed());
        call(code, "set-devices");
        code.local_get(PLAN).i32_const(RESULT);
        call(code, "offer");
    }
    for _ in 0..u.int_in_range(0..=3)? {
        let method = *u.choose(&[
            "set-devices",
            "set-devices",
            "set-devices",
            "set-start-order",
            "set-queues",
        ])?;
        // Usually the right length.
        let n = match u.int_in_range(0..=7)? {
            0 => u.int_in_range(0..=2 * n_nodes)?,
            _ => n_nodes,
        };
        let constant = u.int_in_range(0..=n_devices)?.cast_signed();
        let how = u.int_in_range(0..=3)?;
        for node in 0..n {
            let number = match how {
                0 | 1 => constant,
                2 => u.int_in_range(0..=n_devices)?.cast_signed(),
                _ => u.arbitrary()?,
            };
            code.i32_const(NUMBERS + 4 * node.cast_signed())
                .i32_const(number)
                .i32_store(at(0));
        }
        // Sometimes an address or a length out of range.
        let (address, length) = match u.int_in_range(0..=31)? {
            0 => (u.arbitrary()?, n.cast_signed()),
            1 => (NUMBERS, u.arbitrary()?),
            _ => (NUMBERS, n.cast_signed()),
        };
        code.local_get(PLAN).i32_const(address).i32_const(length);
        call(code, method);
        match u.int_in_range(0..=7)? {
            0 => {
                code.local_get(PLAN);
                call(code, "makespan");
                code.drop();
            }
            1 => {
                code.local_get(PLAN).i32_const(RESULT);
                call(code, "peak-bytes-per-device");
            }
            2 => {
                code.local_get(PLAN).i32_const(u.arbitrary()?).i32_const(8);
                code.f64_const(f64::from_bits(u.arbitrary()?).into());
                call(code, "metric");
            }
            3 => {
                code.local_get(PLAN)
                    .i32_const(NUMBERS)
                    .i32_const(n.cast_signed());
                code.i32_const(u.arbitrary()?)
                    .i32_const(u.int_in_range(0..=70_000)?);
                call(code, "explain");
            }
            _ => {}
        }
        code.local_get(PLAN).i32_const(RESULT);
        call(code, "offer");
    }
    // A call must drop what it has borrowed.
    for (interface, resource, local) in [
        ("graphs", "graph", 0),
        ("devices", "device-set", 1),
        ("planning", "plan", 2),
    ] {
        code.local_get(local);
        code.call(parts.import(
            &format!("placewright:policy/{interface}@0.1.0"),
            &format!("[resource-drop]{resource}"),
        ));
    }
    Ok(())
}

/// Writes a module again, with additional functions.
struct Sound {
    /// Exports that refer to one of the new bodies.
    exports: Vec<String>,
    /// The bodies, each with the index of its type.
    bodies: Vec<(u32, Function)>,
    /// Number of functions before the additions.
    n_before: u32,
}

type Written = std::result::Result<(), Error>;

impl Reencode for Sound {
    type Error = std::convert::Infallible;

    fn memory_type(
        &mut self,
        ty: wasmparser::MemoryType,
    ) -> std::result::Result<MemoryType, Error> {
        let mut ty = utils::memory_type(self, ty);
        ty.minimum = ty.minimum.max(PAGES);
        ty.maximum = ty.maximum.map(|maximum| maximum.max(PAGES));
        Ok(ty)
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Written {
        utils::parse_function_section(self, functions, section)?;
        for (ty, _) in &self.bodies {
            functions.function(*ty);
        }
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Written {
        utils::parse_export_section(self, exports, section)?;
        for (name, index) in self.exports.iter().zip(self.n_before..) {
            exports.export(name, ExportKind::Func, index);
        }
        Ok(())
    }

    fn parse_export(&mut self, exports: &mut ExportSection, export: Export<'_>) -> Written {
        if self.exports.iter().any(|name| name == export.name) {
            return Ok(());
        }
        utils::parse_export(self, exports, export)
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Written {
        utils::parse_code_section(self, code, section)?;
        for (_, body) in &self.bodies {
            code.function(body);
        }
        Ok(())
    }
}
