//! Estimates the compiler's work for a core module, in one pass over its bytes.
//!
//! A compiler's time and memory grow faster than a function: with its loops times its locals, with
//! values that are live across calls, with arguments that a call of one byte passes. The weights
//! below were measured with Cranelift, one hostile shape each, and are above the needs of ordinary
//! code. Takes payloads of a parser; does not depend on limits.

use wasmparser::{
    BinaryReaderError, BlockType, FrameKind, FunctionBody, FunctionSectionReader,
    ImportSectionReader, ModuleArity, Operator, SubType, TypeRef, TypeSectionReader,
};

/// All weights have the unit of effort: about one microsecond of one core, and about 300 bytes.
const OF_FUNCTION: u64 = 65;
/// A function that a table or an export refers to has two trampolines, which move each parameter
/// and result.
const OF_SIGNATURE_VALUE: u64 = 20;
const OF_OPERATOR: u64 = 6;
const OF_CALL: u64 = 8;
/// Bounds, laziness, type: each a branch.
const OF_INDIRECT_CALL: u64 = 120;
/// A call of the host with its arguments, a check of its result, and a trap: for operators on whole
/// memories or tables.
const OF_BULK: u64 = 120;
/// Arithmetic whose result may be NaN is followed by a comparison and a selection.
const OF_FLOAT: u64 = 10;
/// An argument or result of a call or a branch.
const OF_PASSED_VALUE: u64 = 10;
const OF_JUMP_TARGET: u64 = 2;
/// Where control flow joins, each local that is written anywhere may need its own value.
const OF_JOIN_AND_LOCAL: u64 = 3;
/// In loops it has one, which is moved once per iteration.
const OF_LOOP_AND_LOCAL: u64 = 10;
/// Pairs that cost a tenth of a unit: an operator and a value below it on the stack, a call and a
/// local, a block with parameters and a parameter of any block, a loop and a loop around it.
const PAIRS_PER_UNIT: u64 = 10;

/// More than a validator allows. A recursive group is one definition with many types.
const TYPES_MAX: usize = 1_000_000;

/// The parts of a module that the estimate of a function needs.
#[derive(Debug, Default)]
pub(super) struct ModuleShape {
    types: Vec<SubType>,
    /// The type of each function, imported ones first.
    functions: Vec<u32>,
    n_imported: usize,
    n_bodies: usize,
}

impl ModuleShape {
    pub(super) fn add_types(
        &mut self,
        section: TypeSectionReader<'_>,
    ) -> Result<(), BinaryReaderError> {
        for group in section {
            self.types.extend(group?.into_types());
            if self.types.len() > TYPES_MAX {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn add_imports(
        &mut self,
        section: ImportSectionReader<'_>,
    ) -> Result<(), BinaryReaderError> {
        for import in section.into_imports() {
            if let TypeRef::Func(index) | TypeRef::FuncExact(index) = import?.ty {
                self.functions.push(index);
                self.n_imported += 1;
            }
        }
        Ok(())
    }

    pub(super) fn add_functions(
        &mut self,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), BinaryReaderError> {
        for index in section {
            self.functions.push(index?);
        }
        Ok(())
    }

    /// Returns the index of the function whose body comes next.
    pub(super) fn next_function(&self) -> usize {
        self.n_imported + self.n_bodies
    }

    /// Returns the effort of the next function. Invalid code gets any number: the compiler refuses
    /// it.
    pub(super) fn add_body(&mut self, body: &FunctionBody<'_>) -> Result<u64, BinaryReaderError> {
        let function = self.next_function();
        self.n_bodies += 1;
        let of_type = self.functions.get(function).copied().unwrap_or(u32::MAX);
        let mut n_locals = 0_usize;
        for locals in body.get_locals_reader()? {
            n_locals = n_locals.saturating_add(locals?.0 as usize);
        }
        let mut walk = Walk::new(self, of_type, n_locals);
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            walk.operator(&operators.read()?);
        }
        Ok(walk.effort())
    }
}

/// A block that is open.
struct Frame {
    ty: BlockType,
    kind: FrameKind,
    /// Values below it.
    height: u64,
    /// Writes to locals before it.
    writes_before: u64,
}

/// One pass over a function.
struct Walk<'a> {
    module: &'a ModuleShape,
    signature: (u64, u64),
    frames: Vec<Frame>,
    n_loops_open: u64,
    height: u64,
    is_written: Vec<bool>,
    n_written: u64,
    writes: u64,
    height_max: u64,
    operators: u64,
    calls: u64,
    indirect_calls: u64,
    bulk: u64,
    floats: u64,
    passed: u64,
    targets: u64,
    joins: u64,
    /// Of each loop, the writes to locals inside it.
    loop_writes: Vec<u64>,
    loops_around: u64,
    blocks_with_params: u64,
    block_params: u64,
}

/// More than a validator allows. Writes to further locals count as writes to one that was written
/// before.
const LOCALS_MAX: usize = 60_000;

impl<'a> Walk<'a> {
    fn new(module: &'a ModuleShape, of_type: u32, n_locals: usize) -> Self {
        let ty = BlockType::FuncType(of_type);
        let mut walk = Self {
            module,
            signature: (0, 0),
            frames: vec![Frame {
                ty,
                kind: FrameKind::Block,
                height: 0,
                writes_before: 0,
            }],
            n_loops_open: 0,
            height: 0,
            is_written: Vec::new(),
            n_written: 0,
            writes: 0,
            height_max: 0,
            operators: 0,
            calls: 0,
            indirect_calls: 0,
            bulk: 0,
            floats: 0,
            passed: 0,
            targets: 0,
            joins: 0,
            loop_writes: Vec::new(),
            loops_around: 0,
            blocks_with_params: 0,
            block_params: 0,
        };
        walk.signature = walk.arity(ty);
        let n_params = usize::try_from(walk.signature.0).unwrap_or(LOCALS_MAX);
        walk.is_written = vec![false; n_locals.saturating_add(n_params).min(LOCALS_MAX)];
        walk
    }

    fn arity(&self, ty: BlockType) -> (u64, u64) {
        let (params, results) = self.block_type_arity(ty).unwrap_or((0, 0));
        (params.into(), results.into())
    }

    fn operator(&mut self, operator: &Operator<'_>) {
        self.operators += 1;
        match operator {
            Operator::Block { blockty }
            | Operator::TryTable {
                try_table: wasmparser::TryTable { ty: blockty, .. },
            } => {
                self.open(*blockty, FrameKind::Block);
            }
            Operator::Loop { blockty } => self.open(*blockty, FrameKind::Loop),
            Operator::If { blockty } => {
                self.pop(1);
                self.open(*blockty, FrameKind::If);
            }
            Operator::Else => {
                self.joins += 1;
                if let Some(frame) = self.frames.last_mut() {
                    frame.kind = FrameKind::Else;
                    let (ty, height) = (frame.ty, frame.height);
                    self.height = height + self.arity(ty).0;
                }
            }
            Operator::End => self.close(),
            Operator::LocalSet { local_index } => {
                self.pop(1);
                self.write(*local_index);
            }
            Operator::LocalTee { local_index } => self.write(*local_index),
            _ => {
                self.count(operator);
                let (popped, pushed) = operator.operator_arity(self).unwrap_or((0, 0));
                self.pop(popped.into());
                self.height = self.height.saturating_add(pushed.into());
            }
        }
        self.height_max = self.height_max.max(self.height);
    }

    /// Counts the special costs of an operator that opens and closes no block.
    fn count(&mut self, operator: &Operator<'_>) {
        let values = || {
            let (popped, pushed) = operator.operator_arity(self).unwrap_or((0, 0));
            u64::from(popped) + u64::from(pushed)
        };
        match operator {
            Operator::Call { .. } | Operator::ReturnCall { .. } => {
                self.passed += values();
                self.calls += 1;
            }
            Operator::CallIndirect { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::CallRef { .. }
            | Operator::ReturnCallRef { .. } => {
                self.passed += values();
                self.calls += 1;
                self.indirect_calls += 1;
            }
            Operator::Br { .. } | Operator::BrIf { .. } | Operator::Return => {
                self.passed += values();
                self.joins += 1;
            }
            Operator::BrTable { targets } => {
                let n_targets = u64::from(targets.len()) + 1;
                self.passed = self
                    .passed
                    .saturating_add(values().saturating_mul(n_targets));
                self.joins += n_targets;
                self.targets += n_targets;
            }
            _ => {}
        }
        self.bulk += u64::from(is_bulk(operator));
        self.floats += u64::from(may_make_nan(operator));
        let is_end = matches!(
            operator,
            Operator::Br { .. }
                | Operator::BrTable { .. }
                | Operator::Return
                | Operator::Unreachable
                | Operator::ReturnCall { .. }
                | Operator::ReturnCallIndirect { .. }
                | Operator::ReturnCallRef { .. }
        );
        if is_end {
            self.height = self.frames.last().map_or(0, |frame| frame.height);
        }
    }

    fn open(&mut self, ty: BlockType, kind: FrameKind) {
        let (params, results) = self.arity(ty);
        self.joins += 1;
        if kind == FrameKind::Loop {
            self.joins += 1;
            self.loops_around += self.n_loops_open;
            self.n_loops_open += 1;
        }
        if params > 0 {
            self.blocks_with_params += 1;
        }
        self.block_params += params;
        self.passed += params + results;
        self.pop(params);
        self.frames.push(Frame {
            ty,
            kind,
            height: self.height,
            writes_before: self.writes,
        });
        self.height = self.height.saturating_add(params);
    }

    fn close(&mut self) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        if frame.kind == FrameKind::Loop {
            self.n_loops_open -= 1;
            self.loop_writes.push(self.writes - frame.writes_before);
        }
        self.height = frame.height.saturating_add(self.arity(frame.ty).1);
    }

    fn pop(&mut self, n: u64) {
        let floor = self.frames.last().map_or(0, |frame| frame.height);
        self.height = self.height.saturating_sub(n).max(floor);
    }

    fn write(&mut self, local: u32) {
        self.writes += 1;
        if let Some(is_written) = self.is_written.get_mut(local as usize)
            && !std::mem::replace(is_written, true)
        {
            self.n_written += 1;
        }
    }

    fn effort(&self) -> u64 {
        let loops = self.loop_writes.iter();
        let in_loops = loops.map(|&writes| writes.min(self.n_written)).sum::<u64>();
        let pairs = [
            self.operators.saturating_mul(self.height_max),
            self.calls.saturating_mul(self.n_written),
            self.blocks_with_params.saturating_mul(self.block_params),
            self.loops_around,
        ];
        let pairs = pairs.into_iter().fold(0, u64::saturating_add);
        let (params, results) = self.signature;
        [
            (OF_FUNCTION, 1),
            (OF_SIGNATURE_VALUE, params + results),
            (OF_OPERATOR, self.operators),
            (OF_CALL, self.calls),
            (OF_INDIRECT_CALL, self.indirect_calls),
            (OF_BULK, self.bulk),
            (OF_FLOAT, self.floats),
            (OF_PASSED_VALUE, self.passed),
            (OF_JUMP_TARGET, self.targets),
            (OF_JOIN_AND_LOCAL, self.joins.saturating_mul(self.n_written)),
            (OF_LOOP_AND_LOCAL, in_loops),
            (1, pairs / PAIRS_PER_UNIT),
        ]
        .into_iter()
        .fold(0, |sum: u64, (weight, n)| {
            sum.saturating_add(n.saturating_mul(weight))
        })
    }
}

fn is_bulk(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::MemoryGrow { .. }
            | Operator::DataDrop { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableInit { .. }
            | Operator::TableGrow { .. }
            | Operator::ElemDrop { .. }
    )
}

/// Returns whether the result of an operator is canonicalized if it is NaN.
fn may_make_nan(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::F32Ceil
            | Operator::F32Floor
            | Operator::F32Trunc
            | Operator::F32Nearest
            | Operator::F32Sqrt
            | Operator::F32Add
            | Operator::F32Sub
            | Operator::F32Mul
            | Operator::F32Div
            | Operator::F32Min
            | Operator::F32Max
            | Operator::F64Ceil
            | Operator::F64Floor
            | Operator::F64Trunc
            | Operator::F64Nearest
            | Operator::F64Sqrt
            | Operator::F64Add
            | Operator::F64Sub
            | Operator::F64Mul
            | Operator::F64Div
            | Operator::F64Min
            | Operator::F64Max
            | Operator::F32x4Ceil
            | Operator::F32x4Floor
            | Operator::F32x4Trunc
            | Operator::F32x4Nearest
            | Operator::F32x4Sqrt
            | Operator::F32x4Add
            | Operator::F32x4Sub
            | Operator::F32x4Mul
            | Operator::F32x4Div
            | Operator::F32x4Min
            | Operator::F32x4Max
            | Operator::F64x2Ceil
            | Operator::F64x2Floor
            | Operator::F64x2Trunc
            | Operator::F64x2Nearest
            | Operator::F64x2Sqrt
            | Operator::F64x2Add
            | Operator::F64x2Sub
            | Operator::F64x2Mul
            | Operator::F64x2Div
            | Operator::F64x2Min
            | Operator::F64x2Max
            | Operator::F32DemoteF64
            | Operator::F64PromoteF32
            | Operator::F32x4DemoteF64x2Zero
            | Operator::F64x2PromoteLowF32x4
    )
}

impl ModuleArity for Walk<'_> {
    fn sub_type_at(&self, type_idx: u32) -> Option<&SubType> {
        self.module.types.get(type_idx as usize)
    }

    fn tag_type_arity(&self, _at: u32) -> Option<(u32, u32)> {
        None
    }

    fn type_index_of_function(&self, function_idx: u32) -> Option<u32> {
        self.module.functions.get(function_idx as usize).copied()
    }

    fn func_type_of_cont_type(&self, _c: &wasmparser::ContType) -> Option<&wasmparser::FuncType> {
        None
    }

    fn sub_type_of_ref_type(&self, _rt: &wasmparser::RefType) -> Option<&SubType> {
        None
    }

    fn control_stack_height(&self) -> u32 {
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }

    fn label_block(&self, depth: u32) -> Option<(BlockType, FrameKind)> {
        let from_end = usize::try_from(depth).ok()?.checked_add(1)?;
        let frame = self.frames.get(self.frames.len().checked_sub(from_end)?)?;
        Some((frame.ty, frame.kind))
    }
}
