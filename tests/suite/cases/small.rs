//! What these cases share: a machine, a linear model on given rows, values as numbers.

use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Tensor, Variable, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{BuiltTowers, GradAndVar, Optimizer, Tower, Towers};

/// A session on this many GPUs, with all variables at their initial values.
pub fn session(g: &Graph, gpus: usize) -> Session<'_> {
    let options = SessionOptions::on(crate::gpus::machine(gpus));
    let session = Session::new(g, options).unwrap_or_else(|e| panic!("{e}"));
    session.initialize().unwrap_or_else(|e| panic!("{e}"));
    session
}

/// A vector of `float32`.
pub fn row(values: &[f32]) -> Array {
    Array::new(&[values.len()], values).unwrap()
}

/// The value of a scalar variable.
pub fn scalar(session: &Session<'_>, variable: Variable<'_>) -> f64 {
    session.value(variable).unwrap().to_f64()[0]
}

/// Fails unless the numbers agree to a relative tolerance.
#[track_caller]
pub fn assert_near(got: &[f64], want: &[f64], tolerance: f64) {
    let near = |(g, w): (&f64, &f64)| (g - w).abs() <= tolerance * w.abs();
    assert!(got.len() == want.len() && got.iter().zip(want).all(near), "want {want:?}, got {got:?}");
}

/// `mean((a·x − t)²)`.
pub fn squared_error<'g>(a: Variable<'g>, x: Tensor<'g>, t: Tensor<'g>) -> Tensor<'g> {
    (a * x - t).square().mean()
}

/// A program of towers on the rows of one batch.
pub struct Linear<'g> {
    pub x: Tensor<'g>,
    pub t: Tensor<'g>,
    pub built: BuiltTowers<'g>,
}

/// Towers whose loss is [`squared_error`] of the variable that `variable` gives, on rows split in order.
pub fn linear<'g>(
    g: &'g Graph,
    rows: Option<usize>,
    dtype: DType,
    towers: Towers<'g>,
    optimizer: &Optimizer<'g>,
    mut variable: impl FnMut(Tower<'g>) -> Variable<'g>,
) -> Linear<'g> {
    let (x, t) = (g.placeholder(dtype, [rows], "x"), g.placeholder(dtype, [rows], "t"));
    let towers = towers.variables(VariablePlacement::host());
    let (xs, ts) = (towers.split(x), towers.split(t));
    let built = towers.build(optimizer, |tower| {
        let a = variable(tower);
        squared_error(a, xs[tower.index()], ts[tower.index()])
    });
    Linear { x, t, built }
}

/// The variable `a = 2` of the cases.
pub fn a_of_2(tower: Tower<'_>) -> Variable<'_> {
    tower.graph().get_variable("a", [], Init::Constant(2.0))
}

/// The rows of both towers of case grad-01.
pub fn rows_of_grad_01() -> (Array, Array) {
    (row(&[1.0, 2.0, 3.0, 4.0]), row(&[3.0, 5.0, 7.0, 9.0]))
}

/// The tensor that carries a variable's gradient in a list.
pub fn grad_of<'g>(list: &[GradAndVar<'g>], name: &str) -> Tensor<'g> {
    let entry = list.iter().find(|gv| gv.var.name() == name).unwrap();
    entry.grad.unwrap_or_else(|| panic!("no gradient for {name}")).values()
}
