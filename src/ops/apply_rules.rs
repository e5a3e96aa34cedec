//! The arithmetic of `ApplyGradients`, operation for operation as TensorFlow's kernels have it.
//!
//! Absent: memory, threads and order, which `apply_kernels` has. The loops are plain, and vectorised by the compiler
//! for the machine's registers inside of `pulp`'s dispatch.

use super::apply::{ApplyLayout, UpdateRule};
use super::apply_kernels::scalar;
use crate::base::Element;
use crate::device::Launch;
use std::ops::{Add, Div, Mul, Sub};

/// A type that variables are trained in.
pub(super) trait Real:
    Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest value.
    fn of(value: f64) -> Self;
    /// The square root.
    fn root(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn root(self) -> f64 {
        self.sqrt()
    }
}

/// The scalars of one launch.
pub(super) struct Step {
    rule: UpdateRule,
    nesterov: bool,
    /// In the order of [`UpdateRule::hypers`].
    hypers: [f64; 4],
    powers: [f64; 2],
}

impl Step {
    /// Reads the scalars.
    pub fn read(layout: &ApplyLayout, l: &Launch<'_>) -> Step {
        let mut step = Step { rule: layout.rule, nesterov: layout.use_nesterov, hypers: [0.0; 4], powers: [0.0; 2] };
        step.hypers.iter_mut().zip(layout.hypers()).for_each(|(h, i)| *h = scalar(l, i));
        step.powers.iter_mut().zip(layout.powers()).for_each(|(p, i)| *p = scalar(l, i));
        step
    }

    /// The update rule.
    pub fn rule(&self) -> UpdateRule {
        self.rule
    }

    #[inline(always)]
    fn hypers<T: Real>(&self) -> [T; 4] {
        self.hypers.map(T::of)
    }

    /// Adam's rate with the bias corrections in it.
    #[inline(always)]
    fn alpha<T: Real>(&self) -> T {
        let [p1, p2] = self.powers.map(T::of);
        let one = T::of(1.0);
        T::of(self.hypers[0]) * (one - p2).root() / (one - p1)
    }

    /// Updates elements of a variable and its slots from a dense gradient.
    #[inline(always)]
    pub fn dense<T: Real>(&self, var: &mut [T], a: &mut [T], b: &mut [T], gradient: &[T]) {
        let one = T::of(1.0);
        let [h0, h1, h2, h3] = self.hypers::<T>();
        match self.rule {
            UpdateRule::GradientDescent => {
                var.iter_mut().zip(gradient).for_each(|(x, &g)| *x = *x - g * h0);
            }
            UpdateRule::Momentum => {
                let nesterov = self.nesterov;
                for ((x, a), &g) in var.iter_mut().zip(a).zip(gradient) {
                    *a = *a * h1 + g;
                    *x = *x - if nesterov { g * h0 + *a * h1 * h0 } else { *a * h0 };
                }
            }
            UpdateRule::Adam => {
                let alpha = self.alpha::<T>();
                let nesterov = self.nesterov;
                for (((x, m), v), &g) in var.iter_mut().zip(a).zip(b).zip(gradient) {
                    *m = *m + (g - *m) * (one - h1);
                    *v = *v + (g * g - *v) * (one - h2);
                    let direction = if nesterov { g * (one - h1) + h1 * *m } else { *m };
                    *x = *x - (direction * alpha) / (v.root() + h3);
                }
            }
            UpdateRule::RmsProp => {
                for (((x, ms), mom), &g) in var.iter_mut().zip(a).zip(b).zip(gradient) {
                    *ms = *ms + (g * g - *ms) * (one - h1);
                    *mom = *mom * h2 + (g * h0) / (*ms + h3).root();
                    *x = *x - *mom;
                }
            }
            UpdateRule::Adagrad => {
                for ((x, a), &g) in var.iter_mut().zip(a).zip(gradient) {
                    *a = *a + g * g;
                    *x = *x - (g * h0) * (one / a.root());
                }
            }
        }
    }

    /// Updates a row whose gradient's entries are summed. Only RMSProp's rounding differs from the dense form.
    #[inline(always)]
    pub fn sparse<T: Real>(&self, var: &mut [T], a: &mut [T], b: &mut [T], gradient: &[T]) {
        if self.rule != UpdateRule::RmsProp {
            return self.dense(var, a, b, gradient);
        }
        let one = T::of(1.0);
        let [rate, decay, momentum, epsilon] = self.hypers::<T>();
        for (((x, ms), mom), &g) in var.iter_mut().zip(a).zip(b).zip(gradient) {
            *ms = *ms * decay + g * g * (one - decay);
            *mom = *mom * momentum + (one / (*ms + epsilon).root()) * rate * g;
            *x = *x - *mom;
        }
    }

    /// Adam on rows, first step: all of both moments decay.
    #[inline(always)]
    pub fn decay<T: Real>(&self, m: &mut [T], v: &mut [T]) {
        let [_, beta1, beta2, _] = self.hypers::<T>();
        m.iter_mut().for_each(|m| *m = *m * beta1);
        v.iter_mut().for_each(|v| *v = *v * beta2);
    }

    /// Adam on rows, second step: the rows that have a gradient add it.
    #[inline(always)]
    pub fn scatter<T: Real>(&self, m: &mut [T], v: &mut [T], gradient: &[T]) {
        let one = T::of(1.0);
        let [_, beta1, beta2, _] = self.hypers::<T>();
        for ((m, v), &g) in m.iter_mut().zip(v).zip(gradient) {
            *m = *m + g * (one - beta1);
            *v = *v + (g * g) * (one - beta2);
        }
    }

    /// Adam on rows, last step: every row moves.
    #[inline(always)]
    pub fn move_all<T: Real>(&self, var: &mut [T], m: &[T], v: &[T]) {
        let alpha = self.alpha::<T>();
        let epsilon = T::of(self.hypers[3]);
        for ((x, &m), &v) in var.iter_mut().zip(m).zip(v) {
            *x = *x - alpha * m / (v.root() + epsilon);
        }
    }
}

/// The same in CUDA C, operation for operation. `h0` to `h3` are the hyper-parameters; `x` is the variable's element,
/// `a` and `b` the slots', `g` the gradient's.
pub(super) mod cuda {
    use super::UpdateRule;

    /// What is computed once: Adam's rate with the bias corrections in it, from the powers `p0` and `p1`.
    pub const ALPHA: &str = "T alpha = h0 * turret_sqrt(one - p1) / (one - p0);";

    /// [`Step::dense`](super::Step::dense).
    pub fn dense(rule: UpdateRule, nesterov: bool) -> &'static str {
        match (rule, nesterov) {
            (UpdateRule::GradientDescent, _) => "x = x - g * h0;",
            (UpdateRule::Momentum, false) => "a = a * h1 + g; x = x - a * h0;",
            (UpdateRule::Momentum, true) => "a = a * h1 + g; x = x - (g * h0 + a * h1 * h0);",
            (UpdateRule::Adam, false) => {
                "a = a + (g - a) * (one - h1); b = b + (g * g - b) * (one - h2); x = x - (a * alpha) / (turret_sqrt(b) + h3);"
            }
            (UpdateRule::Adam, true) => {
                "a = a + (g - a) * (one - h1); b = b + (g * g - b) * (one - h2); \
                 x = x - ((g * (one - h1) + h1 * a) * alpha) / (turret_sqrt(b) + h3);"
            }
            (UpdateRule::RmsProp, _) => {
                "a = a + (g * g - a) * (one - h1); b = b * h2 + (g * h0) / turret_sqrt(a + h3); x = x - b;"
            }
            (UpdateRule::Adagrad, _) => "a = a + g * g; x = x - (g * h0) * (one / turret_sqrt(a));",
        }
    }

    /// [`Step::sparse`](super::Step::sparse).
    pub fn sparse(rule: UpdateRule, nesterov: bool) -> &'static str {
        match rule {
            UpdateRule::RmsProp => {
                "a = a * h1 + g * g * (one - h1); b = b * h2 + (one / turret_sqrt(a + h3)) * h0 * g; x = x - b;"
            }
            _ => dense(rule, nesterov),
        }
    }

    /// [`Step::decay`](super::Step::decay).
    pub const DECAY: &str = "a = a * h1; b = b * h2;";
    /// [`Step::scatter`](super::Step::scatter).
    pub const SCATTER: &str = "a = a + g * (one - h1); b = b + (g * g) * (one - h2);";
    /// [`Step::move_all`](super::Step::move_all).
    pub const MOVE_ALL: &str = "x = x - alpha * a / (turret_sqrt(b) + h3);";
}
