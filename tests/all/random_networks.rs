//! Random networks, whose layers the optimizer and a CPU device rewrite: with and without passes
//! the results agree. Images have channels first in half of them, which only a pass makes
//! executable; the same network with channels last then gives the expected results.
//!
//! `PLACEWRIGHT_NETWORKS` sets their number and `PLACEWRIGHT_SEED` the first seed.

use std::env;
use std::sync::Arc;

use placewright::builder::Axes;
use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::execute::RunOptions;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::optimize::Pass;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::sample::Random;
use crate::sample::cpus;
use crate::sample::seed;

/// Layers of a network.
const N_LAYERS: usize = 12;

/// Number of images.
const BATCH: usize = 2;

/// Rows and columns of the input.
const SIZE: [usize; 2] = [13, 11];

const CHANNELS: usize = 16;

/// Maximum number of channels after a concatenation.
const CHANNELS_MAX: usize = 64;

type Made<T> = Result<T, BuildError>;

/// An image on the way through a network.
#[derive(Clone, Copy)]
struct Image {
    value: Value<f32>,
    rows: usize,
    columns: usize,
    channels: usize,
}

struct Network {
    b: GraphBuilder,
    random: Random,
    /// Whether images have channels first.
    is_first: bool,
    images: Vec<Image>,
}

impl Network {
    /// The place of each axis of an image, in terms of one with channels first.
    fn order(&self) -> [usize; 4] {
        if self.is_first {
            [0, 1, 2, 3]
        } else {
            [0, 2, 3, 1]
        }
    }

    fn per_axis(&self, batch: i64, channels: i64, rows: i64, columns: i64) -> [i64; 4] {
        let values = [batch, channels, rows, columns];
        self.order().map(|axis| values[axis])
    }

    fn format(&self) -> &'static str {
        if self.is_first { "NCHW" } else { "NHWC" }
    }

    fn numbers(&mut self, n: usize) -> Vec<f32> {
        let random = &mut self.random;
        (0..n)
            .map(|_| random.below(401) as f32 / 200.0 - 1.0)
            .collect()
    }

    fn constant(&mut self, shape: &[usize]) -> Made<Value<f32>> {
        let numbers = self.numbers(shape.iter().product());
        self.b.constant(shape, &numbers)
    }

    /// One number per channel, between 1/2 and 3/2 or around 0.
    fn per_channel(&mut self, channels: usize, is_positive: bool) -> Made<Value<f32>> {
        let mut numbers = self.numbers(channels);
        if is_positive {
            numbers.iter_mut().for_each(|it| *it = 1.0 + *it / 2.0);
        }
        if self.is_first {
            return self.b.constant([1, channels, 1, 1], &numbers);
        }
        self.b.constant([channels], &numbers)
    }

    fn layer(&mut self, image: Image) -> Made<Image> {
        let c = image.channels;
        let with = |value: Value<f32>| Image { value, ..image };
        Ok(match self.random.below(13) {
            0..=2 => self.convolution(image)?,
            3 => self.depthwise(image)?,
            4 => {
                let bias = self.constant(&[c])?;
                let biased = self.b.op("BiasAdd").attr("data_format", self.format());
                with(biased.input(image.value).input(bias).value()?)
            }
            5 => {
                let ones = self
                    .numbers(c)
                    .iter()
                    .map(|it| 1.5 + it)
                    .collect::<Vec<f32>>();
                let variance = self.b.constant([c], &ones)?;
                let (scale, shift, mean) = (
                    self.constant(&[c])?,
                    self.constant(&[c])?,
                    self.constant(&[c])?,
                );
                let norm = self.b.op("FusedBatchNormV3").attr("is_training", false);
                let norm = norm.attr("data_format", self.format()).input(image.value);
                let norm = norm.input(scale).input(shift).input(mean).input(variance);
                let norm = norm.finish()?;
                with(self.b.output(norm, 0)?)
            }
            6 => {
                let factor = self.per_channel(c, true)?;
                with(self.b.mul(image.value, factor)?)
            }
            7 => {
                let term = self.per_channel(c, false)?;
                with(self.b.add(image.value, term)?)
            }
            8 => with(self.activation(image.value)?),
            9 => self.pad(image)?,
            10 => self.pool(image)?,
            11 => {
                let same = |it: &&Image| {
                    (it.rows, it.columns, it.channels) == (image.rows, image.columns, c)
                };
                let same: Vec<Image> = self.images.iter().filter(same).copied().collect();
                let other = same[self.random.below(same.len())];
                with(self.b.add(image.value, other.value)?)
            }
            _ => {
                let side = |it: &&Image| (it.rows, it.columns) == (image.rows, image.columns);
                let sides: Vec<Image> = self.images.iter().filter(side).copied().collect();
                let other = sides[self.random.below(sides.len())];
                if c + other.channels > CHANNELS_MAX {
                    return Ok(image);
                }
                let axis = if self.is_first { 1 } else { 3 };
                Image {
                    value: self.b.concat([image.value, other.value], axis)?,
                    channels: c + other.channels,
                    ..image
                }
            }
        })
    }

    fn activation(&mut self, x: Value<f32>) -> Made<Value<f32>> {
        let b = &self.b;
        match self.random.below(5) {
            0 => b.relu(x),
            1 => b.op("Relu6").input(x).value(),
            2 => b.mul(x, b.sigmoid(x)?),
            3 => b.tanh(x),
            _ => {
                let erf = b.erf(b.mul(x, std::f32::consts::FRAC_1_SQRT_2)?)?;
                b.mul(b.mul(x, 0.5)?, b.add(erf, 1.0)?)
            }
        }
    }

    /// Returns an op over windows of `size`, and the result's rows and columns.
    fn convolution(&mut self, image: Image) -> Made<Image> {
        let size = [1, 3, 3][self.random.below(3)];
        let stride = [1, 1, 2][self.random.below(3)];
        let channels = [4, 16, 20][self.random.below(3)];
        let is_same = self.random.below(2) == 0 || image.rows.min(image.columns) < size;
        let filter = self.constant(&[size, size, image.channels, channels])?;
        // So that numbers do not grow.
        let filter = self
            .b
            .mul(filter, 1.0 / (size * size * image.channels) as f32)?;
        let conv = self.windowed("Conv2D", stride, is_same);
        let value = conv.input(image.value).input(filter).value()?;
        Ok(Image {
            value,
            channels,
            ..after(image, size, stride, is_same)
        })
    }

    fn depthwise(&mut self, image: Image) -> Made<Image> {
        let stride = 1 + self.random.below(2);
        let filter = self.constant(&[3, 3, image.channels, 1])?;
        let node = self.windowed("DepthwiseConv2dNative", stride, true);
        let value = node.input(image.value).input(filter).value()?;
        Ok(Image {
            value,
            ..after(image, 3, stride, true)
        })
    }

    fn pool(&mut self, image: Image) -> Made<Image> {
        let stride = 1 + self.random.below(2);
        let op = ["MaxPool", "AvgPool"][self.random.below(2)];
        let node = self.windowed(op, stride, true);
        let node = node.attr("ksize", self.per_axis(1, 1, 2, 2));
        let value = node.input(image.value).value()?;
        Ok(Image {
            value,
            ..after(image, 2, stride, true)
        })
    }

    fn windowed(
        &self,
        op: &str,
        stride: usize,
        is_same: bool,
    ) -> placewright::builder::OpBuilder<'_> {
        let stride = i64::try_from(stride).unwrap();
        let node = self
            .b
            .op(op)
            .attr("strides", self.per_axis(1, 1, stride, stride));
        let padding = if is_same { "SAME" } else { "VALID" };
        node.attr("padding", padding)
            .attr("data_format", self.format())
    }

    fn pad(&mut self, image: Image) -> Made<Image> {
        let sizes: [[i32; 2]; 2] =
            [(); 2].map(|()| [(); 2].map(|()| i32::try_from(self.random.below(3)).unwrap()));
        let paddings = [[0, 0], [0, 0], sizes[0], sizes[1]];
        let paddings = self.order().map(|axis| paddings[axis]).concat();
        let paddings = self.b.constant([4, 2], &paddings)?;
        let [rows, columns] = sizes.map(|it| usize::try_from(it[0] + it[1]).unwrap());
        Ok(Image {
            value: self.b.pad(image.value, paddings)?,
            rows: image.rows + rows,
            columns: image.columns + columns,
            ..image
        })
    }

    /// Adds the head: means per channel, a dense layer, a normalization and a softmax.
    fn head(&mut self, image: Image) -> Made<()> {
        let axes = if self.is_first { [2, 3] } else { [1, 2] };
        let rows = self.b.reduce_mean(image.value, Axes::new(axes))?;
        let weights = self.constant(&[image.channels, 24])?;
        let bias = self.constant(&[24])?;
        let dense = self.b.matmul(rows, weights)?;
        let dense = self.b.add(dense, bias)?;
        let dense = self.activation(dense)?;
        let row = || Axes::new([-1]).keeping_dims();
        let b = &self.b;
        let difference = b.sub(dense, b.reduce_mean(dense, row())?)?;
        let variance = b.reduce_mean(b.square(difference)?, row())?;
        let normal = b.mul(difference, b.rsqrt(b.add(variance, 0.1)?)?)?;
        let shifted = b.add(normal, bias)?;
        let exponential = b.exp(b.sub(shifted, b.reduce_max(shifted, row())?)?)?;
        let softmax = b.div(exponential, b.reduce_sum(exponential, row())?)?;
        b.named("y").identity(softmax)?;
        Ok(())
    }
}

/// Returns rows and columns after windows.
fn after(image: Image, size: usize, stride: usize, is_same: bool) -> Image {
    let n = |length: usize| match is_same {
        true => length.div_ceil(stride),
        false => (length - size) / stride + 1,
    };
    Image {
        rows: n(image.rows),
        columns: n(image.columns),
        ..image
    }
}

/// Returns a network whose outputs are `y` and the images `z0` and `z1`, with channels last. The
/// same seed gives the same network in both layouts.
fn network(seed: u64, is_first: bool) -> Graph {
    let mut network = Network {
        b: GraphBuilder::new("network"),
        random: Random::new(seed),
        is_first,
        images: Vec::new(),
    };
    let build = |network: &mut Network| -> Made<()> {
        let [rows, columns] = SIZE;
        let dims = [BATCH, CHANNELS, rows, columns];
        let shape = network.order().map(|axis| dims[axis]);
        let x = network.b.placeholder::<f32>("x", shape)?;
        let mut image = Image {
            value: x,
            rows,
            columns,
            channels: CHANNELS,
        };
        for _ in 0..N_LAYERS {
            network.images.push(image);
            image = network.layer(image)?;
        }
        network.head(image)?;
        for name in ["z0", "z1"] {
            let index = network.random.below(network.images.len());
            let value = network.images[index].value;
            let value = if is_first {
                let axes = network.b.constant([4], &[0, 2, 3, 1])?;
                network.b.op("Transpose").input(value).input(axes).value()?
            } else {
                value
            };
            network.b.named(name).identity(value)?;
        }
        Ok(())
    };
    build(&mut network).unwrap();
    network.b.finish()
}

/// The input, with channels last or first.
fn input(is_first: bool) -> Tensor {
    let [rows, columns] = SIZE;
    let at = |image: usize, row: usize, column: usize, channel: usize| {
        let index = ((image * rows + row) * columns + column) * CHANNELS + channel;
        (index * 31 % 97) as f32 / 48.0 - 1.0
    };
    let mut values = Vec::new();
    for image in 0..BATCH {
        if is_first {
            for channel in 0..CHANNELS {
                let pixels = (0..rows * columns).map(|it| (it / columns, it % columns));
                values.extend(pixels.map(|(row, column)| at(image, row, column, channel)));
            }
        } else {
            let elements = (0..rows * columns * CHANNELS).map(|it| (it / CHANNELS, it % CHANNELS));
            values
                .extend(elements.map(|(pixel, c)| at(image, pixel / columns, pixel % columns, c)));
        }
    }
    let shape = match is_first {
        true => [BATCH, CHANNELS, rows, columns],
        false => [BATCH, rows, columns, CHANNELS],
    };
    Tensor::from_values(shape, &values).unwrap()
}

fn builder(graph: &Arc<Graph>) -> SessionBuilder {
    let builder = Session::builder().with_graph(Arc::clone(graph));
    builder.with_device_options(cpus(1))
}

fn run(session: &Session, is_first: bool, fetches: &[&str]) -> Vec<Tensor> {
    let options = RunOptions::default();
    let feeds = [("x", input(is_first))];
    session.run_with(&feeds, fetches, &[], &options).unwrap()
}

#[track_caller]
fn compare(found: &[Tensor], expected: &[Tensor], what: &str) {
    for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.shape(), expected.shape(), "{what}: output {output}");
        let expected = expected.as_slice::<f32>().unwrap();
        // Sums of some hundred terms in another order.
        let size = expected.iter().fold(1.0f32, |size, it| size.max(it.abs()));
        for (found, expected) in found.as_slice::<f32>().unwrap().iter().zip(expected) {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-5 * size,
                "{what}: output {output}: {found} is not {expected}"
            );
        }
    }
}

#[test]
fn passes_and_fused_nodes_keep_the_results_of_random_networks() {
    let n = env::var("PLACEWRIGHT_NETWORKS").map_or(40, |n| n.parse().unwrap());
    let first = seed();
    let fetches = ["y", "z0", "z1"];
    for (index, seed) in (first..first + n).enumerate() {
        let last = Arc::new(network(seed, false));
        let given = builder(&last).with_passes([]).build().unwrap();
        let expected = run(&given, false, &fetches);
        let all = builder(&last).build().unwrap();
        compare(
            &run(&all, false, &fetches),
            &expected,
            &format!("network {seed}"),
        );
        for pass in Pass::ALL {
            let session = builder(&last).with_passes([pass]).build().unwrap();
            let what = format!("network {seed}, {}", pass.name());
            compare(&run(&session, false, &fetches), &expected, &what);
        }
        // Any tensor of the given graph can be fetched.
        let is_float = |node: &NodeId| {
            let output = last.output(*node, 0);
            output.is_some_and(|it| last.tensor_dtypes()[it.index()] == DType::F32)
        };
        let names = last.nodes().filter(is_float);
        let names: Vec<&str> = names.map(|node| last.node_name(node)).collect();
        let inner = names[index * 7 % names.len()];
        compare(
            &run(&all, false, &[inner]),
            &run(&given, false, &[inner]),
            inner,
        );
        let first = builder(&Arc::new(network(seed, true))).build().unwrap();
        let what = format!("network {seed} with channels first");
        compare(&run(&first, true, &fetches), &expected, &what);
    }
}
