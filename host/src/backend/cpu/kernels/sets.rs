//! Sets: the rows of a dense tensor, or of a sparse one, without repetitions.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::sparse::sparse_input;
use crate::backend::cpu::kernels::sparse_join::coordinates;
use crate::backend::cpu::kernels::sparse_join::set_dims;
use crate::backend::cpu::kernels::sparse_join::set_elements;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::string_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of the members of sets.
const MEMBERS: [DType; 7] = [
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::String,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, is_sparse) in [
        ("DenseToDenseSetOperation", [false, false]),
        ("DenseToSparseSetOperation", [false, true]),
        ("SparseToSparseSetOperation", [true, true]),
    ] {
        registry.register(
            def(op)
                .with_types("T", &MEMBERS)
                .with_factory(move |node| set_operation(node, is_sparse)),
        );
    }
    registry.register(
        def("SetSize")
            .with_types("T", &MEMBERS)
            .with_factory(set_size),
    );
}

/// An operation on two sets.
#[derive(Debug, Clone, Copy)]
enum SetOperation {
    AMinusB,
    BMinusA,
    Intersection,
    Union,
}

/// Many sets of one shape.
struct Sets<'a> {
    members: &'a Tensor,
    /// The number of the set of each member.
    places: Vec<usize>,
    /// The shape of the sets.
    shape: Shape,
}

impl<'a> Sets<'a> {
    /// Each row of the last axis is a set.
    fn dense(members: &'a Tensor) -> Result<Self, KernelError> {
        let Some((&size, outer)) = members.shape().dims().split_last() else {
            return Err(too_few_axes(members.shape()));
        };
        if outer.is_empty() {
            return Err(too_few_axes(members.shape()));
        }
        let n = members.shape().n_elements();
        Ok(Self {
            members,
            places: scratch::collected((0..n).map(|at| at / size))?,
            shape: Shape::new(outer),
        })
    }

    /// Inputs from `first` on are the indices, values and shape of a sparse tensor; members whose
    /// indices differ only in the last one are a set.
    fn sparse(
        context: &'a KernelContext<'_>,
        first: usize,
        validates: bool,
    ) -> Result<Self, KernelError> {
        let (of_members, shape) = sparse_input(context, [first, first + 1, first + 2])?;
        let members = context.input(first + 1)?;
        let Some((_, outer)) = shape
            .dims()
            .split_last()
            .filter(|(_, outer)| !outer.is_empty())
        else {
            return Err(too_few_axes(&shape));
        };
        let all = of_members.coordinates();
        if validates {
            all.check_order(shape.dims())
                .map_err(KernelError::InvalidArgument)?;
        }
        let mut places = scratch::list(members.shape().n_elements())?;
        for at in 0..members.shape().n_elements() {
            places.push(all.place(at, outer).map_err(KernelError::InvalidArgument)?);
        }
        let shape = Shape::new(outer);
        Ok(Self {
            members,
            places,
            shape,
        })
    }
}

fn too_few_axes(shape: &Shape) -> KernelError {
    KernelError::invalid(format!("Shape {shape} has rank {} < 2", shape.rank()))
}

/// A member of a set: the set, its key, the input and the position there.
type Member<K> = (usize, K, usize, usize);

/// Returns the members of all sets, sorted by set, key, input and position.
fn sorted<'a, K: Ord + Copy>(
    sets: &[Sets<'a>],
    keys: impl Fn(&'a Tensor) -> Result<Vec<K>, KernelError>,
) -> Result<Vec<Member<K>>, KernelError> {
    let n = sets.iter().map(|sets| sets.places.len());
    let mut members = scratch::list(n.fold(0, usize::saturating_add))?;
    for (input, sets) in sets.iter().enumerate() {
        let keys = keys(sets.members)?;
        let all = sets.places.iter().zip(keys).enumerate();
        members.extend(all.map(|(at, (&set, key))| (set, key, input, at)));
    }
    members.sort_unstable();
    Ok(members)
}

/// Calls `visit` with each set and member, and where the member is first in each input.
fn each_member<K: Ord + Copy>(
    members: &[Member<K>],
    mut visit: impl FnMut(usize, [Option<usize>; 2]),
) {
    let same = |a: &Member<K>, b: &Member<K>| (a.0, a.1) == (b.0, b.1);
    for group in members.chunk_by(same) {
        let first = |input: usize| {
            let mut group = group.iter();
            group
                .find(|member| member.2 == input)
                .map(|member| member.3)
        };
        visit(group[0].0, [first(0), first(1)]);
    }
}

/// Returns references to strings, which are compared byte by byte.
fn strings(tensor: &Tensor) -> Result<Vec<&ByteString>, KernelError> {
    scratch::collected(tensor.as_strings()?.iter())
}

/// Returns integers of any type.
#[expect(
    clippy::useless_conversion,
    reason = "it is one for i64 alone, one of the types of the macro"
)]
fn integers(tensor: &Tensor) -> Result<Vec<i64>, KernelError> {
    dispatch!(tensor.dtype(), [I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16], T => {
        scratch::collected(tensor.as_slice::<T>()?.iter().map(|&value| i64::from(value)))
    })
}

/// TensorFlow `DenseToDenseSetOperation` and its sparse forms.
fn set_operation(node: &KernelConstruction<'_>, is_sparse: [bool; 2]) -> Made {
    let name = string_attr(node, "set_operation", "")?;
    let operation = match name.to_ascii_lowercase().as_str() {
        "a-b" => SetOperation::AMinusB,
        "b-a" => SetOperation::BMinusA,
        "intersection" => SetOperation::Intersection,
        "union" => SetOperation::Union,
        _ => {
            return Err(KernelError::invalid(format!(
                "Invalid set_operation {name}; expected `a-b`, `b-a`, `intersection` or `union`"
            )));
        }
    };
    let validates = bool_attr(node, "validate_indices", true)?;
    kernel(move |context| {
        let mut first = 0;
        let mut sets: SmallVec<[Sets<'_>; 2]> = SmallVec::new();
        for is_sparse in is_sparse {
            sets.push(match is_sparse {
                true => Sets::sparse(context, first, validates)?,
                false => Sets::dense(context.input(first)?)?,
            });
            first += if is_sparse { 3 } else { 1 };
        }
        if sets[0].members.dtype() == DType::String {
            return operate(context, operation, &sets, &sorted(&sets, strings)?);
        }
        operate(context, operation, &sets, &sorted(&sets, integers)?)
    })
}

/// Sets the outputs to the results for each pair of sets.
fn operate<K: Ord + Copy>(
    context: &KernelContext<'_>,
    operation: SetOperation,
    sets: &[Sets<'_>],
    members: &[Member<K>],
) -> Result<(), KernelError> {
    let [a, b] = sets else {
        return Err(KernelError::invalid("there are not two sets"));
    };
    if a.shape != b.shape {
        return Err(KernelError::invalid(format!(
            "Mismatched shapes {} vs {}",
            a.shape, b.shape
        )));
    }
    let mut kept = scratch::list::<(usize, &Tensor, usize)>(members.len())?;
    each_member(members, |set, [in_a, in_b]| {
        let is_kept = match operation {
            SetOperation::AMinusB => in_b.is_none(),
            SetOperation::BMinusA => in_a.is_none(),
            SetOperation::Intersection => in_a.is_some() && in_b.is_some(),
            SetOperation::Union => true,
        };
        let of_a = in_a.map(|at| (set, a.members, at));
        let found = of_a.or(in_b.map(|at| (set, b.members, at)));
        kept.extend(found.filter(|_| is_kept));
    });
    let rank = a.shape.rank() + 1;
    let outer = coordinates(kept.iter().map(|&(set, ..)| set), a.shape.dims())?;
    let mut rows = scratch::list(kept.len().saturating_mul(rank))?;
    let (mut number, mut largest) = (0, 0);
    for (at, &(set, ..)) in kept.iter().enumerate() {
        number = match at.checked_sub(1).map(|before| kept[before].0.cmp(&set)) {
            Some(Ordering::Equal) => number + 1,
            _ => 0,
        };
        largest = largest.max(number + 1);
        rows.extend_from_slice(&outer[at * (rank - 1)..][..rank - 1]);
        rows.push(i64::try_from(number).unwrap_or(i64::MAX));
    }
    set_indices(context, 0, &Shape::new(&[kept.len(), rank]), &rows, true)?;
    let elements = scratch::collected(kept.iter().map(|&(_, tensor, at)| (tensor, at)))?;
    set_elements(context, 1, a.members.dtype(), &elements)?;
    let dims: SmallVec<[usize; 6]> = a.shape.dims().iter().copied().chain([largest]).collect();
    set_dims(context, 2, &dims)
}

/// TensorFlow `SetSize`.
fn set_size(node: &KernelConstruction<'_>) -> Made {
    let validates = bool_attr(node, "validate_indices", true)?;
    kernel(move |context| {
        let sets = [Sets::sparse(context, 0, validates)?];
        if sets[0].members.dtype() == DType::String {
            return sizes(context, &sets[0].shape, &sorted(&sets, strings)?);
        }
        sizes(context, &sets[0].shape, &sorted(&sets, integers)?)
    })
}

fn sizes<K: Ord + Copy>(
    context: &KernelContext<'_>,
    shape: &Shape,
    members: &[Member<K>],
) -> Result<(), KernelError> {
    context.fill_output(0, shape, |out: &mut [i32]| {
        out.fill(0);
        each_member(members, |set, _| out[set] = out[set].saturating_add(1));
        Ok(())
    })
}
