//! Layers of neural networks. Images are `[batch, height, width, channels]` (TensorFlow `NHWC`).

use crate::builder::Scope;
use crate::builder::error::BuildError;
use crate::builder::value::Float;
use crate::builder::value::Number;
use crate::builder::value::Operand;
use crate::builder::value::Value;

/// Padding at the edge of an image: the kinds that every op with windows has. Explicit sizes differ
/// by axis, and `AvgPool` does not allow them; [`Scope::op`] builds nodes that have them
/// (attribute `explicit_paddings`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Padding by which the result with step 1 is as large as the image: zeros for convolutions;
    /// pooling ignores it.
    Same,
    /// No padding: windows are inside the image.
    Valid,
}

impl Padding {
    fn name(self) -> &'static str {
        match self {
            Self::Same => "SAME",
            Self::Valid => "VALID",
        }
    }
}

/// Options of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2d {
    /// Padding at the edge.
    pub padding: Padding,
    /// Steps along height and width.
    pub strides: [i64; 2],
    /// Distances between the elements under a filter, along height and width.
    pub dilations: [i64; 2],
}

impl Conv2d {
    /// Returns options with step 1 and distance 1.
    pub fn new(padding: Padding) -> Self {
        Self {
            padding,
            strides: [1, 1],
            dilations: [1, 1],
        }
    }

    /// Sets the steps along height and width.
    #[must_use]
    pub fn with_strides(mut self, strides: [i64; 2]) -> Self {
        self.strides = strides;
        self
    }

    /// Sets the distances along height and width.
    #[must_use]
    pub fn with_dilations(mut self, dilations: [i64; 2]) -> Self {
        self.dilations = dilations;
        self
    }
}

/// Options of a pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2d {
    /// Height and width of the window.
    pub window: [i64; 2],
    /// Steps along height and width.
    pub strides: [i64; 2],
    /// Padding at the edge.
    pub padding: Padding,
}

impl Pool2d {
    /// Returns options with adjacent windows.
    pub fn new(window: [i64; 2], padding: Padding) -> Self {
        Self {
            window,
            strides: window,
            padding,
        }
    }

    /// Sets the steps along height and width.
    #[must_use]
    pub fn with_strides(mut self, strides: [i64; 2]) -> Self {
        self.strides = strides;
        self
    }
}

impl Scope {
    /// `max(x, 0)`, elementwise.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn relu<T: Number>(&self, x: Value<T>) -> Result<Value<T>, BuildError> {
        self.node("Relu", "Relu").tensor(x).value()
    }

    /// `e^x` divided by its sum along the last axis.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn softmax<T: Float>(&self, logits: Value<T>) -> Result<Value<T>, BuildError> {
        self.node("Softmax", "Softmax").tensor(logits).value()
    }

    /// Adds a vector along the last axis of `x`, which has two axes or more.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn bias_add<T: Number>(
        &self,
        x: Value<T>,
        bias: impl Into<Operand<T>>,
    ) -> Result<Value<T>, BuildError> {
        self.node("BiasAdd", "BiasAdd")
            .tensor(x)
            .operand(bias)
            .value()
    }

    /// Convolves images `[n, h, w, c]` with filters `[fh, fw, c, k]`; the result is
    /// `[n, h', w', k]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn conv2d<T: Float>(
        &self,
        images: Value<T>,
        filters: impl Into<Operand<T>>,
        options: Conv2d,
    ) -> Result<Value<T>, BuildError> {
        self.node("Conv2D", "Conv2D")
            .tensor(images)
            .operand(filters)
            .attr("strides", spatial(options.strides))
            .attr("dilations", spatial(options.dilations))
            .attr("padding", options.padding.name())
            .value()
    }

    /// The greatest element of each window of images `[n, h, w, c]`; the result is
    /// `[n, h', w', c]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn max_pool<T: Number>(
        &self,
        images: Value<T>,
        options: Pool2d,
    ) -> Result<Value<T>, BuildError> {
        self.pool("MaxPool", "MaxPool2d", images, options)
    }

    /// The mean of each window of images `[n, h, w, c]`; the result is `[n, h', w', c]`.
    ///
    /// # Errors
    /// [`BuildError`], naming the node.
    pub fn avg_pool<T: Float>(
        &self,
        images: Value<T>,
        options: Pool2d,
    ) -> Result<Value<T>, BuildError> {
        self.pool("AvgPool", "AvgPool2D", images, options)
    }

    fn pool<T: Number>(
        &self,
        op: &str,
        name: &str,
        images: Value<T>,
        options: Pool2d,
    ) -> Result<Value<T>, BuildError> {
        self.node(op, name)
            .tensor(images)
            .attr("ksize", spatial(options.window))
            .attr("strides", spatial(options.strides))
            .attr("padding", options.padding.name())
            .value()
    }
}

/// Expands height and width to an attribute of images.
fn spatial([height, width]: [i64; 2]) -> [i64; 4] {
    [1, height, width, 1]
}
