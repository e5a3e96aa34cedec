//! The update rules of optimizers and their arithmetic, operation for operation as TensorFlow's kernels have it.
//!
//! Absent: memory, threads and order, which `apply_kernels` has. The loops are plain, and vectorised by the compiler
//! for the machine's registers inside of `pulp`'s dispatch.

use super::apply::Update;
use super::apply_kernels::scalar;
use crate::base::Element;
use crate::device::Launch;
use std::ops::{Add, Div, Mul, Sub};

/// Which update rule a node applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateRule {
    /// `var -= lr · g`.
    GradientDescent,
    /// `accum = momentum · accum + g; var -= lr · accum`, or Nesterov's form.
    Momentum,
    /// Kingma and Ba, 2014, with epsilon outside of the root, as in the formulation before its section 2.1.
    Adam,
    /// Hinton's lecture 6e with momentum: `mom = momentum · mom + lr · g / sqrt(ms + epsilon)`.
    RmsProp,
    /// Graves, 2013: as RMSProp, by the variance of the gradient, `ms - mg²`, instead of its square.
    CenteredRmsProp,
    /// Duchi et al., 2011: `accum += g²; var -= lr · g / sqrt(accum)`.
    Adagrad,
    /// The same with `lr · g / (sqrt(accum) + epsilon)`.
    AdagradV2,
    /// Zeiler, 2012: `u = g · sqrt(accum_update + epsilon) / sqrt(accum + epsilon); var -= lr · u`.
    Adadelta,
    /// McMahan et al., 2013: follow the regularized leader, with L1 and L2 penalties.
    Ftrl,
    /// The same with an L2 penalty on the gradient itself.
    FtrlV2,
}

impl UpdateRule {
    /// Every rule.
    pub const ALL: [UpdateRule; 10] = [
        UpdateRule::GradientDescent,
        UpdateRule::Momentum,
        UpdateRule::Adam,
        UpdateRule::RmsProp,
        UpdateRule::CenteredRmsProp,
        UpdateRule::Adagrad,
        UpdateRule::AdagradV2,
        UpdateRule::Adadelta,
        UpdateRule::Ftrl,
        UpdateRule::FtrlV2,
    ];

    /// The value of attribute `optimizer`.
    pub fn name(self) -> &'static str {
        match self {
            UpdateRule::GradientDescent => "GradientDescent",
            UpdateRule::Momentum => "Momentum",
            UpdateRule::Adam => "Adam",
            UpdateRule::RmsProp => "RMSProp",
            UpdateRule::CenteredRmsProp => "CenteredRMSProp",
            UpdateRule::Adagrad => "Adagrad",
            UpdateRule::AdagradV2 => "AdagradV2",
            UpdateRule::Adadelta => "Adadelta",
            UpdateRule::Ftrl => "Ftrl",
            UpdateRule::FtrlV2 => "FtrlV2",
        }
    }

    /// TensorFlow's default name of the train op.
    pub fn default_name(self) -> &'static str {
        match self {
            UpdateRule::CenteredRmsProp => "RMSProp",
            UpdateRule::AdagradV2 => "Adagrad",
            UpdateRule::FtrlV2 => "Ftrl",
            other => other.name(),
        }
    }

    /// The rule of this name.
    pub fn from_name(name: &str) -> Option<UpdateRule> {
        UpdateRule::ALL.into_iter().find(|r| r.name() == name)
    }

    /// The scalar inputs, in order, by TensorFlow's node names.
    pub fn hypers(self) -> &'static [&'static str] {
        match self {
            UpdateRule::GradientDescent | UpdateRule::Adagrad => &["learning_rate"],
            UpdateRule::Momentum => &["learning_rate", "momentum"],
            UpdateRule::Adam => &["learning_rate", "beta1", "beta2", "epsilon"],
            UpdateRule::RmsProp | UpdateRule::CenteredRmsProp => &["learning_rate", "decay", "momentum", "epsilon"],
            UpdateRule::AdagradV2 => &["learning_rate", "epsilon"],
            UpdateRule::Adadelta => &["learning_rate", "rho", "epsilon"],
            UpdateRule::Ftrl => {
                &["learning_rate", "l1_regularization_strength", "l2_regularization_strength", "learning_rate_power"]
            }
            UpdateRule::FtrlV2 => &[
                "learning_rate",
                "l1_regularization_strength",
                "l2_regularization_strength",
                "l2_shrinkage_regularization_strength",
                "learning_rate_power",
            ],
        }
    }

    /// The names of a variable's slots, in the order of the inputs. Optimizers make them in the order of their names.
    pub fn slots(self) -> &'static [&'static str] {
        match self {
            UpdateRule::GradientDescent => &[],
            UpdateRule::Momentum => &["Momentum"],
            UpdateRule::Adam => &["Adam", "Adam_1"],
            UpdateRule::RmsProp => &["RMSProp", "RMSProp_1"],
            // The mean of the gradient, of its square, the momentum.
            UpdateRule::CenteredRmsProp => &["RMSProp_1", "RMSProp", "RMSProp_2"],
            UpdateRule::Adagrad | UpdateRule::AdagradV2 => &["Adagrad"],
            UpdateRule::Adadelta => &["Adadelta", "Adadelta_1"],
            UpdateRule::Ftrl | UpdateRule::FtrlV2 => &["Ftrl", "Ftrl_1"],
        }
    }

    /// The variables that the node shares between all variables, in the order of the inputs.
    pub fn powers(self) -> &'static [&'static str] {
        match self {
            UpdateRule::Adam => &["beta1_power", "beta2_power"],
            _ => &[],
        }
    }

    /// Floating-point operations for each element.
    pub(super) fn flops(self) -> f64 {
        match self {
            UpdateRule::GradientDescent => 2.0,
            UpdateRule::Momentum => 4.0,
            UpdateRule::Adagrad | UpdateRule::AdagradV2 => 6.0,
            UpdateRule::Adam | UpdateRule::Adadelta => 11.0,
            UpdateRule::RmsProp => 10.0,
            UpdateRule::CenteredRmsProp => 14.0,
            UpdateRule::Ftrl | UpdateRule::FtrlV2 => 18.0,
        }
    }
}

/// A rule with its variations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    pub rule: UpdateRule,
    /// Looks ahead: Momentum and Adam.
    pub nesterov: bool,
    /// Leaves the accumulator as it is: Adagrad with `update_slots` off.
    pub keeps_slots: bool,
}

/// A type that variables are trained in.
pub(super) trait Real:
    Element + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest value.
    fn of(value: f64) -> Self;
    /// The square root.
    fn root(self) -> Self;
    /// The power.
    fn power(self, exponent: Self) -> Self;
}

macro_rules! real {
    ($t:ident) => {
        impl Real for $t {
            #[inline(always)]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            fn root(self) -> $t {
                self.sqrt()
            }
            #[inline(always)]
            fn power(self, exponent: $t) -> $t {
                self.powf(exponent)
            }
        }
    };
}
real!(f32);
real!(f64);

/// The scalars of one launch.
pub(super) struct Step {
    form: Form,
    /// In the order of [`UpdateRule::hypers`].
    hypers: [f64; 5],
    powers: [f64; 2],
}

impl Step {
    /// Reads the scalars.
    pub fn read(update: &Update, l: &Launch<'_>) -> Step {
        let mut step = Step { form: update.form, hypers: [0.0; 5], powers: [0.0; 2] };
        step.hypers.iter_mut().zip(&update.hypers).for_each(|(h, &i)| *h = scalar(l, i));
        step.powers.iter_mut().zip(&update.powers).for_each(|(p, &i)| *p = scalar(l, i));
        step
    }

    #[inline(always)]
    fn hypers<T: Real>(&self) -> [T; 5] {
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
    pub fn dense<T: Real>(&self, var: &mut [T], [a, b, c]: [&mut [T]; 3], gradient: &[T]) {
        let one = T::of(1.0);
        let [h0, h1, h2, h3, _] = self.hypers::<T>();
        match self.form.rule {
            UpdateRule::GradientDescent => {
                var.iter_mut().zip(gradient).for_each(|(x, &g)| *x = *x - g * h0);
            }
            UpdateRule::Momentum => {
                let nesterov = self.form.nesterov;
                for ((x, a), &g) in var.iter_mut().zip(a).zip(gradient) {
                    *a = *a * h1 + g;
                    *x = *x - if nesterov { g * h0 + *a * h1 * h0 } else { *a * h0 };
                }
            }
            UpdateRule::Adam => {
                let alpha = self.alpha::<T>();
                let nesterov = self.form.nesterov;
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
            UpdateRule::CenteredRmsProp => {
                for ((((x, mg), ms), mom), &g) in var.iter_mut().zip(a).zip(b).zip(c).zip(gradient) {
                    *ms = *ms + (g * g - *ms) * (one - h1);
                    *mg = *mg + (g - *mg) * (one - h1);
                    *mom = *mom * h2 + (g * h0) / (*ms - *mg * *mg + h3).root();
                    *x = *x - *mom;
                }
            }
            UpdateRule::Adagrad => {
                let keeps = self.form.keeps_slots;
                for ((x, a), &g) in var.iter_mut().zip(a).zip(gradient) {
                    *a = if keeps { *a } else { *a + g * g };
                    *x = *x - (g * h0) * (one / a.root());
                }
            }
            UpdateRule::AdagradV2 => {
                let keeps = self.form.keeps_slots;
                for ((x, a), &g) in var.iter_mut().zip(a).zip(gradient) {
                    *a = if keeps { *a } else { *a + g * g };
                    *x = *x - (g * h0) / (a.root() + h1);
                }
            }
            UpdateRule::Adadelta => {
                for (((x, a), b), &g) in var.iter_mut().zip(a).zip(b).zip(gradient) {
                    *a = *a * h1 + g * g * (one - h1);
                    let step = (*b + h2).root() * (one / (*a + h2).root()) * g;
                    *x = *x - step * h0;
                    *b = *b * h1 + step * step * (one - h1);
                }
            }
            UpdateRule::Ftrl | UpdateRule::FtrlV2 => self.follow_the_leader(var, a, b, gradient),
        }
    }

    /// Of either form of FTRL: `accum` and `linear` are its slots.
    #[inline(always)]
    fn follow_the_leader<T: Real>(&self, var: &mut [T], accum: &mut [T], linear: &mut [T], gradient: &[T]) {
        let (zero, two) = (T::of(0.0), T::of(2.0));
        let shrinks = self.form.rule == UpdateRule::FtrlV2;
        let [rate, l1, l2, h3, h4] = self.hypers::<T>();
        let (shrinkage, power) = if shrinks { (h3, h4) } else { (zero, h3) };
        let halves = power == T::of(-0.5);
        let scaled = |accum: T| if halves { accum.root() } else { accum.power(zero - power) };
        for (((x, accum), linear), &g) in var.iter_mut().zip(accum).zip(linear).zip(gradient) {
            let new = *accum + g * g;
            let pull = if shrinks { g + two * shrinkage * *x } else { g };
            let size = scaled(new);
            *linear = *linear + pull - (size - scaled(*accum)) / rate * *x;
            let held = if *linear > l1 {
                l1
            } else if *linear < zero - l1 {
                zero - l1
            } else {
                *linear
            };
            *x = (held - *linear) / (size / rate + two * l2);
            *accum = new;
        }
    }

    /// Updates a row from an entry of its gradient, or their sum. Only the rounding of RMSProp differs from the dense form.
    #[inline(always)]
    pub fn sparse<T: Real>(&self, var: &mut [T], [a, b, c]: [&mut [T]; 3], gradient: &[T]) {
        let one = T::of(1.0);
        let [rate, decay, momentum, epsilon, _] = self.hypers::<T>();
        match self.form.rule {
            UpdateRule::RmsProp => {
                for (((x, ms), mom), &g) in var.iter_mut().zip(a).zip(b).zip(gradient) {
                    *ms = *ms * decay + g * g * (one - decay);
                    *mom = *mom * momentum + (one / (*ms + epsilon).root()) * rate * g;
                    *x = *x - *mom;
                }
            }
            UpdateRule::CenteredRmsProp => {
                for ((((x, mg), ms), mom), &g) in var.iter_mut().zip(a).zip(b).zip(c).zip(gradient) {
                    *ms = *ms * decay + g * g * (one - decay);
                    *mg = *mg * decay + g * (one - decay);
                    *mom = *mom * momentum + (one / (*ms + epsilon - *mg * *mg).root()) * rate * g;
                    *x = *x - *mom;
                }
            }
            _ => self.dense(var, [a, b, c], gradient),
        }
    }

    /// Adam on rows, first step: all of both moments decay.
    #[inline(always)]
    pub fn decay<T: Real>(&self, m: &mut [T], v: &mut [T]) {
        let [_, beta1, beta2, ..] = self.hypers::<T>();
        m.iter_mut().for_each(|m| *m = *m * beta1);
        v.iter_mut().for_each(|v| *v = *v * beta2);
    }

    /// Adam on rows, second step: the rows that have a gradient add it.
    #[inline(always)]
    pub fn scatter<T: Real>(&self, m: &mut [T], v: &mut [T], gradient: &[T]) {
        let one = T::of(1.0);
        let [_, beta1, beta2, ..] = self.hypers::<T>();
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

/// The same in CUDA C, operation for operation. `h0` to `h4` are the hyper-parameters; `x` is the variable's element,
/// `a`, `b` and `c` the slots', `g` the gradient's.
pub(super) mod cuda {
    use super::{Form, UpdateRule};

    /// What is computed once: Adam's rate with the bias corrections in it, from the powers `p0` and `p1`.
    pub const ALPHA: &str = "T alpha = h0 * turret_sqrt(one - p1) / (one - p0);";

    /// [`Step::dense`](super::Step::dense).
    pub fn dense(form: Form) -> &'static str {
        match (form.rule, form.nesterov, form.keeps_slots) {
            (UpdateRule::GradientDescent, ..) => "x = x - g * h0;",
            (UpdateRule::Momentum, false, _) => "a = a * h1 + g; x = x - a * h0;",
            (UpdateRule::Momentum, true, _) => "a = a * h1 + g; x = x - (g * h0 + a * h1 * h0);",
            (UpdateRule::Adam, false, _) => {
                "a = a + (g - a) * (one - h1); b = b + (g * g - b) * (one - h2); x = x - (a * alpha) / (turret_sqrt(b) + h3);"
            }
            (UpdateRule::Adam, true, _) => {
                "a = a + (g - a) * (one - h1); b = b + (g * g - b) * (one - h2); \
                 x = x - ((g * (one - h1) + h1 * a) * alpha) / (turret_sqrt(b) + h3);"
            }
            (UpdateRule::RmsProp, ..) => {
                "a = a + (g * g - a) * (one - h1); b = b * h2 + (g * h0) / turret_sqrt(a + h3); x = x - b;"
            }
            (UpdateRule::CenteredRmsProp, ..) => {
                "b = b + (g * g - b) * (one - h1); a = a + (g - a) * (one - h1); \
                 c = c * h2 + (g * h0) / turret_sqrt(b - a * a + h3); x = x - c;"
            }
            (UpdateRule::Adagrad, _, false) => "a = a + g * g; x = x - (g * h0) * (one / turret_sqrt(a));",
            (UpdateRule::Adagrad, _, true) => "x = x - (g * h0) * (one / turret_sqrt(a));",
            (UpdateRule::AdagradV2, _, false) => "a = a + g * g; x = x - (g * h0) / (turret_sqrt(a) + h1);",
            (UpdateRule::AdagradV2, _, true) => "x = x - (g * h0) / (turret_sqrt(a) + h1);",
            (UpdateRule::Adadelta, ..) => {
                "a = a * h1 + g * g * (one - h1); T s = turret_sqrt(b + h2) * (one / turret_sqrt(a + h2)) * g; \
                 x = x - s * h0; b = b * h1 + s * s * (one - h1);"
            }
            (UpdateRule::Ftrl, ..) => {
                "T n = a + g * g, s = turret_scaled(n, h3); b = b + g - (s - turret_scaled(a, h3)) / h0 * x; \
                 x = (turret_held(b, h1) - b) / (s / h0 + 2 * h2); a = n;"
            }
            (UpdateRule::FtrlV2, ..) => {
                "T n = a + g * g, s = turret_scaled(n, h4); \
                 b = b + (g + 2 * h3 * x) - (s - turret_scaled(a, h4)) / h0 * x; \
                 x = (turret_held(b, h1) - b) / (s / h0 + 2 * h2); a = n;"
            }
        }
    }

    /// [`Step::sparse`](super::Step::sparse).
    pub fn sparse(form: Form) -> &'static str {
        match form.rule {
            UpdateRule::RmsProp => {
                "a = a * h1 + g * g * (one - h1); b = b * h2 + (one / turret_sqrt(a + h3)) * h0 * g; x = x - b;"
            }
            UpdateRule::CenteredRmsProp => {
                "b = b * h1 + g * g * (one - h1); a = a * h1 + g * (one - h1); \
                 c = c * h2 + (one / turret_sqrt(b + h3 - a * a)) * h0 * g; x = x - c;"
            }
            _ => dense(form),
        }
    }

    /// What the texts of FTRL use.
    pub const FOLLOWING: &str = include_str!("cuda/ftrl.cu");

    /// [`Step::decay`](super::Step::decay).
    pub const DECAY: &str = "a = a * h1; b = b * h2;";
    /// [`Step::scatter`](super::Step::scatter).
    pub const SCATTER: &str = "a = a + g * (one - h1); b = b + (g * g) * (one - h2);";
    /// [`Step::move_all`](super::Step::move_all).
    pub const MOVE_ALL: &str = "x = x - alpha * a / (turret_sqrt(b) + h3);";
}
