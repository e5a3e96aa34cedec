//! Element-wise kernels: one loop for one op, or for a chain of ops whose values between stay in registers.
//!
//! Absent: which ops there are, and which are fused. Invariant: every element is computed alone, by the same
//! operations as on the host, so that fusing never changes a result. The text is the same for the same structure:
//! ops, types, number of axes that are left when neighbours are joined, and along which of them an input stands still.

mod grid;

use super::code::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, CudaMap, FailureText, c_type};
use crate::base::{DType, Dims};
pub use grid::divisor;
use grid::{Grid, Meets};
use std::fmt::Write as _;
use std::sync::Arc;

/// Where an operand of a fused op comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    /// An input of the whole chain.
    Input(usize),
    /// The value of an earlier step.
    Step(usize),
}

/// One op of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct MapStep {
    /// What it computes.
    pub map: CudaMap,
    /// The type of its value.
    pub dtype: DType,
    /// Its operands, in the order of `$0`, `$1`, ….
    pub operands: Vec<Operand>,
}

/// An input of a chain: where it is, its type and sizes.
type Source = (CudaBuffer, DType, Dims);

/// Elements that a thread takes at a time where addresses allow it.
const WIDTH: usize = 4;

/// Bytes that the parameters of one kernel may take.
const MAX_PARAMETERS: usize = 4096;

/// The kernel of a chain of element-wise ops over `output` elements; its last step is the output. Inputs are
/// broadcast to the output as NumPy does; all steps have the output's sizes.
///
/// # Errors
/// Sizes that do not broadcast, and faults of the caller (a step that refers forward, too many inputs), as text.
pub fn map_kernel(steps: &[MapStep], inputs: &[(DType, Dims)], output: &Dims) -> Result<CudaKernel, String> {
    let inputs: Vec<Source> =
        (inputs.iter().enumerate()).map(|(i, (dtype, dims))| (CudaBuffer::Input(i, 0), *dtype, dims.clone())).collect();
    let launch = CudaLaunch::map(steps, &inputs, CudaBuffer::Output(0, 0), output)?;
    let message = steps.iter().find_map(|s| s.map.refuses.as_ref()).map(|(_, message)| *message);
    let failure = message.map(|m| -> FailureText { Arc::new(move |_, _| m.to_string()) });
    Ok(CudaKernel { failure, ..CudaKernel::new(launch) })
}

impl CudaLaunch {
    /// The launch of [`map_kernel`] on any buffers of these types and sizes; none where there are no elements.
    ///
    /// # Errors
    /// As [`map_kernel`].
    pub fn map(
        steps: &[MapStep],
        inputs: &[(CudaBuffer, DType, Dims)],
        output: CudaBuffer,
        dims: &Dims,
    ) -> Result<Option<CudaLaunch>, String> {
        let chain = Chain::new(steps, inputs.len())?;
        let used: Vec<&Source> = chain.used.iter().map(|&i| &inputs[i]).collect();
        let grid = Grid::new(&used.iter().map(|(_, _, dims)| &dims[..]).collect::<Vec<_>>(), dims)?;
        let len: usize = dims.iter().product();
        if len == 0 {
            return Ok(None);
        }
        let wide = len > i32::MAX as usize;
        let code = CudaCode::new(text(&chain, &used, &grid, wide));
        let mut args: Vec<CudaArg> = used.iter().map(|(buffer, _, _)| CudaArg::Buffer(*buffer)).collect();
        args.push(CudaArg::Buffer(output));
        if chain.fails {
            args.push(CudaArg::Failure);
        }
        args.push(CudaArg::size(len));
        grid.sizes(wide, &mut args);
        let bytes = args.len() * 8;
        if bytes > MAX_PARAMETERS {
            return Err(format!("a chain of {} inputs needs {bytes} bytes of parameters; fuse fewer ops", used.len()));
        }
        // A thread a vector, if vectors are possible at all.
        let vectors = !grid.is_strided() || grid.axes.last().is_some_and(|inner| inner % WIDTH == 0);
        let threads = if vectors { len.div_ceil(WIDTH) } else { len };
        Ok(Some(CudaLaunch::elements(code, threads, args)))
    }
}

/// The steps of a chain with variables in place of the operands.
struct Chain {
    /// The inputs that some expression reads, in order.
    used: Vec<usize>,
    /// Statements that declare `v0`, `v1`, …, one for each step.
    body: String,
    dtype: DType,
    last: usize,
    fails: bool,
}

impl Chain {
    fn new(steps: &[MapStep], inputs: usize) -> Result<Chain, String> {
        let last = steps.len().checked_sub(1).ok_or("a chain without steps")?;
        let (mut used, mut body, mut fails) = (Vec::new(), String::new(), 0);
        for (at, step) in steps.iter().enumerate() {
            let mut name = |i: usize| match step.operands.get(i) {
                Some(&Operand::Input(input)) if input < inputs => {
                    used.push(input);
                    Ok(format!("x{input}"))
                }
                Some(&Operand::Step(earlier)) if earlier < at => Ok(format!("v{earlier}")),
                Some(other) => Err(format!("step {at} of a chain refers to {other:?}, which is not there")),
                None => Err(format!("step {at} of a chain has no operand {i}: {}", step.map.expression)),
            };
            let value = named(&step.map.expression, &mut name)?;
            let _ = writeln!(body, "    const {0} v{at} = ({0})({value});", c_type(step.dtype));
            if let Some((refused, _)) = &step.map.refuses {
                let refused = named(refused, &mut name)?;
                let _ = writeln!(body, "    if ({refused}) turret_fail(failure, node, at, 0);");
                fails += 1;
            }
        }
        if fails > 1 {
            return Err("a chain with two steps that can fail; their failures could not be told apart".into());
        }
        used.sort_unstable();
        used.dedup();
        Ok(Chain { used, body, dtype: steps[last].dtype, last, fails: fails > 0 })
    }
}

/// An expression with names in place of `$0`, `$1`, ….
fn named(expression: &str, name: &mut impl FnMut(usize) -> Result<String, String>) -> Result<String, String> {
    let mut pieces = expression.split('$');
    let mut text = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let digits = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
        let operand = piece[..digits].parse().map_err(|_| format!("a $ without a number in '{expression}'"))?;
        text.push_str(&name(operand)?);
        text.push_str(&piece[digits..]);
    }
    Ok(text)
}

fn text(chain: &Chain, inputs: &[&Source], grid: &Grid, wide: bool) -> String {
    let out = c_type(chain.dtype);
    let strided = grid.is_strided();
    let sizes = grid.parameters(wide, &chain.used);
    let list = |items: Vec<String>| items.join(", ");
    let declared = |items: &[(&'static str, String)]| items.iter().map(|(t, n)| format!("{t} {n}")).collect::<Vec<_>>();
    let names = |items: &[(&'static str, String)]| items.iter().map(|(_, n)| n.clone()).collect::<Vec<_>>();
    let each = || chain.used.iter().zip(inputs.iter().map(|i| c_type(i.1))).zip(&grid.meets);
    let failure: Vec<(&'static str, String)> = match chain.fails {
        true => vec![("volatile u64*", "failure".into()), ("u32", "node".into())],
        false => Vec::new(),
    };

    // One element.
    let mut element: Vec<String> = each().map(|((i, t), _)| format!("{t} x{i}")).collect();
    element.extend(declared(&failure));
    element.extend(chain.fails.then(|| "i64 at".to_string()));
    let mut text = format!(
        "static __device__ __forceinline__ {out} element({}) {{\n{}    return v{};\n}}\n\n",
        list(element),
        chain.body,
        chain.last
    );

    // W neighbours at a time, from `first` to `end`.
    let mut taken: Vec<String> = each()
        .map(|((i, t), m)| if *m == Meets::One { format!("{t} x{i}") } else { format!("const {t}* x{i}") })
        .collect();
    taken.push(format!("{out}* out"));
    taken.extend(declared(&failure));
    taken.extend(["i64 first".to_string(), "i64 end".to_string()]);
    taken.extend(declared(&sizes));
    let _ = writeln!(text, "template <int W> static __device__ __forceinline__ void run({}) {{", list(taken));
    // Most threads go round once, for which unrolling would only work out how often.
    text.push_str("#pragma unroll 1\n    for (i64 i = first + TURRET_FIRST * W; i < end; i += TURRET_STRIDE * W) {\n");
    if strided {
        let index = if wide { "i64" } else { "u32" };
        let _ = writeln!(text, "        const {index} at{0} = ({index})i;", grid.axes.len() - 1);
        for axis in (1..grid.axes.len()).rev() {
            let quotient = match wide {
                true => format!("at{axis} / size{axis}"),
                false => format!("turret_divide(at{axis}, multiplier{axis}, shift{axis})"),
            };
            let _ = writeln!(text, "        const {index} at{} = {quotient};", axis - 1);
            let _ = writeln!(text, "        const {index} place{axis} = at{axis} - at{} * size{axis};", axis - 1);
        }
        let _ = writeln!(text, "        const {index} place0 = at0;");
    }
    for ((i, t), meets) in each() {
        let place = match meets {
            Meets::One => continue,
            Meets::Each => "i".to_string(),
            Meets::Strided(_) => {
                list((0..grid.axes.len()).map(|a| format!("place{a} * step{i}_{a}")).collect()).replace(", ", " + ")
            }
        };
        let _ = match meets {
            Meets::Strided(false) => writeln!(text, "        const {t} y{i} = x{i}[{place}];"),
            _ => writeln!(text, "        const turret_vector<{t}, W> y{i} = turret_load<W>(x{i} + ({place}));"),
        };
    }
    let operand = |(((i, _), meets), (_, dtype, _)): (((&usize, &'static str), &Meets), &&Source)| {
        let value = match meets {
            Meets::One => format!("x{i}"),
            Meets::Strided(false) => format!("y{i}"),
            _ => format!("y{i}.v[k]"),
        };
        // A stored bool is true by any byte but 0.
        if *dtype == DType::Bool { format!("{value} != 0") } else { value }
    };
    let mut operands: Vec<String> = each().zip(inputs).map(operand).collect();
    operands.extend(names(&failure));
    operands.extend(chain.fails.then(|| "i + k".to_string()));
    let _ = writeln!(
        text,
        "        turret_vector<{out}, W> o;\n#pragma unroll\n        for (int k = 0; k < W; k++) o.v[k] = element({});\n        \
         turret_store<W>(out + i, o);\n    }}\n}}\n",
        list(operands)
    );

    // Vectors as far as addresses and sizes allow, then the rest.
    let mut parameters: Vec<String> = each().map(|((i, t), _)| format!("const {t}* x{i}")).collect();
    parameters.push(format!("{out}* out"));
    parameters.extend(declared(&failure));
    parameters.push("i64 len".into());
    parameters.extend(declared(&sizes));
    let mut arguments: Vec<String> =
        each().map(|((i, _), m)| if *m == Meets::One { format!("x{i}[0]") } else { format!("x{i}") }).collect();
    arguments.push("out".into());
    arguments.extend(names(&failure));
    let mut vectors = vec!["turret_aligned<4>(out)".to_string()];
    let vector = |m: &Meets| matches!(m, Meets::Each | Meets::Strided(true));
    vectors.extend(each().filter(|(_, m)| vector(m)).map(|((i, _), _)| format!("turret_aligned<4>(x{i})")));
    vectors.extend(strided.then(|| format!("size{} % 4 == 0", grid.axes.len() - 1)));
    let _ = writeln!(text, "extern \"C\" __global__ void ENTRY({}) {{", list(parameters));
    let _ = writeln!(text, "    const i64 whole = {} ? len / 4 * 4 : 0;", vectors.join(" && "));
    for (width, range) in [(4, ["0", "whole"]), (1, ["whole", "len"])] {
        let range = range.map(String::from).into_iter();
        let arguments = arguments.iter().cloned().chain(range).chain(names(&sizes)).collect();
        let _ = writeln!(text, "    run<{width}>({});", list(arguments));
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn step(expression: &str, dtype: DType, operands: &[Operand]) -> MapStep {
        MapStep { map: CudaMap::new(expression), dtype, operands: operands.to_vec() }
    }

    fn sum(inputs: &[&[usize]], output: &[usize]) -> CudaKernel {
        let inputs: Vec<_> = inputs.iter().map(|d| (DType::F32, Dims::from_slice(d))).collect();
        let add = step("$0 + $1", DType::F32, &[Operand::Input(0), Operand::Input(1)]);
        map_kernel(&[add], &inputs, &Dims::from_slice(output)).unwrap()
    }

    fn code(kernel: &CudaKernel) -> (&str, &[CudaArg], u32) {
        match &kernel.launches[..] {
            [CudaLaunch::Code { code, args, blocks, .. }] => (code.text(), args, *blocks),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_text_is_the_same_whatever_the_sizes() {
        for (a, b) in [
            (sum(&[&[3, 4], &[4]], &[3, 4]), sum(&[&[5, 6, 8], &[8]], &[5, 6, 8])),
            (sum(&[&[7], &[7]], &[7]), sum(&[&[2, 3, 4], &[2, 3, 4]], &[2, 3, 4])),
            (sum(&[&[7], &[]], &[7]), sum(&[&[2, 3, 4], &[1, 1]], &[2, 3, 4])),
            (sum(&[&[2, 3, 4], &[3, 1]], &[2, 3, 4]), sum(&[&[9, 5, 2, 2], &[5, 1, 1]], &[9, 5, 2, 2])),
        ] {
            assert_eq!(code(&a).0, code(&b).0);
        }
        assert_ne!(code(&sum(&[&[3, 4], &[4]], &[3, 4])).0, code(&sum(&[&[3, 4], &[3, 1]], &[3, 4])).0);
    }

    #[test]
    fn inputs_of_one_shape_take_no_sizes_and_threads_take_vectors() {
        let kernel = sum(&[&[1000, 1000], &[1000, 1000]], &[1000, 1000]);
        let (text, args, blocks) = code(&kernel);
        let buffers = [CudaArg::input(0), CudaArg::input(1), CudaArg::output(0), CudaArg::I64(1_000_000)];
        assert_eq!(args, buffers);
        assert_eq!(blocks, 250_000u32.div_ceil(256));
        assert!(text.contains("ENTRY(const float* x0, const float* x1, float* out, i64 len)"), "{text}");
        assert!(text.contains("turret_aligned<4>(x1)"), "{text}");
    }

    #[test]
    fn a_chain_keeps_its_values_in_variables_and_takes_what_it_reads() {
        let steps = [
            step("$0 < $1", DType::Bool, &[Operand::Input(2), Operand::Input(0)]),
            step("$0 ? $1 : 0", DType::F32, &[Operand::Step(0), Operand::Input(2)]),
        ];
        let shape: Dims = smallvec![4];
        let inputs = vec![(DType::F32, shape.clone()), (DType::I64, shape.clone()), (DType::F32, smallvec![])];
        let kernel = map_kernel(&steps, &inputs, &shape).unwrap();
        let (text, args, _) = code(&kernel);
        assert_eq!(args, [CudaArg::input(0), CudaArg::input(2), CudaArg::output(0), CudaArg::I64(4)]);
        assert!(text.contains("const unsigned char v0 = (unsigned char)(x2 < x0);"), "{text}");
        assert!(text.contains("const float v1 = (float)(v0 ? x2 : 0);"), "{text}");
    }

    #[test]
    fn faults_of_the_caller_are_told() {
        let shape: Dims = smallvec![4];
        let told = |steps: &[MapStep]| map_kernel(steps, &[(DType::F32, shape.clone())], &shape).unwrap_err();
        assert!(told(&[]).contains("without steps"));
        assert!(told(&[step("$0", DType::F32, &[Operand::Step(0)])]).contains("Step(0)"));
        assert!(told(&[step("$1", DType::F32, &[Operand::Input(0)])]).contains("no operand 1"));
        assert!(told(&[step("$0", DType::F32, &[Operand::Input(1)])]).contains("Input(1)"));
    }

    #[test]
    fn a_refusal_carries_its_message() {
        let map = CudaMap { expression: "$0".into(), refuses: Some(("$0 == 0".into(), "a zero")) };
        let shape: Dims = smallvec![4];
        let step = MapStep { map, dtype: DType::I32, operands: vec![Operand::Input(0)] };
        let kernel = map_kernel(&[step], &[(DType::I32, shape.clone())], &shape).unwrap();
        let (text, args, _) = code(&kernel);
        assert_eq!(args[2], CudaArg::Failure);
        assert!(text.contains("if (x0 == 0) turret_fail(failure, node, at, 0);"), "{text}");
        assert_eq!(kernel.failure.unwrap()(3, 0), "a zero");
    }

    #[test]
    fn nothing_is_launched_for_no_elements() {
        assert!(sum(&[&[0, 4], &[4]], &[0, 4]).launches.is_empty());
    }
}
