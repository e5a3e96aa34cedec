//! The op set: one file per op or tight family, the table of all op types, and the methods that build nodes.
//!
//! To add an op: write its file (or add to its family's), implement [`crate::graph::Op`] with cases, and add one line
//! to [`TABLE`]. Tests walk the table; nothing else needs to know of it.

mod add_n;
mod all_reduce;
mod apply;
mod apply_kernels;
mod apply_one;
mod apply_rules;
#[cfg(test)]
mod apply_tests;
mod arg;
mod assert;
mod barrier;
mod batch_matmul;
mod batch_norm;
mod batch_norm_kernel;
mod batch_norm_loops;
mod batch_norm_second;
mod bias;
mod binary;
mod binary_grad;
mod binary_old;
mod branches;
mod broadcast;
mod broadcast_to;
mod cast;
mod check_numerics;
mod clip_by_value;
mod compare;
mod concat;
mod constant;
mod control;
mod conv;
mod conv_cases;
mod conv_filter_kernel;
mod conv_geometry;
mod conv_kernel;
mod conv_lines;
mod conv_rows;
mod conv_strips;
mod conv_strips_filter;
mod conv_strips_rows;
mod conv_turn;
mod copy;
mod cuda_apply;
mod cuda_conv;
mod cuda_copy;
mod cuda_index;
mod cuda_indices;
mod cuda_reduce;
mod cuda_rows;
mod cuda_values;
mod cumulative;
mod depthwise_kernel;
mod depthwise_vectors;
mod dropout;
mod dynamic_stitch;
mod elementwise;
mod finite;
mod functions;
mod gather;
mod gather_nd;
mod helpers;
mod identity;
#[cfg(test)]
mod image_tests;
mod in_top_k;
mod initializer;
mod l2_loss;
mod leaky_relu;
mod likes;
mod lin_space;
mod list_diff;
mod lrn;
mod math;
mod matmul;
mod matmul_kernel;
mod mirror_pad;
mod moving_average;
mod number;
mod operators;
mod pad;
mod philox;
mod placeholder;
mod pool;
mod pool_cases;
mod pool_kernel;
mod pool_vectors;
mod qr;
mod random;
mod random_build;
mod reduce;
mod reduce_folds;
mod reduce_grad;
mod reduce_kernel;
mod resize;
mod resize_kernel;
#[cfg(test)]
mod rows_tests;
mod select;
mod sequence;
mod shape_facts;
mod shape_ops;
mod slice;
mod small_product;
mod softmax;
mod split;
mod stack;
mod state;
mod strided;
mod strided_slice;
mod strip;
mod support;
#[cfg(test)]
mod table_tests;
mod tile;
mod top_k;
mod transpose;
mod unary;
mod unary_grad;
mod updates;
mod values;
mod variable_copy;
mod vectors;
mod window;
mod winograd;
mod winograd_filter_kernel;
mod winograd_kernel;
mod winograd_rows;

use crate::graph::OpRef;

pub use all_reduce::AllReduceN;
pub use apply::{ApplyGradients, ApplyLayout, VariableInputs};
pub use apply_one::UpdateInputs;
pub use apply_rules::UpdateRule;
pub use batch_norm::BatchNormOptions;
pub use conv::ConvOptions;
pub use lrn::LrnOptions;
pub(crate) use moving_average::one_minus;
pub use operators::Operand;
pub use placeholder::IntoPlaceholderShape;
pub use pool::PoolOptions;
pub use resize::ResizeOptions;
pub use shape_ops::ShapeArg;
pub use state::VariableOptions;
pub use strided_slice::Index;
pub use window::{DataFormat, Padding};

/// Every op type, by family.
pub static TABLE: &[OpRef] = &[
    &placeholder::Placeholder,
    &placeholder::PlaceholderWithDefault,
    &constant::Const,
    &state::VARIABLE_V2,
    &state::VARIABLE,
    &state::VAR_HANDLE,
    &state::ASSIGN,
    &state::ASSIGN_VARIABLE,
    &identity::IDENTITY,
    &identity::READ_VARIABLE,
    &identity::SNAPSHOT,
    &identity::IdentityN,
    &identity::NoOp,
    &transpose::Transpose,
    &transpose::InvertPermutation,
    &concat::ConcatV2,
    &concat::ConcatOffset,
    &split::Split,
    &split::SplitV,
    &slice::Slice,
    &pad::PAD,
    &pad::PAD_V2,
    &mirror_pad::MirrorPad,
    &mirror_pad::MirrorPadGrad,
    &strided_slice::StridedSlice,
    &strided_slice::StridedSliceGrad,
    &stack::Pack,
    &stack::Unpack,
    &broadcast_to::BroadcastTo,
    &broadcast_to::ReverseV2,
    &sequence::Range,
    &sequence::OneHot,
    &lin_space::LinSpace,
    &list_diff::ListDiff,
    &barrier::StopGradient,
    &barrier::PreventGradient,
    &barrier::Print,
    &assert::Assert,
    &gather::GATHER_V2,
    &gather::GATHER,
    &gather::RESOURCE_GATHER,
    &gather_nd::GatherNd,
    &gather_nd::ScatterNd,
    &dynamic_stitch::DYNAMIC_STITCH,
    &dynamic_stitch::PARALLEL_DYNAMIC_STITCH,
    &gather::UnsortedSegmentSum,
    &softmax::Softmax,
    &softmax::LogSoftmax,
    &softmax::SoftmaxCrossEntropyWithLogits,
    &softmax::SparseSoftmaxCrossEntropyWithLogits,
    &in_top_k::InTopKV2,
    &top_k::TOP_K_V2,
    &top_k::TOP_K,
    &bias::BiasAdd,
    &bias::BiasAddGrad,
    &random::RandomUniform,
    &random::RandomStandardNormal,
    &random::TruncatedNormal,
    &random::RandomUniformInt,
    &qr::Qr,
    &qr::DiagPart,
    &updates::ASSIGN_ADD,
    &updates::ASSIGN_SUB,
    &updates::ASSIGN_ADD_VARIABLE,
    &updates::ASSIGN_SUB_VARIABLE,
    &updates::SCATTER_ADD,
    &updates::RESOURCE_SCATTER_ADD,
    &updates::SCATTER_SUB,
    &updates::RESOURCE_SCATTER_SUB,
    &updates::SCATTER_MUL,
    &updates::RESOURCE_SCATTER_MUL,
    &updates::SCATTER_DIV,
    &updates::RESOURCE_SCATTER_DIV,
    &updates::SCATTER_MIN,
    &updates::RESOURCE_SCATTER_MIN,
    &updates::SCATTER_MAX,
    &updates::RESOURCE_SCATTER_MAX,
    &updates::SCATTER_UPDATE,
    &updates::RESOURCE_SCATTER_UPDATE,
    &apply::ApplyGradients,
    // TensorFlow's updates of one variable.
    &apply_one::APPLY_GRADIENT_DESCENT,
    &apply_one::RESOURCE_APPLY_GRADIENT_DESCENT,
    &apply_one::APPLY_MOMENTUM,
    &apply_one::RESOURCE_APPLY_MOMENTUM,
    &apply_one::SPARSE_APPLY_MOMENTUM,
    &apply_one::RESOURCE_SPARSE_APPLY_MOMENTUM,
    &apply_one::APPLY_ADAM,
    &apply_one::RESOURCE_APPLY_ADAM,
    &apply_one::APPLY_RMS_PROP,
    &apply_one::RESOURCE_APPLY_RMS_PROP,
    &apply_one::SPARSE_APPLY_RMS_PROP,
    &apply_one::RESOURCE_SPARSE_APPLY_RMS_PROP,
    &apply_one::APPLY_CENTERED_RMS_PROP,
    &apply_one::RESOURCE_APPLY_CENTERED_RMS_PROP,
    &apply_one::SPARSE_APPLY_CENTERED_RMS_PROP,
    &apply_one::RESOURCE_SPARSE_APPLY_CENTERED_RMS_PROP,
    &apply_one::APPLY_ADAGRAD,
    &apply_one::RESOURCE_APPLY_ADAGRAD,
    &apply_one::SPARSE_APPLY_ADAGRAD,
    &apply_one::RESOURCE_SPARSE_APPLY_ADAGRAD,
    &apply_one::APPLY_ADAGRAD_V2,
    &apply_one::RESOURCE_APPLY_ADAGRAD_V2,
    &apply_one::SPARSE_APPLY_ADAGRAD_V2,
    &apply_one::RESOURCE_SPARSE_APPLY_ADAGRAD_V2,
    &apply_one::APPLY_ADADELTA,
    &apply_one::RESOURCE_APPLY_ADADELTA,
    &apply_one::SPARSE_APPLY_ADADELTA,
    &apply_one::RESOURCE_SPARSE_APPLY_ADADELTA,
    &apply_one::APPLY_FTRL,
    &apply_one::RESOURCE_APPLY_FTRL,
    &apply_one::SPARSE_APPLY_FTRL,
    &apply_one::RESOURCE_SPARSE_APPLY_FTRL,
    &apply_one::APPLY_FTRL_V2,
    &apply_one::RESOURCE_APPLY_FTRL_V2,
    &apply_one::SPARSE_APPLY_FTRL_V2,
    &apply_one::RESOURCE_SPARSE_APPLY_FTRL_V2,
    // Conditionals.
    &control::SWITCH,
    &control::REF_SWITCH,
    &control::MERGE,
    &control::REF_MERGE,
    &control::IS_VARIABLE_INITIALIZED,
    &control::VAR_IS_INITIALIZED,
    // Images.
    &conv::CONV,
    &conv::CONV_BACKPROP_INPUT,
    &conv::CONV_BACKPROP_FILTER,
    &conv::DEPTHWISE,
    &conv::DEPTHWISE_BACKPROP_INPUT,
    &conv::DEPTHWISE_BACKPROP_FILTER,
    &pool::MAX_POOL,
    &pool::MAX_POOL_GRAD,
    &pool::MAX_POOL_GRAD_GRAD,
    &pool::AVG_POOL,
    &pool::AVG_POOL_GRAD,
    &resize::BILINEAR,
    &resize::BILINEAR_GRAD,
    &resize::NEAREST,
    &resize::NEAREST_GRAD,
    &lrn::Lrn,
    &lrn::LrnGrad,
    &batch_norm::BATCH_NORM,
    &batch_norm::BATCH_NORM_V2,
    &batch_norm::BATCH_NORM_V3,
    &batch_norm::BATCH_NORM_GRAD,
    &batch_norm::BATCH_NORM_GRAD_V2,
    &batch_norm::BATCH_NORM_GRAD_V3,
    // Shapes.
    &shape_facts::ShapeOp,
    &shape_facts::VariableShape,
    &shape_facts::ShapeN,
    &shape_facts::Size,
    &shape_facts::Rank,
    &shape_ops::Reshape,
    &shape_ops::ExpandDims,
    &shape_ops::Squeeze,
    &tile::Tile,
    &tile::Fill,
    // Arithmetic.
    &add_n::AddN,
    &all_reduce::AllReduceN,
    &check_numerics::CheckNumerics,
    &binary::ADD_V2,
    &binary::SUB,
    &binary::MUL,
    &binary::REAL_DIV,
    &binary_old::ADD,
    &binary_old::DIV,
    &binary_old::MOD,
    &binary_old::TRUNCATE_DIV,
    &binary_old::TRUNCATE_MOD,
    &binary_old::DIV_NO_NAN,
    &binary::FLOOR_DIV,
    &binary::FLOOR_MOD,
    &binary::MAXIMUM,
    &binary::MINIMUM,
    &binary::POW,
    &binary::SQUARED_DIFFERENCE,
    &broadcast::BroadcastGradientArgs,
    &matmul::MatMul,
    &batch_matmul::BATCH_MAT_MUL,
    &batch_matmul::BATCH_MAT_MUL_V2,
    &batch_matmul::BATCH_MAT_MUL_V3,
    &unary::NEG,
    &unary::ABS,
    &unary::SIGN,
    &unary::SQUARE,
    &unary::FLOOR,
    &unary::SQRT,
    &unary::RSQRT,
    &unary::RECIPROCAL,
    &unary::EXP,
    &unary::LOG,
    &unary::LOG1P,
    &unary::SIN,
    &unary::COS,
    &unary::TANH,
    &unary::SIGMOID,
    &unary::SOFTPLUS,
    &unary::RELU,
    &unary::RELU6,
    &unary::ELU,
    &unary::SELU,
    &unary::SOFTSIGN,
    &unary::CEIL,
    &unary::RINT,
    &unary::ROUND,
    &unary::INV,
    &unary::EXPM1,
    &unary::ERF,
    &unary::ERFC,
    &unary::TAN,
    &unary::ASIN,
    &unary::ACOS,
    &unary::ATAN,
    &unary::SINH,
    &unary::COSH,
    &unary::ASINH,
    &unary::ACOSH,
    &unary::ATANH,
    &unary_grad::RELU_GRAD,
    &unary_grad::RELU6_GRAD,
    &unary_grad::ELU_GRAD,
    &unary_grad::SELU_GRAD,
    &unary_grad::INV_GRAD,
    &unary_grad::SOFTSIGN_GRAD,
    &unary_grad::TANH_GRAD,
    &unary_grad::SIGMOID_GRAD,
    &unary_grad::SQRT_GRAD,
    &unary_grad::RSQRT_GRAD,
    &unary_grad::RECIPROCAL_GRAD,
    &unary_grad::SOFTPLUS_GRAD,
    &leaky_relu::LeakyRelu,
    &leaky_relu::LeakyReluGrad,
    &finite::IS_NAN,
    &finite::IS_INF,
    &finite::IS_FINITE,
    &clip_by_value::ClipByValue,
    &cast::Cast,
    &likes::ZEROS_LIKE,
    &likes::ONES_LIKE,
    // Comparisons and choices.
    &compare::EQUAL,
    &compare::NOT_EQUAL,
    &compare::LESS,
    &compare::LESS_EQUAL,
    &compare::GREATER,
    &compare::GREATER_EQUAL,
    &compare::LOGICAL_AND,
    &compare::LOGICAL_OR,
    &compare::LogicalNot,
    &select::SELECT,
    &select::SELECT_V2,
    // Reductions.
    &reduce::SUM,
    &reduce::MEAN,
    &reduce::PROD,
    &reduce::MAX,
    &reduce::MIN,
    &reduce::ALL,
    &reduce::ANY,
    &l2_loss::L2Loss,
    &arg::ARG_MAX,
    &arg::ARG_MIN,
    &cumulative::CUMSUM,
    &cumulative::CUMPROD,
];

/// The op type of this name, if turret has it.
pub fn find(name: &str) -> Option<OpRef> {
    TABLE.iter().copied().find(|op| op.name() == name)
}

/// The shape rule of ops whose output is like input 0.
fn like_input(c: &crate::graph::InferContext<'_>) -> Result<Vec<crate::graph::Fact>, String> {
    c.want_inputs(1)?;
    Ok(vec![c.inputs[0].clone()])
}

/// The kernel of ops that never run: their output is another's buffer, or they have none.
fn no_kernel() -> Result<crate::device::CpuKernel, String> {
    Ok(Box::new(|_| Ok(())))
}
