//! Planted faults: each gives its error at once, leaves the variables as they were, and the next run works, or is
//! refused with a reason.

use super::in_child;
use super::program::{Program, Way, batch, build, cuda, start, values};
use turret::base::{Array, Code};
use turret::graph::Graph;
use turret::run::{CudaOptions, Session, SessionOptions};
use turret_standin::Standin;

const GPU: Way = Way { towers: 2, variables: "gpu", average: "beside" };
const HOST: Way = Way { towers: 2, variables: "cpu", average: "/cpu:0" };

/// A trained session, in which a fault strikes.
struct Struck<'g> {
    g: &'g Graph,
    program: Program<'g>,
    session: Session<'g>,
    standin: Standin,
}

impl<'g> Struck<'g> {
    fn new(g: &'g Graph, way: Way, graphs: bool, steps: usize) -> Struck<'g> {
        let program = build(g, way);
        let options = SessionOptions { cuda: CudaOptions { graphs, ..CudaOptions::default() }, ..cuda(2) };
        let session = Session::new(g, options).unwrap();
        start(g, &session);
        let struck = Struck { g, program, session, standin: Standin::loaded().unwrap() };
        for _ in 0..steps {
            struck.program.step(&struck.session, &batch(24)).unwrap();
        }
        struck
    }

    fn values(&self) -> Vec<(String, Array)> {
        values(self.g, &self.session)
    }

    /// Runs a step under a fault; it fails with these words, and changes nothing.
    fn fails(&self, fault: &str, rows: usize, says: &[&str]) -> turret::Error {
        let before = self.values();
        let began = std::time::Instant::now();
        self.standin.fault(fault).unwrap();
        let error = self.program.step(&self.session, &batch(rows)).expect_err(fault);
        self.standin.fault("").unwrap();
        assert!(began.elapsed().as_secs() < 20, "{fault}: {:?}", began.elapsed());
        let text = error.to_string();
        let lacks: Vec<&&str> = says.iter().filter(|s| !text.contains(**s)).collect();
        assert!(lacks.is_empty(), "{fault}: want {lacks:?} in:\n{text}");
        if self.session.run(&[], &[], &[]).is_ok() && !text.contains("lost") {
            assert!(self.values() == before, "{fault} changed variables");
        }
        error
    }

    /// The next step works, as after no fault at all.
    fn goes_on(&self, rows: usize) {
        let loss = self.program.step(&self.session, &batch(rows)).unwrap_or_else(|e| panic!("{e}"));
        assert!(loss.is_finite());
    }
}

#[test]
fn child_memory_that_cannot_be_had() {
    if !in_child() {
        return;
    }
    for way in [GPU, HOST] {
        let g = Graph::new();
        let struck = Struck::new(&g, way, true, 3);
        // A larger batch is a new plan, whose arena is refused.
        let says =
            ["/device:GPU:", "is out of memory", "tower_", "bytes asked", "free", "largest holders", "cuMemAlloc"];
        let error = struck.fails("alloc:1", 48, &says);
        assert_eq!(error.code(), Code::ResourceExhausted);
        struck.goes_on(24);
        struck.fails("alloc>4096", 64, &says);
        struck.goes_on(64);
        struck.goes_on(48);
    }
}

/// How many launches the first step of a program has.
fn launches(way: Way) -> u64 {
    let g = Graph::new();
    let struck = Struck::new(&g, way, true, 0);
    let count =
        || ["cuLaunchKernel", "cublasGemmEx", "cublasLtMatmul"].map(|n| struck.standin.calls(n)).iter().sum::<u64>();
    let before = count();
    struck.goes_on(24);
    count() - before
}

#[test]
fn child_launches_that_are_refused() {
    if !in_child() {
        return;
    }
    let says = ["on gpu:", "the variables are as before", ".rs:"];
    for way in [GPU, HOST] {
        // The first run of a plan, at several of its launches, the updates too.
        let last = launches(way);
        for launch in [1, 4, 9, 14, last - 9, last - 4, last - 1, last] {
            let g = Graph::new();
            let struck = Struck::new(&g, way, true, 0);
            struck.fails(&format!("launch:{launch}"), 24, &[&says[..], &[" failed with "]].concat());
            struck.goes_on(24);
        }
        // A graph's launch: the step goes on command by command, and the next is captured anew; after the second time
        // the session stays without, and says so.
        let g = Graph::new();
        let struck = Struck::new(&g, way, true, 3);
        let launches = || struck.standin.calls("cuGraphLaunch");
        for time in 0..2 {
            struck.standin.fault("launch:graph:1").unwrap();
            struck.goes_on(24);
            struck.standin.fault("").unwrap();
            let before = launches();
            struck.goes_on(24);
            assert_eq!(launches() > before, time == 0);
        }
        let warnings = struck.session.warnings().join("\n");
        assert!(warnings.contains("cuGraphLaunch failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{warnings}");
    }
    // Without graphs, what was launched before may have changed variables: then the session says so until they are loaded.
    let g = Graph::new();
    let struck = Struck::new(&g, GPU, false, 3);
    let before = struck.values();
    struck.standin.fault(&format!("launch:{}", launches(GPU))).unwrap();
    let error = struck.program.step(&struck.session, &batch(24)).unwrap_err().to_string();
    struck.standin.fault("").unwrap();
    assert!(error.contains(" failed with "), "{error}");
    let refused = struck.program.step(&struck.session, &batch(24)).unwrap_err();
    assert!(refused.code() == Code::FailedPrecondition && refused.to_string().contains("half changed"), "{refused}");
    let all = g.all_variables();
    let pairs: Vec<_> = all.iter().map(|v| (*v, &before.iter().find(|b| b.0 == v.name()).unwrap().1)).collect();
    struck.session.load_all(&pairs).unwrap();
    assert!(struck.values() == before);
    struck.goes_on(24);
}

#[test]
fn child_what_cannot_be_made_has_a_substitute_or_a_reason() {
    if !in_child() {
        return;
    }
    // No graph: the steps go on command by command, and a remark says why.
    let g = Graph::new();
    let struck = Struck::new(&g, GPU, true, 1);
    struck.standin.fault("graph").unwrap();
    for _ in 0..3 {
        struck.goes_on(24);
    }
    struck.standin.fault("").unwrap();
    let warnings = struck.session.warnings().join("\n");
    assert!(warnings.contains("not as a CUDA graph: cuGraphInstantiate failed"), "{warnings}");
    // Host memory that cannot be pinned: the same.
    let standin = Standin::loaded().unwrap();
    standin.fault("register").unwrap();
    let g = Graph::new();
    let struck = Struck::new(&g, HOST, true, 3);
    standin.fault("").unwrap();
    let warnings = struck.session.warnings().join("\n");
    assert!(warnings.contains("could not be pinned: cuMemHostRegister failed"), "{warnings}");
    // No compiler, no staging memory: errors, and the next try works.
    standin.fault("hostalloc").unwrap();
    let g = Graph::new();
    let program = build(&g, GPU);
    let session = Session::new(&g, cuda(2)).unwrap();
    start(&g, &session);
    let error = program.step(&session, &batch(24)).unwrap_err().to_string();
    assert!(error.contains("cuMemHostAlloc failed"), "{error}");
    standin.fault("").unwrap();
    program.step(&session, &batch(24)).unwrap();
    standin.fault("nvrtc").unwrap();
    let g = Graph::new();
    // An expression that no other test has compiled.
    let x = g.placeholder(turret::base::DType::F64, [5], "x");
    let y = g.device("/gpu:0", || ((x.exp() + x.sqrt()) * x.sigmoid()).tanh() * x.log() - x.exp().relu());
    let session = Session::new(&g, cuda(1)).unwrap();
    let five = Array::new(&[5], &[0.5f64; 5]).unwrap();
    let error = session.run(&[(x, &five)], &[y], &[]).unwrap_err().to_string();
    assert!(error.contains("nvrtcCompileProgram failed"), "{error}");
    standin.fault("").unwrap();
    session.run(&[(x, &five)], &[y], &[]).unwrap();
}

#[test]
fn child_a_route_that_corrupts_is_not_used() {
    if !in_child() {
        return;
    }
    let g = Graph::new();
    let want = super::program::train(GPU, SessionOptions::on(turret::device::Machine::simulated(2)), 5).0;
    let standin = Standin::loaded().unwrap();
    standin.fault("corrupt:peer").unwrap();
    let struck = Struck::new(&g, GPU, true, 0);
    for want in want {
        let got = struck.program.step(&struck.session, &batch(24)).unwrap();
        assert!((got - want).abs() <= 1e-5 * want.abs(), "{got}, want {want}");
    }
    let warnings = struck.session.warnings().join("\n");
    assert!(warnings.contains("go through pinned host memory, since a trial copy failed"), "{warnings}");
}

/// A fault that costs a GPU: the error names it, and every later run is refused with the reason.
fn costs_a_gpu(way: Way, fault: &str, said: &str) {
    let g = Graph::new();
    let struck = Struck::new(&g, way, true, 3);
    let before = struck.values();
    struck.standin.fault(fault).unwrap();
    let error = struck.program.step(&struck.session, &batch(24)).unwrap_err().to_string();
    struck.standin.fault("").unwrap();
    for part in [said, "on gpu:", "is lost to this program", ".rs:"] {
        assert!(error.contains(part), "{fault}: want '{part}' in:\n{error}");
    }
    let next = struck.program.step(&struck.session, &batch(24)).unwrap_err();
    assert_eq!(next.code(), Code::FailedPrecondition);
    assert!(next.to_string().contains("was lost") && next.to_string().contains("run the program again"), "{next}");
    // What the host holds is as before.
    if way.variables == "cpu" {
        assert!(struck.values() == before, "{fault} changed variables");
    }
}

#[test]
fn child_an_illegal_address() {
    if in_child() {
        costs_a_gpu(GPU, "async:3", "CUDA_ERROR_ILLEGAL_ADDRESS");
    }
}

#[test]
fn child_an_illegal_address_beside_variables_on_the_host() {
    if in_child() {
        costs_a_gpu(HOST, "async:5", "CUDA_ERROR_ILLEGAL_ADDRESS");
    }
}

#[test]
fn child_a_gpu_falls_off_the_bus() {
    if in_child() {
        costs_a_gpu(HOST, "lost:1:4", "CUDA_ERROR_DEVICE_UNAVAILABLE");
    }
}

#[test]
fn child_a_refused_graph_whose_substitute_fails() {
    if !in_child() {
        return;
    }
    // The graph is refused, and so is a launch of the commands in its place: before the first change the variables are
    // as they were, after it the session says that they may not be.
    let (mut whole, mut doubtful) = (0, 0);
    // The graph's own launch is the first that counts; one beyond the last refuses nothing.
    for launch in 2..200 {
        let g = Graph::new();
        let struck = Struck::new(&g, GPU, true, 3);
        let before = struck.values();
        struck.standin.fault(&format!("launch:graph:1,launch:{launch}")).unwrap();
        let failed = struck.program.step(&struck.session, &batch(24)).is_err();
        struck.standin.fault("").unwrap();
        if !failed {
            break;
        }
        match struck.program.step(&struck.session, &batch(24)) {
            Err(e) => {
                assert!(e.to_string().contains("half changed"), "launch {launch}: {e}");
                doubtful += 1;
            }
            Ok(_) => {
                // What went on must have begun from the values of before.
                let clean = Session::new(&g, cuda(2)).unwrap();
                clean.initialize().unwrap();
                let of = |name: String| &before.iter().find(|b| b.0 == name).unwrap().1;
                let pairs: Vec<_> = g.all_variables().into_iter().map(|v| (v, of(v.name()))).collect();
                clean.load_all(&pairs).unwrap();
                struck.program.step(&clean, &batch(24)).unwrap();
                let same = struck.values() == values(&g, &clean);
                assert!(same, "launch {launch}: variables were changed and nobody said so");
                whole += 1;
            }
        }
    }
    assert!(whole > 0 && doubtful > 0, "{whole} whole, {doubtful} doubtful");
}
