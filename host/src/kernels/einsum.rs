//! Sums of products over labelled dimensions (TensorFlow `Einsum`, one or two operands).
//!
//! Labels that only one operand has and the result lacks are summed first, as TensorFlow does. The
//! rest is one batched matmul: a label of both operands and the result is a batch dimension, a
//! label of one operand and the result is a row or column dimension, and a label of both operands
//! that the result lacks is summed over. An operand repeats along labels that it lacks.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::MatmulElement;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::batch::BatchMatmul;
use crate::kernels::batch::Operand;
use crate::kernels::reduce::Reduction;
use crate::kernels::reducer::Sum;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::Shape;

/// An equation such as `bhqd,hdk->bqk`; `...` stands for dimensions that are broadcast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equation {
    inputs: Vec<Term>,
    output: Term,
}

/// Labels before and after an ellipsis; all labels are `before` if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    before: Vec<u8>,
    after: Vec<u8>,
    has_ellipsis: bool,
}

/// A label: a letter, or the position of a broadcast dimension counted from the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Named(u8),
    Broadcast(usize),
}

/// A dimension of an operand; the stride is in elements.
#[derive(Debug, Clone, Copy)]
struct Axis {
    label: Label,
    size: usize,
    stride: usize,
}

type Axes = SmallVec<[Axis; 6]>;

impl Equation {
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the equation is malformed, has no operand or more than
    /// two, or a result label that no operand has.
    pub fn parse(text: &str) -> Result<Self, KernelError> {
        let error = |what: &str| KernelError::invalid(format!("{what} in einsum equation: {text}"));
        let compact = text.replace(' ', "");
        let Some((left, right)) = compact.split_once("->") else {
            return Err(error("expecting exactly one '->'"));
        };
        let term = |text: &str| -> Result<Term, KernelError> {
            let (before, after) = text.split_once("...").unwrap_or((text, ""));
            let labels = before.bytes().chain(after.bytes());
            for label in labels {
                if !label.is_ascii_alphabetic() {
                    return Err(error("labels must be letters, with one `...` at most,"));
                }
            }
            Ok(Term {
                before: before.into(),
                after: after.into(),
                has_ellipsis: text.contains("..."),
            })
        };
        let inputs = left.split(',').map(term).collect::<Result<Vec<_>, _>>()?;
        let output = term(right)?;
        if inputs.len() > 2 {
            return Err(error("expecting 1 or 2 input subscripts"));
        }
        let known = |label: &u8| {
            inputs
                .iter()
                .any(|input| input.before.contains(label) || input.after.contains(label))
        };
        if !output.before.iter().chain(&output.after).all(known) {
            return Err(error("a label of the result is not of an operand"));
        }
        Ok(Self { inputs, output })
    }

    /// Returns whether an operand may have labels that occur nowhere else.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn has_sums(&self) -> bool {
        let has =
            |term: &Term, label: u8| term.before.contains(&label) || term.after.contains(&label);
        self.inputs.iter().enumerate().any(|(index, input)| {
            let mut labels = input.before.iter().chain(&input.after);
            let others = || {
                self.inputs
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != index)
            };
            labels.any(|&label| {
                !has(&self.output, label) && !others().any(|(_, other)| has(other, label))
            })
        })
    }

    /// Resolves the equation for operands of these shapes.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if a shape does not match the equation or the other shape.
    pub fn plan(&self, shapes: &[&Shape]) -> Result<Einsum, KernelError> {
        if shapes.len() != self.inputs.len() {
            return Err(KernelError::invalid(format!(
                "expected {} inputs but got: {}",
                self.inputs.len(),
                shapes.len()
            )));
        }
        let mut operands: SmallVec<[Axes; 2]> = SmallVec::new();
        let mut sizes: SmallVec<[(Label, usize); 8]> = SmallVec::new();
        let mut n_broadcast = 0;
        for (index, (term, shape)) in self.inputs.iter().zip(shapes).enumerate() {
            let n_named = term.before.len() + term.after.len();
            let fits = if term.has_ellipsis {
                shape.rank() >= n_named
            } else {
                shape.rank() == n_named
            };
            if !fits {
                return Err(KernelError::invalid(format!(
                    "expected input {index} to have rank {}{n_named} but got: {} (shape {shape})",
                    if term.has_ellipsis { "at least " } else { "" },
                    shape.rank()
                )));
            }
            n_broadcast = n_broadcast.max(shape.rank() - n_named);
            operands.push(axes(term, shape, &mut sizes)?);
        }
        if n_broadcast > 0 && !self.output.has_ellipsis {
            return Err(KernelError::invalid(format!(
                "output contains {n_broadcast} broadcasting dimension(s) but no ellipsis (...) was found in the output subscripts"
            )));
        }
        let output = labels(&self.output, n_broadcast);
        let mut first: SmallVec<[Sums; 2]> = SmallVec::new();
        for index in 0..operands.len() {
            // The labels of the other operand stay the same: it lacks those that are summed here.
            let other = operands.get(operands.len().saturating_sub(1 + index));
            let other = other.filter(|_| operands.len() > 1);
            let is_needed = |label: Label| {
                let is_of = |axes: &Axes| axes.iter().any(|axis| axis.label == label);
                output.contains(&label) || other.is_some_and(is_of)
            };
            let (sums, left) = Sums::new(&operands[index], shapes[index].rank(), is_needed);
            operands[index] = left;
            first.push(sums);
        }
        let dims: SmallVec<[usize; 6]> =
            output.iter().map(|&label| size_of(&sizes, label)).collect();
        // Broadcast dimensions of 1 repeat.
        for axis in operands.iter_mut().flatten() {
            let size = size_of(&sizes, axis.label);
            if axis.size != size {
                (axis.size, axis.stride) = (size, 0);
            }
        }
        let mut operands = operands.into_iter();
        let lhs = operands.next().unwrap_or_default();
        Ok(Einsum::new(
            Shape::new(&dims),
            &output,
            first,
            lhs,
            operands.next(),
        ))
    }
}

/// Returns the labels of a term in order.
fn labels(term: &Term, n_broadcast: usize) -> SmallVec<[Label; 6]> {
    let named = |labels: &[u8]| -> SmallVec<[Label; 6]> {
        labels.iter().map(|&label| Label::Named(label)).collect()
    };
    let n_broadcast = if term.has_ellipsis { n_broadcast } else { 0 };
    named(&term.before)
        .into_iter()
        .chain((0..n_broadcast).rev().map(Label::Broadcast))
        .chain(named(&term.after))
        .collect()
}

/// Returns the dimensions of an operand; a label that occurs twice selects the diagonal.
fn axes(
    term: &Term,
    shape: &Shape,
    sizes: &mut SmallVec<[(Label, usize); 8]>,
) -> Result<Axes, KernelError> {
    let n_broadcast = shape.rank() - term.before.len() - term.after.len();
    let mut axes = Axes::new();
    let strides = row_major_strides(shape.dims());
    let all = labels(term, n_broadcast);
    for ((label, &size), stride) in all.into_iter().zip(shape.dims()).zip(strides) {
        let stride = stride.unsigned_abs();
        match sizes.iter_mut().find(|(known, _)| *known == label) {
            None => sizes.push((label, size)),
            Some((_, known)) if *known == size => {}
            Some((Label::Broadcast(_), known)) if *known == 1 => *known = size,
            Some((Label::Broadcast(_), _)) if size == 1 => {}
            Some((_, known)) => {
                return Err(KernelError::invalid(format!(
                    "expected dimension {known} of a label, but got dimension {size} of the input shaped {shape}"
                )));
            }
        }
        match axes.iter_mut().find(|axis| axis.label == label) {
            Some(axis) => axis.stride = axis.stride.saturating_add(stride),
            None => axes.push(Axis {
                label,
                size,
                stride,
            }),
        }
    }
    Ok(axes)
}

fn size_of(sizes: &[(Label, usize)], label: Label) -> usize {
    sizes
        .iter()
        .find(|(known, _)| *known == label)
        .map_or(1, |&(_, size)| size)
}

/// Sums within one operand, before the matmul.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    /// Copies the diagonals if a label occurs twice.
    pub(crate) diagonal: Option<StridedCopy>,
    /// Sums over labels that occur nowhere else.
    pub(crate) sum: Option<Reduction>,
}

impl Sums {
    /// Returns the sums over the axes of an `n_dims`-dimensional operand that are not needed, and
    /// the axes that remain.
    fn new(axes: &Axes, n_dims: usize, is_needed: impl Fn(Label) -> bool) -> (Self, Axes) {
        let gone: SmallVec<[bool; 6]> = axes.iter().map(|axis| !is_needed(axis.label)).collect();
        let is_summed = |(axis, &gone): (&Axis, &bool)| gone && axis.size != 1;
        let left = |strides: &[isize]| -> Axes {
            let axes = axes.iter().zip(&gone).filter(|(_, gone)| !**gone);
            let left = axes.enumerate().map(|(index, (axis, _))| Axis {
                stride: strides
                    .get(index)
                    .map_or(axis.stride, |own| own.unsigned_abs()),
                ..*axis
            });
            left.collect()
        };
        if !axes.iter().zip(&gone).any(is_summed) {
            return (Self::default(), left(&[]));
        }
        let size = |axis: &Axis| {
            (
                axis.size,
                isize::try_from(axis.stride).unwrap_or(isize::MAX),
            )
        };
        let dims: Shape = axes.iter().map(|axis| axis.size).collect();
        let sum = Reduction::new(&dims, &gone, false);
        let strides = row_major_strides(sum.shape().dims());
        let diagonal = (axes.len() < n_dims).then(|| StridedCopy::new(0, axes.iter().map(size)));
        let sums = Self {
            diagonal,
            sum: Some(sum),
        };
        (sums, left(&strides))
    }

    /// Computes the operand after its sums; `None` if there are none.
    fn apply<T: MatmulElement>(
        &self,
        elements: &[T],
        threads: Threads<'_>,
    ) -> Result<Option<Scratch<T>>, KernelError> {
        let Some(sum) = &self.sum else {
            return Ok(None);
        };
        let mut sums = threads.scratch::<T>(sum.shape().n_elements())?;
        match &self.diagonal {
            None => sum.apply::<T, Sum>(elements, &mut sums, threads),
            Some(copy) => {
                let mut diagonal = threads.scratch::<T>(copy.n_elements())?;
                copy.apply(elements, &mut diagonal, threads);
                sum.apply::<T, Sum>(&diagonal, &mut sums, threads);
            }
        }
        Ok(Some(sums))
    }
}

/// An equation resolved for operands of known shapes.
#[derive(Debug, Clone)]
pub struct Einsum {
    shape: Shape,
    /// Sums of each operand, in the order of the equation.
    pub(crate) first: SmallVec<[Sums; 2]>,
    /// Whether the second operand is the left one of the matmuls.
    pub(crate) is_swapped: bool,
    pub(crate) lhs: Side,
    /// `None` for an equation of one operand, which is multiplied by a single 1.
    pub(crate) rhs: Option<Side>,
    pub(crate) matmul: BatchMatmul,
    /// Reorders the matmuls' result, if its order differs.
    pub(crate) reorder: Option<Reorder>,
}

/// How an operand becomes a batch of matrices.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// Copy that makes the operand a batch of matrices, if its own strides do not.
    pub(crate) copy: Option<StridedCopy>,
}

/// Moves element `i` of the matmuls' result to element `start + ..` of the result.
#[derive(Debug, Clone)]
pub(crate) struct Reorder {
    pub(crate) copy: StridedCopy,
    /// Size and stride in the result of each label that the result has twice; all elements off the
    /// diagonal are 0.
    pub(crate) inflate: Option<SmallVec<[(usize, usize); 6]>>,
}

impl Einsum {
    fn new(
        shape: Shape,
        output: &[Label],
        first: SmallVec<[Sums; 2]>,
        lhs: Axes,
        rhs: Option<Axes>,
    ) -> Self {
        let is_alone = rhs.is_none();
        let rhs = rhs.unwrap_or_default();
        let has = |axes: &Axes, label: Label| axes.iter().any(|axis| axis.label == label);
        let mut unique: SmallVec<[Label; 6]> = SmallVec::new();
        for &label in output {
            if !unique.contains(&label) {
                unique.push(label);
            }
        }
        let pick = |keep: &dyn Fn(Label) -> bool| -> SmallVec<[Label; 6]> {
            unique
                .iter()
                .copied()
                .filter(|&label| keep(label))
                .collect()
        };
        let batch = pick(&|label| has(&lhs, label) && has(&rhs, label));
        let rows = pick(&|label| has(&lhs, label) && !has(&rhs, label));
        let columns = pick(&|label| !has(&lhs, label) && has(&rhs, label));
        // If the columns come first in the result, the operands are exchanged.
        let ends_in_rows = !columns.is_empty() && unique.ends_with(&rows) && !rows.is_empty();
        let is_swapped = !is_alone && ends_in_rows && unique[batch.len()..].starts_with(&columns);
        let (lhs, rhs, rows, columns) = if is_swapped {
            (rhs, lhs, columns, rows)
        } else {
            (lhs, rhs, rows, columns)
        };
        let mut summed: SmallVec<[Label; 6]> = SmallVec::new();
        for axis in lhs.iter().chain(&rhs) {
            if !unique.contains(&axis.label) && !summed.contains(&axis.label) {
                summed.push(axis.label);
            }
        }
        let size = |label: Label| {
            let all = lhs.iter().chain(&rhs);
            all.into_iter()
                .find(|axis| axis.label == label)
                .map_or(1, |axis| axis.size)
        };
        let count = |labels: &[Label]| {
            labels
                .iter()
                .fold(1usize, |n, &label| n.saturating_mul(size(label)))
        };
        let (left, l) = side(&lhs, &batch, &rows, &summed, &size);
        let (right, r) = side(&rhs, &batch, &columns, &summed, &size);
        let matmul = BatchMatmul {
            batch: batch.iter().map(|&label| size(label)).collect(),
            size: [count(&rows), count(&summed), count(&columns)],
            lhs: l,
            rhs: Operand {
                row: r.column,
                column: r.row,
                batch: r.batch,
            },
        };
        let order: SmallVec<[Label; 6]> =
            batch.iter().chain(&rows).chain(&columns).copied().collect();
        let reorder = (order[..] != output[..]).then(|| {
            let dims: SmallVec<[usize; 6]> = order.iter().map(|&label| size(label)).collect();
            let strides = row_major_strides(&dims);
            let place = |label: Label| order.iter().position(|&known| known == label);
            let copy = StridedCopy::new(
                0,
                unique
                    .iter()
                    .map(|&label| (size(label), place(label).map_or(0, |place| strides[place]))),
            );
            let inflate = (unique.len() < output.len()).then(|| {
                let strides = row_major_strides(shape.dims());
                unique
                    .iter()
                    .map(|&label| {
                        let own = output
                            .iter()
                            .zip(&strides)
                            .filter(|(known, _)| **known == label);
                        (
                            size(label),
                            own.map(|(_, stride)| stride.unsigned_abs()).sum(),
                        )
                    })
                    .collect()
            });
            Reorder { copy, inflate }
        });
        Self {
            shape,
            first,
            is_swapped,
            lhs: left,
            rhs: (!is_alone).then_some(right),
            matmul,
            reorder,
        }
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Fills the result. The second operand is ignored if the equation has one operand.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an operand is shorter than its shape;
    /// [`KernelError::Tensor`] if scratch memory runs out.
    pub fn apply<T: MatmulElement>(
        &self,
        first: &[T],
        second: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        if out.is_empty() {
            return Ok(());
        }
        let summed = |index: usize, elements: &[T]| match self.first.get(index) {
            Some(sums) => sums.apply(elements, threads),
            None => Ok(None),
        };
        let (first_sums, second_sums) = (summed(0, first)?, summed(1, second)?);
        let first = first_sums.as_deref().unwrap_or(first);
        let second = second_sums.as_deref().unwrap_or(second);
        let (lhs, rhs) = if self.is_swapped {
            (second, first)
        } else {
            (first, second)
        };
        let copied = |side: &Side, elements: &[T]| -> Result<Option<Scratch<T>>, KernelError> {
            let Some(copy) = &side.copy else {
                return Ok(None);
            };
            let mut copied = threads.scratch::<T>(copy.n_elements())?;
            copy.apply(elements, &mut copied, threads);
            Ok(Some(copied))
        };
        let left = copied(&self.lhs, lhs)?;
        let lhs = left.as_deref().unwrap_or(lhs);
        let one = [T::ONE];
        let right = match &self.rhs {
            Some(side) => copied(side, rhs)?,
            None => None,
        };
        let rhs = match &self.rhs {
            None => &one,
            Some(_) => right.as_deref().unwrap_or(rhs),
        };
        let Some(reorder) = &self.reorder else {
            return self.matmul.apply(lhs, rhs, out, threads);
        };
        let mut sums = threads.scratch::<T>(reorder.copy.n_elements())?;
        self.matmul.apply(lhs, rhs, &mut sums, threads)?;
        match &reorder.inflate {
            None => reorder.copy.apply(&sums, out, threads),
            Some(axes) => {
                let mut ordered = threads.scratch::<T>(sums.len())?;
                reorder.copy.apply(&sums, &mut ordered, threads);
                out.fill(T::ZERO);
                for (mut flat, &value) in ordered.iter().enumerate() {
                    let mut at = 0;
                    for &(size, stride) in axes.iter().rev() {
                        at += flat % size * stride;
                        flat /= size;
                    }
                    out[at] = value;
                }
            }
        }
        Ok(())
    }
}

/// Views an operand as matrices `[batch, free, summed]`, in place if one stride covers `free` and
/// one covers `summed`.
fn side(
    axes: &Axes,
    batch: &[Label],
    free: &[Label],
    summed: &[Label],
    size: &dyn Fn(Label) -> usize,
) -> (Side, Operand) {
    let stride = |label: Label| {
        axes.iter()
            .find(|axis| axis.label == label)
            .map_or(0, |axis| axis.stride)
    };
    if let (Some(row), Some(column)) = (walk(free, size, &stride), walk(summed, size, &stride)) {
        let operand = Operand {
            batch: batch.iter().map(|&label| stride(label)).collect(),
            row,
            column,
        };
        return (Side { copy: None }, operand);
    }
    // Labels that repeat over the batch are copied once; labels that repeat within a matrix are
    // written out.
    let kept: SmallVec<[Label; 6]> = batch
        .iter()
        .copied()
        .filter(|&label| stride(label) != 0)
        .chain(free.iter().chain(summed).copied())
        .collect();
    let dims: SmallVec<[usize; 6]> = kept.iter().map(|&label| size(label)).collect();
    let new = row_major_strides(&dims);
    let new_stride = |label: Label| {
        let place = kept.iter().position(|&known| known == label);
        place.map_or(0, |place| new[place].unsigned_abs())
    };
    let source = kept.iter().map(|&label| {
        let stride = isize::try_from(stride(label)).unwrap_or(isize::MAX);
        (size(label), stride)
    });
    let operand = Operand {
        batch: batch.iter().map(|&label| new_stride(label)).collect(),
        row: summed.iter().map(|&label| size(label)).product(),
        column: 1,
    };
    let copy = Some(StridedCopy::new(0, source));
    (Side { copy }, operand)
}

/// Returns the one stride that covers all indices of these labels in order, if there is one.
fn walk(
    labels: &[Label],
    size: &dyn Fn(Label) -> usize,
    stride: &dyn Fn(Label) -> usize,
) -> Option<usize> {
    let mut walked: Option<(usize, usize)> = None;
    for &label in labels.iter().rev().filter(|&&label| size(label) != 1) {
        match &mut walked {
            None => walked = Some((stride(label), size(label))),
            Some((inner, n)) if inner.checked_mul(*n) == Some(stride(label)) => {
                *n = n.saturating_mul(size(label));
            }
            Some(_) => return None,
        }
    }
    Some(walked.map_or(0, |(stride, _)| stride))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation: loops over all values of all labels. No ellipses.
    fn plain(equation: &str, shapes: &[Shape], inputs: &[Vec<i64>], out: &Shape) -> Vec<i64> {
        let (left, right) = equation.split_once("->").unwrap();
        let terms: Vec<&str> = left.split(',').collect();
        let mut labels: Vec<(char, usize)> = Vec::new();
        for (term, shape) in terms.iter().zip(shapes) {
            for (label, &dim) in term.chars().zip(shape.dims()) {
                if !labels.iter().any(|known| known.0 == label) {
                    labels.push((label, dim));
                }
            }
        }
        let mut sums = vec![0; out.n_elements()];
        for flat in 0..labels.iter().map(|label| label.1).product() {
            let mut rest = flat;
            let mut index = std::collections::HashMap::new();
            for &(label, size) in labels.iter().rev() {
                index.insert(label, rest % size);
                rest /= size;
            }
            let at = |term: &str, shape: &Shape| {
                term.chars()
                    .zip(shape.dims())
                    .fold(0, |at, (label, &dim)| at * dim + index[&label])
            };
            let factors = terms.iter().zip(shapes).zip(inputs);
            let product: i64 = factors
                .map(|((term, shape), input)| input[at(term, shape)])
                .product();
            sums[at(right, out)] += product;
        }
        sums
    }

    #[test]
    fn equations_agree_with_loops_over_all_labels() {
        let size = |label: char| usize::try_from(u32::from(label) - u32::from('a')).unwrap() + 2;
        for equation in [
            "ab->ab",
            "ab->ba",
            "ab->a",
            "ab->b",
            "ab->",
            "aa->a",
            "aa->",
            "aab->ba",
            "abc->cab",
            "a->aa",
            "ab->baa",
            "a,a->",
            "a,a->a",
            "a,b->ab",
            "a,b->ba",
            "ab,bc->ac",
            "ab,bc->ca",
            "ab,cb->ac",
            "ba,bc->ac",
            "abc,acd->abd",
            "abc,acd->bad",
            "abcd,bde->ace",
            "abc,d->abcd",
            "ab,ab->",
            "ab,ab->ba",
            "abc,cb->a",
            "abc,bd->ad",
            "aab,bc->ac",
            "ab,b->aa",
            "ab,cd->",
            "acbd,aced->abce",
            "abde,dec->abc",
            "ab,->ba",
            ",->",
            "i,j->",
            "ab,cd->bd",
            "aab,cbc->",
            "aabc,cd->d",
            "abc,cde->ce",
            "abac->",
            "abc,b->",
        ] {
            let parsed = Equation::parse(equation).unwrap();
            let terms = equation.split_once("->").unwrap().0.split(',');
            let shapes: Vec<Shape> = terms.map(|term| term.chars().map(size).collect()).collect();
            let inputs: Vec<Vec<i64>> = shapes
                .iter()
                .zip(1..)
                .map(|(shape, seed)| {
                    (seed..)
                        .map(|i| i * 7 % 11 - 5)
                        .take(shape.n_elements())
                        .collect()
                })
                .collect();
            let einsum = parsed.plan(&shapes.iter().collect::<Vec<_>>()).unwrap();
            let expected = plain(equation, &shapes, &inputs, einsum.shape());
            let mut out = vec![i64::MAX; einsum.shape().n_elements()];
            let second = inputs.get(1).map_or(&[][..], Vec::as_slice);
            einsum
                .apply(&inputs[0], second, &mut out, Threads::single())
                .unwrap();
            assert_eq!(out, expected, "{equation}");
        }
    }

    #[test]
    fn labels_of_one_operand_only_are_summed_before_the_matmul() {
        let n = 100_000;
        for (equation, shapes, expected) in [
            ("i,j->", [Shape::from([n]), Shape::from([n])], n * n),
            ("ab,cd->bd", [[3000, 2].into(), [3000, 2].into()], 9_000_000),
        ] {
            let plan = Equation::parse(equation)
                .unwrap()
                .plan(&[&shapes[0], &shapes[1]])
                .unwrap();
            assert_eq!(plan.matmul.size[1], 1, "{equation}: nothing is left to sum");
            let ones = |shape: &Shape| vec![1i64; shape.n_elements()];
            let mut out = vec![0; plan.shape().n_elements()];
            plan.apply(
                &ones(&shapes[0]),
                &ones(&shapes[1]),
                &mut out,
                Threads::single(),
            )
            .unwrap();
            assert!(out.iter().all(|&sum| usize::try_from(sum) == Ok(expected)));
        }
    }

    #[test]
    fn malformed_equations_are_rejected() {
        for (equation, words) in [
            ("ab", "exactly one '->'"),
            ("a->b->c", "labels must be letters"),
            ("a,b,c->abc", "1 or 2 input subscripts"),
            ("a1->a", "labels must be letters"),
            ("a...b...->ab", "labels must be letters"),
            ("a->b", "a label of the result"),
        ] {
            let error = Equation::parse(equation).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
