//! Cells of recurrent networks, and the decoding of their results.

use crate::kernels::Number;
use crate::kernels::Real;

/// Options of TensorFlow `LSTMBlockCell`.
#[derive(Debug, Clone, Copy)]
pub struct LstmCell {
    /// Added to the gate that forgets.
    pub forget_bias: f64,
    /// Largest absolute value of a state; not positive for no limit.
    pub clip: f64,
}

/// Gates and state of one element of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LstmState {
    /// Input gate.
    pub input: f64,
    /// New state.
    pub state: f64,
    /// Gate that forgets.
    pub forget: f64,
    /// Output gate.
    pub output: f64,
    /// Candidate for the state.
    pub candidate: f64,
    /// Hyperbolic tangent of the state.
    pub squashed: f64,
    /// Output.
    pub hidden: f64,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl LstmCell {
    /// Computes one element from the sums of input gate, candidate, forgetting gate and output
    /// gate, the state before, and the weights of connections from the state to the three gates.
    pub fn step(&self, sums: [f64; 4], before: f64, peepholes: [f64; 3]) -> LstmState {
        let [input, candidate, forget, output] = sums;
        let input = sigmoid(input + before * peepholes[0]);
        let candidate = candidate.tanh();
        let forget = sigmoid(forget + self.forget_bias + before * peepholes[1]);
        let state = candidate * input + before * forget;
        let state = match self.clip > 0.0 {
            true => state.max(-self.clip).min(self.clip),
            false => state,
        };
        let output = sigmoid(output + state * peepholes[2]);
        let squashed = state.tanh();
        LstmState {
            input,
            state,
            forget,
            output,
            candidate,
            squashed,
            hidden: output * squashed,
        }
    }
}

/// Decodes the most likely class of each step: calls `emit` with classes that are not `blank`, and
/// not those of the step before if repetitions are merged (TensorFlow `CTCGreedyDecoder`). Returns
/// the sum of the negative logits.
pub fn decode_greedily<'a, T: Real + 'a>(
    steps: impl Iterator<Item = &'a [T]>,
    blank: usize,
    merges: bool,
    mut emit: impl FnMut(usize),
) -> T {
    let mut previous = None;
    let mut sum = T::ZERO;
    for logits in steps {
        let mut best = 0;
        for (class, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = class;
            }
        }
        sum = sum.minus(logits.get(best).copied().unwrap_or(T::ZERO));
        if best != blank && !(merges && previous == Some(best)) {
            emit(best);
        }
        previous = Some(best);
    }
    sum
}

/// Computes the loss of a row of logits and its gradient (TensorFlow
/// `SoftmaxCrossEntropyWithLogits`); `label` returns the probability of a class. The gradient is
/// written to `gradient`.
///
/// # Panics
/// If `gradient` is shorter than the row.
pub fn cross_entropy<T: Number>(
    logits: impl Fn(usize) -> f64,
    label: impl Fn(usize) -> f64,
    gradient: &mut [T],
) -> f64 {
    let n = gradient.len();
    let largest =
        (0..n).map(&logits).fold(
            f64::NEG_INFINITY,
            |a, b| {
                if b > a || b.is_nan() { b } else { a }
            },
        );
    let sum: f64 = (0..n).map(|class| (logits(class) - largest).exp()).sum();
    let mut loss = 0.0;
    for (class, slot) in gradient.iter_mut().enumerate() {
        let (x, p) = (logits(class) - largest, label(class));
        // A class without probability has no part in the loss, even if its logit is infinite.
        if p != 0.0 {
            loss += p * (sum.ln() - x);
        }
        *slot = T::from_f64(x.exp() / sum - p);
    }
    loss
}
