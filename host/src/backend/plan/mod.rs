//! Plans of kernels: what the attributes of a node, the shapes of its inputs and their values in
//! host memory determine about one execution.
//!
//! A plan in this sense fixes sizes, strides and checked attributes before any element is
//! computed, like the plans of FFTW, cuFFT and cuTENSOR. ([`crate::plan`] is the plan of a whole
//! run.) Backends share these functions, so a node has the same result shape and the same errors
//! on each device. A backend executes a plan: CPU kernels call its `apply`, devices that compile
//! programs pass its numbers to a function.
//!
//! One file per family of ops, with attributes first and plans after them. The types of most plans
//! are those of [`crate::kernels`], which also executes them.

pub(in crate::backend) mod attr;
pub(in crate::backend) mod concat;
pub(in crate::backend) mod conv;
pub(in crate::backend) mod fill;
pub(in crate::backend) mod gather;
pub(in crate::backend) mod image;
pub(in crate::backend) mod matmul;
pub(in crate::backend) mod nn;
pub(in crate::backend) mod norm;
pub(in crate::backend) mod pack;
pub(in crate::backend) mod pad;
pub(in crate::backend) mod pool;
pub(in crate::backend) mod reduce;
pub(in crate::backend) mod scatter;
pub(in crate::backend) mod select;
pub(in crate::backend) mod slice;
pub(in crate::backend) mod value;
pub(in crate::backend) mod volume;
pub(in crate::backend) mod window;

/// Returns the number of elements of these dimensions. Saturates only if another dimension is 0.
pub(in crate::backend) fn product(dims: &[usize]) -> usize {
    dims.iter()
        .fold(1usize, |product, &dim| product.saturating_mul(dim))
}
