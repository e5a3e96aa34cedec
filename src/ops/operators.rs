//! Rust's operators on tensors, variables and numbers: `+ - * /` and unary `-`.
//!
//! Invariant: names are TensorFlow's (`add`, `sub`, `mul`, `truediv`; a number becomes the constant `add/y` or `add/x`).

use super::binary::{ADD_V2, MUL, REAL_DIV, SUB};
use super::unary::NEG;
use crate::graph::{OpRef, Tensor, Variable};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// What can stand on the right of an operator: a tensor, a variable, a number.
///
/// One trait rather than one impl for each, so that `(x + 1.0).square()` needs no type of the number.
pub trait Operand<'g> {
    /// The tensor, or the number.
    fn operand(self) -> Result<Tensor<'g>, f64>;
}

impl<'g> Operand<'g> for Tensor<'g> {
    fn operand(self) -> Result<Tensor<'g>, f64> {
        Ok(self)
    }
}

impl<'g> Operand<'g> for Variable<'g> {
    fn operand(self) -> Result<Tensor<'g>, f64> {
        Ok(self.value())
    }
}

/// `tensor op number` or, reversed, `number op tensor`.
#[track_caller]
fn with_number<'g>(op: OpRef, name: &'static str, tensor: Tensor<'g>, number: f64, reversed: bool) -> Tensor<'g> {
    let graph = tensor.graph();
    if tensor.is_poison() {
        return tensor;
    }
    graph.with_source(graph.source_line(), || {
        graph.name_scope(name, || {
            let node = graph.node_of(op).name(format!("{}/", graph.current_name_scope()));
            let number = tensor.scalar_like(if reversed { "x" } else { "y" }, number);
            if reversed { node.input(number).input(tensor).tensor() } else { node.input(tensor).input(number).tensor() }
        })
    })
}

#[track_caller]
fn with_operand<'g>(op: OpRef, name: &'static str, tensor: Tensor<'g>, right: impl Operand<'g>) -> Tensor<'g> {
    match right.operand() {
        Ok(other) => tensor.apply_with(op, name, other),
        Err(number) => with_number(op, name, tensor, number, false),
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident, $name:literal) => {
        operator!(@right $trait, $method, $op, $name, Tensor<'g>, Variable<'g>);
        operator!(@left $trait, $method, $op, $name, f32, f64, i32);
    };
    (@right $trait:ident, $method:ident, $op:ident, $name:literal, $($tensor:ty),*) => {$(
        impl<'g, R: Operand<'g>> $trait<R> for $tensor {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, right: R) -> Tensor<'g> {
                with_operand(&$op, $name, self.into(), right)
            }
        }
    )*};
    (@left $trait:ident, $method:ident, $op:ident, $name:literal, $($number:ty),*) => {$(
        impl<'g> $trait<Tensor<'g>> for $number {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, tensor: Tensor<'g>) -> Tensor<'g> {
                with_number(&$op, $name, tensor, self.into(), true)
            }
        }

        impl<'g> $trait<Variable<'g>> for $number {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, variable: Variable<'g>) -> Tensor<'g> {
                with_number(&$op, $name, variable.value(), self.into(), true)
            }
        }
    )*};
}

macro_rules! number_operand {
    ($($number:ty),*) => {$(
        impl<'g> Operand<'g> for $number {
            fn operand(self) -> Result<Tensor<'g>, f64> {
                Err(self.into())
            }
        }
    )*};
}

number_operand!(f32, f64, i32);
operator!(Add, add, ADD_V2, "add");
operator!(Sub, sub, SUB, "sub");
operator!(Mul, mul, MUL, "mul");
operator!(Div, div, REAL_DIV, "truediv");

impl<'g> Neg for Tensor<'g> {
    type Output = Tensor<'g>;

    #[track_caller]
    fn neg(self) -> Tensor<'g> {
        self.apply(&NEG)
    }
}

impl<'g> Neg for Variable<'g> {
    type Output = Tensor<'g>;

    #[track_caller]
    fn neg(self) -> Tensor<'g> {
        self.value().apply(&NEG)
    }
}

#[cfg(test)]
mod tests {
    use crate::base::DType;
    use crate::graph::Graph;

    #[test]
    fn numbers_become_constants_inside_the_ops_scope() {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [None, Some(2)], "x");
        let tensors = [x + 1.0, 2.0 * x, x - 1, 1.5f32 / x, -x];
        let names = tensors.map(|t| t.name());
        assert_eq!(names, ["add:0", "mul:0", "sub:0", "truediv:0", "Neg:0"]);
        for constant in ["add/y", "mul/x", "sub/y", "truediv/x"] {
            assert_eq!(g.operation(constant).unwrap().op_type(), "Const");
        }
        assert_eq!((x + 1.0).name(), "add_1:0");
        g.check().unwrap();
    }

    #[test]
    fn a_fraction_is_no_integer() {
        let g = Graph::new();
        let n = g.placeholder(DType::I32, [2], "n");
        assert!((n + 0.5).is_poison());
        let message = g.check().unwrap_err().to_string();
        assert!(message.contains("0.5 is no int32") && message.contains("operators.rs"), "{message}");
    }
}
