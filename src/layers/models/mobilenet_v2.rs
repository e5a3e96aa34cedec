//! MobileNetV2 (Sandler et al., 2018), by the layers and names of `tf.keras.applications.MobileNetV2`.

use crate::base::{Code, Diagnostic};
use crate::graph::{Regularizer, Tensor};
use crate::layers::{
    BatchNormOptions, Conv2dOptions, DenseOptions, MovingStatistics, Training, batch_norm, conv2d, dense,
    depthwise_conv2d, global_average_pooling2d,
};
use crate::ops::{DataFormat, Padding};

/// How [`mobilenet_v2`] is built.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MobileNetV2 {
    /// What the layers' numbers of channels are multiplied by; 1. They are rounded to multiples of 8.
    pub width: f64,
    /// The number of classes; 1000.
    pub classes: usize,
    /// How much the moving averages of batch normalization keep in each step; 0.999.
    pub momentum: f64,
    /// Whose batches move them, where there are several towers.
    pub statistics: MovingStatistics,
    /// The weight decay of the kernels of whole convolutions and of the classifier; none.
    pub weight_decay: f64,
}

impl Default for MobileNetV2 {
    fn default() -> Self {
        MobileNetV2 {
            width: 1.0,
            classes: 1000,
            momentum: 0.999,
            statistics: MovingStatistics::FirstTower,
            weight_decay: 0.0,
        }
    }
}

/// Expansion, channels, repetitions and stride of the first: table 2 of the paper.
const BLOCKS: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

impl MobileNetV2 {
    /// The height and width that the paper trains on. Any others do, from 32 up.
    pub const SIZE: usize = 224;

    /// Channels times the width, to a multiple of 8.
    fn channels(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width)
    }

    /// As above, but for blocks Keras takes the whole number first.
    fn block_channels(&self, channels: usize) -> usize {
        divisible((channels as f64 * self.width).floor())
    }
}

/// The nearest multiple of 8, but not below nine tenths.
fn divisible(wide: f64) -> usize {
    let rounded = (((wide + 4.0) / 8.0).floor() * 8.0).max(8.0);
    (if rounded < 0.9 * wide { rounded + 8.0 } else { rounded }) as usize
}

/// The classes' scores `[batch, classes]` of images `[batch, height, width, 3]`: a convolution, 17 inverted residual
/// blocks, a convolution to 1280 channels, their average and a linear layer. Keras ends with their softmax.
///
/// Reported: a width that is not above zero or gives more channels than can be, and images that are none.
#[track_caller]
pub fn mobilenet_v2<'g>(images: Tensor<'g>, training: impl Into<Training<'g>>, options: MobileNetV2) -> Tensor<'g> {
    let (graph, training) = (images.graph(), training.into());
    let network = Network { options, training };
    graph.with_source(graph.source_line(), || {
        if !(options.width > 0.0 && options.width <= 64.0) {
            let message = format!("MobileNetV2 wants a width above 0 and up to 64, got {}", options.width);
            graph.report(Diagnostic::at(Code::InvalidArgument, message, graph.source_line()));
            return graph.poison_tensor();
        }
        let first = options.channels(32);
        let mut h = network.convolution(images, "Conv1", first, [3, 3], [2, 2]);
        h = network.normalized(h, "bn_Conv1", true);
        let (mut channels, mut number) = (first, 0);
        for (expansion, wanted, repetitions, stride) in BLOCKS {
            let wanted = options.block_channels(wanted);
            for i in 0..repetitions {
                let stride = if i == 0 { stride } else { 1 };
                let residual = stride == 1 && channels == wanted;
                let y = network.block(h, number, expansion, channels, wanted, stride);
                h = if residual { add(h, y, number) } else { y };
                (channels, number) = (wanted, number + 1);
            }
        }
        // The last layer of features stays as wide where the network is narrow.
        let last = if options.width > 1.0 { options.channels(1280) } else { 1280 };
        h = network.convolution(h, "Conv_1", last, [1, 1], [1, 1]);
        h = network.normalized(h, "Conv_1_bn", true);
        let features = global_average_pooling2d(h, DataFormat::Nhwc);
        let classifier = DenseOptions { kernel_regularizer: network.decay(), ..DenseOptions::named("predictions") };
        dense(features, options.classes, classifier)
    })
}

/// What goes around a block.
fn add<'g>(x: Tensor<'g>, y: Tensor<'g>, number: usize) -> Tensor<'g> {
    x.graph().name_scope(&format!("block_{number}_add"), || x + y)
}

struct Network<'g> {
    options: MobileNetV2,
    training: Training<'g>,
}

impl<'g> Network<'g> {
    fn decay(&self) -> Option<Regularizer> {
        (self.options.weight_decay != 0.0).then_some(Regularizer::L2(self.options.weight_decay))
    }

    /// Widens `channels` by the expansion, convolves each by itself, and narrows them.
    fn block(
        &self,
        x: Tensor<'g>,
        number: usize,
        expansion: usize,
        channels: usize,
        wanted: usize,
        stride: usize,
    ) -> Tensor<'g> {
        let prefix = if number == 0 { "expanded_conv".to_string() } else { format!("block_{number}") };
        let named = |what: &str| format!("{prefix}_{what}");
        let mut h = x;
        if expansion > 1 {
            h = self.convolution(h, &named("expand"), channels * expansion, [1, 1], [1, 1]);
            h = self.normalized(h, &named("expand_BN"), true);
        }
        let single = Conv2dOptions {
            strides: [stride, stride],
            padding: Padding::Same,
            use_bias: false,
            ..Conv2dOptions::named(&named("depthwise"))
        };
        h = depthwise_conv2d(h, [3, 3], 1, single);
        h = self.normalized(h, &named("depthwise_BN"), true);
        h = self.convolution(h, &named("project"), wanted, [1, 1], [1, 1]);
        self.normalized(h, &named("project_BN"), false)
    }

    fn convolution(
        &self,
        x: Tensor<'g>,
        name: &str,
        filters: usize,
        kernel: [usize; 2],
        strides: [usize; 2],
    ) -> Tensor<'g> {
        let options = Conv2dOptions {
            strides,
            padding: Padding::Same,
            use_bias: false,
            kernel_regularizer: self.decay(),
            ..Conv2dOptions::named(name)
        };
        conv2d(x, filters, kernel, options)
    }

    fn normalized(&self, x: Tensor<'g>, name: &str, activated: bool) -> Tensor<'g> {
        let MobileNetV2 { momentum, statistics, .. } = self.options;
        let options = BatchNormOptions { momentum, statistics, ..BatchNormOptions::named(name) };
        let y = batch_norm(x, self.training, options);
        if activated { y.relu6() } else { y }
    }
}
