//! Ops on lookup tables.

use std::path::Path;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::table::Item;
use crate::backend::cpu::kernels::table::Signature;
use crate::backend::cpu::kernels::table::Table;
use crate::backend::cpu::kernels::table::TableKind;
use crate::backend::cpu::kernels::table::foreign_entry;
use crate::backend::cpu::kernels::table::item;
use crate::backend::cpu::kernels::table::known_shape;
use crate::backend::cpu::kernels::table::read_strings;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::ContainerInfo;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::make_resource_handle;
use crate::files;
use crate::kernels::scratch;
use crate::kernels::strings;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// The largest file of entries that is read.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// A column of a file of entries that is the number of the line, or the whole line.
const LINE_NUMBER: i64 = -1;
const WHOLE_LINE: i64 = -2;

/// Pairs of key and value types.
type Pairs = &'static [(DType, DType)];

/// The pairs that TensorFlow registers for `HashTable`.
const FIXED: [(DType, DType); 15] = [
    (DType::String, DType::String),
    (DType::String, DType::I64),
    (DType::String, DType::I32),
    (DType::String, DType::F32),
    (DType::String, DType::F64),
    (DType::String, DType::Bool),
    (DType::I64, DType::String),
    (DType::I64, DType::I64),
    (DType::I64, DType::I32),
    (DType::I64, DType::F32),
    (DType::I64, DType::F64),
    (DType::I32, DType::String),
    (DType::I32, DType::I32),
    (DType::I32, DType::F32),
    (DType::I32, DType::F64),
];

/// Those of `MutableHashTable`, without variants.
const MUTABLE: [(DType, DType); 13] = [
    (DType::String, DType::I64),
    (DType::String, DType::I32),
    (DType::String, DType::F32),
    (DType::String, DType::F64),
    (DType::String, DType::Bool),
    (DType::I64, DType::String),
    (DType::I64, DType::I64),
    (DType::I64, DType::I32),
    (DType::I64, DType::F32),
    (DType::I64, DType::F64),
    (DType::I32, DType::I32),
    (DType::I32, DType::F32),
    (DType::I32, DType::F64),
];

/// Those of `MutableDenseHashTable`, without variants and resources.
const DENSE: [(DType, DType); 13] = [
    (DType::String, DType::I64),
    (DType::String, DType::I32),
    (DType::String, DType::F32),
    (DType::String, DType::F64),
    (DType::String, DType::Bool),
    (DType::I64, DType::I64),
    (DType::I64, DType::I32),
    (DType::I64, DType::F32),
    (DType::I64, DType::F64),
    (DType::I64, DType::Bool),
    (DType::I32, DType::I32),
    (DType::I32, DType::F32),
    (DType::I32, DType::F64),
];

pub(super) fn register(registry: &mut KernelRegistry) {
    let ops: [(&str, TableKind, Pairs); 8] = [
        ("HashTable", TableKind::Fixed, &FIXED),
        ("HashTableV2", TableKind::Fixed, &FIXED),
        ("AnonymousHashTable", TableKind::Fixed, &FIXED),
        ("MutableHashTableV2", TableKind::Mutable, &MUTABLE),
        ("MutableHashTableOfTensorsV2", TableKind::Mutable, &MUTABLE),
        ("AnonymousMutableHashTable", TableKind::Mutable, &MUTABLE),
        ("MutableDenseHashTableV2", TableKind::Mutable, &DENSE),
        ("AnonymousMutableDenseHashTable", TableKind::Mutable, &DENSE),
    ];
    for (op, kind, types) in ops {
        registry.register(def(op).with_factory(move |node| handle(node, kind, types)));
    }
    for (first, second, factory) in [
        (
            "InitializeTable",
            "InitializeTableV2",
            initialize as fn(&KernelConstruction<'_>) -> Made,
        ),
        (
            "InitializeTableFromTextFile",
            "InitializeTableFromTextFileV2",
            initialize_from_file,
        ),
        ("LookupTableFind", "LookupTableFindV2", find),
        ("LookupTableSize", "LookupTableSizeV2", size),
    ] {
        registry.register(def(first).with_factory(factory));
        registry.register(def(second).with_factory(factory));
    }
    for (op, clears) in [
        ("LookupTableInsertV2", false),
        ("LookupTableImportV2", true),
    ] {
        registry.register(def(op).with_factory(move |_| {
            kernel(move |context| {
                table(context)?.insert(context.input(1)?, context.input(2)?, clears)
            })
        }));
    }
    registry.register(
        def("LookupTableRemoveV2")
            .with_factory(|_| kernel(|context| table(context)?.remove(context.input(1)?))),
    );
    registry.register(def("LookupTableExportV2").with_factory(|_| kernel(export)));
}

/// The ops that make tables: returns a handle, and creates the table if it does not exist.
fn handle(
    node: &KernelConstruction<'_>,
    kind: TableKind,
    types: &'static [(DType, DType)],
) -> Made {
    let (key_dtype, value_dtype) = (
        type_attr(node, "key_dtype")?,
        type_attr(node, "value_dtype")?,
    );
    if !types.contains(&(key_dtype, value_dtype)) {
        return Err(KernelError::Unimplemented(format!(
            "{} from {key_dtype} to {value_dtype}",
            node.op
        )));
    }
    let value_shape = known_shape(node.attrs.shape("value_shape"))?;
    let shares = bool_attr(node, "use_node_name_sharing", false)?;
    let manager = node.device.resource_manager()?;
    let info = ContainerInfo::resolve(manager, node.node, node.attrs, shares)?;
    let device = node.device.attributes().name.clone();
    let is_dense = node.op.contains("Dense");
    let is_string_handle = node.op == "HashTable";
    let is_anonymous = node.op.starts_with("Anonymous");
    kernel(move |context| {
        let mut signature = Signature {
            key_dtype,
            value_dtype,
            key_shape: Shape::scalar(),
            value_shape: value_shape.clone(),
        };
        let mut reserved: SmallVec<[(Item, &'static str); 2]> = SmallVec::new();
        if is_dense {
            let keys = [(0, "empty_key"), (1, "deleted_key")];
            signature.key_shape = context.input(0)?.shape().clone();
            for (index, name) in keys {
                let key = context.input(index)?;
                if signature.key_shape != *key.shape() || key.shape().rank() > 1 {
                    return Err(KernelError::invalid(format!(
                        "Empty and deleted keys must be scalars or vectors of one shape, got {} \
                         and {}",
                        signature.key_shape,
                        key.shape()
                    )));
                }
                reserved.push((item(key, 0, key.shape().n_elements())?, name));
            }
            if reserved[0].0 == reserved[1].0 {
                return Err(KernelError::invalid(
                    "Empty and deleted keys cannot be equal",
                ));
            }
        }
        let manager = context.resource_manager()?;
        let mut info = info.clone();
        if is_anonymous {
            // Each execution makes another table, which lives as long as the run.
            context.run_container()?.clone_into(&mut info.container);
        }
        let create = || Ok::<_, KernelError>(Table::new(kind, signature.clone(), reserved));
        let table = manager.lookup_or_create(&info.container, &info.name, create)?;
        if table.signature != signature || table.kind != kind {
            return Err(KernelError::invalid(format!(
                "Conflicting key/value dtypes {key_dtype}->{value_dtype} with {}->{} for table {}",
                table.signature.key_dtype, table.signature.value_dtype, info.name
            )));
        }
        if is_string_handle {
            let names = [info.container.as_bytes(), info.name.as_bytes()].map(ByteString::from);
            let mut strings = scratch::list(2)?;
            strings.extend(names);
            return context.set_output(0, Tensor::from_strings([2].into(), strings)?);
        }
        let handle = make_resource_handle::<Table>(&device, &info, scratch::list(0)?);
        context.set_output(0, Tensor::from_handle(handle))
    })
}

/// Returns the table of input 0: a handle, or the two strings of a graph of TensorFlow 1.
fn table(context: &KernelContext<'_>) -> Result<Arc<Table>, KernelError> {
    let input = context.input(0)?;
    if input.dtype() != DType::String {
        return context.resource::<Table>(0);
    }
    let [container, name] = input.as_strings()? else {
        return Err(KernelError::invalid(format!(
            "Lookup table handle must be scalar, but had shape: {}",
            input.shape()
        )));
    };
    let (container, name) = (
        String::from_utf8_lossy(container),
        String::from_utf8_lossy(name),
    );
    Ok(context.resource_manager()?.lookup(&container, &name)?)
}

/// TensorFlow `InitializeTable`.
fn initialize(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| table(context)?.initialize_from(context.input(1)?, context.input(2)?))
}

/// TensorFlow `LookupTableSize`.
fn size(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let n = table(context)?.len();
        context.fill_output(0, &Shape::scalar(), |out: &mut [i64]| {
            out[0] = i64::try_from(n).unwrap_or(i64::MAX);
            Ok(())
        })
    })
}

/// TensorFlow `LookupTableFind`.
fn find(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| table(context)?.find(context, context.input(1)?, context.input(2)?))
}

/// TensorFlow `LookupTableExport`.
fn export(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let table = table(context)?;
    let signature = &table.signature;
    table.export(|keys, values| {
        let rows = |of_row: &Shape| -> Shape {
            let dims = std::iter::once(keys.len()).chain(of_row.dims().iter().copied());
            dims.collect()
        };
        set_items(
            context,
            0,
            signature.key_dtype,
            &rows(&signature.key_shape),
            keys,
        )?;
        set_items(
            context,
            1,
            signature.value_dtype,
            &rows(&signature.value_shape),
            values,
        )
    })
}

/// Sets an output to keys or values.
fn set_items(
    context: &KernelContext<'_>,
    index: usize,
    dtype: DType,
    shape: &Shape,
    items: &[&Item],
) -> Result<(), KernelError> {
    if dtype == DType::String {
        let n = shape.n_elements();
        let mut strings = scratch::list(n)?;
        strings.extend(std::iter::repeat_n(ByteString::default(), n));
        let len = n / items.len().max(1);
        for (places, item) in strings.chunks_exact_mut(len.max(1)).zip(items) {
            read_strings(item, places)?;
        }
        return context.set_output(index, Tensor::from_strings(shape.clone(), strings)?);
    }
    let size = dtype.size_bytes().ok_or(TensorError::NoFixedSize(dtype))?;
    context.fill_output_bytes(index, dtype, shape, |bytes| {
        let len = bytes.len() / items.len().max(1);
        debug_assert!(len.is_multiple_of(size));
        for (place, item) in bytes.chunks_exact_mut(len.max(1)).zip(items) {
            match item.len() == len {
                true => place.copy_from_slice(item),
                false => return Err(foreign_entry()),
            }
        }
        Ok(())
    })
}

/// What a column of a file becomes.
#[derive(Debug, Clone, Copy)]
struct Column {
    index: i64,
    dtype: DType,
}

/// TensorFlow `InitializeTableFromTextFile`.
fn initialize_from_file(node: &KernelConstruction<'_>) -> Made {
    let (key_index, value_index) = (
        int_attr(node, "key_index", None)?,
        int_attr(node, "value_index", None)?,
    );
    let vocab_size = int_attr(node, "vocab_size", Some(-1))?;
    let offset = int_attr(node, "offset", Some(0))?;
    let delimiter = match string_attr(node, "delimiter", "\t")?.as_bytes() {
        &[delimiter] => delimiter,
        _ => return Err(KernelError::invalid("delimiter should be only 1 char")),
    };
    kernel(move |context| {
        let table = table(context)?;
        let signature = &table.signature;
        let name = context.input(1)?;
        let (0, [name]) = (name.shape().rank(), name.as_strings()?) else {
            return Err(KernelError::invalid(format!(
                "filename should be a single string, but got {}",
                name.shape()
            )));
        };
        let name = String::from_utf8_lossy(name);
        let columns = [
            Column {
                index: key_index,
                dtype: signature.key_dtype,
            },
            Column {
                index: value_index,
                dtype: signature.value_dtype,
            },
        ];
        for column in columns {
            column.check()?;
        }
        let remedy = "split the table";
        let bytes = files::read(Path::new(&*name), FILE_BYTES_MAX, remedy)
            .map_err(|error| KernelError::invalid(format!("{name}: {error}")))?;
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let lines = || {
            text.split(|&byte| byte == b'\n')
                .filter(|_| !text.is_empty())
        };
        let skipped = usize::try_from(offset).unwrap_or(0);
        let mut n = lines().count().saturating_sub(skipped);
        if let Ok(expected) = usize::try_from(vocab_size) {
            if n < expected {
                return Err(KernelError::invalid(format!(
                    "Invalid vocab_size in {name}: expected {expected} but got {n}"
                )));
            }
            n = expected;
        }
        let mut lines = lines().skip(skipped);
        table.initialize(n, |index| {
            let line = lines.next().unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                return Err(KernelError::invalid(format!(
                    "Invalid content in {name}: empty line found at position {index}."
                )));
            }
            let [key, value] = columns;
            Ok((
                key.read(line, index, delimiter)?,
                value.read(line, index, delimiter)?,
            ))
        })
    })
}

impl Column {
    /// Checks that the type fits the column.
    fn check(self) -> Result<(), KernelError> {
        match (self.index, self.dtype) {
            (LINE_NUMBER, DType::I64 | DType::I32) | (WHOLE_LINE, DType::String) => Ok(()),
            (LINE_NUMBER, other) => Err(KernelError::invalid(format!(
                "index {LINE_NUMBER} is the number of the line, of type int64, and the table \
                 expects {other}"
            ))),
            (WHOLE_LINE, other) => Err(KernelError::invalid(format!(
                "index {WHOLE_LINE} is the whole line, of type string, and the table expects {other}"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the key or value of a line.
    fn read(self, line: &[u8], number: usize, delimiter: u8) -> Result<Item, KernelError> {
        let index = match self.index {
            LINE_NUMBER => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                return Ok(match self.dtype {
                    DType::I32 => {
                        Item::from(&i32::try_from(number).unwrap_or(i32::MAX).to_le_bytes())
                    }
                    _ => Item::from(&number.to_le_bytes()),
                });
            }
            WHOLE_LINE => return Ok(line.into()),
            index => usize::try_from(index).unwrap_or(usize::MAX),
        };
        let mut tokens = line.split(|&byte| byte == delimiter);
        let token = tokens.nth(index).ok_or_else(|| {
            let n = line.split(|&byte| byte == delimiter).count();
            KernelError::invalid(format!(
                "Invalid number of columns in line {number} ({}): expected at least {} got {n}",
                String::from_utf8_lossy(line),
                index.saturating_add(1)
            ))
        })?;
        let wrong = || {
            KernelError::invalid(format!(
                "Field {} in line {number} is not a valid {}.",
                String::from_utf8_lossy(token),
                self.dtype
            ))
        };
        Ok(match self.dtype {
            DType::String => token.into(),
            DType::I32 => Item::from(
                &strings::integer::<i32>(token)
                    .ok_or_else(wrong)?
                    .to_le_bytes(),
            ),
            DType::I64 => Item::from(
                &strings::integer::<i64>(token)
                    .ok_or_else(wrong)?
                    .to_le_bytes(),
            ),
            DType::F32 => Item::from(
                &strings::float::<f32>(token)
                    .ok_or_else(wrong)?
                    .to_le_bytes(),
            ),
            DType::F64 => Item::from(
                &strings::float::<f64>(token)
                    .ok_or_else(wrong)?
                    .to_le_bytes(),
            ),
            other => {
                return Err(KernelError::Unimplemented(format!(
                    "a column of type {other} in a file"
                )));
            }
        })
    }
}
