//! Restoring: all that is asked for or nothing, and a report.

use super::Saver;
use super::report::{Mismatch, Missing, Refusal, RestoreReport};
use super::roles::optimizer_state;
use crate::base::{Array, Code, Error, Result, Shape};
use crate::graph::{Tensor, Variable};
use crate::interop::arrays::{ArrayFile, ArrayInfo, convert_like, is_alike};
use crate::run::Session;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// What a restore may leave out. Without any of these, every variable must be in the file as it is in the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestoreOptions {
    /// Variables that the file has not stay as they are.
    pub partial: bool,
    /// Variables whose shape or type is another in the file stay as they are.
    pub skip_mismatched: bool,
    /// The optimizers' state is not read: slots, powers and the like get their initial values. Random nodes stay where
    /// they are.
    pub model_only: bool,
    /// Floats of another width are converted, as are integers; an integer that does not fit is an error.
    pub cast: bool,
}

impl<'g> Saver<'g> {
    /// Gives all variables their values from a checkpoint (its prefix, or a folder for its latest), a `.safetensors` or
    /// an `.npz` file. Random nodes go on from where they were, if the file says so and the saver looks after them.
    ///
    /// # Errors
    /// One error with all variables that are missing or differ, all unused names, the file and the ways out; a file that
    /// is not there or is damaged; no variable that matches. No variable has changed then.
    pub fn restore(&self, session: &Session<'g>, path: impl AsRef<Path>) -> Result<RestoreReport> {
        self.restore_with(session, path, RestoreOptions::default())
    }

    /// As [`Saver::restore`], with options.
    ///
    /// # Errors
    /// As [`Saver::restore`], but for what the options allow.
    pub fn restore_with(
        &self,
        session: &Session<'g>,
        path: impl AsRef<Path>,
        options: RestoreOptions,
    ) -> Result<RestoreReport> {
        let file = ArrayFile::open(path)?;
        let mut wanted = self.variables(session)?;
        let roles = optimizer_state(self.graph);
        let all = wanted.len();
        let mut fresh = Vec::new();
        if options.model_only {
            let (state, model) = wanted.into_iter().partition(|(_, v)| roles.contains_key(&v.op().id()));
            (fresh, wanted) = (state, model);
        }
        let infos: HashMap<&str, &ArrayInfo> = file.arrays().map(|a| (&a.name[..], a)).collect();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let (mut wrong_shape, mut wrong_dtype) = (Vec::new(), Vec::new());
        let mut used = HashSet::new();
        for (name, variable) in wanted {
            let Some(info) = infos.get(&name[..]) else {
                let optimizer = roles.get(&variable.op().id()).cloned();
                missing.push(Missing { name, dtype: variable.dtype(), shape: variable.shape(), optimizer });
                continue;
            };
            used.insert(&info.name[..]);
            let (shape, dtype) = (Shape::known(&info.shape), variable.dtype());
            let differs = Mismatch {
                name: name.clone(),
                file: format!("{} {shape}", info.stored),
                graph: format!("{dtype} {}", variable.shape()),
            };
            if shape != variable.shape() {
                wrong_shape.push(differs);
            } else if info.stored.dtype().is_none_or(|from| from != dtype && !(options.cast && is_alike(from, dtype))) {
                wrong_dtype.push(differs);
            } else {
                found.push((name, variable));
            }
        }
        let unused: Vec<&ArrayInfo> = file.arrays().filter(|a| !used.contains(&a.name[..])).collect();
        let mismatched = !(wrong_shape.is_empty() && wrong_dtype.is_empty());
        let refused =
            found.is_empty() || !missing.is_empty() && !options.partial || mismatched && !options.skip_mismatched;
        if refused {
            let refusal = Refusal {
                path: file.path().to_path_buf(),
                matched: found.len(),
                variables: all,
                missing: &missing,
                wrong_shape: &wrong_shape,
                wrong_dtype: &wrong_dtype,
                unused: &unused,
            };
            let code = if missing.is_empty() && mismatched { Code::InvalidArgument } else { Code::NotFound };
            return Err(Error::new(code, refusal.to_string()));
        }
        let mut values = Vec::with_capacity(found.len() + fresh.len());
        for (name, variable) in &found {
            let value = convert_like(file.read(name)?, variable.dtype())
                .map_err(|e| e.context(format!("cannot restore '{name}' from '{}'", file.path().display())))?;
            values.push((*variable, value));
        }
        let initial: Vec<Tensor<'g>> = fresh.iter().map(|(_, v)| initial_value(*v)).collect::<Result<_>>()?;
        if !initial.is_empty() {
            let initial = session.run(&[], &initial, &[])?;
            values.extend(fresh.iter().map(|(_, v)| *v).zip(initial));
        }
        let goes_on = self.random_nodes && !options.model_only;
        let generators = if goes_on { file.generators()? } else { None };
        let pairs: Vec<(Variable<'g>, &Array)> = values.iter().map(|(v, a)| (*v, a)).collect();
        session.load_snapshot(&pairs, generators.as_ref())?;
        self.adopt(file.path());
        let names = |list: Vec<(String, Variable<'g>)>| list.into_iter().map(|(name, _)| name).collect();
        Ok(RestoreReport {
            path: file.path().to_path_buf(),
            restored: names(found),
            missing: missing.into_iter().map(|m| m.name).collect(),
            unused: unused.into_iter().map(|a| a.name.clone()).collect(),
            wrong_shape,
            wrong_dtype,
            initialized: names(fresh),
            generators: generators.map_or(0, |g| g.keys().filter(|name| self.graph.operation(name).is_ok()).count()),
        })
    }
}

/// What the variable's initializer assigns.
fn initial_value(variable: Variable<'_>) -> Result<Tensor<'_>> {
    variable.initializer().inputs().get(1).copied().ok_or_else(|| {
        let message = format!("variable '{}' has no initial value to start from", variable.name());
        Error::new(Code::FailedPrecondition, message)
    })
}
