//! Damaged graph files: each gives an error, or a harmless success where the damage hit nothing, in under a second and
//! under 200 MB.

use super::damage::{self, File, LIES, Random};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use turret::base::Result;
use turret::device::Machine;
use turret::graph::{Graph, Tensor};
use turret::interop::graphdef::{GraphFile, export_graph};
use turret::plan::place_all;
use turret::run::{Session, SessionOptions};

/// The longest that one file may take.
const LIMIT: Duration = Duration::from_secs(1);

/// The most memory of a process that reads them all, in KiB.
const MEMORY: u64 = 200 << 10;

/// All that is done with a graph before it runs: read, build, place, plan, write.
pub fn use_file(file: &File) -> Result<()> {
    let read = GraphFile::parse(file.bytes.clone(), &file.name)?;
    let graph = read.build()?;
    let session = Session::new(&graph, SessionOptions::on(Machine::simulated(2)).soft())?;
    place_all(&graph.nodes(), session.machine(), session.placement_options())?;
    export_graph(&graph)?.to_text()?;
    plan(&graph, &session)
}

/// Plans the train op and some of the operations that nothing reads, fed with the sizes that placeholders have.
fn plan(graph: &Graph, session: &Session<'_>) -> Result<()> {
    let nodes = graph.nodes();
    let mut read = vec![false; nodes.len()];
    for node in &nodes {
        node.inputs.iter().for_each(|t| read[t.node.index()] = true);
        node.control_inputs.iter().for_each(|c| read[c.index()] = true);
    }
    let last = graph.operations().into_iter().rev().filter(|o| !read[o.id().index()]).take(3);
    let targets: Vec<_> = last.chain(graph.operation("train").ok()).collect();
    let fed = nodes.iter().filter(|n| n.op.must_be_fed());
    let fed: Vec<(Tensor<'_>, Vec<usize>)> = fed
        .filter_map(|n| {
            let tensor = graph.tensor(&n.name).ok()?;
            Some((tensor, tensor.shape().dims()?.iter().map(|d| d.unwrap_or(2)).collect()))
        })
        .collect();
    let feeds: Vec<(Tensor<'_>, &[usize])> = fed.iter().map(|(t, dims)| (*t, &dims[..])).collect();
    targets.iter().try_for_each(|target| session.schedule(&feeds, &[], &[*target]).map(|_| ()))
}

/// The time that this thread had a processor, so that what else the machine does is not counted; where the system does
/// not tell, the time that passed.
fn spent() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|t| t.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

/// 200 files and what their errors must say; nothing where any outcome is good.
fn damaged() -> Vec<(String, File, &'static str)> {
    let good = damage::good();
    let small = GraphFile::parse(damage::SMALL.as_bytes().to_vec(), "small.pbtxt").unwrap().graph;
    let recorded = GraphFile::parse(good[0].bytes.clone(), "graph.pb").unwrap().graph;
    let mut files = Vec::new();
    let mut random = Random(20260101);
    for (kind, says) in LIES {
        // Two of a small graph, as both forms, and one of a large one.
        for (i, graph) in [&small, &small, &recorded].into_iter().enumerate() {
            let lie = damage::lie(kind, graph, &mut random);
            files.push((kind.to_string(), damage::file(&lie, i == 1), says));
        }
    }
    let text = small.to_text().unwrap();
    for i in 0..30 {
        let bytes = damage::text(&text, &mut random).into_bytes();
        files.push((format!("text {i}"), File { bytes, name: "graph.pbtxt".into() }, ""));
    }
    for i in files.len()..200 {
        let file = damage::bytes(random.of(&good), &mut random);
        files.push((format!("bytes {i}"), file, ""));
    }
    files
}

#[test]
fn damaged_files_are_refused_at_once() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    for file in damage::good() {
        use_file(&file).unwrap_or_else(|e| panic!("{} is good: {e}", file.name));
    }
    let mut program = std::process::Command::new(std::env::current_exe().expect("a test knows its program"));
    let child = ["--exact", "robust::files::child_reads_damaged_files", "--nocapture"];
    let output = program.args(child).env(CHILD, "1").output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("200 files"), "{out}\n{err}");
}

/// Set in the process that reads the files, whose memory is its own.
const CHILD: &str = "TURRET_TEST_FILES";

#[test]
fn child_reads_damaged_files() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let files = damaged();
    let mut failures = Vec::new();
    let mut refused = 0;
    for (what, file, says) in &files {
        let start = spent();
        let result = use_file(file);
        let took = spent() - start;
        if took > LIMIT {
            failures.push(format!("{what}: it took {took:?}"));
        }
        refused += usize::from(result.is_err());
        match result {
            Err(e) if e.to_string().contains(says) => {}
            Ok(()) if says.is_empty() => {}
            Err(e) => failures.push(format!("{what}: want '{says}' in: {e}")),
            Ok(()) => failures.push(format!("{what}: it is accepted")),
        }
    }
    // The most that the process ever held, where the system tells.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.split_whitespace().next());
    if let Some(peak) = peak.and_then(|p| p.parse::<u64>().ok()).filter(|p| *p > MEMORY) {
        failures.push(format!("the process took {} MiB", peak >> 10));
    }
    println!("{} files, {refused} refused", files.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(refused > 150, "only {refused} are refused");
}

/// Looks for panics for `TURRET_FUZZ_SECONDS` (ten minutes without it); the seed of what is found is printed.
#[test]
#[ignore = "as long as one likes"]
fn random_damage_never_panics() {
    let seconds = std::env::var("TURRET_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(600);
    let first = std::env::var("TURRET_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    let end = Instant::now() + Duration::from_secs(seconds);
    let good = damage::good();
    let graphs: Vec<_> = good.iter().map(|f| GraphFile::parse(f.bytes.clone(), &f.name).unwrap().graph).collect();
    let texts: Vec<String> = graphs.iter().map(|g| g.to_text().unwrap()).collect();
    let (mut tried, mut accepted, mut slow) = (0u64, 0u64, Duration::ZERO);
    while Instant::now() < end {
        let seed = first + tried;
        let mut random = Random(seed);
        let which = random.below(good.len());
        let file = match random.below(5) {
            0 => {
                let (kind, _) = random.of(&LIES);
                let graph = damage::lie(kind, &graphs[which], &mut random);
                damage::file(&graph, random.below(4) == 0)
            }
            1 => {
                let bytes = damage::text(&texts[which], &mut random).into_bytes();
                File { bytes, name: "graph.pbtxt".into() }
            }
            2 => damage::bytes(
                &File { bytes: texts[which].clone().into_bytes(), name: "graph.pbtxt".into() },
                &mut random,
            ),
            _ => damage::bytes(&good[which], &mut random),
        };
        let start = spent();
        let outcome = std::panic::catch_unwind(|| use_file(&file));
        let took = spent() - start;
        if took > LIMIT {
            println!("seed {seed}: it took {took:?}");
        }
        slow = slow.max(took);
        match outcome {
            Ok(result) => accepted += u64::from(result.is_ok()),
            Err(_) => panic!("seed {seed} panics (TURRET_FUZZ_SEED={seed} tries it first)"),
        }
        tried += 1;
    }
    println!("{tried} files tried, {accepted} accepted, the slowest took {slow:?}");
}
