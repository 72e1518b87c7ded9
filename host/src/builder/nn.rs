//! Layers of neural networks. Images are `[batch, height, width, channels]` (TensorFlow `NHWC`).

use crate::builder::Scope;
use crate::builder::error::BuildError;
use crate::builder::value::Float;
use crate::builder::value::Number;
use crate::builder::value::Operand;
use crate::builder::value::Value;

/// What stands beyond the edge of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// So many elements that with step 1 the result is as large as the image: zeros for sums, none
    /// at all for pooling.
    Same,
    /// Nothing: windows lie within the image.
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

/// How a convolution goes over an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2d {
    /// What stands beyond the edge.
    pub padding: Padding,
    /// Steps along height and width.
    pub strides: [i64; 2],
    /// Distances between the elements that a filter sees, along height and width.
    pub dilations: [i64; 2],
}

impl Conv2d {
    /// Step 1 and distance 1.
    pub fn new(padding: Padding) -> Self {
        Self {
            padding,
            strides: [1, 1],
            dilations: [1, 1],
        }
    }

    /// The same with these steps along height and width.
    #[must_use]
    pub fn with_strides(mut self, strides: [i64; 2]) -> Self {
        self.strides = strides;
        self
    }

    /// The same with these distances along height and width.
    #[must_use]
    pub fn with_dilations(mut self, dilations: [i64; 2]) -> Self {
        self.dilations = dilations;
        self
    }
}

/// How a pooling window goes over an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2d {
    /// Height and width of the window.
    pub window: [i64; 2],
    /// Steps along height and width.
    pub strides: [i64; 2],
    /// What stands beyond the edge.
    pub padding: Padding,
}

impl Pool2d {
    /// Windows side by side.
    pub fn new(window: [i64; 2], padding: Padding) -> Self {
        Self {
            window,
            strides: window,
            padding,
        }
    }

    /// The same with these steps along height and width.
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

    /// `e^x` over its sum along the last axis.
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

    /// Convolution of images `[n, h, w, c]` with filters `[fh, fw, c, k]`: `[n, h', w', k]`.
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

    /// The greatest element of each window of images `[n, h, w, c]`: `[n, h', w', c]`.
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

    /// The mean of each window of images `[n, h, w, c]`: `[n, h', w', c]`.
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

/// Height and width, as attributes of images spell them.
fn spatial([height, width]: [i64; 2]) -> [i64; 4] {
    [1, height, width, 1]
}
