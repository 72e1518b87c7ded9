//! Cells of recurrent networks, decoding, and losses.

use half::f16;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::product;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Broadcast;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::recurrent;
use crate::kernels::recurrent::LstmCell;
use crate::kernels::recurrent::LstmState;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["LSTMBlockCell", "BlockLSTM", "BlockLSTMV2"] {
        registry.register(
            def(op)
                .with_types("T", &[DType::F16, DType::F32])
                .with_factory(lstm),
        );
    }
    registry.register(
        def("GRUBlockCell")
            .with_types("T", &[DType::F32])
            .with_factory(|_| kernel(gru)),
    );
    registry.register(
        def("CTCGreedyDecoder")
            .with_types("T", &[DType::F32, DType::F64])
            .with_factory(decode),
    );
    registry.register(
        def("SoftmaxCrossEntropyWithLogits")
            .with_types("T", &REALS)
            .with_factory(
                |node| dispatch_real!(type_attr(node, "T")?, T => kernel(cross_entropy::<T>)),
            ),
    );
    registry.register(
        def("SparseSoftmaxCrossEntropyWithLogits")
            .with_types("T", &REALS)
            .with_types("Tlabels", &INDICES)
            .with_factory(
                |node| dispatch_real!(type_attr(node, "T")?, T => kernel(sparse_entropy::<T>)),
            ),
    );
}

/// TensorFlow `LSTMBlockCell`, `BlockLSTM` and `BlockLSTMV2`.
fn lstm(node: &KernelConstruction<'_>) -> Made {
    let is_v2 = node.op == "BlockLSTMV2";
    let forget_bias = match is_v2 {
        true => 0.0,
        false => float_attr(node, "forget_bias", 1.0)?,
    };
    let clip = float_attr(node, "cell_clip", if is_v2 { 0.0 } else { 3.0 })?;
    let lstm = Lstm {
        cell: LstmCell {
            forget_bias: forget_bias.into(),
            clip: clip.into(),
        },
        has_peepholes: bool_attr(node, "use_peephole", false)?,
        gates: match is_v2 {
            true => [0, 2, 1, 3],
            false => [0, 1, 2, 3],
        },
        first: if node.op == "LSTMBlockCell" { 0 } else { 1 },
    };
    dispatch!(type_attr(node, "T")?, [F16: f16, F32: f32], T => kernel(move |context| {
        lstm.compute::<T>(context)
    }))
}

/// Names of the inputs of a cell.
const LSTM_INPUTS: [&str; 8] = ["x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"];

/// A cell, for one step or for several.
#[derive(Debug, Clone, Copy)]
struct Lstm {
    cell: LstmCell,
    has_peepholes: bool,
    /// Where the input gate, the candidate, the forgetting gate and the output gate are in the
    /// columns of the weights.
    gates: [usize; 4],
    /// The input `x`: 0 for one step; 1 behind the number of steps.
    first: usize,
}

impl Lstm {
    fn compute<T: Real + MatmulElement>(
        self,
        context: &KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let input = |index: usize| context.input(self.first + index);
        let (x, before) = (input(0)?, input(1)?);
        let (outer, &[batch, n]) = (x.shape().dims(), before.shape().dims()) else {
            return Err(KernelError::invalid(format!(
                "cs_prev must be a matrix, not {}",
                before.shape()
            )));
        };
        let (n_steps, n_inputs) = match (self.first, outer) {
            (0, &[_, n_inputs]) => (1, n_inputs),
            (1.., &[n_steps, _, n_inputs]) => (n_steps, n_inputs),
            _ => {
                return Err(KernelError::invalid(format!(
                    "x must be {}, not {}",
                    if self.first == 0 { "a matrix" } else { "3D" },
                    x.shape()
                )));
            }
        };
        let n_used = match self.first {
            0 => 1,
            _ => {
                let found = scalar(context.input(0)?, "seq_len_max")?;
                let n_used = usize::try_from(found)
                    .ok()
                    .filter(|&n_used| n_used <= n_steps);
                n_used.ok_or_else(|| {
                    KernelError::invalid(format!(
                        "seq_len_max must be from 0 to {n_steps}, the number of steps; it is {found}"
                    ))
                })?
            }
        };
        let (n_rows, n_gates) = (n_inputs.saturating_add(n), n.saturating_mul(4));
        let of_steps = [n_steps, batch, n_inputs];
        let expected: [&[usize]; 8] = [
            &of_steps[1 - self.first..],
            &[batch, n],
            &[batch, n],
            &[n_rows, n_gates],
            &[n],
            &[n],
            &[n],
            &[n_gates],
        ];
        for (index, (dims, what)) in expected.into_iter().zip(LSTM_INPUTS).enumerate() {
            // Weights of connections that are not used may have any shape.
            let is_used = !(4..7).contains(&index) || self.has_peepholes;
            let found = input(index)?.shape();
            if is_used && found.dims() != dims {
                return Err(KernelError::invalid(format!(
                    "{what} must have shape {}, not {found}",
                    Shape::new(dims)
                )));
            }
        }
        let values = |index: usize| input(index)?.as_slice::<T>().map_err(KernelError::from);
        let (x, w, bias) = (values(0)?, values(3)?, values(7)?);
        let peepholes = [values(4)?, values(5)?, values(6)?];
        let threads = Threads::of(context);
        let mut joined = threads.scratch::<T>(product(&[batch, n_rows]))?;
        let mut sums = threads.scratch::<T>(product(&[batch, n_gates]))?;
        let mut states = scratch::list::<LstmState>(product(&[n_used, batch, n]))?;
        for step in 0..n_used {
            if threads.is_interrupted() {
                break;
            }
            let last = states.len().checked_sub(batch * n);
            let earlier = |part: fn(&LstmState) -> f64, first: &[T], at: usize| match last {
                Some(last) => T::from_f64(part(&states[last + at])),
                None => first[at],
            };
            for (row, joined) in joined.chunks_exact_mut(n_rows.max(1)).enumerate() {
                let (inputs, hidden) = joined.split_at_mut(n_inputs);
                inputs.copy_from_slice(&x[(step * batch + row) * n_inputs..][..n_inputs]);
                for (column, slot) in hidden.iter_mut().enumerate() {
                    *slot = earlier(|state| state.hidden, values(2)?, row * n + column);
                }
            }
            T::matmul(
                MatrixView::row_major(&joined, batch, n_rows)?,
                MatrixView::row_major(w, n_rows, n_gates)?,
                &mut MatrixMut::new(&mut sums, batch, n_gates, n_gates)?,
                threads,
            )?;
            let before = values(1)?;
            for index in 0..batch * n {
                let (row, column) = (index / n, index % n);
                let of_gates = self.gates.map(|gate| {
                    let place = gate * n + column;
                    sums[row * n_gates + place].to_f64() + bias[place].to_f64()
                });
                let weights = match self.has_peepholes {
                    true => peepholes.map(|weights| weights[column].to_f64()),
                    false => [0.0; 3],
                };
                let before = match last {
                    Some(last) => T::from_f64(states[last + index].state),
                    None => before[index],
                };
                states.push(self.cell.step(of_gates, before.to_f64(), weights));
            }
        }
        let outputs: [fn(&LstmState) -> f64; 7] = [
            |state| state.input,
            |state| state.state,
            |state| state.forget,
            |state| state.output,
            |state| state.candidate,
            |state| state.squashed,
            |state| state.hidden,
        ];
        let dims = [n_steps, batch, n];
        let shape = Shape::new(&dims[1 - self.first..]);
        for (index, part) in outputs.into_iter().enumerate() {
            context.fill_output(index, &shape, |out: &mut [T]| {
                // Steps that are not used are 0.
                let n_used = states.len().min(out.len());
                out[n_used..].fill(T::ZERO);
                for (slot, state) in out.iter_mut().zip(&states) {
                    *slot = T::from_f64(part(state));
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// TensorFlow `GRUBlockCell` (Cho et al. 2014): gates that reset and update, candidate, new state.
fn gru(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (x, before) = (context.input(0)?, context.input(1)?);
    let (&[batch, n_inputs], &[_, n]) = (x.shape().dims(), before.shape().dims()) else {
        return Err(KernelError::invalid(format!(
            "x and h_prev must be matrices, not {} and {}",
            x.shape(),
            before.shape()
        )));
    };
    let (n_rows, n_gates) = (n_inputs.saturating_add(n), n.saturating_mul(2));
    let expected: [(&str, &[usize]); 6] = [
        ("x", &[batch, n_inputs]),
        ("h_prev", &[batch, n]),
        ("w_ru", &[n_rows, n_gates]),
        ("w_c", &[n_rows, n]),
        ("b_ru", &[n_gates]),
        ("b_c", &[n]),
    ];
    for (index, (what, dims)) in expected.into_iter().enumerate() {
        let found = context.input(index)?.shape();
        if found.dims() != dims {
            return Err(KernelError::invalid(format!(
                "{what} must have shape {}, not {found}",
                Shape::new(dims)
            )));
        }
    }
    let values = |index: usize| {
        let input = context.input(index)?;
        input.as_slice::<f32>().map_err(KernelError::from)
    };
    let (x, before) = (values(0)?, values(1)?);
    let threads = Threads::of(context);
    let mut joined = threads.scratch::<f32>(product(&[batch, n_rows]))?;
    let mut gates = threads.scratch::<f32>(product(&[batch, n_gates]))?;
    let mut candidates = threads.scratch::<f32>(product(&[batch, n]))?;
    let mut multiply = |reset: Option<&[f32]>, weights: usize, out: &mut [f32], columns: usize| {
        for (row, joined) in joined.chunks_exact_mut(n_rows.max(1)).enumerate() {
            let (inputs, state) = joined.split_at_mut(n_inputs);
            inputs.copy_from_slice(&x[row * n_inputs..][..n_inputs]);
            for (column, slot) in state.iter_mut().enumerate() {
                let reset = reset.map_or(1.0, |gates| gates[row * n_gates + column]);
                *slot = before[row * n + column] * reset;
            }
        }
        f32::matmul(
            MatrixView::row_major(&joined, batch, n_rows)?,
            MatrixView::row_major(values(weights)?, n_rows, columns)?,
            &mut MatrixMut::new(out, batch, columns, columns)?,
            threads,
        )?;
        let bias = values(weights + 2)?;
        for out in out.chunks_exact_mut(columns.max(1)) {
            out.iter_mut()
                .zip(bias)
                .for_each(|(slot, bias)| *slot += bias);
        }
        Ok::<_, KernelError>(())
    };
    multiply(None, 2, &mut gates, n_gates)?;
    for gate in gates.iter_mut() {
        *gate = 1.0 / (1.0 + (-*gate).exp());
    }
    multiply(Some(&gates), 3, &mut candidates, n)?;
    let shape = Shape::from([batch, n]);
    let set = |index: usize, value: &dyn Fn(usize, usize) -> f32| {
        context.fill_output(index, &shape, |out: &mut [f32]| {
            for (at, slot) in out.iter_mut().enumerate() {
                *slot = value(at / n * n_gates + at % n, at);
            }
            Ok(())
        })
    };
    set(0, &|gate, _| gates[gate])?;
    set(1, &|gate, _| gates[gate + n])?;
    set(2, &|_, at| candidates[at].tanh())?;
    set(3, &|gate, at| {
        let update = gates[gate + n];
        (1.0 - update) * candidates[at].tanh() + update * before[at]
    })
}

/// Returns the number of steps of a sequence.
pub(super) fn sequence_length(
    row: usize,
    length: i32,
    n_steps: usize,
) -> Result<usize, KernelError> {
    let length = usize::try_from(length).ok();
    length.filter(|&length| length <= n_steps).ok_or_else(|| {
        KernelError::invalid(format!(
            "sequence_length[{row}] must be from 0 to max_time, which is {n_steps}"
        ))
    })
}

/// TensorFlow `CTCGreedyDecoder`: a sparse matrix of classes, and the scores.
fn decode(node: &KernelConstruction<'_>) -> Made {
    let merges = bool_attr(node, "merge_repeated", false)?;
    let blank = int_attr(node, "blank_index", Some(-1))?;
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => kernel(move |context| {
        decoded::<T>(context, merges, blank)
    }))
}

fn decoded<T: Real>(
    context: &KernelContext<'_>,
    merges: bool,
    blank: i64,
) -> Result<(), KernelError> {
    let (inputs, lengths) = (context.input(0)?, context.input(1)?);
    let &[n_steps, batch, n_classes] = inputs.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "inputs is not a 3-Tensor: {}",
            inputs.shape()
        )));
    };
    if inputs.shape().n_elements() == 0 {
        return Err(KernelError::invalid(format!(
            "inputs must not be empty: {}",
            inputs.shape()
        )));
    }
    if lengths.shape().dims() != [batch] {
        return Err(KernelError::invalid(format!(
            "sequence_length must have shape [{batch}], not {}",
            lengths.shape()
        )));
    }
    let signed = i64::try_from(n_classes).unwrap_or(i64::MAX);
    let blank = if blank < 0 { blank + signed } else { blank };
    let blank = usize::try_from(blank)
        .ok()
        .filter(|&blank| blank < n_classes);
    let blank = blank.ok_or_else(|| {
        KernelError::invalid(format!("blank_index expected to be less than {n_classes}"))
    })?;
    let lengths = lengths.as_slice::<i32>()?;
    let x = inputs.as_slice::<T>()?;
    let mut found = scratch::list(product(&[n_steps, batch]))?;
    let mut scores = Threads::of(context).scratch::<T>(batch)?;
    let mut longest = 0;
    for (row, (&length, score)) in lengths.iter().zip(scores.iter_mut()).enumerate() {
        let length = sequence_length(row, length, n_steps)?;
        let steps = (0..length).map(|step| &x[(step * batch + row) * n_classes..][..n_classes]);
        let mut n = 0;
        *score = recurrent::decode_greedily(steps, blank, merges, |class| {
            found.push([row, n, class]);
            n += 1;
        });
        longest = longest.max(n);
    }
    let long = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    context.fill_output(0, &Shape::from([found.len(), 2]), |out: &mut [i64]| {
        for (out, [row, column, _]) in out.chunks_exact_mut(2).zip(&found) {
            out.copy_from_slice(&[long(*row), long(*column)]);
        }
        Ok(())
    })?;
    context.fill_output(1, &Shape::from([found.len()]), |out: &mut [i64]| {
        for (slot, [.., class]) in out.iter_mut().zip(&found) {
            *slot = long(*class);
        }
        Ok(())
    })?;
    context.fill_output(2, &Shape::from([2]), |out: &mut [i64]| {
        out.copy_from_slice(&[long(batch), long(longest)]);
        Ok(())
    })?;
    context.fill_output(3, &Shape::from([batch, 1]), |out: &mut [T]| {
        out.copy_from_slice(&scores);
        Ok(())
    })
}

/// TensorFlow `SoftmaxCrossEntropyWithLogits`. Features and labels are broadcast.
fn cross_entropy<T: Real>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (features, labels) = (context.input(0)?, context.input(1)?);
    let plan = Broadcast::new(features.shape(), labels.shape())?;
    let &[rows, n] = plan.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional: \
             {} and {}",
            features.shape(),
            labels.shape()
        )));
    };
    let threads = Threads::of(context);
    let repeated = |index: usize| -> Result<_, KernelError> {
        let x = context.input(index)?.as_slice::<T>()?;
        let other = context.input(1 - index)?.as_slice::<T>()?;
        let mut copy = threads.scratch::<T>(plan.shape().n_elements())?;
        match index {
            0 => plan.apply(x, other, &mut copy, threads, |x, _: T| x),
            _ => plan.apply(other, x, &mut copy, threads, |_: T, x| x),
        }
        Ok(copy)
    };
    let (x, p) = (repeated(0)?, repeated(1)?);
    entropy::<T>(
        context,
        [rows, n],
        |row, class| x[row * n + class].to_f64(),
        |row, class| p[row * n + class].to_f64(),
    )
}

/// TensorFlow `SparseSoftmaxCrossEntropyWithLogits`.
fn sparse_entropy<T: Real>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (features, labels) = (context.input(0)?, context.input(1)?);
    let (&[rows, n], &[n_labels]) = (features.shape().dims(), labels.shape().dims()) else {
        return Err(KernelError::invalid(format!(
            "logits must be 2-D and labels 1-D, but got {} and {}",
            features.shape(),
            labels.shape()
        )));
    };
    if rows != n_labels {
        return Err(KernelError::invalid(format!(
            "logits and labels must have the same first dimension, got logits shape {} and labels \
             shape {}",
            features.shape(),
            labels.shape()
        )));
    }
    if n == 0 {
        return Err(KernelError::invalid(format!(
            "must have at least one class, but got logits shape {}",
            features.shape()
        )));
    }
    let labels = integers(labels)?;
    for &label in &labels {
        if usize::try_from(label).ok().is_none_or(|label| label >= n) {
            return Err(KernelError::invalid(format!(
                "received a label value of {label} which is outside the valid range of [0, {n})"
            )));
        }
    }
    let x = features.as_slice::<T>()?;
    entropy::<T>(
        context,
        [rows, n],
        |row, class| x[row * n + class].to_f64(),
        |row, class| f64::from(u8::from(usize::try_from(labels[row]) == Ok(class))),
    )
}

/// Sets loss and gradient of each row.
fn entropy<T: Number>(
    context: &KernelContext<'_>,
    [rows, n]: [usize; 2],
    logit: impl Fn(usize, usize) -> f64,
    label: impl Fn(usize, usize) -> f64,
) -> Result<(), KernelError> {
    let mut losses = Threads::of(context).scratch::<f64>(rows)?;
    context.fill_output(1, &Shape::from([rows, n]), |out: &mut [T]| {
        for (row, loss) in losses.iter_mut().enumerate() {
            let gradient = &mut out[row * n..][..n];
            *loss = recurrent::cross_entropy(
                |class| logit(row, class),
                |class| label(row, class),
                gradient,
            );
        }
        Ok(())
    })?;
    output(context, Shape::from([rows]), |out: &mut [T]| {
        for (slot, &loss) in out.iter_mut().zip(losses.iter()) {
            *slot = T::from_f64(loss);
        }
        Ok(())
    })
}
