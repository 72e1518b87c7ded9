//! Views of slices as matrices: the shape and strides are checked once, here, and trusted by every
//! product.

use crate::device::KernelError;

/// A matrix to read, with any strides.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a, T> {
    /// Invariant: every index `i * row_stride + j * column_stride` with `i < rows`, `j < columns`
    /// is in `data`.
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A matrix to write: rows are contiguous, and apart from each other.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    /// Invariant: `columns <= row_stride`, and every index `i * row_stride + j` with `i < rows`,
    /// `j < columns` is in `data`.
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a, T> MatrixView<'a, T> {
    /// `data` as a row-major matrix.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if it is too short.
    pub fn row_major(data: &'a [T], rows: usize, columns: usize) -> Result<Self, KernelError> {
        Self::strided(data, rows, columns, columns, 1)
    }

    /// `data` as a matrix with these strides, in elements.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an element would lie beyond the end.
    pub fn strided(
        data: &'a [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
        column_stride: usize,
    ) -> Result<Self, KernelError> {
        check_extent(data.len(), rows, columns, row_stride, column_stride)?;
        Ok(Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride,
        })
    }

    /// The same elements with rows and columns exchanged.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements from one column to the next.
    pub fn column_stride(&self) -> usize {
        self.column_stride
    }

    /// The elements that the strides walk over.
    pub fn data(&self) -> &'a [T] {
        self.data
    }
}

impl<T: Copy> MatrixView<'_, T> {
    /// The element in row `i`, column `j`.
    pub fn at(&self, i: usize, j: usize) -> T {
        self.data[i * self.row_stride + j * self.column_stride]
    }
}

impl<'a, T> MatrixMut<'a, T> {
    /// `data` as a matrix whose rows start `row_stride` elements apart.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an element would lie beyond the end, or rows would
    /// overlap.
    pub fn new(
        data: &'a mut [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Result<Self, KernelError> {
        check_extent(data.len(), rows, columns, row_stride, 1)?;
        if row_stride < columns {
            return Err(KernelError::invalid(format!(
                "rows of {columns} elements that start {row_stride} apart overlap"
            )));
        }
        Ok(Self {
            data,
            rows,
            columns,
            row_stride,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.row_stride..][..self.columns]
    }

    /// The elements that the rows lie in.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }
}

fn check_extent(
    len: usize,
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
) -> Result<(), KernelError> {
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .zip((columns - 1).checked_mul(column_stride))
        .and_then(|(row, column)| row.checked_add(column));
    if last.is_some_and(|last| last < len) {
        Ok(())
    } else {
        Err(KernelError::invalid(format!(
            "a matrix of {rows} x {columns} with strides {row_stride} and {column_stride} does not lie in {len} elements"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_that_fits_is_granted_and_one_beyond_the_end_refused() {
        let data = [0.0f32; 12];
        assert!(MatrixView::row_major(&data, 3, 4).is_ok());
        assert!(MatrixView::strided(&data, 4, 3, 1, 4).is_ok());
        assert!(MatrixView::row_major(&data, 0, 100).is_ok());
        let error = MatrixView::row_major(&data, 4, 4).unwrap_err();
        assert!(error.to_string().contains("4 x 4"), "{error}");
        assert!(MatrixView::strided(&data, 2, 2, usize::MAX, 2).is_err());
    }

    #[test]
    fn rows_to_write_may_not_overlap() {
        let mut data = [0.0f32; 12];
        assert!(MatrixMut::new(&mut data, 3, 2, 4).is_ok());
        assert!(MatrixMut::new(&mut data, 3, 4, 2).is_err());
    }
}
