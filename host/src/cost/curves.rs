//! Times of kernels as functions of their work, from measurements of a few sizes.

use std::iter::repeat_n;

use super::calibration::Calibration;
use super::calibration::MeasuredKernel;
use super::families::Family;
use super::families::WorkUnit;
use super::families::bytes_to_f64;
use super::families::families;
use super::families::family_of;
use super::probe::to_f64;
use super::source::KernelCosts;
use super::source::NodeWork;
use super::source::Prediction;
use crate::tensor::DType;

impl Calibration {
    /// Returns the time of so much work of a family, in ns, and its spread; `None` if the family
    /// was not measured. `is_hot`: its weights are in the cache of a core. Between two sizes the
    /// time grows evenly, and beyond the last one as between the last two.
    fn time_ns(&self, family: &Family, work: f64, is_hot: bool) -> Option<(f64, f64)> {
        let sizes = || {
            self.kernels
                .iter()
                .filter(|kernel| kernel.family == family.name)
        };
        let below = sizes().rev().find(|kernel| kernel.work <= work);
        let above = sizes().find(|kernel| kernel.work > work);
        let (first, second) = match (below, above) {
            (Some(below), Some(above)) => (below, above),
            // Less than was measured takes as long as the least.
            (None, Some(only)) => (only, only),
            (Some(last), None) => {
                let before = sizes().rev().find(|kernel| kernel.work < last.work);
                (before.unwrap_or(last), last)
            }
            (None, None) => return None,
        };
        let time_ns = |kernel: &MeasuredKernel| match kernel.hot_ns {
            Some(hot_ns) if is_hot => hot_ns,
            _ => kernel.ns,
        };
        let (first_ns, second_ns) = (time_ns(first), time_ns(second));
        if second.work <= first.work {
            return Some((first_ns, first.spread_ns));
        }
        let part = (work - first.work) / (second.work - first.work);
        let ns = first_ns + part * (second_ns - first_ns);
        // More work is never faster than the most that was measured.
        let ns = if part > 1.0 { ns.max(second_ns) } else { ns };
        let relative = first.spread_ns / first.ns.max(1.0);
        Some((ns, ns * relative))
    }
}

/// The family whose nodes take no time but for the bytes.
const PLAIN: &str = "elementwise";

/// Families whose nodes cost their readers nothing but the bytes.
const FREE: [&str; 3] = [PLAIN, "reduction", "transposition"];

/// Families whose nodes devices fuse.
const ELEMENTWISE: [&str; 8] = [
    "elementwise",
    "broadcast",
    "exponential",
    "hyperbolic tangent",
    "linear unit with exponential",
    "error function",
    "power",
    "softmax",
];

/// Whether the kernels of the nodes that read a node compute it, on devices that fuse chains of
/// elementwise nodes, and reductions of rows among them; or a matmul reads it with other strides.
fn is_fused_into_readers(node: &NodeWork<'_>, row_min: usize) -> bool {
    let family = |node: &NodeWork<'_>| family_of(node).map_or("", |family| family.name);
    let is_elementwise =
        |node: &NodeWork<'_>| ELEMENTWISE.contains(&family(node)) && node.op() != "AddN";
    let reduces_rows = |node: &NodeWork<'_>| {
        matches!(node.op(), "Sum" | "Mean" | "Max" | "Min")
            && node.attrs().bool("keep_dims") == Some(true)
    };
    let is_float = |node: &NodeWork<'_>| {
        let mut outputs = node.outputs();
        outputs.next().is_some_and(|(dtype, _)| dtype == DType::F32)
    };
    match family(node) {
        "transposition" => {
            let is_product =
                |other: &NodeWork<'_>| matches!(other.op(), "BatchMatMul" | "BatchMatMulV2");
            node.op() == "Transpose" && (node.all_readers(is_product) || node.is_behind(is_product))
        }
        "reduction" => reduces_rows(node) && is_float(node) && node.all_readers(is_elementwise),
        name => {
            ELEMENTWISE.contains(&name)
                && name != "softmax"
                && node.op() != "AddN"
                && is_float(node)
                && node.row_len() >= row_min
                && node.all_readers(|reader| {
                    is_elementwise(reader) && is_as_large(node, reader) || reduces_rows(reader)
                })
        }
    }
}

/// Whether a node has as many elements as its reader, or one per row, so that no element is
/// computed repeatedly.
fn is_as_large(node: &NodeWork<'_>, reader: &NodeWork<'_>) -> bool {
    let shape = |node: &NodeWork<'_>| node.outputs().next().map(|(_, shape)| shape);
    let (Some(own), Some(of_reader)) = (shape(node), shape(reader)) else {
        return false;
    };
    let (Some(own), Some(of_reader)) = (own.dims(), of_reader.dims()) else {
        return false;
    };
    let Some(n_missing) = of_reader.len().checked_sub(own.len()) else {
        return false;
    };
    let own = repeat_n(&Some(1), n_missing).chain(own);
    let last = of_reader.len().saturating_sub(1);
    let mut pairs = own.zip(of_reader).enumerate();
    pairs.all(|(axis, (own, dim))| own == dim || axis == last && *own == Some(1))
}

/// The inputs of a node that are as large as its output.
#[derive(Debug, Clone, Copy, Default)]
struct LargeInputs {
    n_all: usize,
    /// Those that the kernel reads from memory: it does not compute them itself.
    n_read: usize,
}

impl LargeInputs {
    fn of(node: &NodeWork<'_>, row_min: usize) -> Self {
        let Some((_, output)) = node.outputs().next() else {
            return Self::default();
        };
        let mut inputs = Self::default();
        for ((_, shape), producer) in node.inputs().zip(node.producers()) {
            if shape == output {
                inputs.n_all += 1;
                inputs.n_read += usize::from(!is_fused_into_readers(&producer, row_min));
            }
        }
        inputs
    }

    /// Returns the part that so many of these tensors are of the bytes of a node, with its output.
    fn part(self, n_tensors: usize) -> f64 {
        to_f64(n_tensors) / to_f64(self.n_all + 1)
    }
}

impl Calibration {
    /// Returns the time that the reading or writing of a part of so many bytes adds to a kernel.
    fn moved_ns(&self, bytes: f64, part: f64) -> f64 {
        let plain = families().iter().find(|family| family.name == PLAIN);
        let time_ns = |bytes: f64| {
            let time = plain.and_then(|plain| self.time_ns(plain, bytes, false));
            time.map_or(0.0, |(ns, _)| ns)
        };
        part * (time_ns(bytes) - time_ns(0.0)).max(0.0)
    }
}

impl KernelCosts for Calibration {
    fn predict(&self, node: &NodeWork<'_>) -> Option<Prediction> {
        let family = family_of(node)?;
        let work = family.work(node.flops(), node.traffic_bytes());
        let (ns, spread_ns) = self.time_ns(family, work, node.has_hot_weights())?;
        // Devices that compile programs launch a copy for each tensor. Two were measured.
        let ns = match (family.name, self.fused_row_min, self.launch_ns) {
            ("concatenation", Some(_), Some(launch_ns)) => {
                let is_axis = usize::from(matches!(node.op(), "Concat" | "ConcatV2"));
                let n_tensors = node.inputs().count().saturating_sub(is_axis);
                let more = to_f64(n_tensors.saturating_sub(2));
                ns + (launch_ns + self.cold_ns.unwrap_or(0.0)) * more
            }
            _ => ns,
        };
        let cold_ns = self.cold_ns.unwrap_or(0.0);
        // A product that has more bytes per operation than the samples of its family.
        let ns = match family.unit {
            WorkUnit::Flops => {
                let more_bytes = bytes_to_f64(node.traffic_bytes()) - family.sample_bytes(work);
                ns + self.moved_ns(more_bytes.max(0.0), 1.0)
            }
            WorkUnit::Bytes => ns,
        };
        let ns = match self.fused_row_min {
            // Another node's kernel computes it, in registers.
            _ if node.is_epilogue() => 0.0,
            Some(row_min) if is_fused_into_readers(node, row_min) => {
                // What remains is what the kernel reads for it, and arithmetic that sums of as many
                // bytes do not have.
                let plain = families()
                    .iter()
                    .find(|plain| plain.name == PLAIN && !FREE.contains(&family.name));
                let plain_ns = plain.and_then(|plain| self.time_ns(plain, work, false));
                let more_ns = plain_ns.map_or(0.0, |(plain_ns, _)| (ns - plain_ns).max(0.0));
                let inputs = LargeInputs::of(node, row_min);
                more_ns + self.moved_ns(work, inputs.part(inputs.n_read))
            }
            Some(row_min) if ELEMENTWISE.contains(&family.name) => {
                // What the kernel computes itself is not read.
                let inputs = LargeInputs::of(node, row_min);
                let computed = inputs.part(inputs.n_all - inputs.n_read);
                (ns - self.moved_ns(work, computed)).max(0.0) + cold_ns
            }
            _ => ns + cold_ns,
        };
        Some(Prediction {
            ns,
            spread_ns,
            samples: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::cost::source::WorkKeys;

    #[test]
    fn times_lie_between_the_sizes_and_grow_beyond_them() {
        let family = &families()[1];
        let kernel = |work: f64, ns: f64| MeasuredKernel {
            family: family.name.to_owned(),
            of: String::new(),
            work,
            ns,
            spread_ns: 0.1 * ns,
            hot_ns: (work == 40.0).then_some(150.0),
        };
        let calibration = Calibration {
            kernels: vec![
                kernel(10.0, 100.0),
                kernel(20.0, 120.0),
                kernel(40.0, 200.0),
            ],
            ..Calibration::default()
        };
        let ns = |work| calibration.time_ns(family, work, false).map(|(ns, _)| ns);
        for (work, expected) in [
            (0.0, 100.0),
            (10.0, 100.0),
            (15.0, 110.0),
            (30.0, 160.0),
            (40.0, 200.0),
            (60.0, 280.0),
        ] {
            assert_eq!(ns(work), Some(expected), "{work}");
        }
        let hot = calibration.time_ns(family, 40.0, true);
        assert_eq!(hot.map(|(ns, _)| ns), Some(150.0));
        assert_eq!(calibration.time_ns(&families()[0], 1.0, false), None);
        let one = Calibration {
            kernels: vec![kernel(10.0, 100.0)],
            ..Calibration::default()
        };
        assert_eq!(
            one.time_ns(family, 1e9, false).map(|(ns, _)| ns),
            Some(100.0)
        );
    }

    #[test]
    fn nodes_that_their_readers_compute_cost_their_arithmetic_where_chains_are_fused() {
        let b = GraphBuilder::new("chain");
        let x = b.placeholder::<f32>("x", [64, 64]).unwrap();
        let doubled = b.named("doubled").add(x, x).unwrap();
        let raised = b.named("raised").exp(doubled).unwrap();
        let last = b.named("last").add(raised, x).unwrap();
        // A matmul's operand is in memory.
        b.named("product").matmul(last, last).unwrap();
        let graph = b.finish();
        let times = [("elementwise", 5.0), ("exponential", 8.0), ("matmul", 9.0)];
        let kernels = times.map(|(family, ns)| MeasuredKernel {
            family: family.to_owned(),
            of: String::new(),
            work: 1.0,
            ns,
            spread_ns: 0.0,
            hot_ns: None,
        });
        let mut calibration = Calibration {
            kernels: kernels.to_vec(),
            ..Calibration::default()
        };
        let mut times = |fused_row_min| {
            calibration.fused_row_min = fused_row_min;
            let mut works = WorkKeys::of(&graph);
            ["doubled", "raised", "last", "product"].map(|name| {
                let node = graph.find_node(name).unwrap();
                calibration.predict(&works.work(node)).unwrap().ns
            })
        };
        assert_eq!(times(None), [5.0, 8.0, 5.0, 9.0]);
        assert_eq!(times(Some(16)), [0.0, 3.0, 5.0, 9.0]);
        assert_eq!(times(Some(1 << 20)), [5.0, 8.0, 5.0, 9.0]);
    }

    /// Few columns into many: most of the bytes are of the result.
    #[test]
    fn products_with_more_bytes_than_the_samples_take_longer() {
        let b = GraphBuilder::new("products");
        let product = |name: &str, [rows, inner, columns]: [usize; 3]| {
            let x = b.placeholder::<f32>("x", [rows, inner]).unwrap();
            let y = b.placeholder::<f32>("y", [inner, columns]).unwrap();
            b.named(name).matmul(x, y).unwrap();
        };
        product("square", [256, 256, 256]);
        product("wide", [256, 16, 4096]);
        let graph = b.finish();
        // 1 ns per byte, and 100 ns per product.
        let kernel = |family: &str, work: f64, ns: f64| MeasuredKernel {
            family: family.to_owned(),
            of: String::new(),
            work,
            ns,
            spread_ns: 0.0,
            hot_ns: None,
        };
        let calibration = Calibration {
            kernels: vec![
                kernel("elementwise", 0.0, 5.0),
                kernel("elementwise", 1e8, 1e8 + 5.0),
                kernel("matmul", 1.0, 100.0),
            ],
            ..Calibration::default()
        };
        let mut works = WorkKeys::of(&graph);
        let mut time = |name: &str| {
            let node = graph.find_node(name).unwrap();
            calibration.predict(&works.work(node)).unwrap().ns
        };
        // 256 is one of the sizes that are measured.
        let of_square = 3.0 * 256.0 * 256.0 * 4.0;
        let of_wide = 4.0 * (256.0 * 16.0 + 16.0 * 4096.0 + 256.0 * 4096.0);
        assert!((time("square") - 100.0).abs() < 1.0, "{}", time("square"));
        let more = time("wide") - 100.0;
        assert!((more - (of_wide - of_square)).abs() < 1.0, "{more}");
    }

    #[test]
    fn each_kernel_and_no_fused_node_follows_other_kernels() {
        let b = GraphBuilder::new("chain");
        let x = b.placeholder::<f32>("x", [64, 64]).unwrap();
        let doubled = b.named("doubled").add(x, x).unwrap();
        b.named("last").neg(doubled).unwrap();
        let graph = b.finish();
        let mut calibration = Calibration {
            kernels: vec![MeasuredKernel {
                family: "elementwise".to_owned(),
                of: String::new(),
                work: 1.0,
                ns: 5.0,
                spread_ns: 0.0,
                hot_ns: None,
            }],
            cold_ns: Some(40.0),
            ..Calibration::default()
        };
        for (fused_row_min, expected) in [(None, [45.0, 45.0]), (Some(16), [0.0, 45.0])] {
            calibration.fused_row_min = fused_row_min;
            let mut works = WorkKeys::of(&graph);
            let times = ["doubled", "last"].map(|name| {
                let node = graph.find_node(name).unwrap();
                calibration.predict(&works.work(node)).unwrap().ns
            });
            assert_eq!(times, expected, "{fused_row_min:?}");
        }
    }

    #[test]
    fn a_fused_chain_costs_what_its_kernel_reads_and_writes() {
        let b = GraphBuilder::new("chain");
        let x = b.placeholder::<f32>("x", [64, 64]).unwrap();
        let y = b.placeholder::<f32>("y", [64, 64]).unwrap();
        let row = b.placeholder::<f32>("row", [64]).unwrap();
        let doubled = b.named("doubled").add(row, row).unwrap();
        let scaled = b.named("scaled").mul(x, doubled).unwrap();
        let added = b.named("added").add(scaled, y).unwrap();
        b.named("last").relu(added).unwrap();
        let graph = b.finish();
        // 1 ns per byte, and what a launch takes.
        let kernel = |family: &str, work: f64, ns: f64| MeasuredKernel {
            family: family.to_owned(),
            of: String::new(),
            work,
            ns,
            spread_ns: 0.0,
            hot_ns: None,
        };
        let calibration = Calibration {
            kernels: vec![
                kernel("elementwise", 0.0, 5.0),
                kernel("elementwise", 1e6, 1e6 + 5.0),
                kernel("broadcast", 0.0, 7.0),
                kernel("broadcast", 1e6, 1e6 + 7.0),
            ],
            fused_row_min: Some(16),
            ..Calibration::default()
        };
        let mut works = WorkKeys::of(&graph);
        let mut time = |name: &str| {
            let node = graph.find_node(name).unwrap();
            calibration.predict(&works.work(node)).unwrap().ns
        };
        // A kernel of its own: the row is not computed once per row of the matrix.
        assert_eq!(time("doubled"), 3.0 * 256.0 + 5.0);
        let matrix = 64.0 * 64.0 * 4.0;
        // Reads `x` and a row, which counts a half; `y`; and writes.
        assert_eq!(time("scaled"), 2.0 + matrix + 128.0);
        assert_eq!(time("added"), matrix);
        assert_eq!(time("last"), matrix + 5.0);
    }
}
