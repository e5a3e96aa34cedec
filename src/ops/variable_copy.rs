//! Variables that start as copies of others, such as moving averages: what TensorFlow's `create_slot` makes of
//! `initialized_value()`.

use super::support::node;
use crate::base::{Code, Diagnostic};
use crate::graph::{Graph, Tensor, Variable};

impl Graph {
    /// A variable of another's shape and type, beside it, outside of the reuse rule and not trainable. It starts from
    /// the other's value, or from its initial value where the other has none yet, so that one run can initialise both.
    /// Its name is made unique.
    #[track_caller]
    pub fn variable_copy<'g>(&'g self, name: &str, of: Variable<'g>) -> Variable<'g> {
        let source = self.source_line();
        if of.is_poison() {
            return of;
        }
        // An initializer is an assignment, whose second input is the value.
        let Some(&initial) = of.initializer().inputs().get(1) else {
            let message = format!(
                "cannot copy variable '{}': its initializer '{}' assigns no value; start the copy from a value of its own",
                of.name(),
                of.initializer().name()
            );
            self.report(Diagnostic::at(Code::InvalidArgument, message, source));
            return self.poison_variable();
        };
        self.with_source(source, || self.variable_from(name, of, &|| self.value_or(of, initial)))
    }

    /// A variable's value where it has one, else this tensor, by TensorFlow's names.
    fn value_or<'g>(&'g self, variable: Variable<'g>, initial: Tensor<'g>) -> Tensor<'g> {
        let has_value = node(self, "IsVariableInitialized").input(variable.buffer()).tensor();
        self.name_scope("cond", || {
            let pivot = node(self, "Switch").inputs([has_value, has_value]).add();
            pivot.output(1).identity("switch_t");
            pivot.output(0).identity("switch_f");
            let predicate = has_value.identity("pred_id");
            let read = self.name_scope("read", || {
                let switch = node(self, "RefSwitch").name("Switch").input(variable.buffer()).input(predicate).add();
                let name = format!("{}/", self.current_name_scope());
                node(self, "Identity").name(name).input(switch.output(1)).tensor()
            });
            let (initial, _) = initial.switch(predicate);
            self.merge(initial, read)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Graph, Init};

    #[test]
    fn a_copy_lies_beside_its_variable_under_tensorflows_names() {
        let g = Graph::new();
        let w = g.device("/gpu:1", || g.get_variable("w", [2], Init::truncated_normal(0.0, 1.0)));
        let average = g.variable_copy("w/ExponentialMovingAverage", w);
        g.check().unwrap();
        assert_eq!((average.name(), average.shape()), ("w/ExponentialMovingAverage".to_string(), w.shape()));
        assert_eq!(average.device().to_string(), "/device:GPU:1");
        assert_eq!(g.trainable_variables(), [w]);
        let names: Vec<String> = g.nodes().into_iter().map(|n| n.name.to_string()).collect();
        for part in ["IsVariableInitialized", "cond/read", "cond/read/Switch", "cond/Merge", "Assign", "read"] {
            let want = format!("w/ExponentialMovingAverage/{part}");
            assert!(names.contains(&want), "{want} in {names:?}");
        }
        let again = g.variable_copy("w/ExponentialMovingAverage", w);
        assert_eq!(again.name(), "w/ExponentialMovingAverage_1");
    }
}
