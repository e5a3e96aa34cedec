//! Variable scopes: the name prefix, the reuse rule and the defaults that `get_variable` goes by.
//!
//! Names: entered by name, a variable scope is never made unique, while the name scope of its ops is; so a second
//! `variable_scope("fc", …)` finds the variables `fc/…` and names its ops `fc_1/…`.

use super::graph::{Graph, Inner};
use super::init::{Init, Regularizer};
use super::names::{self, Kind};
use super::placement::VariablePlacement;
use super::scopes::ScopeState;
use crate::base::{Code, DType, Diagnostic, SourceLine};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

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

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reuse::Inherit => "off",
            Reuse::True => "on",
            Reuse::Auto => "auto",
        })
    }
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

    pub(super) fn full_name(&self, name: &str) -> String {
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
    /// Opens no name scope: ops in the body stay in the current one.
    pub no_name_scope: bool,
}

impl ScopeOptions {
    /// Options that only set reuse.
    pub fn reuse(reuse: Reuse) -> ScopeOptions {
        ScopeOptions { reuse, ..ScopeOptions::default() }
    }
}

impl VariableScope {
    /// Sets what the options give.
    fn apply(&mut self, options: &ScopeOptions) {
        if options.reuse != Reuse::Inherit {
            self.reuse = options.reuse;
        }
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

/// What leaving a variable scope does to the counts of opened scopes, which default names are made unique by.
enum Leaving {
    /// Scopes inside of this one count from zero when it is opened again.
    SubScopesOf(String),
    /// The counts are put back.
    Counts(HashMap<String, usize>),
}

impl ScopeState {
    /// Makes the current variable scope the one of this name inside of it. The name scope is entered already.
    fn prolong(&mut self, name: &str, options: &ScopeOptions) -> Leaving {
        let full = self.variables.full_name(name);
        self.variables.name = full.clone();
        self.variables.apply(options);
        self.variables.original_name_scope = self.name_scope.clone();
        *self.opened.entry(full.clone()).or_default() += 1;
        Leaving::SubScopesOf(full)
    }
}

impl Inner {
    /// The name of a variable scope. An illegal one is reported, and the legal one nearest to it stands in, so that
    /// what is built inside raises no second error.
    fn legal_scope_name<'n>(&mut self, name: &'n str, source: SourceLine) -> Cow<'n, str> {
        let scope = self.scope();
        let nested = !scope.variables.name.is_empty() && !scope.name_scope.is_empty();
        match names::check(name, nested, Kind::VariableScope) {
            Ok(()) => Cow::Borrowed(name),
            Err(illegal) => {
                self.diagnostics.push(Diagnostic::at(Code::InvalidArgument, illegal.message, source));
                Cow::Owned(illegal.suggestion)
            }
        }
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
            let name = inner.legal_scope_name(name, source);
            if !options.no_name_scope {
                inner.enter_name_scope(&name, source);
            }
            inner.scope().prolong(&name, &options)
        };
        self.in_variable_scope(change, body)
    }

    /// Opens a scope whose name is made unique among the scopes around: `default_name`, `default_name_1`, …; the name
    /// scope is made unique by itself.
    #[track_caller]
    pub fn variable_scope_default<R>(&self, default_name: &str, body: impl FnOnce() -> R) -> R {
        let source = Location::caller();
        let change = |inner: &mut Inner| {
            let wanted = inner.legal_scope_name(default_name, source);
            inner.enter_name_scope(&wanted, source);
            let scope = inner.scope();
            let mut name = wanted.to_string();
            let mut i = 0;
            while scope.opened.get(&scope.variables.full_name(&name)).is_some_and(|count| *count > 0) {
                i += 1;
                name = format!("{wanted}_{i}");
            }
            scope.prolong(&name, &ScopeOptions::default())
        };
        self.in_variable_scope(change, body)
    }

    /// Enters a captured scope again, wherever it is called: its name does not depend on the scopes around. The reuse
    /// is the object's own unless the options give one; `reuse_variables` in the body does not change the object.
    /// Ops get the last part of its name as name scope, in the current one; a captured root opens none.
    #[track_caller]
    pub fn reenter<R>(&self, scope: &VariableScope, options: ScopeOptions, body: impl FnOnce() -> R) -> R {
        let source = Location::caller();
        let change = |inner: &mut Inner| {
            let last = scope.name.rsplit('/').next().unwrap_or_default();
            if !options.no_name_scope && !last.is_empty() {
                inner.enter_name_scope(last, source);
            }
            let mut entered = scope.clone();
            entered.apply(&options);
            let state = inner.scope();
            *state.opened.entry(entered.name.clone()).or_default() += 1;
            state.variables = entered;
            Leaving::Counts(state.opened.clone())
        };
        self.in_variable_scope(change, body)
    }

    fn in_variable_scope<R>(&self, change: impl FnOnce(&mut Inner) -> Leaving, body: impl FnOnce() -> R) -> R {
        let enter = |inner: &mut Inner| {
            let saved = (inner.scope().name_scope.clone(), inner.scope().variables.clone());
            (saved, change(inner))
        };
        let leave = |state: &mut ScopeState, ((name_scope, variables), leaving)| {
            (state.name_scope, state.variables) = (name_scope, variables);
            match leaving {
                Leaving::SubScopesOf(name) => {
                    let prefix = format!("{name}/");
                    let inside = state.opened.iter_mut().filter(|(n, _)| n.starts_with(&prefix));
                    inside.for_each(|(_, count)| *count = 0);
                }
                Leaving::Counts(counts) => state.opened = counts,
            }
        };
        self.scoped(enter, leave, body)
    }

    /// The scope that `get_variable` goes by now, to look at or to enter again. It is a copy: a later
    /// `reuse_variables` does not change it.
    pub fn current_variable_scope(&self) -> VariableScope {
        self.lock().scope().variables.clone()
    }

    /// Variables made in the body live where this rule says, whatever device scopes are open; their names are as without.
    pub fn variables_on<R>(&self, placement: VariablePlacement, body: impl FnOnce() -> R) -> R {
        let change = |inner: &mut Inner| inner.scope().variables.placement.replace(placement);
        self.scoped(change, |s, old| s.variables.placement = old, body)
    }

    /// From here on, until its scope is left, `get_variable` only finds variables. At the root it stays.
    pub fn reuse_variables(&self) {
        self.lock().scope().variables.reuse = Reuse::True;
    }

    /// From here on, until its scope is left, `get_variable` finds variables that are there and makes the others.
    pub fn auto_reuse_variables(&self) {
        self.lock().scope().variables.reuse = Reuse::Auto;
    }
}
