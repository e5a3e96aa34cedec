//! Element-wise arithmetic of two tensors with NumPy broadcasting: `AddV2`, `Sub`, `Mul`, `RealDiv`, `FloorDiv`,
//! `FloorMod`, `Maximum`, `Minimum`, `Pow`, `SquaredDifference`.
//!
//! Absent: the quotients and sums of older graphs (`binary_old.rs`), Rust's operators (`operators.rs`) and what the gradients are (`binary_grad.rs`). Integers wrap; their
//! division by zero is an error of the step.

use super::binary_grad as grad;
use super::broadcast::broadcast;
use super::elementwise::{Map2, Plain, Wide, binary};
use super::number::Number;
use super::support::no_arithmetic;
use super::values::{array, case, float, ints};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};

/// An element-wise op of two inputs and one type.
pub struct BinaryOp {
    pub(super) name: &'static str,
    /// Whether it takes `float` types alone.
    pub(super) floats_only: bool,
    /// Whether the inputs must have one shape.
    pub(super) same_shape: bool,
    pub(super) traits: Traits,
    pub(super) kernel: fn(&KernelContext<'_>) -> Result<CpuKernel, String>,
    /// One element in CUDA C.
    pub(super) cuda: &'static str,
    /// Of integers: what is refused, as a condition in CUDA C, and the message.
    pub(super) refuses: Option<(&'static str, &'static str)>,
    pub(super) gradient: for<'g> fn(&GradContext<'g>) -> Option<InputGradients<'g>>,
    pub(super) cases: fn() -> Vec<Case>,
}

pub(super) const IN_PLACE: Traits = Traits {
    stateful: false,
    variable: false,
    forwards: None,
    in_place: &[0, 1],
    fallible: false,
    checks_before_writing: false,
    product: false,
    host_only: false,
    overwrites: false,
    no_gradient: false,
};

impl Op for BinaryOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        if !dtype.is_number() || self.floats_only && !dtype.is_floating() {
            let want = if self.floats_only { "float32 or float64" } else { "numbers" };
            return Err(format!("want {want}, got {dtype}; cast both inputs"));
        }
        let shape = match self.same_shape {
            true => c
                .shape(0)
                .merge(c.shape(1))
                .ok_or_else(|| format!("both inputs must have one shape, got {} and {}", c.shape(0), c.shape(1)))?,
            false => broadcast(c.shape(0), c.shape(1))?,
        };
        Ok(vec![Fact::new(dtype, shape)])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        (self.gradient)(c)
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        (self.kernel)(c)
    }

    fn can_fail(&self, _attrs: &Attrs, outputs: &[DType]) -> bool {
        self.traits.fallible && !outputs.iter().all(|t| t.is_floating())
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        let refuses = self.refuses.filter(|_| c.inputs[1].dtype.is_integer());
        Some(CudaMap { expression: self.cuda.into(), refuses: refuses.map(|(when, message)| (when.into(), message)) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        (self.cases)()
    }
}

/// The kernel of a function that is there for every number type.
pub(super) fn numbers<F>(c: &KernelContext<'_>, f: F) -> Result<CpuKernel, String>
where
    F: Map2<f32, f32> + Map2<f64, f64> + Map2<i32, i32> + Map2<i64, i64>,
{
    let (x, y, o) = (&c.inputs[0].dims, &c.inputs[1].dims, &c.outputs[0].dims);
    Ok(match c.inputs[0].dtype {
        DType::F32 => binary::<f32, f32, F, Wide>(x, y, o, f),
        DType::F64 => binary::<f64, f64, F, Plain>(x, y, o, f),
        DType::I32 => binary::<i32, i32, F, Plain>(x, y, o, f),
        DType::I64 => binary::<i64, i64, F, Plain>(x, y, o, f),
        other => return Err(no_arithmetic(other)),
    })
}

/// The kernel of a function of `float` types.
pub(super) fn floats<F: Map2<f32, f32> + Map2<f64, f64>>(c: &KernelContext<'_>, f: F) -> Result<CpuKernel, String> {
    let (x, y, o) = (&c.inputs[0].dims, &c.inputs[1].dims, &c.outputs[0].dims);
    match c.inputs[0].dtype {
        DType::F32 => Ok(binary::<f32, f32, F, Wide>(x, y, o, f)),
        DType::F64 => Ok(binary::<f64, f64, F, Plain>(x, y, o, f)),
        other => Err(format!("there is no kernel for {other}")),
    }
}

/// The kernel, after a look at input 1: `refuse` tells whether an integer there stops the step.
pub(super) fn checked<F>(
    c: &KernelContext<'_>,
    f: F,
    refuse: fn(i64) -> bool,
    message: &'static str,
) -> Result<CpuKernel, String>
where
    F: Map2<f32, f32> + Map2<f64, f64> + Map2<i32, i32> + Map2<i64, i64>,
{
    let kernel = numbers(c, f)?;
    Ok(match c.inputs[1].dtype {
        DType::I32 => Box::new(move |l| match l.input::<i32>(1).iter().any(|&v| refuse(v.into())) {
            true => Err(message.into()),
            false => kernel(l),
        }),
        DType::I64 => Box::new(move |l| match l.input::<i64>(1).iter().any(|&v| refuse(v)) {
            true => Err(message.into()),
            false => kernel(l),
        }),
        _ => kernel,
    })
}

macro_rules! function {
    ($name:ident, $x:ident, $y:ident => $body:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl<T: Number> Map2<T, T> for $name {
            #[inline(always)]
            fn at(self, $x: T, $y: T) -> T {
                $body
            }
        }
    };
}

function!(Plus, x, y => x.plus(y));
function!(Minus, x, y => x.minus(y));
function!(Times, x, y => x.times(y));
function!(Over, x, y => x.over(y));
function!(TruncatedQuotient, x, y => x.truncated_over(y));
function!(TruncatedRest, x, y => x.truncated_rest(y));
function!(DivideDown, x, y => x.floor_div(y));
function!(Remainder, x, y => x.floor_mod(y));
function!(Larger, x, y => x.larger(y));
function!(Smaller, x, y => x.smaller(y));
function!(Power, x, y => x.power(y));
function!(SquareOfDifference, x, y => x.minus(y).times(x.minus(y)));

pub(super) const ZERO_DIVISOR: &str = "integer division by zero";
const NEGATIVE_POWER: &str = "integers to negative integer powers are not whole; cast to float";

/// TensorFlow's `AddV2`: `x + y`.
pub static ADD_V2: BinaryOp = BinaryOp {
    name: "AddV2",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Plus),
    cuda: CudaMap::SUM,
    refuses: None,
    gradient: grad::add,
    cases: || {
        let mut cases = shapes(|x, y| x + y);
        cases.push(case(vec![ints(&[i32::MAX]), ints(&[1])], vec![ints(&[i32::MIN])], false));
        cases
    },
};

/// TensorFlow's `Sub`: `x - y`.
pub static SUB: BinaryOp = BinaryOp {
    name: "Sub",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Minus),
    cuda: "turret_minus($0, $1)",
    refuses: None,
    gradient: grad::sub,
    cases: || shapes(|x, y| x - y),
};

/// TensorFlow's `Mul`: `x * y`.
pub static MUL: BinaryOp = BinaryOp {
    name: "Mul",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Times),
    cuda: "turret_times($0, $1)",
    refuses: None,
    gradient: grad::mul,
    cases: || shapes(|x, y| x * y),
};

/// TensorFlow's `RealDiv`: `x / y`, of `float` types.
pub static REAL_DIV: BinaryOp = BinaryOp {
    name: "RealDiv",
    floats_only: true,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| floats(c, Over),
    cuda: "turret_over($0, $1)",
    refuses: None,
    gradient: grad::real_div,
    cases: || shapes(|x, y| x / y),
};

/// TensorFlow's `FloorDiv`: the quotient, rounded toward minus infinity.
pub static FLOOR_DIV: BinaryOp = BinaryOp {
    name: "FloorDiv",
    floats_only: false,
    same_shape: false,
    traits: Traits { fallible: true, no_gradient: true, ..IN_PLACE },
    kernel: |c| checked(c, DivideDown, |v| v == 0, ZERO_DIVISOR),
    cuda: "turret_floor_div($0, $1)",
    refuses: Some(("$1 == 0", ZERO_DIVISOR)),
    gradient: |_| Some(vec![None, None]),
    cases: || {
        vec![
            case(vec![ints(&[7, -7, 7, -7]), ints(&[2, 2, -2, -2])], vec![ints(&[3, -4, -4, 3])], false),
            case(vec![ints(&[i32::MIN]), ints(&[-1])], vec![ints(&[i32::MIN])], false),
            case(vec![float(&[2], &[7.5, -7.5]), float(&[], &[2.0])], vec![float(&[2], &[3.0, -4.0])], false),
        ]
    },
};

/// TensorFlow's `FloorMod`: what `FloorDiv` leaves, of the divisor's sign.
pub static FLOOR_MOD: BinaryOp = BinaryOp {
    name: "FloorMod",
    floats_only: false,
    same_shape: false,
    traits: Traits { fallible: true, ..IN_PLACE },
    kernel: |c| checked(c, Remainder, |v| v == 0, ZERO_DIVISOR),
    cuda: "turret_floor_mod($0, $1)",
    refuses: Some(("$1 == 0", ZERO_DIVISOR)),
    gradient: grad::floor_mod,
    cases: || {
        vec![
            case(vec![ints(&[7, -7, 7, -7]), ints(&[2, 2, -2, -2])], vec![ints(&[1, 1, -1, -1])], false),
            case(vec![array(&[1], &[i64::MIN]), array(&[], &[-1i64])], vec![array(&[1], &[0i64])], false),
            case(vec![float(&[2], &[7.5, -7.5]), float(&[1], &[2.0])], vec![float(&[2], &[1.5, 0.5])], true),
        ]
    },
};

/// TensorFlow's `Maximum`; NaN if either is NaN. Where both are equal the gradient goes to the first.
pub static MAXIMUM: BinaryOp = BinaryOp {
    name: "Maximum",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Larger),
    cuda: "turret_larger($0, $1)",
    refuses: None,
    gradient: |c| grad::extremum(c, &super::compare::GREATER_EQUAL),
    cases: || shapes(f32::max),
};

/// TensorFlow's `Minimum`; NaN if either is NaN. Where both are equal the gradient goes to the first.
pub static MINIMUM: BinaryOp = BinaryOp {
    name: "Minimum",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, Smaller),
    cuda: "turret_smaller($0, $1)",
    refuses: None,
    gradient: |c| grad::extremum(c, &super::compare::LESS_EQUAL),
    cases: || shapes(f32::min),
};

/// TensorFlow's `Pow`: `x` to the power `y`. Integers take no negative powers.
pub static POW: BinaryOp = BinaryOp {
    name: "Pow",
    floats_only: false,
    same_shape: false,
    traits: Traits { fallible: true, ..IN_PLACE },
    kernel: |c| checked(c, Power, |v| v < 0, NEGATIVE_POWER),
    cuda: "turret_power($0, $1)",
    refuses: Some(("$1 < 0", NEGATIVE_POWER)),
    gradient: grad::pow,
    cases: || {
        vec![
            case(vec![ints(&[2, -3, 7]), ints(&[10, 3, 0])], vec![ints(&[1024, -27, 1])], false),
            case(vec![float(&[2, 1], &[1.5, 4.0]), float(&[2], &[2.0, 0.5])], vec![], true),
        ]
    },
};

/// TensorFlow's `SquaredDifference`: `(x - y)²`.
pub static SQUARED_DIFFERENCE: BinaryOp = BinaryOp {
    name: "SquaredDifference",
    floats_only: false,
    same_shape: false,
    traits: IN_PLACE,
    kernel: |c| numbers(c, SquareOfDifference),
    cuda: "turret_times(turret_minus($0, $1), turret_minus($0, $1))",
    refuses: None,
    gradient: grad::squared_difference,
    cases: || shapes(|x, y| (x - y) * (x - y)),
};

/// Cases of every way in which two shapes meet, with outputs from `f`.
pub(super) fn shapes(f: fn(f32, f32) -> f32) -> Vec<Case> {
    let x: Vec<f32> = (0..12).map(|i| ((i * 7 % 12) as f32 - 5.3) / 2.0).collect();
    let y: Vec<f32> = (0..12).map(|i| ((i * 5 % 12) as f32 - 6.6) / 3.0).collect();
    let pairs: &[(&[usize], &[usize], &[usize])] = &[
        (&[3, 4], &[3, 4], &[3, 4]),
        (&[3, 4], &[], &[3, 4]),
        (&[], &[3, 4], &[3, 4]),
        (&[3, 4], &[4], &[3, 4]),
        (&[3, 1], &[1, 4], &[3, 4]),
        (&[3, 1], &[3, 4], &[3, 4]),
        (&[2, 3, 2], &[3, 1], &[2, 3, 2]),
        (&[2, 1, 2], &[3, 1], &[2, 3, 2]),
        (&[1], &[2, 1, 3], &[2, 1, 3]),
        (&[0, 4], &[4], &[0, 4]),
        (&[], &[], &[]),
    ];
    let make = |&(xs, ys, os): &(&[usize], &[usize], &[usize])| {
        let at = |dims: &[usize], flat: usize| {
            let (mut index, mut step, mut rest) = (0, 1, flat);
            for back in 0..os.len() {
                let (size, own) = (os[os.len() - 1 - back], dims.len().checked_sub(back + 1).map_or(1, |i| dims[i]));
                index += if own == 1 { 0 } else { rest % size * step };
                step *= own;
                rest /= size;
            }
            index
        };
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let output: Vec<f32> = (0..count(os)).map(|i| f(x[at(xs, i)], y[at(ys, i)])).collect();
        case(vec![float(xs, &x[..count(xs)]), float(ys, &y[..count(ys)])], vec![float(os, &output)], true)
    };
    pairs.iter().map(make).collect()
}

/// Defines builder methods of two tensors.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident named $name:literal;)*) => {
        impl<'g> Tensor<'g> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(self, other: impl Into<Tensor<'g>>) -> Tensor<'g> {
                self.apply_with(&$op, $name, other)
            })*
        }
    };
}

methods! {
    /// The larger of two tensors, element by element.
    maximum => MAXIMUM named "Maximum";
    /// The smaller of two tensors, element by element.
    minimum => MINIMUM named "Minimum";
    /// This tensor to the power of another, element by element.
    pow => POW named "Pow";
    /// `(self - other)²`, element by element.
    squared_difference => SQUARED_DIFFERENCE named "SquaredDifference";
    /// The quotient rounded toward minus infinity, element by element.
    floor_div => FLOOR_DIV named "floordiv";
    /// What `floor_div` leaves, of the divisor's sign.
    floor_mod => FLOOR_MOD named "mod";
}
