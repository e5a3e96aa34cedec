//! Comparisons and logic with NumPy broadcasting: `Equal`, `NotEqual`, `Less`, `LessEqual`, `Greater`, `GreaterEqual`,
//! `LogicalAnd`, `LogicalOr`, `LogicalNot`. No gradient flows through.

use super::broadcast::broadcast;
use super::cast::single;
use super::elementwise::{Dispatch, Map1, Map2, Plain, Wide, binary, unary};
use super::support::no_arithmetic;
use super::values::{array, bools, case, float, ints};
use crate::base::{Bool8, DType, Element, bf16, f16};
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};

/// A comparison, or a logical op of two bools.
pub struct CompareOp {
    pub(super) name: &'static str,
    takes: Takes,
    kernel: fn(&KernelContext<'_>) -> Result<CpuKernel, String>,
    /// One element in CUDA C, where a bool is 0 or 1.
    cuda: &'static str,
    cases: fn() -> Vec<Case>,
}

#[derive(PartialEq)]
enum Takes {
    Numbers,
    Bools,
    Both,
}

impl Op for CompareOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        let refused = if dtype == DType::Bool { Takes::Numbers } else { Takes::Bools };
        if self.takes == refused {
            let want = if dtype == DType::Bool { "numbers" } else { "bool" };
            return Err(format!("want {want}, got {dtype}; cast both inputs"));
        }
        Ok(vec![Fact::new(DType::Bool, broadcast(c.shape(0), c.shape(1))?)])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        (self.kernel)(c)
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        let [x, y] = ["$0", "$1"].map(|operand| single(c.inputs[0].dtype, operand));
        Some(CudaMap::new(self.cuda.replace("$0", &x).replace("$1", &y)))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        (self.cases)()
    }
}

fn pair<T: Element, F: Map2<T, Bool8>, D: Dispatch>(c: &KernelContext<'_>, f: F) -> CpuKernel {
    binary::<T, Bool8, F, D>(&c.inputs[0].dims, &c.inputs[1].dims, &c.outputs[0].dims, f)
}

macro_rules! compare {
    ($(#[$doc:meta])* $op:ident, $function:ident, $name:literal, $takes:ident, $x:ident, $y:ident => $body:expr,
     $cuda:literal, $expected:expr) => {
        #[derive(Clone, Copy)]
        struct $function;
        impl<T: PartialOrd + 'static> Map2<T, Bool8> for $function {
            #[inline(always)]
            fn at(self, $x: T, $y: T) -> Bool8 {
                Bool8::from($body)
            }
        }
        $(#[$doc])*
        pub static $op: CompareOp = CompareOp {
            name: $name,
            takes: Takes::$takes,
            kernel: |c| {
                Ok(match c.inputs[0].dtype {
                    DType::F32 => pair::<f32, _, Wide>(c, $function),
                    DType::F64 => pair::<f64, _, Plain>(c, $function),
                    DType::I32 => pair::<i32, _, Plain>(c, $function),
                    DType::I64 => pair::<i64, _, Plain>(c, $function),
                    DType::Bool => pair::<Bool8, _, Plain>(c, truth($function)),
                    DType::F16 => pair::<f16, _, Plain>(c, $function),
                    DType::BF16 => pair::<bf16, _, Plain>(c, $function),
                    DType::U8 => pair::<u8, _, Plain>(c, $function),
                    DType::Opaque(_) => return Err(no_arithmetic(c.inputs[0].dtype)),
                })
            },
            cuda: $cuda,
            cases: || {
                let expected: [bool; 3] = $expected;
                vec![
                    case(
                        vec![float(&[3], &[1.0, 2.0, 3.0]), float(&[3], &[2.0, 2.0, 2.0])],
                        vec![bools(&[3], &expected)],
                        false,
                    ),
                    case(vec![ints(&[1, 2, 3]), ints(&[2])], vec![bools(&[3], &expected)], false),
                    case(vec![float(&[2, 1], &[1.0, f32::NAN]), float(&[3], &[0.0, 1.0, 2.0])], vec![], false),
                    case(
                        vec![array(&[3], &[1u8, 2, 255]), array(&[], &[2u8])],
                        vec![bools(&[3], &expected)],
                        false,
                    ),
                    case(
                        vec![
                            array(&[3], &[-1.5, 2.0, 65504.0].map(f16::from_f32)),
                            array(&[1], &[f16::from_f32(2.0)]),
                        ],
                        vec![bools(&[3], &expected)],
                        false,
                    ),
                    case(
                        vec![array(&[3], &[-1.5, -0.0, 1e30].map(bf16::from_f32)), array(&[], &[bf16::ZERO])],
                        vec![bools(&[3], &expected)],
                        false,
                    ),
                ]
            },
        };
    };
}

/// A comparison of truth values, whatever the bytes that store them.
#[derive(Clone, Copy)]
struct Truth<F>(F);

fn truth<F>(f: F) -> Truth<F> {
    Truth(f)
}

impl<F: Map2<u8, Bool8>> Map2<Bool8, Bool8> for Truth<F> {
    #[inline(always)]
    fn at(self, x: Bool8, y: Bool8) -> Bool8 {
        self.0.at(x.get().into(), y.get().into())
    }
}

compare!(
    /// TensorFlow's `Equal`: `x == y`.
    EQUAL, IsEqual, "Equal", Both, x, y => x == y, "$0 == $1", [false, true, false]
);
compare!(
    /// TensorFlow's `NotEqual`: `x != y`.
    NOT_EQUAL, IsNotEqual, "NotEqual", Both, x, y => x != y, "$0 != $1", [true, false, true]
);
compare!(
    /// TensorFlow's `Less`: `x < y`.
    LESS, IsLess, "Less", Numbers, x, y => x < y, "$0 < $1", [true, false, false]
);
compare!(
    /// TensorFlow's `LessEqual`: `x <= y`.
    LESS_EQUAL, IsLessEqual, "LessEqual", Numbers, x, y => x <= y, "$0 <= $1", [true, true, false]
);
compare!(
    /// TensorFlow's `Greater`: `x > y`.
    GREATER, IsGreater, "Greater", Numbers, x, y => x > y, "$0 > $1", [false, false, true]
);
compare!(
    /// TensorFlow's `GreaterEqual`: `x >= y`.
    GREATER_EQUAL, IsGreaterEqual, "GreaterEqual", Numbers, x, y => x >= y, "$0 >= $1", [false, true, true]
);

#[derive(Clone, Copy)]
struct And;
impl Map2<u8, Bool8> for And {
    #[inline(always)]
    fn at(self, x: u8, y: u8) -> Bool8 {
        Bool8(x & y)
    }
}

#[derive(Clone, Copy)]
struct Or;
impl Map2<u8, Bool8> for Or {
    #[inline(always)]
    fn at(self, x: u8, y: u8) -> Bool8 {
        Bool8(x | y)
    }
}

fn logic_cases(expected: [bool; 4]) -> Vec<Case> {
    vec![case(
        vec![bools(&[2, 1], &[false, true]), bools(&[2], &[false, true])],
        vec![bools(&[2, 2], &expected)],
        false,
    )]
}

/// TensorFlow's `LogicalAnd`.
pub static LOGICAL_AND: CompareOp = CompareOp {
    name: "LogicalAnd",
    takes: Takes::Bools,
    kernel: |c| Ok(pair::<Bool8, _, Plain>(c, truth(And))),
    cuda: "$0 & $1",
    cases: || logic_cases([false, false, false, true]),
};

/// TensorFlow's `LogicalOr`.
pub static LOGICAL_OR: CompareOp = CompareOp {
    name: "LogicalOr",
    takes: Takes::Bools,
    kernel: |c| Ok(pair::<Bool8, _, Plain>(c, truth(Or))),
    cuda: "$0 | $1",
    cases: || logic_cases([false, true, true, true]),
};

#[derive(Clone, Copy)]
struct Not;
impl Map1<Bool8, Bool8> for Not {
    #[inline(always)]
    fn at(self, x: Bool8) -> Bool8 {
        Bool8::from(!x.get())
    }
}

/// TensorFlow's `LogicalNot`.
pub struct LogicalNot;

impl Op for LogicalNot {
    fn name(&self) -> &'static str {
        "LogicalNot"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, in_place: &[0], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        if c.want_inputs(1).is_ok() && c.dtype(0) != DType::Bool {
            return Err(format!("want bool, got {}; compare it with something", c.dtype(0)));
        }
        super::like_input(c)
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(unary::<Bool8, Bool8, Not, Plain>(0, Not))
    }

    fn cuda_map(&self, _c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new("!$0"))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(vec![bools(&[2], &[true, false])], vec![bools(&[2], &[false, true])], false)]
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)*) => {
        impl<'g> Tensor<'g> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(self, other: impl Into<Tensor<'g>>) -> Tensor<'g> {
                self.apply_with(&$op, $op.name, other)
            })*

            /// True where this is false.
            #[track_caller]
            pub fn logical_not(self) -> Tensor<'g> {
                self.apply(&LogicalNot)
            }
        }
    };
}

methods! {
    /// True where the two are equal.
    equal => EQUAL;
    /// True where the two differ.
    not_equal => NOT_EQUAL;
    /// True where this is the smaller.
    less => LESS;
    /// True where this is not the larger.
    less_equal => LESS_EQUAL;
    /// True where this is the larger.
    greater => GREATER;
    /// True where this is not the smaller.
    greater_equal => GREATER_EQUAL;
    /// True where both are.
    logical_and => LOGICAL_AND;
    /// True where one of them is.
    logical_or => LOGICAL_OR;
}
