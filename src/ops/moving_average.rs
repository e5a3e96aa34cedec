//! The update of a moving average, as TensorFlow's `assign_moving_average` builds it.

use super::operators::Operand;
use super::support::{node, scoped};
use crate::graph::{Tensor, Variable};

impl<'g> Variable<'g> {
    /// `variable ← variable − (1 − decay) · (variable − value)`, beside the variable, under `AssignMovingAvg`; the decay
    /// is a number or a scalar of the variable's type. The result is the variable afterwards.
    #[track_caller]
    pub fn assign_moving_average(self, value: impl Into<Tensor<'g>>, decay: impl Operand<'g>) -> Tensor<'g> {
        let (graph, value) = (self.op().graph(), value.into());
        if self.is_poison() || value.is_poison() {
            return graph.poison_tensor();
        }
        scoped(graph, "AssignMovingAvg", |name| {
            graph.no_colocation(|| {
                graph.colocate_with(self, || {
                    let rate = match decay.operand() {
                        Ok(decay) => one_minus(decay),
                        Err(number) => value.scalar_like("decay", 1.0 - number),
                    };
                    self.moved(value, rate, name)
                })
            })
        })
    }

    /// `variable ← variable − rate · (variable − value)` under a name.
    pub(crate) fn moved(self, value: Tensor<'g>, rate: Tensor<'g>, name: String) -> Tensor<'g> {
        let graph = self.op().graph();
        let difference = node(graph, "Sub").name("sub").input(self).input(value).tensor();
        let step = node(graph, "Mul").name("mul").inputs([difference, rate]).tensor();
        node(graph, "AssignSub").name(name).inputs([self.buffer(), step]).tensor()
    }
}

/// `1 − x`, named `sub`.
pub(crate) fn one_minus(x: Tensor<'_>) -> Tensor<'_> {
    scoped(x.graph(), "sub", |name| {
        let one = x.scalar_like("x", 1.0);
        node(x.graph(), "Sub").name(name).inputs([one, x]).tensor()
    })
}
