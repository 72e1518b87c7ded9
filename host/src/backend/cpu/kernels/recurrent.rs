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
    registry.register(
        def("LSTMBlockCell")
            .with_types("T", &[DType::F16, DType::F32])
            .with_factory(lstm),
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

/// TensorFlow `LSTMBlockCell`.
fn lstm(node: &KernelConstruction<'_>) -> Made {
    let cell = LstmCell {
        forget_bias: float_attr(node, "forget_bias", 1.0)?.into(),
        clip: float_attr(node, "cell_clip", 3.0)?.into(),
    };
    let has_peepholes = bool_attr(node, "use_peephole", false)?;
    dispatch!(type_attr(node, "T")?, [F16: f16, F32: f32], T => kernel(move |context| {
        step::<T>(context, cell, has_peepholes)
    }))
}

/// Names of the inputs of a cell.
const LSTM_INPUTS: [&str; 8] = ["x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"];

fn step<T: Real + MatmulElement>(
    context: &KernelContext<'_>,
    cell: LstmCell,
    has_peepholes: bool,
) -> Result<(), KernelError> {
    let (x, before) = (context.input(0)?, context.input(1)?);
    let (&[batch, n_inputs], &[_, n]) = (x.shape().dims(), before.shape().dims()) else {
        return Err(KernelError::invalid(format!(
            "x and cs_prev must be matrices, not {} and {}",
            x.shape(),
            before.shape()
        )));
    };
    let (n_rows, n_gates) = (n_inputs.saturating_add(n), n.saturating_mul(4));
    let expected: [&[usize]; 8] = [
        &[batch, n_inputs],
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
        let is_used = !(4..7).contains(&index) || has_peepholes;
        let found = context.input(index)?.shape();
        if is_used && found.dims() != dims {
            return Err(KernelError::invalid(format!(
                "{what} must have shape {}, not {found}",
                Shape::new(dims)
            )));
        }
    }
    let values = |index: usize| {
        context
            .input(index)?
            .as_slice::<T>()
            .map_err(KernelError::from)
    };
    let (x, before, hidden, w, bias) = (values(0)?, values(1)?, values(2)?, values(3)?, values(7)?);
    let peepholes = [values(4)?, values(5)?, values(6)?];
    let threads = Threads::of(context);
    let mut joined = threads.scratch::<T>(product(&[batch, n_rows]))?;
    for (row, joined) in joined.chunks_exact_mut(n_rows.max(1)).enumerate() {
        let (first, second) = joined.split_at_mut(n_inputs);
        first.copy_from_slice(&x[row * n_inputs..][..n_inputs]);
        second.copy_from_slice(&hidden[row * n..][..n]);
    }
    let mut sums = threads.scratch::<T>(product(&[batch, n_gates]))?;
    T::matmul(
        MatrixView::row_major(&joined, batch, n_rows)?,
        MatrixView::row_major(w, n_rows, n_gates)?,
        &mut MatrixMut::new(&mut sums, batch, n_gates, n_gates)?,
        threads,
    )?;
    let state = |index: usize| -> LstmState {
        let (row, column) = (index / n, index % n);
        let sum = |gate: usize| {
            let place = gate * n + column;
            sums[row * n_gates + place].to_f64() + bias[place].to_f64()
        };
        let weights = match has_peepholes {
            true => peepholes.map(|weights| weights[column].to_f64()),
            false => [0.0; 3],
        };
        cell.step(
            [sum(0), sum(1), sum(2), sum(3)],
            before[index].to_f64(),
            weights,
        )
    };
    let outputs: [fn(&LstmState) -> f64; 7] = [
        |state| state.input,
        |state| state.state,
        |state| state.forget,
        |state| state.output,
        |state| state.candidate,
        |state| state.squashed,
        |state| state.hidden,
    ];
    let shape = Shape::from([batch, n]);
    let mut states = scratch::list(shape.n_elements())?;
    states.extend((0..shape.n_elements()).map(state));
    for (index, part) in outputs.into_iter().enumerate() {
        context.fill_output(index, &shape, |out: &mut [T]| {
            for (slot, state) in out.iter_mut().zip(&states) {
                *slot = T::from_f64(part(state));
            }
            Ok(())
        })?;
    }
    Ok(())
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
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= n_steps);
        let length = length.ok_or_else(|| {
            KernelError::invalid(format!(
                "sequence_length[{row}] must be from 0 to max_time, which is {n_steps}"
            ))
        })?;
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
