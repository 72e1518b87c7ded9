//! Matrix views of slices. Shape and strides are checked once, here; every matmul relies on it.

use crate::device::KernelError;

/// A read-only matrix with any strides.
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

/// A writable matrix: rows are contiguous and do not overlap.
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
    /// Views `data` as a row-major matrix.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if it is too short.
    pub fn row_major(data: &'a [T], rows: usize, columns: usize) -> Result<Self, KernelError> {
        Self::strided(data, rows, columns, columns, 1)
    }

    /// Views `data` as a matrix with these strides, in elements.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an element would be out of bounds.
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

    /// Returns the transposed view of the same elements.
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

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the distance of two rows, in elements.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Returns the distance of two columns, in elements.
    pub fn column_stride(&self) -> usize {
        self.column_stride
    }

    /// Returns the elements that the strides cover.
    pub fn data(&self) -> &'a [T] {
        self.data
    }
}

impl<T: Copy> MatrixView<'_, T> {
    /// Returns the element in row `i`, column `j`.
    pub fn at(&self, i: usize, j: usize) -> T {
        self.data[i * self.row_stride + j * self.column_stride]
    }
}

impl<'a, T> MatrixMut<'a, T> {
    /// Views `data` as a matrix whose rows start `row_stride` elements apart.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an element would be out of bounds, or rows would
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

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the distance of two rows, in elements.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Returns row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.row_stride..][..self.columns]
    }

    /// Returns the elements that contain the rows.
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
    fn a_matrix_beyond_the_end_of_its_data_is_rejected() {
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
