//! Convolutions: all channels together, each channel by itself, and the one after the other.

use super::scope::{Activation, Layer, Weight, activated, layer, node};
use crate::graph::{Init, Regularizer, Tensor, Variable};
use crate::ops::{ConvOptions, DataFormat, Padding};

/// What convolutional layers can be told beside their sizes; the defaults are TensorFlow's. Pairs are of height and
/// width.
#[derive(Clone, Debug)]
pub struct Conv2dOptions<'g> {
    /// The layer's name; without it `conv2d`, `conv2d_1`, …, or as the function says.
    pub name: Option<String>,
    /// How far the window moves; `[1, 1]`.
    pub strides: [usize; 2],
    /// What lies around the image; nothing.
    pub padding: Padding,
    /// How far the window's elements lie apart; `[1, 1]`.
    pub dilations: [usize; 2],
    /// Where the image's axes are; the channels last.
    pub data_format: DataFormat,
    /// Groups of channels that see only their own filters; 1. For [`conv2d`].
    pub groups: usize,
    /// Applied to the result; nothing without it.
    pub activation: Option<Activation<'g>>,
    /// Adds a bias to each channel of the result; true.
    pub use_bias: bool,
    /// How the kernel starts; without it as the scope says, else Glorot uniform.
    pub kernel_init: Option<Init>,
    /// How the bias starts; zeros.
    pub bias_init: Init,
    /// A penalty on the kernel, instead of the scope's.
    pub kernel_regularizer: Option<Regularizer>,
    /// A penalty on the bias, instead of the scope's.
    pub bias_regularizer: Option<Regularizer>,
    /// Whether optimizers change the variables; true.
    pub trainable: bool,
}

impl Default for Conv2dOptions<'_> {
    fn default() -> Self {
        let ConvOptions { strides, padding, dilations, data_format } = ConvOptions::default();
        Conv2dOptions {
            name: None,
            strides,
            padding,
            dilations,
            data_format,
            groups: 1,
            activation: None,
            use_bias: true,
            kernel_init: None,
            bias_init: Init::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            trainable: true,
        }
    }
}

/// What the axes of images are.
pub(super) fn axes(data_format: DataFormat) -> &'static str {
    match data_format {
        DataFormat::Nhwc => "[batch, height, width, channels]",
        DataFormat::Nchw => "[batch, channels, height, width]",
    }
}

impl<'g> Conv2dOptions<'g> {
    /// Options that only give the name.
    pub fn named(name: &str) -> Self {
        Conv2dOptions { name: Some(name.to_string()), ..Conv2dOptions::default() }
    }

    /// Options that only give strides and padding.
    pub fn moving(strides: [usize; 2], padding: Padding) -> Self {
        Conv2dOptions { strides, padding, ..Conv2dOptions::default() }
    }

    fn window(&self) -> ConvOptions {
        let Conv2dOptions { strides, padding, dilations, data_format, .. } = *self;
        ConvOptions { strides, padding, dilations, data_format }
    }

    /// The image's channels, or what is wrong with it or with the sizes.
    fn channels(
        &self,
        l: &Layer<'g>,
        x: Tensor<'g>,
        what: &str,
        sizes: &[usize],
        kernel: [usize; 2],
    ) -> Result<usize, String> {
        l.want(x, 4, axes(self.data_format))?;
        if sizes.contains(&0) {
            return Err(format!("want 1 or more {what}, got 0"));
        }
        if kernel.contains(&0) {
            return Err(format!("want a kernel of 1 or more by 1 or more, got {} by {}", kernel[0], kernel[1]));
        }
        match l.size(x, self.data_format.channels(), "the channels")? {
            0 => Err(format!("want 1 or more channels, got '{}' {}", x.name(), x.shape())),
            channels => Ok(channels),
        }
    }

    fn kernel(&self, l: &Layer<'g>, x: Tensor<'g>, name: &str, sizes: [usize; 4]) -> Variable<'g> {
        let kernel = Weight::new(self.kernel_init.clone()).regularized(self.kernel_regularizer);
        l.variable(x, name, sizes, kernel.trainable(self.trainable))
    }

    /// Makes the bias, then builds the result, so that variables are made in TensorFlow's order.
    fn finished(
        &self,
        l: &Layer<'g>,
        x: Tensor<'g>,
        filters: usize,
        convolved: impl FnOnce() -> Tensor<'g>,
    ) -> Tensor<'g> {
        let bias = self.use_bias.then(|| {
            let bias = Weight::new(self.bias_init.clone()).regularized(self.bias_regularizer);
            l.variable(x, "bias", [filters], bias.trainable(self.trainable))
        });
        let sum = match (convolved(), bias) {
            (y, Some(bias)) => {
                let sum = node(l.graph, "BiasAdd").inputs([y, bias.value()]);
                sum.attr("data_format", self.data_format.name()).tensor()
            }
            (y, None) => y,
        };
        activated(sum, self.activation)
    }
}

/// `activation(convolution(x, kernel) + bias)` of images, `tf.layers.conv2d`.
///
/// Variables `kernel` `[height, width, channels / groups, filters]` and `bias` `[filters]`; ops `Conv2D`, `BiasAdd`.
///
/// Reported: an input that is no image of floats or has an unknown number of channels, sizes of zero, groups that do not
/// divide channels and filters, and what the op refuses.
#[track_caller]
pub fn conv2d<'g>(x: Tensor<'g>, filters: usize, kernel: [usize; 2], options: Conv2dOptions<'g>) -> Tensor<'g> {
    layer(x, options.name.as_deref(), "conv2d", |l| {
        let channels = match options.channels(l, x, "filters", &[filters], kernel) {
            Ok(channels) => channels,
            Err(message) => return l.refuse(message),
        };
        let groups = options.groups;
        if groups == 0 || channels % groups != 0 || !filters.is_multiple_of(groups) {
            return l.refuse(format!(
                "groups must divide channels and filters, got {groups} groups, {channels} channels, {filters} filters"
            ));
        }
        let weights = options.kernel(l, x, "kernel", [kernel[0], kernel[1], channels / groups, filters]);
        options.finished(l, x, filters, || x.conv2d(weights, options.window()))
    })
}

/// Convolves each channel of images by filters of its own, as many as `multiplier` says: Keras's `DepthwiseConv2D`.
///
/// Variables `depthwise_kernel` `[height, width, channels, multiplier]` and `bias` `[channels · multiplier]` in the
/// scope `depthwise_conv2d`; ops `depthwise`, `BiasAdd`. Reported as with [`conv2d`].
#[track_caller]
pub fn depthwise_conv2d<'g>(
    x: Tensor<'g>,
    kernel: [usize; 2],
    multiplier: usize,
    options: Conv2dOptions<'g>,
) -> Tensor<'g> {
    layer(x, options.name.as_deref(), "depthwise_conv2d", |l| {
        let channels = match options.channels(l, x, "filters of a channel", &[multiplier], kernel) {
            Ok(channels) => channels,
            Err(message) => return l.refuse(message),
        };
        let Some(filters) = channels.checked_mul(multiplier) else {
            return l.refuse(format!("{channels} channels times {multiplier} filters are more than can be counted"));
        };
        let weights = options.kernel(l, x, "depthwise_kernel", [kernel[0], kernel[1], channels, multiplier]);
        options.finished(l, x, filters, || depthwise(x, weights, options.window()))
    })
}

#[track_caller]
fn depthwise<'g>(x: Tensor<'g>, kernel: Variable<'g>, window: ConvOptions) -> Tensor<'g> {
    x.convolution("DepthwiseConv2dNative", &[x, kernel.value()], window).name("depthwise").tensor()
}

/// What [`separable_conv2d`] can be told beside its sizes; the defaults are TensorFlow's.
#[derive(Clone, Debug)]
pub struct SeparableConv2dOptions<'g> {
    /// The window, which moves over single channels, the kernel of single channels, and the rest.
    pub conv: Conv2dOptions<'g>,
    /// Filters of each channel; 1.
    pub depth_multiplier: usize,
    /// How the kernel over all channels starts; without it as the scope says, else Glorot uniform.
    pub pointwise_init: Option<Init>,
    /// A penalty on the kernel over all channels, instead of the scope's.
    pub pointwise_regularizer: Option<Regularizer>,
}

impl Default for SeparableConv2dOptions<'_> {
    fn default() -> Self {
        let conv = Conv2dOptions::default();
        SeparableConv2dOptions { conv, depth_multiplier: 1, pointwise_init: None, pointwise_regularizer: None }
    }
}

impl<'g> SeparableConv2dOptions<'g> {
    /// Options that only say what [`conv2d`] is told too.
    pub fn conv(conv: Conv2dOptions<'g>) -> Self {
        SeparableConv2dOptions { conv, ..SeparableConv2dOptions::default() }
    }
}

/// A convolution of single channels, and one of 1 by 1 over all of its results, `tf.layers.separable_conv2d`.
///
/// Variables `depthwise_kernel` `[height, width, channels, multiplier]`, `pointwise_kernel` `[1, 1, channels ·
/// multiplier, filters]` and `bias` `[filters]`; ops `separable_conv2d/depthwise`, `separable_conv2d`, `BiasAdd`.
/// Reported as with [`conv2d`].
#[track_caller]
pub fn separable_conv2d<'g>(
    x: Tensor<'g>,
    filters: usize,
    kernel: [usize; 2],
    options: SeparableConv2dOptions<'g>,
) -> Tensor<'g> {
    let SeparableConv2dOptions { conv, depth_multiplier, pointwise_init, pointwise_regularizer } = options;
    layer(x, conv.name.as_deref(), "separable_conv2d", |l| {
        let channels = match conv.channels(l, x, "filters", &[filters, depth_multiplier], kernel) {
            Ok(channels) => channels,
            Err(message) => return l.refuse(message),
        };
        let Some(between) = channels.checked_mul(depth_multiplier) else {
            return l.refuse(format!("{channels} channels times {depth_multiplier} are more than can be counted"));
        };
        let single = conv.kernel(l, x, "depthwise_kernel", [kernel[0], kernel[1], channels, depth_multiplier]);
        let all = Weight::new(pointwise_init).regularized(pointwise_regularizer).trainable(conv.trainable);
        let all = l.variable(x, "pointwise_kernel", [1, 1, between, filters], all);
        conv.finished(l, x, filters, || {
            l.graph.name_scope("separable_conv2d", || {
                let name = format!("{}/", l.graph.current_name_scope());
                let single = depthwise(x, single, conv.window());
                let by_one = ConvOptions { data_format: conv.data_format, ..ConvOptions::default() };
                single.convolution("Conv2D", &[single, all.value()], by_one).name(name).tensor()
            })
        })
    })
}
