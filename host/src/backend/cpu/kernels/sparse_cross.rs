//! Crosses of features: each combination of the features of a row, one of each column.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::scratch;
use crate::kernels::strings::fingerprint;
use crate::kernels::strings::fingerprint_cat;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of features and of crosses.
const TYPES: [DType; 2] = [DType::I64, DType::String];

/// What is between the features of a cross.
const SEPARATOR: &[u8] = b"_X_";

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("SparseCross")
            .with_types("out_type", &TYPES)
            .with_types("internal_type", &TYPES)
            .with_factory(cross),
    );
}

/// The features of a column.
enum Features<'a> {
    Numbers(&'a [i64]),
    Strings(&'a [ByteString]),
}

/// A column with some features in each row.
struct Column<'a> {
    features: Features<'a>,
    /// First feature of each row, and the number of features at the end.
    starts: Vec<usize>,
}

impl<'a> Column<'a> {
    fn n_rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of features in a row.
    fn length(&self, row: usize) -> usize {
        self.starts[row + 1] - self.starts[row]
    }

    fn hash(&self, row: usize, feature: usize) -> u64 {
        let at = self.starts[row] + feature;
        match self.features {
            Features::Numbers(numbers) => numbers[at].cast_unsigned(),
            Features::Strings(strings) => fingerprint(&strings[at]),
        }
    }

    fn append(&self, row: usize, feature: usize, text: &mut Vec<u8>) {
        let at = self.starts[row] + feature;
        match self.features {
            Features::Numbers(numbers) => {
                text.extend_from_slice(numbers[at].to_string().as_bytes())
            }
            Features::Strings(strings) => text.extend_from_slice(&strings[at]),
        }
    }

    fn features(tensor: &'a Tensor) -> Result<Features<'a>, KernelError> {
        Ok(match tensor.dtype() {
            DType::String => Features::Strings(tensor.as_strings()?),
            _ => Features::Numbers(tensor.as_slice::<i64>()?),
        })
    }

    fn dense(tensor: &'a Tensor) -> Result<Self, KernelError> {
        let &[n_rows, width] = tensor.shape().dims() else {
            return Err(KernelError::invalid(format!(
                "Dense inputs should be a matrix but received shape {}",
                tensor.shape()
            )));
        };
        let mut starts = scratch::list(n_rows.saturating_add(1))?;
        starts.extend((0..=n_rows).map(|row| row * width));
        let features = Self::features(tensor)?;
        Ok(Self { features, starts })
    }

    fn sparse(indices: &Tensor, values: &'a Tensor, shape: &Tensor) -> Result<Self, KernelError> {
        let n = values.shape().n_elements();
        if values.shape().rank() != 1 || indices.shape().dims() != [n, 2] {
            return Err(KernelError::invalid(format!(
                "Input indices should be a matrix with 2 columns and a row per value, not {} for \
                 values of shape {}",
                indices.shape(),
                values.shape()
            )));
        }
        let &[n_rows, _] = shape.as_slice::<i64>()? else {
            return Err(KernelError::invalid(format!(
                "shape should imply a 2D tensor, but has shape {}",
                shape.shape()
            )));
        };
        let n_rows = usize::try_from(n_rows)
            .map_err(|_| KernelError::invalid(format!("batch size {n_rows} is negative")))?;
        let mut starts = scratch::list(n_rows.saturating_add(1))?;
        let (rows, _) = indices.as_slice::<i64>()?.as_chunks::<2>();
        for (at, &[row, _]) in rows.iter().enumerate() {
            let row = usize::try_from(row).ok().filter(|&row| row < n_rows);
            let row = row.filter(|&row| row + 1 >= starts.len()).ok_or_else(|| {
                KernelError::invalid(format!(
                    "index {at} is outside of the {n_rows} rows, or before its predecessor"
                ))
            })?;
            starts.resize(row + 1, at);
        }
        starts.resize(n_rows + 1, n);
        let features = Self::features(values)?;
        Ok(Self { features, starts })
    }
}

/// TensorFlow `SparseCross`.
fn cross(node: &KernelConstruction<'_>) -> Made {
    let is_hashed = bool_attr(node, "hashed_output", false)?;
    let n_buckets = int_attr(node, "num_buckets", None)?;
    let n_buckets = u64::try_from(n_buckets).unwrap_or(0);
    let key = int_attr(node, "hash_key", None)?.cast_unsigned();
    let n_sparse = usize::try_from(int_attr(node, "N", None)?).unwrap_or(usize::MAX);
    let n_inputs = node.input_dtypes.len();
    let (Some(first_dense), is_string) = (
        n_sparse.checked_mul(3).filter(|&n| n <= n_inputs),
        type_attr(node, "out_type")? == DType::String,
    ) else {
        return Err(KernelError::invalid(format!(
            "N is {n_sparse}, which needs more than {n_inputs} inputs"
        )));
    };
    if is_hashed == is_string {
        return Err(KernelError::invalid(
            "hashed_output must be true for out_type int64, and false for string",
        ));
    }
    kernel(move |context| {
        let sparse = (0..n_sparse).map(|index| {
            let input = |part: usize| context.input(part * n_sparse + index);
            Column::sparse(input(0)?, input(1)?, input(2)?)
        });
        let dense = (first_dense..n_inputs).map(|index| Column::dense(context.input(index)?));
        let columns: Vec<Column<'_>> = sparse.chain(dense).collect::<Result<_, _>>()?;
        let Some(first) = columns.first() else {
            return Err(KernelError::invalid("there must be at least one input"));
        };
        let n_rows = first.n_rows();
        if let Some(other) = columns.iter().find(|column| column.n_rows() != n_rows) {
            return Err(KernelError::invalid(format!(
                "Expected batch size {n_rows}, got {}",
                other.n_rows()
            )));
        }
        let n_of_row = |row: usize| {
            let lengths = columns.iter().map(|column| column.length(row));
            lengths.fold(1usize, usize::saturating_mul)
        };
        let n_crosses = (0..n_rows).fold(0usize, |n, row| n.saturating_add(n_of_row(row)));
        // The last column varies fastest.
        let each = |visit: &mut dyn FnMut(usize, &[usize])| {
            let mut chosen = vec![0; columns.len()];
            for row in 0..n_rows {
                for index in 0..n_of_row(row) {
                    let mut rest = index;
                    for (slot, column) in chosen.iter_mut().zip(&columns).rev() {
                        *slot = rest % column.length(row);
                        rest /= column.length(row);
                    }
                    visit(row, &chosen);
                }
            }
        };
        if is_hashed {
            let mut values = scratch::list::<i64>(n_crosses)?;
            // Without buckets, so that the result is not negative.
            let modulus = if n_buckets > 0 {
                n_buckets
            } else {
                i64::MAX.cast_unsigned()
            };
            each(&mut |row, chosen| {
                let hash = columns
                    .iter()
                    .zip(chosen)
                    .fold(key, |hash, (column, &feature)| {
                        fingerprint_cat(hash, column.hash(row, feature))
                    });
                values.push((hash % modulus).cast_signed());
            });
            context.fill_output(1, &Shape::new(&[n_crosses]), |out: &mut [i64]| {
                out.copy_from_slice(&values);
                Ok(())
            })?;
        } else {
            let mut values = scratch::list::<ByteString>(n_crosses)?;
            let mut text = Vec::new();
            each(&mut |row, chosen| {
                text.clear();
                for (index, (column, &feature)) in columns.iter().zip(chosen).enumerate() {
                    if index > 0 {
                        text.extend_from_slice(SEPARATOR);
                    }
                    column.append(row, feature, &mut text);
                }
                values.push(text.as_slice().into());
            });
            context.set_output(1, Tensor::from_strings(Shape::new(&[n_crosses]), values)?)?;
        }
        set_places(context, n_rows, n_crosses, n_of_row)
    })
}

/// Sets the places and the shape of a sparse tensor with so many values in each row.
fn set_places(
    context: &KernelContext<'_>,
    n_rows: usize,
    n: usize,
    n_of_row: impl Fn(usize) -> usize,
) -> Result<(), KernelError> {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    context.fill_output(0, &Shape::new(&[n, 2]), |out: &mut [i64]| {
        let places = (0..n_rows).flat_map(|row| (0..n_of_row(row)).map(move |at| [row, at]));
        let (slots, _) = out.as_chunks_mut::<2>();
        for (slot, place) in slots.iter_mut().zip(places) {
            *slot = place.map(number);
        }
        Ok(())
    })?;
    let widest = (0..n_rows).map(n_of_row).max().unwrap_or(0);
    context.fill_output(2, &Shape::new(&[2]), |out: &mut [i64]| {
        out.copy_from_slice(&[number(n_rows), number(widest)]);
        Ok(())
    })
}
