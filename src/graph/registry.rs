//! The variable registry and variable scopes: which name a variable has, and whether it is made or reused.
//!
//! Absent: the nodes of a variable; `ops::variable` builds them when the registry says so.

use super::graph::{Graph, Inner};
use super::node::{NodeId, TensorId};
use super::placement::VariablePlacement;
use super::tensor::{Operation, Tensor, Variable};
use crate::base::{Code, DType, Diagnostic, Shape, SourceLine, nearest};
use indexmap::IndexMap;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// Whether `get_variable` makes variables or finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// As the scope around.
    #[default]
    Inherit,
    /// Only find: a variable that is not there is an error.
    True,
    /// Find what is there, make what is not.
    Auto,
}

/// How the elements of a variable start.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this number.
    Constant(f64),
    /// This array; its shape is the variable's.
    Data(Arc<crate::base::Array>),
    /// Normal, drawn again where further than two deviations from the mean.
    TruncatedNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation before cutting.
        stddev: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Normal.
    RandomNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stddev: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Uniform in `[min, max)`.
    RandomUniform {
        /// The least value.
        min: f64,
        /// The bound above.
        max: f64,
        /// The op seed.
        seed: Option<i64>,
    },
    /// Scaled by the shape, as TensorFlow's `variance_scaling_initializer`.
    VarianceScaling {
        /// The factor.
        scale: f64,
        /// Which fan the variance is divided by.
        mode: FanMode,
        /// The distribution.
        distribution: Distribution,
        /// The op seed.
        seed: Option<i64>,
    },
    /// A random orthogonal matrix times `gain`; for shapes of rank 2 and above, the leading axes flattened.
    Orthogonal {
        /// The factor.
        gain: f64,
        /// The op seed.
        seed: Option<i64>,
    },
}

/// Which number of connections a variance is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanMode {
    /// Inputs of a unit.
    In,
    /// Outputs of a unit.
    Out,
    /// Their mean.
    Avg,
}

/// The distribution of a variance-scaling initializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Normal, cut at two deviations, with the variance that is left corrected.
    TruncatedNormal,
    /// Normal.
    UntruncatedNormal,
    /// Uniform.
    Uniform,
}

impl Init {
    /// Normal, drawn again where further than two deviations from the mean; seeded by the graph.
    pub fn truncated_normal(mean: f64, stddev: f64) -> Init {
        Init::TruncatedNormal { mean, stddev, seed: None }
    }

    /// Normal; seeded by the graph.
    pub fn random_normal(mean: f64, stddev: f64) -> Init {
        Init::RandomNormal { mean, stddev, seed: None }
    }

    /// Uniform in `[min, max)`; seeded by the graph.
    pub fn random_uniform(min: f64, max: f64) -> Init {
        Init::RandomUniform { min, max, seed: None }
    }

    /// Uniform within `sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio, 2010): the default of `get_variable`.
    pub fn glorot_uniform() -> Init {
        Init::VarianceScaling { scale: 1.0, mode: FanMode::Avg, distribution: Distribution::Uniform, seed: None }
    }

    /// Cut normal with variance `2 / (fan_in + fan_out)`.
    pub fn glorot_normal() -> Init {
        let distribution = Distribution::TruncatedNormal;
        Init::VarianceScaling { scale: 1.0, mode: FanMode::Avg, distribution, seed: None }
    }

    /// Cut normal with variance `2 / fan_in` (He et al., 2015).
    pub fn he_normal() -> Init {
        let distribution = Distribution::TruncatedNormal;
        Init::VarianceScaling { scale: 2.0, mode: FanMode::In, distribution, seed: None }
    }

    /// A random orthogonal matrix; seeded by the graph.
    pub fn orthogonal(gain: f64) -> Init {
        Init::Orthogonal { gain, seed: None }
    }

    /// This array; its shape is the variable's.
    pub fn data(array: impl crate::base::IntoArray) -> Init {
        Init::Data(Arc::new(array.into_array()))
    }
}

/// A penalty on a variable, added to the regularization losses where the variable is made.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Regularizer {
    /// `scale · sum(w²) / 2`.
    L2(f64),
}

/// A variable scope: what `get_variable` goes by. It can be captured, and entered again elsewhere.
#[derive(Clone, Default, Debug)]
pub struct VariableScope {
    pub(super) name: String,
    pub(super) reuse: Reuse,
    pub(super) initializer: Option<Init>,
    pub(super) regularizer: Option<Regularizer>,
    pub(super) dtype: Option<DType>,
    pub(super) placement: Option<VariablePlacement>,
    /// The name scope that was made when this was entered by name.
    pub(super) original_name_scope: String,
}

impl VariableScope {
    /// The full name; empty for the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether variables are made or found here.
    pub fn reuse(&self) -> Reuse {
        self.reuse
    }

    /// The default initializer, if one is set here or around.
    pub fn initializer(&self) -> Option<&Init> {
        self.initializer.as_ref()
    }

    /// The default regularizer, if one is set here or around.
    pub fn regularizer(&self) -> Option<Regularizer> {
        self.regularizer
    }

    /// The default element type.
    pub fn dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }

    /// Where variables are placed, if a rule is set here or around.
    pub fn placement(&self) -> Option<&VariablePlacement> {
        self.placement.as_ref()
    }

    /// The absolute name scope that was made when the scope was first entered, without a trailing slash.
    pub fn original_name_scope(&self) -> &str {
        &self.original_name_scope
    }

    fn full_name(&self, name: &str) -> String {
        if self.name.is_empty() { name.to_string() } else { format!("{}/{name}", self.name) }
    }
}

/// What a variable scope sets; what is left out is inherited.
#[derive(Clone, Default, Debug)]
pub struct ScopeOptions {
    /// Whether variables are made or found.
    pub reuse: Reuse,
    /// The default initializer.
    pub initializer: Option<Init>,
    /// The default regularizer.
    pub regularizer: Option<Regularizer>,
    /// The default element type.
    pub dtype: Option<DType>,
    /// Where variables are placed.
    pub placement: Option<VariablePlacement>,
    /// Opens no name scope for a scope object that is entered again.
    pub no_name_scope: bool,
}

impl ScopeOptions {
    /// Options that only set reuse.
    pub fn reuse(reuse: Reuse) -> ScopeOptions {
        ScopeOptions { reuse, ..ScopeOptions::default() }
    }
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub node: NodeId,
    pub read: TensorId,
    pub initializer: NodeId,
    pub shape: Shape,
    pub dtype: DType,
    pub source: SourceLine,
    pub name_scope: String,
}

#[derive(Default)]
pub(super) struct Registry {
    /// By full name. Variables made outside `get_variable` (slots, counters) have entries too.
    variables: IndexMap<String, Entry>,
    by_node: HashMap<NodeId, usize>,
    /// How often scopes were opened by default name.
    opened: HashMap<String, usize>,
}

impl Registry {
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        self.by_node.get(&node).copied()
    }
}

/// What the registry says to a request.
pub(crate) enum Lookup<'g> {
    Found(Variable<'g>),
    /// To be made under this full name.
    Missing(String),
    /// Reported already.
    Refused,
}

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reuse::Inherit => "off",
            Reuse::True => "on",
            Reuse::Auto => "auto",
        })
    }
}

impl Graph {
    /// Variables asked for in the body are named `name/…`; ops made in the body get the name scope `name`, made unique.
    #[track_caller]
    pub fn variable_scope<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        self.variable_scope_with(name, ScopeOptions::default(), body)
    }

    /// As [`Graph::variable_scope`], with options.
    #[track_caller]
    pub fn variable_scope_with<R>(&self, name: &str, options: ScopeOptions, body: impl FnOnce() -> R) -> R {
        let source = Location::caller();
        let change = |inner: &mut Inner| {
            let old_names = inner.enter_name_scope(name, source);
            let old = inner.scope.variables.clone();
            let scope = &mut inner.scope.variables;
            scope.name = old.full_name(name);
            scope.apply(&options, old.reuse);
            scope.original_name_scope = inner.scope.name_scope.clone();
            let opened = inner.registry.opened.entry(inner.scope.variables.name.clone()).or_default();
            *opened += 1;
            (old_names, old)
        };
        let name = self.current_variable_scope().full_name(name);
        let result =
            self.scoped(change, |s, (names, variables)| (s.name_scope, s.variables) = (names, variables), body);
        self.lock().registry.close_sub_scopes(&name);
        result
    }

    /// Opens a scope whose name is made unique among the scopes around: `default_name`, `default_name_1`, …
    #[track_caller]
    pub fn variable_scope_default<R>(&self, default_name: &str, body: impl FnOnce() -> R) -> R {
        let name = {
            let inner = self.lock();
            let scope = &inner.scope.variables;
            let is_open = |n: &str| inner.registry.opened.get(&scope.full_name(n)).is_some_and(|c| *c > 0);
            let numbered = (1..).map(|i| format!("{default_name}_{i}"));
            std::iter::once(default_name.to_string()).chain(numbered).find(|n| !is_open(n)).unwrap_or_default()
        };
        // The name scope is asked for by the default name, and made unique by itself.
        let source = Location::caller();
        let change = |inner: &mut Inner| {
            let old_names = inner.enter_name_scope(default_name, source);
            let old = inner.scope.variables.clone();
            inner.scope.variables.name = old.full_name(&name);
            inner.scope.variables.original_name_scope = inner.scope.name_scope.clone();
            *inner.registry.opened.entry(inner.scope.variables.name.clone()).or_default() += 1;
            (old_names, old)
        };
        let full = self.current_variable_scope().full_name(&name);
        let result =
            self.scoped(change, |s, (names, variables)| (s.name_scope, s.variables) = (names, variables), body);
        self.lock().registry.close_sub_scopes(&full);
        result
    }

    /// Enters a captured scope again, wherever it is called. The reuse is the object's own unless the options give one;
    /// `reuse_variables` in the body does not change the object.
    #[track_caller]
    pub fn reenter<R>(&self, scope: &VariableScope, options: ScopeOptions, body: impl FnOnce() -> R) -> R {
        let source = Location::caller();
        let change = |inner: &mut Inner| {
            let last = scope.name.rsplit('/').next().unwrap_or_default();
            let old_names = if options.no_name_scope || last.is_empty() {
                inner.scope.name_scope.clone()
            } else {
                inner.enter_name_scope(last, source)
            };
            let mut entered = scope.clone();
            entered.apply(&options, scope.reuse);
            let old = std::mem::replace(&mut inner.scope.variables, entered);
            (old_names, old, inner.registry.opened.clone())
        };
        let graph = self;
        let (result, opened) = {
            let mut opened = None;
            let result = self.scoped(
                |inner| {
                    let (names, variables, counts) = change(inner);
                    opened = Some(counts);
                    (names, variables)
                },
                |s, (names, variables)| (s.name_scope, s.variables) = (names, variables),
                body,
            );
            (result, opened)
        };
        if let Some(opened) = opened {
            graph.lock().registry.opened = opened;
        }
        result
    }

    /// The scope that `get_variable` goes by now, to look at or to enter again.
    pub fn current_variable_scope(&self) -> VariableScope {
        self.lock().scope.variables.clone()
    }

    /// From here on, until its scope is left, `get_variable` only finds variables. At the root it stays.
    pub fn reuse_variables(&self) {
        self.lock().scope.variables.reuse = Reuse::True;
    }

    /// From here on, until its scope is left, `get_variable` finds variables that are there and makes the others.
    pub fn auto_reuse_variables(&self) {
        self.lock().scope.variables.reuse = Reuse::Auto;
    }

    /// Finds a variable by its full name; never makes one.
    ///
    /// # Errors
    /// When there is none, with the current scope and the nearest name.
    pub fn find_variable(&self, name: &str) -> crate::base::Result<Variable<'_>> {
        let inner = self.lock();
        if let Some(index) = inner.registry.variables.get_index_of(name) {
            return Ok(self.variable_at(&inner, index));
        }
        Err(Diagnostic::new(Code::NotFound, missing(&inner, name, "get_variable makes one")).into())
    }

    /// The variable of this node, if it is one.
    pub fn variable_of(&self, node: NodeId) -> Option<Variable<'_>> {
        let inner = self.lock();
        inner.registry.index_of(node).map(|i| self.variable_at(&inner, i))
    }

    /// All variables in the order of creation, slots and counters included, saved or not.
    pub fn all_variables(&self) -> Vec<Variable<'_>> {
        let inner = self.lock();
        (0..inner.registry.variables.len()).map(|i| self.variable_at(&inner, i)).collect()
    }

    /// The registry's rules for one request, in TensorFlow's order.
    pub(crate) fn look_up(
        &self,
        name: &str,
        shape: Option<&Shape>,
        dtype: Option<DType>,
        source: SourceLine,
    ) -> Lookup<'_> {
        let mut inner = self.lock();
        let scope = inner.scope.variables.clone();
        let full = scope.full_name(name);
        let found = inner.registry.variables.get_index_of(&full);
        let refuse = |inner: &mut Inner, code, message| {
            inner.diagnostics.push(Diagnostic::at(code, message, source));
            Lookup::Refused
        };
        let Some(index) = found else {
            if scope.reuse != Reuse::True {
                return Lookup::Missing(full);
            }
            let fix = "make it first, or set Reuse::Auto in its variable scope";
            let message = missing(&inner, &full, fix);
            return refuse(&mut inner, Code::NotFound, message);
        };
        let entry = inner.registry.variables[index].clone();
        let tower = if entry.name_scope.is_empty() { String::new() } else { format!(" in '{}'", entry.name_scope) };
        let first = format!("first made{tower} at {}", entry.source);
        if scope.reuse == Reuse::Inherit {
            let place = if scope.name.is_empty() { "the root scope".into() } else { format!("scope '{}'", scope.name) };
            return refuse(
                &mut inner,
                Code::AlreadyExists,
                format!(
                    "variable '{full}' already exists, {first}; reuse is off in {place}; \
                     did you mean Reuse::True or Reuse::Auto in the variable scope, or reuse_variables()?"
                ),
            );
        }
        if let Some(shape) = shape.filter(|s| !s.is_poisoned() && !s.is_compatible_with(&entry.shape)) {
            return refuse(
                &mut inner,
                Code::InvalidArgument,
                format!(
                    "cannot share variable '{full}': asked for shape {shape}, found shape {}, {first}; \
                     do the sizes of the inputs differ between the two calls?",
                    entry.shape
                ),
            );
        }
        if let Some(dtype) = dtype.filter(|&d| d != entry.dtype) {
            return refuse(
                &mut inner,
                Code::InvalidArgument,
                format!(
                    "cannot share variable '{full}': asked for dtype {dtype}, found dtype {}, {first}",
                    entry.dtype
                ),
            );
        }
        Lookup::Found(self.variable_at(&inner, index))
    }

    /// Enters a new variable under its full name.
    pub(crate) fn register(&self, full_name: &str, entry: Entry) -> Variable<'_> {
        let mut inner = self.lock();
        // A variable made outside `get_variable` may have the name of one that is there; it then goes by its op's name.
        let key = if inner.registry.variables.contains_key(full_name) {
            inner.nodes.get_index(entry.node.index()).map_or(full_name.to_string(), |(name, _)| name.to_string())
        } else {
            full_name.to_string()
        };
        let node = entry.node;
        let (index, _) = inner.registry.variables.insert_full(key, entry);
        inner.registry.by_node.insert(node, index);
        self.variable_at(&inner, index)
    }

    pub(super) fn variable_at(&self, inner: &Inner, index: usize) -> Variable<'_> {
        let entry = &inner.registry.variables[index];
        Variable {
            node: Operation { graph: self, id: entry.node },
            read: Tensor { graph: self, id: entry.read },
            initializer: Operation { graph: self, id: entry.initializer },
        }
    }
}

fn missing(inner: &Inner, full: &str, fix: &str) -> String {
    let near = nearest(full, inner.registry.variables.keys().map(String::as_str));
    let near = near.map_or(String::new(), |n| format!("; did you mean '{n}'?"));
    let scope = &inner.scope.variables;
    let place = if scope.name.is_empty() { "the root scope".into() } else { format!("scope '{}'", scope.name) };
    format!("variable '{full}' does not exist (asked for in {place}, reuse {}){near}; {fix}", scope.reuse)
}

impl VariableScope {
    fn apply(&mut self, options: &ScopeOptions, inherited: Reuse) {
        self.reuse = match options.reuse {
            Reuse::Inherit => inherited,
            given => given,
        };
        if options.initializer.is_some() {
            self.initializer = options.initializer.clone();
        }
        if options.regularizer.is_some() {
            self.regularizer = options.regularizer;
        }
        if options.dtype.is_some() {
            self.dtype = options.dtype;
        }
        if options.placement.is_some() {
            self.placement = options.placement.clone();
        }
    }
}

impl Registry {
    fn close_sub_scopes(&mut self, name: &str) {
        let prefix = format!("{name}/");
        self.opened.iter_mut().filter(|(n, _)| n.starts_with(&prefix)).for_each(|(_, count)| *count = 0);
    }
}
