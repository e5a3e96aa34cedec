//! Variables: `VariableV2`, `Variable`, `VarHandleOp`, the assignments, and `get_variable`, which builds what the registry
//! asks for.
//!
//! A resource handle is the variable itself here, so that what TensorFlow does with resources is done as with references.

use super::cuda_copy::moved;
use super::cuda_index::{ASKING, Counter};
use super::identity::IDENTITY;
use super::initializer::initial_value;
use super::no_kernel;
use super::support::{build, by_dtype, node, scoped, sized};
use crate::base::{Array, Code, DType, Diagnostic, IntoShape, Shape, SourceLine, num_elements};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaKernel};
use crate::graph::{
    Attrs, Entry, Fact, Graph, InferContext, Init, KernelContext, Lookup, Op, Operation, Regularizer, Tensor, Traits,
    Variable, keys,
};
use smallvec::{SmallVec, smallvec};

/// A variable, with attributes `dtype` and `shape`: output 0 is its buffer.
pub struct VariableOp {
    name: &'static str,
}

/// TensorFlow's `VariableV2`.
pub static VARIABLE_V2: VariableOp = VariableOp { name: "VariableV2" };
/// TensorFlow's `Variable`, the older form of `VariableV2`.
pub static VARIABLE: VariableOp = VariableOp { name: "Variable" };
/// TensorFlow's `VarHandleOp`, a resource variable.
pub static VAR_HANDLE: VariableOp = VariableOp { name: "VarHandleOp" };

impl Op for VariableOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, variable: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(0)?;
        let dtype = c.attrs.dtype("dtype").ok_or("attribute 'dtype' is missing")?;
        let shape = c.attrs.shape("shape").ok_or("attribute 'shape' is missing")?;
        if !shape.is_fully_defined() && !shape.is_poisoned() {
            return Err(format!("the shape of a variable must be fully known, got {shape}"));
        }
        Ok(vec![sized(dtype, shape.clone())?])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }
}

/// An assignment, which overwrites a variable.
pub struct AssignOp {
    name: &'static str,
    /// Whether the variable is a resource; then there is no output.
    resource: bool,
}

/// TensorFlow's `Assign`; its output is the variable's buffer afterwards.
pub static ASSIGN: AssignOp = AssignOp { name: "Assign", resource: false };
/// TensorFlow's `AssignVariableOp`, which has no output.
pub static ASSIGN_VARIABLE: AssignOp = AssignOp { name: "AssignVariableOp", resource: true };

impl Op for AssignOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        // The output is the variable, so that what follows it reads the new value.
        Traits { stateful: true, overwrites: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        assigned(c, self.resource)
    }

    fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
        smallvec![0]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(by_dtype!(c.inputs[0].dtype, T => copy_in::<T>()))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_update("x", moved(c.inputs[0].dtype), c.inputs[0].len()))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }
}

/// The CUDA kernel that makes each element of variable 0 of its `old` value and the element `x` of input 1.
pub(super) fn cuda_update(step: &str, dtype: DType, len: usize) -> CudaKernel {
    let text = include_str!("cuda/assign.cu").replace("$step", step);
    let code = Counter::for_sizes(&[]).code(&text).with_type("T", dtype);
    let threads = len.div_ceil(4).min(ASKING);
    let args = [CudaArg::input(0), CudaArg::input(1), CudaArg::size(len), CudaArg::Failure];
    CudaKernel::elements(code, threads, args)
}

fn copy_in<T: crate::base::Element>() -> CpuKernel {
    Box::new(|l| {
        l.variable::<T>(0).copy_from_slice(l.input::<T>(1));
        Ok(())
    })
}

/// The shape rule of assignments: the value must have the variable's type and shape. Of resources there is no output.
pub(super) fn assigned(c: &InferContext<'_>, resource: bool) -> Result<Vec<Fact>, String> {
    c.want_inputs(2)?;
    c.same_dtype()?;
    if !c.shape(0).is_compatible_with(c.shape(1)) {
        return Err(format!("the value must have the variable's shape: want {}, got {}", c.shape(0), c.shape(1)));
    }
    Ok(if resource { Vec::new() } else { vec![c.inputs[0].clone()] })
}

/// What `get_variable_with` can be told beyond name, shape and initializer.
#[derive(Clone, Debug)]
pub struct VariableOptions {
    /// The element type; without it that of a given array, else the scope's, which is `float32` unless set.
    pub dtype: Option<DType>,
    /// Whether optimizers change it.
    pub trainable: bool,
    /// A penalty, instead of the scope's.
    pub regularizer: Option<Regularizer>,
    /// Collections that it joins instead of the global variables.
    pub collections: Option<Vec<String>>,
}

impl Default for VariableOptions {
    fn default() -> VariableOptions {
        VariableOptions { dtype: None, trainable: true, regularizer: None, collections: None }
    }
}

impl Graph {
    /// The variable of this name in the current variable scope: made, or found, as the scope's reuse says.
    /// Without an initializer the scope's is used, else Glorot uniform (zeros for integers and bools).
    #[track_caller]
    pub fn get_variable(&self, name: &str, shape: impl IntoShape, init: impl Into<Option<Init>>) -> Variable<'_> {
        self.get_variable_with(name, shape, init, VariableOptions::default())
    }

    /// As [`Graph::get_variable`], with options.
    #[track_caller]
    pub fn get_variable_with(
        &self,
        name: &str,
        shape: impl IntoShape,
        init: impl Into<Option<Init>>,
        options: VariableOptions,
    ) -> Variable<'_> {
        let source = self.source_line();
        let shape = shape.into_shape();
        if shape.is_poisoned() {
            return self.poison_variable();
        }
        let scope = self.current_variable_scope();
        let init = init.into();
        let given = match &init {
            Some(Init::Data(data)) => Some(data.dtype()),
            _ => None,
        };
        let dtype = options.dtype.or(given).unwrap_or(scope.dtype());
        let full = match self.look_up(name, Some(&shape), Some(dtype), source) {
            Lookup::Found(variable) => return variable,
            Lookup::Refused => return self.poison_variable(),
            Lookup::Missing(full) => full,
        };
        let init = init.or_else(|| scope.initializer().cloned()).unwrap_or(match dtype.is_floating() {
            true => Init::glorot_uniform(),
            false => Init::Zeros,
        });
        // A scope's penalty is for what is trained, not for moving averages and counters.
        let regularizer = options.regularizer.or(scope.regularizer().filter(|_| options.trainable));
        let placement = scope.placement().cloned();
        let VariableOptions { trainable, collections, .. } = options;
        let made = NewVariable { shape, dtype, init, initial_name: None, trainable, collections, tracked: true };
        let made_in = self.current_name_scope();
        let variable = self.with_source(source, || {
            self.no_control_dependencies(|| {
                self.name_scope("", || {
                    self.build_variable(&full, made_in, made, None, |builder, bytes| match placement {
                        Some(rule) => {
                            let request = rule.place(bytes);
                            builder.device(request.spec, request.rule)
                        }
                        None => builder,
                    })
                })
            })
        });
        if let (Some(Regularizer::L2(scale)), false) = (regularizer, variable.is_poison()) {
            self.add_l2_penalty(variable, scale);
        }
        variable
    }

    /// A variable made outside the reuse rule, such as an optimizer's slot: its name is made unique.
    /// `colocated` puts it on another variable's device; without it the device scopes count.
    #[track_caller]
    pub fn untracked_variable<'g>(
        &'g self,
        name: &str,
        shape: Shape,
        dtype: DType,
        init: Init,
        colocated: Option<Variable<'g>>,
    ) -> Variable<'g> {
        let source = self.source_line();
        let initial_name = None;
        let made =
            NewVariable { shape, dtype, init, initial_name, trainable: false, collections: None, tracked: false };
        self.build_untracked(name, made, None, colocated, source)
    }

    /// As [`Graph::untracked_variable`], beside a variable that it is like; the body builds the initial value.
    #[track_caller]
    pub(super) fn variable_from<'g>(
        &'g self,
        name: &str,
        like: Variable<'g>,
        initial: &dyn Fn() -> Tensor<'g>,
    ) -> Variable<'g> {
        let made = NewVariable {
            shape: like.shape(),
            dtype: like.dtype(),
            init: Init::Zeros,
            initial_name: None,
            trainable: false,
            collections: None,
            tracked: false,
        };
        self.build_untracked(name, made, Some(initial), Some(like), self.source_line())
    }

    /// A scalar variable as TensorFlow's `tf.Variable(value, name=…)` makes it: outside the reuse rule, under the
    /// current name scope, with a constant `initial_value`; not trainable.
    #[track_caller]
    pub fn scalar_variable<'g>(
        &'g self,
        name: &str,
        dtype: DType,
        value: f64,
        colocated: Option<Variable<'g>>,
    ) -> Variable<'g> {
        let source = self.source_line();
        let scope = self.current_name_scope();
        let full = if scope.is_empty() { name.to_string() } else { format!("{scope}/{name}") };
        let made = NewVariable {
            shape: Shape::scalar(),
            dtype,
            init: Init::Constant(value),
            initial_name: Some("initial_value"),
            trainable: false,
            collections: None,
            tracked: false,
        };
        self.build_untracked(&full, made, None, colocated, source)
    }

    fn build_untracked<'g>(
        &'g self,
        name: &str,
        made: NewVariable,
        initial: Option<&dyn Fn() -> Tensor<'g>>,
        colocated: Option<Variable<'g>>,
        source: SourceLine,
    ) -> Variable<'g> {
        let made_in = self.current_name_scope();
        if !self.is_legal_variable_name(name, source) {
            return self.poison_variable();
        }
        self.with_source(source, || {
            self.no_control_dependencies(|| {
                self.name_scope("", || {
                    self.build_variable(name, made_in, made, initial, |builder, _| match colocated {
                        Some(with) => builder.colocate_with(with),
                        None => builder,
                    })
                })
            })
        })
    }

    fn build_variable<'g>(
        &'g self,
        full: &str,
        made_in: String,
        new: NewVariable,
        given: Option<&dyn Fn() -> Tensor<'g>>,
        place: impl FnOnce(crate::graph::NodeBuilder<'g>, u64) -> crate::graph::NodeBuilder<'g>,
    ) -> Variable<'g> {
        let source = self.source_line();
        let NewVariable { shape, dtype, init, initial_name, trainable, collections, tracked } = new;
        if let Init::Data(data) = &init
            && (data.shape() != shape || data.dtype() != dtype)
        {
            self.report(Diagnostic::at(
                Code::InvalidArgument,
                format!(
                    "the initial value of variable '{full}' must be {dtype} {shape}, got {} {}",
                    data.dtype(),
                    data.shape()
                ),
                source,
            ));
            return self.poison_variable();
        }
        self.name_scope(full, || {
            let scope = self.current_name_scope();
            let bytes = shape.num_elements().and_then(|n| n.checked_mul(dtype.size())).unwrap_or(usize::MAX);
            let builder =
                self.node_of(&VARIABLE_V2).name(format!("{scope}/")).attr("dtype", dtype).attr("shape", shape.clone());
            let node = place(builder, bytes as u64).add();
            if node.is_poison() {
                return self.poison_variable();
            }
            let dims = shape.to_dims().unwrap_or_default();
            let initial = self.colocate_with(node, || match (initial_name, &init) {
                _ if given.is_some() => given.map_or_else(|| self.poison_tensor(), |build| build()),
                (Some(name), Init::Constant(value)) => {
                    let values = vec![*value; num_elements(&dims).unwrap_or(0)];
                    Array::from_f64(dtype, &dims, &values)
                        .map_or_else(|_| self.poison_tensor(), |array| self.constant_named(name, array))
                }
                _ => self.name_scope("Initializer", || initial_value(self, &init, &dims, dtype)),
            });
            let initializer = self.node_of(&ASSIGN).input(node.output(0)).input(initial).colocate_with(node).add();
            let read = self.node_of(&IDENTITY).name("read").input(node.output(0)).colocate_with(node).tensor();
            if initializer.is_poison() || read.is_poison() {
                return self.poison_variable();
            }
            let entry = Entry {
                node: node.id(),
                read: read.id(),
                initializer: initializer.id(),
                shape: shape.clone(),
                dtype,
                source,
                name_scope: made_in,
            };
            let Some(variable) = self.register(full, tracked, entry) else { return self.poison_variable() };
            let mut joined = collections.unwrap_or_else(|| vec![keys::GLOBAL_VARIABLES.to_string()]);
            if trainable && !joined.iter().any(|key| key == keys::TRAINABLE_VARIABLES) {
                joined.push(keys::TRAINABLE_VARIABLES.to_string());
            }
            joined.iter().for_each(|key| self.add_to_collection(key, variable));
            variable
        })
    }

    /// A variable whose error is already reported.
    pub fn poison_variable(&self) -> Variable<'_> {
        let op = self.poison_operation();
        Variable::new(op, self.poison_tensor(), op)
    }

    /// Adds `scale · sum(w²) / 2` of a variable to the regularization losses, as `NAME/Regularizer/l2_regularizer` on
    /// the variable's device.
    #[track_caller]
    pub fn add_l2_penalty<'g>(&'g self, variable: Variable<'g>, scale: f64) -> Tensor<'g> {
        let source = self.source_line();
        let dtype = variable.dtype();
        let Ok(scale) = Array::from_f64(dtype, &[], &[scale]) else { return self.poison_tensor() };
        if variable.is_poison() {
            return self.poison_tensor();
        }
        let penalty = self.with_source(source, || {
            self.colocate_with(variable, || {
                self.name_scope(&format!("{}/Regularizer/", variable.name()), || {
                    scoped(self, "l2_regularizer", |name| {
                        let scale = self.constant_named("scale", scale);
                        let loss = build("L2Loss", "", &[variable.value()]);
                        node(self, "Mul").name(name).inputs([scale, loss]).tensor()
                    })
                })
            })
        });
        self.add_to_collection(keys::REGULARIZATION_LOSSES, penalty);
        penalty
    }

    /// An operation that runs the initializers of all variables that are there now, named `init`.
    #[track_caller]
    pub fn global_variables_initializer(&self) -> Operation<'_> {
        let initializers: Vec<Operation<'_>> = self.global_variables().into_iter().map(|v| v.initializer()).collect();
        self.name_scope("", || self.group(initializers, "init"))
    }
}

struct NewVariable {
    /// Made by `get_variable`, so that its name is never changed.
    tracked: bool,
    shape: Shape,
    dtype: DType,
    init: Init,
    /// The name of a constant initial value, where it is not under `Initializer/`.
    initial_name: Option<&'static str>,
    trainable: bool,
    collections: Option<Vec<String>>,
}
