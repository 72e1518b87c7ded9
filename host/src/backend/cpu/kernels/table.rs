//! Lookup tables: the resources.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

use crate::device::DeviceContext;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::Resource;
use crate::kernels::Threads;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Memory of an entry besides its bytes.
const ENTRY_BYTES: u64 = 64;

/// Lookups that take about 20 us on one thread.
const LOOKUPS_GRAIN: usize = 512;

/// What an op may do with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableKind {
    /// It is initialized once and does not change any more (TensorFlow `HashTable`).
    Fixed,
    /// It has entries from the start, and they may change (TensorFlow `MutableHashTable`).
    Mutable,
}

/// One key or value: little-endian elements of fixed size, one string, or several strings, each
/// after its length.
pub(super) type Item = ByteString;

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
    entries: RwLock<Entries>,
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
            entries: RwLock::new(entries),
        }
    }

    /// Ignores poisoning: each change of an entry is complete.
    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::read`].
    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.read().by_key.len()
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

    fn check_reserved(&self, key: &[u8]) -> Result<(), KernelError> {
        let mut reserved = self.reserved.iter();
        match reserved.find(|(reserved, _)| **reserved == *key) {
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
        let mut entries = self.write();
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
        let (keys, values) = (Items::new(keys, key_len)?, Items::new(values, value_len)?);
        self.initialize(n, |index| Ok((keys.item(index), values.item(index))))
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
        let (keys, values) = (Items::new(keys, key_len)?, Items::new(values, value_len)?);
        let mut entries = self.write();
        if clears {
            entries.by_key.clear();
        }
        entries.grow(n)?;
        for index in 0..n {
            let key = keys.item(index);
            self.check_reserved(&key)?;
            entries.by_key.insert(key, values.item(index));
        }
        Ok(())
    }

    /// Removes entries; keys that are not there are ignored.
    pub(super) fn remove(&self, keys: &Tensor) -> Result<(), KernelError> {
        self.check_mutable("Remove")?;
        let n = self.check(keys, None)?;
        let (key_len, _) = self.item_lens();
        let keys = Items::new(keys, key_len)?;
        let mut entries = self.write();
        for index in 0..n {
            let key = keys.bytes(index);
            self.check_reserved(&key)?;
            entries.by_key.remove(&*key);
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

    /// Sets output 0 to the values of keys; a key without a value gets its default.
    pub(super) fn find(
        &self,
        context: &KernelContext<'_>,
        keys: &Tensor,
        defaults: &Tensor,
    ) -> Result<(), KernelError> {
        self.check(keys, None)?;
        let signature = &self.signature;
        let dtype = signature.value_dtype;
        if defaults.dtype() != dtype {
            return Err(KernelError::invalid(format!(
                "Default value must be type {dtype} but got {}",
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
        let threads = Threads::of(context);
        let keys = Items::new(keys, key_len)?;
        // Where the default of a key starts. Dense tables, which alone reserve keys, take the first
        // one for all keys, as in TensorFlow.
        let takes_first = has_one_default || !self.reserved.is_empty();
        let default = |row: usize, len: usize| if takes_first { 0 } else { row * len };
        if dtype == DType::String {
            let defaults = defaults.as_strings()?;
            let mut strings = scratch::list(shape.n_elements())?;
            strings.extend(std::iter::repeat_n(
                ByteString::default(),
                shape.n_elements(),
            ));
            self.find_rows(
                threads,
                &keys,
                value_len,
                &mut strings,
                |row, value, place| {
                    match value {
                        Some(value) => read_strings(value, place)?,
                        None => place
                            .clone_from_slice(&defaults[default(row, value_len)..][..value_len]),
                    }
                    Ok(())
                },
            )?;
            return context.set_output(0, Tensor::from_strings(shape, strings)?);
        }
        let defaults = defaults.as_bytes()?;
        context.fill_output_bytes(0, dtype, &shape, |bytes| {
            let len = bytes.len() / keys.n.max(1);
            // Copies of a length that the compiler knows are two instructions.
            match len {
                4 => self.find_chunks::<4>(threads, &keys, bytes, defaults, takes_first),
                8 => self.find_chunks::<8>(threads, &keys, bytes, defaults, takes_first),
                _ => self.find_rows(threads, &keys, len, bytes, |row, value, place| {
                    match value {
                        Some(value) if value.len() == len => place.copy_from_slice(value),
                        Some(_) => return Err(foreign_entry()),
                        None => place.copy_from_slice(&defaults[default(row, len)..][..len]),
                    }
                    Ok(())
                }),
            }
        })
    }

    /// Writes the values of keys, `N` bytes each, to `out`; a key without a value gets its default,
    /// or the first one.
    fn find_chunks<const N: usize>(
        &self,
        threads: Threads<'_>,
        keys: &Items<'_>,
        out: &mut [u8],
        defaults: &[u8],
        takes_first: bool,
    ) -> Result<(), KernelError> {
        let places = out.as_chunks_mut::<N>().0;
        let defaults = defaults.as_chunks::<N>().0;
        self.find_rows(threads, keys, 1, places, |row, value, place| {
            let value = match value {
                Some(value) => <&[u8; N]>::try_from(&**value).map_err(|_| foreign_entry())?,
                None => &defaults[if takes_first { 0 } else { row }],
            };
            place.fill(*value);
            Ok(())
        })
    }

    /// Looks up each key on several threads, and calls `put(row, value, place)` with its row, its
    /// value if it has one, and the `len` elements of `out` for it.
    fn find_rows<T: Send>(
        &self,
        threads: Threads<'_>,
        keys: &Items<'_>,
        len: usize,
        out: &mut [T],
        put: impl Fn(usize, Option<&Item>, &mut [T]) -> Result<(), KernelError> + Sync,
    ) -> Result<(), KernelError> {
        let entries = &*self.read();
        if !entries.is_initialized {
            return Err(KernelError::invalid("Table not initialized."));
        }
        if !self.reserved.is_empty() {
            for row in 0..keys.n {
                self.check_reserved(&keys.bytes(row))?;
            }
        }
        let len = len.max(1);
        let put = &put;
        threads.try_fill(out, len, LOOKUPS_GRAIN * len, |start, part| {
            let rows = (start / len..).zip(part.chunks_exact_mut(len));
            // Keys of a length that the compiler knows are hashed and compared in half the time.
            match (&keys.elements, keys.len) {
                (Elements::Bytes(bytes), 4) => {
                    let keys = bytes.as_chunks::<4>().0;
                    entries.find_each(rows, |row| &keys[row], put)
                }
                (Elements::Bytes(bytes), 8) => {
                    let keys = bytes.as_chunks::<8>().0;
                    entries.find_each(rows, |row| &keys[row], put)
                }
                _ => entries.find_each(rows, |row| keys.bytes(row), put),
            }
        })
    }

    /// Calls `put` with all keys and values, sorted by the bytes of the keys.
    pub(super) fn export(
        &self,
        put: impl FnOnce(&[&Item], &[&Item]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let entries = self.read();
        let n = entries.by_key.len();
        let mut pairs = scratch::list::<(&Item, &Item)>(n)?;
        pairs.extend(&entries.by_key);
        pairs.sort_unstable();
        let (mut keys, mut values) = (scratch::list(n)?, scratch::list(n)?);
        for (key, value) in pairs {
            keys.push(key);
            values.push(value);
        }
        put(&keys, &values)
    }
}

impl Entries {
    /// Looks up the key of each row.
    fn find_each<'a, K: AsRef<[u8]>, T: 'a>(
        &self,
        rows: impl Iterator<Item = (usize, &'a mut [T])>,
        key: impl Fn(usize) -> K,
        put: &impl Fn(usize, Option<&Item>, &mut [T]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        for (row, place) in rows {
            put(row, self.by_key.get(key(row).as_ref()), place)?;
        }
        Ok(())
    }

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
        let entries = self.read();
        let bytes = |(key, value): (&Item, &Item)| (key.len() + value.len()) as u64 + ENTRY_BYTES;
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
            entries: RwLock::new(self.read().clone()),
        };
        Some(Ok(Arc::new(moved)))
    }
}

/// Returns strings as an item.
fn bytes_of_strings(strings: &[ByteString]) -> Cow<'_, [u8]> {
    if let [string] = strings {
        return Cow::Borrowed(string);
    }
    let with_lens = strings
        .iter()
        .flat_map(|string| [&(string.len() as u64).to_le_bytes()[..], string].concat());
    Cow::Owned(with_lens.collect())
}

/// Reads the strings of an item, of which there are as many as places.
pub(super) fn read_strings(item: &Item, places: &mut [ByteString]) -> Result<(), KernelError> {
    if let [place] = places {
        place.clone_from(item);
        return Ok(());
    }
    let mut rest = &**item;
    for place in places {
        let (len, after) = rest.split_first_chunk::<8>().ok_or_else(foreign_entry)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (string, after) = after.split_at_checked(len).ok_or_else(foreign_entry)?;
        (*place, rest) = (string.into(), after);
    }
    match rest {
        [] => Ok(()),
        _ => Err(foreign_entry()),
    }
}

/// The elements of a tensor in rows of one length: keys or values.
struct Items<'a> {
    elements: Elements<'a>,
    /// Length of a row: in bytes, or in strings.
    len: usize,
    /// Number of rows.
    n: usize,
}

enum Elements<'a> {
    Bytes(&'a [u8]),
    Strings(&'a [ByteString]),
}

impl<'a> Items<'a> {
    /// Returns the rows of `len` elements.
    fn new(tensor: &'a Tensor, len: usize) -> Result<Self, KernelError> {
        let dtype = tensor.dtype();
        let n = tensor.shape().n_elements() / len.max(1);
        if dtype == DType::String {
            let elements = Elements::Strings(tensor.as_strings()?);
            return Ok(Self { elements, len, n });
        }
        let size = dtype.size_bytes().ok_or(TensorError::NoFixedSize(dtype))?;
        Ok(Self {
            elements: Elements::Bytes(tensor.as_bytes()?),
            len: len * size,
            n,
        })
    }

    /// Returns the bytes of a row as an item.
    fn bytes(&self, row: usize) -> Cow<'a, [u8]> {
        let range = row * self.len..(row + 1) * self.len;
        match self.elements {
            Elements::Bytes(bytes) => Cow::Borrowed(&bytes[range]),
            Elements::Strings(strings) => bytes_of_strings(&strings[range]),
        }
    }

    /// Returns a row. A string shares its bytes with the tensor.
    fn item(&self, row: usize) -> Item {
        match self.elements {
            Elements::Strings(strings) if self.len == 1 => strings[row].clone(),
            _ => (&*self.bytes(row)).into(),
        }
    }
}

/// Returns the elements `index * len..(index + 1) * len` of a tensor.
pub(super) fn item(tensor: &Tensor, index: usize, len: usize) -> Result<Item, KernelError> {
    Ok(Items::new(tensor, len)?.item(index))
}

/// Returns the error of an entry whose type is not that of its table.
pub(super) fn foreign_entry() -> KernelError {
    KernelError::invalid("a table has entries of another type")
}

/// Returns the shape of rows whose elements have this shape.
fn joined(rows: &Shape, element: &Shape) -> Shape {
    let dims = rows.dims().iter().chain(element.dims());
    dims.copied().collect()
}

/// Shows a key or value in an error.
fn shown(item: &Item, dtype: DType) -> String {
    match (dtype, item.as_chunks::<4>().0, item.as_chunks::<8>().0) {
        (DType::String, ..) => String::from_utf8_lossy(item).into_owned(),
        (DType::I32, [bytes], _) => i32::from_le_bytes(*bytes).to_string(),
        (DType::F32, [bytes], _) => f32::from_le_bytes(*bytes).to_string(),
        (DType::I64, _, [bytes]) => i64::from_le_bytes(*bytes).to_string(),
        (DType::F64, _, [bytes]) => f64::from_le_bytes(*bytes).to_string(),
        _ => format!("{:?}", &**item),
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
