//! Lookup tables: the resources.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use smallvec::SmallVec;

use crate::device::DeviceContext;
use crate::device::KernelError;
use crate::device::Resource;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Memory of an entry besides its bytes.
const ENTRY_BYTES: u64 = 64;

/// What an op may do with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableKind {
    /// It is initialized once and does not change any more (TensorFlow `HashTable`).
    Fixed,
    /// It has entries from the start, and they may change (TensorFlow `MutableHashTable`).
    Mutable,
}

/// One key or value: elements of fixed size as bytes, or strings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Item {
    /// Little-endian elements.
    Bytes(SmallVec<[u8; 16]>),
    /// Strings.
    Strings(SmallVec<[Arc<[u8]>; 1]>),
}

/// The types and shapes of the entries of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Signature {
    pub(super) key_dtype: DType,
    pub(super) value_dtype: DType,
    /// A scalar, or a vector for dense tables.
    pub(super) key_shape: Shape,
    pub(super) value_shape: Shape,
}

/// A table (TensorFlow `LookupInterface`).
#[derive(Debug)]
pub(super) struct Table {
    pub(super) kind: TableKind,
    pub(super) signature: Signature,
    /// Keys that must not be used: those of empty and deleted places of a dense table, with their
    /// names.
    reserved: SmallVec<[(Item, &'static str); 2]>,
    entries: Mutex<Entries>,
}

#[derive(Debug, Clone, Default)]
struct Entries {
    is_initialized: bool,
    by_key: HashMap<Item, Item>,
}

impl Table {
    pub(super) fn new(
        kind: TableKind,
        signature: Signature,
        reserved: SmallVec<[(Item, &'static str); 2]>,
    ) -> Self {
        let entries = Entries {
            is_initialized: kind == TableKind::Mutable,
            by_key: HashMap::new(),
        };
        Self {
            kind,
            signature,
            reserved,
            entries: Mutex::new(entries),
        }
    }

    /// Ignores poisoning: each change of an entry is complete.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Returns the shape of keys without the axes of one key.
    fn rows(&self, keys: &Tensor) -> Result<Shape, KernelError> {
        let (key_shape, dims) = (&self.signature.key_shape, keys.shape().dims());
        match dims.strip_suffix(key_shape.dims()) {
            Some(rows) => Ok(Shape::new(rows)),
            None => Err(KernelError::invalid(format!(
                "Input key shape must end with the table's key shape {key_shape}, got {}",
                keys.shape()
            ))),
        }
    }

    /// Checks the types and shapes of keys and values, and returns the number of entries.
    fn check(&self, keys: &Tensor, values: Option<&Tensor>) -> Result<usize, KernelError> {
        self.check_key_dtype(keys)?;
        let rows = self.rows(keys)?;
        if let Some(values) = values {
            if values.dtype() != self.signature.value_dtype {
                return Err(KernelError::invalid(format!(
                    "Value must be type {} but got {}",
                    self.signature.value_dtype,
                    values.dtype()
                )));
            }
            let expected = joined(&rows, &self.signature.value_shape);
            if *values.shape() != expected {
                return Err(KernelError::invalid(format!(
                    "Expected shape {expected} for value, got {}",
                    values.shape()
                )));
            }
        }
        Ok(rows.n_elements())
    }

    fn check_key_dtype(&self, keys: &Tensor) -> Result<(), KernelError> {
        if keys.dtype() == self.signature.key_dtype {
            return Ok(());
        }
        Err(KernelError::invalid(format!(
            "Key must be type {} but got {}",
            self.signature.key_dtype,
            keys.dtype()
        )))
    }

    fn check_reserved(&self, key: &Item) -> Result<(), KernelError> {
        match self.reserved.iter().find(|(reserved, _)| reserved == key) {
            Some((_, name)) => Err(KernelError::invalid(format!(
                "Using the {name} as a table key is not allowed"
            ))),
            None => Ok(()),
        }
    }

    fn item_lens(&self) -> (usize, usize) {
        let signature = &self.signature;
        (
            signature.key_shape.n_elements(),
            signature.value_shape.n_elements(),
        )
    }

    /// Fills a table that must not change later. Doing this again with as many entries does
    /// nothing.
    pub(super) fn initialize(
        &self,
        n: usize,
        mut entry: impl FnMut(usize) -> Result<(Item, Item), KernelError>,
    ) -> Result<(), KernelError> {
        if self.kind != TableKind::Fixed {
            return Err(KernelError::invalid(
                "the table cannot be initialized: it is mutable; insert the entries instead",
            ));
        }
        let mut entries = self.lock();
        if entries.is_initialized {
            return match entries.by_key.len() == n {
                true => Ok(()),
                false => Err(KernelError::invalid(
                    "Table was already initialized with different data.",
                )),
            };
        }
        entries.grow(n)?;
        for index in 0..n {
            let (key, value) = entry(index)?;
            match entries.by_key.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(place) if *place.get() != value => {
                    return Err(KernelError::invalid(format!(
                        "HashTable has different value for same key. Key {} has {} and trying to \
                         add value {}",
                        shown(place.key(), self.signature.key_dtype),
                        shown(place.get(), self.signature.value_dtype),
                        shown(&value, self.signature.value_dtype)
                    )));
                }
                Entry::Occupied(_) => {}
            }
        }
        entries.is_initialized = true;
        Ok(())
    }

    /// Fills a table with the entries of two tensors.
    pub(super) fn initialize_from(
        &self,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<(), KernelError> {
        for (tensor, what) in [(keys, "Keys"), (values, "Values")] {
            if tensor.shape().rank() != 1 {
                return Err(KernelError::invalid(format!(
                    "{what} must be a vector, but received shape {}",
                    tensor.shape()
                )));
            }
        }
        if keys.shape() != values.shape() {
            return Err(KernelError::invalid(format!(
                "Keys and values must have the same size {} vs {}",
                keys.shape().n_elements(),
                values.shape().n_elements()
            )));
        }
        let n = self.check(keys, Some(values))?;
        if n == 0 {
            return Err(KernelError::invalid(
                "keys and values cannot be empty tensors.",
            ));
        }
        let (key_len, value_len) = self.item_lens();
        self.initialize(n, |index| {
            Ok((item(keys, index, key_len)?, item(values, index, value_len)?))
        })
    }

    /// Adds and replaces entries; `clears` removes all others. A table that is filled once is
    /// initialised by that: so do the initialisers of SavedModels.
    pub(super) fn insert(
        &self,
        keys: &Tensor,
        values: &Tensor,
        clears: bool,
    ) -> Result<(), KernelError> {
        if clears && self.kind == TableKind::Fixed {
            return self.initialize_from(keys, values);
        }
        self.check_mutable("Insert")?;
        let n = self.check(keys, Some(values))?;
        let (key_len, value_len) = self.item_lens();
        let mut entries = self.lock();
        if clears {
            entries.by_key.clear();
        }
        entries.grow(n)?;
        for index in 0..n {
            let key = item(keys, index, key_len)?;
            self.check_reserved(&key)?;
            entries.by_key.insert(key, item(values, index, value_len)?);
        }
        Ok(())
    }

    /// Removes entries; keys that are not there are ignored.
    pub(super) fn remove(&self, keys: &Tensor) -> Result<(), KernelError> {
        self.check_mutable("Remove")?;
        let n = self.check(keys, None)?;
        let (key_len, _) = self.item_lens();
        let mut entries = self.lock();
        for index in 0..n {
            let key = item(keys, index, key_len)?;
            self.check_reserved(&key)?;
            entries.by_key.remove(&key);
        }
        Ok(())
    }

    fn check_mutable(&self, what: &str) -> Result<(), KernelError> {
        match self.kind {
            TableKind::Mutable => Ok(()),
            TableKind::Fixed => Err(KernelError::Unimplemented(format!(
                "{what} not supported by InitializableLookupTable implementations"
            ))),
        }
    }

    /// Calls `put` with the values of keys: the shape of all of them, and per key its value or the
    /// place of its default in `defaults`.
    pub(super) fn find(
        &self,
        keys: &Tensor,
        defaults: &Tensor,
        put: impl FnOnce(&Shape, &[Item]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let n = self.check(keys, None)?;
        let signature = &self.signature;
        if defaults.dtype() != signature.value_dtype {
            return Err(KernelError::invalid(format!(
                "Default value must be type {} but got {}",
                signature.value_dtype,
                defaults.dtype()
            )));
        }
        let shape = joined(&self.rows(keys)?, &signature.value_shape);
        let has_one_default = *defaults.shape() == signature.value_shape;
        if !has_one_default && (self.kind == TableKind::Fixed || *defaults.shape() != shape) {
            return Err(KernelError::invalid(format!(
                "Expected shape {} for default value, got {}",
                signature.value_shape,
                defaults.shape()
            )));
        }
        let (key_len, value_len) = self.item_lens();
        let mut found = scratch::list::<Item>(n)?;
        {
            let entries = self.lock();
            if !entries.is_initialized {
                return Err(KernelError::invalid("Table not initialized."));
            }
            for index in 0..n {
                let key = item(keys, index, key_len)?;
                self.check_reserved(&key)?;
                found.push(match entries.by_key.get(&key) {
                    Some(value) => value.clone(),
                    None => item(defaults, if has_one_default { 0 } else { index }, value_len)?,
                });
            }
        }
        put(&shape, &found)
    }

    /// Calls `put` with all keys and values, sorted by the bytes of the keys.
    pub(super) fn export(
        &self,
        put: impl FnOnce(&[Item], &[Item]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let entries = self.lock();
        let n = entries.by_key.len();
        let mut pairs = scratch::list::<(&Item, &Item)>(n)?;
        pairs.extend(&entries.by_key);
        pairs.sort_unstable_by_key(|(key, _)| *key);
        let (mut keys, mut values) = (scratch::list::<Item>(n)?, scratch::list::<Item>(n)?);
        for (key, value) in pairs {
            keys.push(key.clone());
            values.push(value.clone());
        }
        drop(entries);
        put(&keys, &values)
    }
}

impl Entries {
    fn grow(&mut self, n: usize) -> Result<(), KernelError> {
        self.by_key
            .try_reserve(n)
            .map_err(|_| scratch::out_of_memory(n.saturating_mul(size_of::<(Item, Item)>())))
    }
}

impl Resource for Table {
    fn describe(&self) -> String {
        let signature = &self.signature;
        format!(
            "table of {} entries, {} to {}",
            self.len(),
            signature.key_dtype,
            signature.value_dtype
        )
    }

    fn memory_bytes(&self) -> u64 {
        let entries = self.lock();
        let bytes =
            |(key, value): (&Item, &Item)| key.len_bytes() + value.len_bytes() + ENTRY_BYTES;
        entries.by_key.iter().map(bytes).sum()
    }

    fn moved(
        &self,
        _: &dyn DeviceContext,
        _: &dyn DeviceContext,
    ) -> Option<Result<Arc<dyn Resource>, KernelError>> {
        // Tables are in the host's memory.
        let moved = Self {
            kind: self.kind,
            signature: self.signature.clone(),
            reserved: self.reserved.clone(),
            entries: Mutex::new(self.lock().clone()),
        };
        Some(Ok(Arc::new(moved)))
    }
}

impl Item {
    fn len_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Strings(strings) => strings.iter().map(|string| string.len() as u64).sum(),
        }
    }
}

/// Returns the elements `index * len..(index + 1) * len` of a tensor.
pub(super) fn item(tensor: &Tensor, index: usize, len: usize) -> Result<Item, KernelError> {
    let missing = || KernelError::invalid("a table entry lies outside of its tensor");
    let range = index * len..(index + 1) * len;
    if tensor.dtype() == DType::String {
        let strings = tensor.as_strings()?.get(range).ok_or_else(missing)?;
        return Ok(Item::Strings(strings.iter().cloned().collect()));
    }
    let size = tensor
        .dtype()
        .size_bytes()
        .ok_or(TensorError::NoFixedSize(tensor.dtype()))?;
    let bytes = tensor.as_bytes()?;
    let bytes = bytes
        .get(range.start * size..range.end * size)
        .ok_or_else(missing)?;
    Ok(Item::Bytes(SmallVec::from_slice(bytes)))
}

/// Returns the shape of rows whose elements have this shape.
fn joined(rows: &Shape, element: &Shape) -> Shape {
    let dims = rows.dims().iter().chain(element.dims());
    dims.copied().collect()
}

/// Shows a key or value in an error.
fn shown(item: &Item, dtype: DType) -> String {
    match item {
        Item::Strings(strings) => {
            let strings = strings.iter().map(|string| String::from_utf8_lossy(string));
            strings.collect::<SmallVec<[_; 1]>>().join(" ")
        }
        Item::Bytes(bytes) => match (dtype, bytes.as_chunks::<4>().0, bytes.as_chunks::<8>().0) {
            (DType::I32, [bytes], _) => i32::from_le_bytes(*bytes).to_string(),
            (DType::F32, [bytes], _) => f32::from_le_bytes(*bytes).to_string(),
            (DType::I64, _, [bytes]) => i64::from_le_bytes(*bytes).to_string(),
            (DType::F64, _, [bytes]) => f64::from_le_bytes(*bytes).to_string(),
            _ => format!("{bytes:?}"),
        },
    }
}

/// Returns a shape of an attribute, all of which must be known.
pub(super) fn known_shape(shape: Option<&PartialShape>) -> Result<Shape, KernelError> {
    let shape = shape.cloned().unwrap_or_else(PartialShape::scalar);
    shape
        .to_shape()
        .filter(|shape| shape.rank() <= 1)
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "the value of a table must be a scalar or a vector of known size, got shape {shape}"
            ))
        })
}
