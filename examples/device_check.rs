//! Checks a machine with a CUDA GPU in a few minutes: kernels, training, errors, speed. Needs no file but itself.
//!
//! Each part runs in a process of its own, so that a fault that costs a GPU's context, or the whole process, is counted
//! and the rest still runs; a part that takes too long is ended. The parts are in the folder of this program's name.

#[macro_use]
mod printing;
#[path = "device_check/errors.rs"]
mod errors;
#[path = "device_check/items.rs"]
mod items;
#[path = "device_check/ops.rs"]
mod ops;
#[path = "device_check/products.rs"]
mod products;
#[path = "device_check/speed.rs"]
mod speed;
#[path = "device_check/training.rs"]
mod training;

use clap::{Parser, ValueEnum};
use items::{Items, LOST};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use turret::device::cuda;
use turret::report::CudaReport;

/// Checks a machine with a CUDA GPU: every kernel against the host's, training, errors, speed. Exits with 1 if anything
/// failed, with 2 where there is no CUDA to check.
#[derive(Parser)]
struct Args {
    /// Less of everything, for slow machines: one case of each operation, small sizes
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    parts: Vec<Part>,
    /// The part's first item, where this program runs itself
    #[arg(long, hide = true)]
    child: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Every case of every operation, against the host's kernel
    Ops,
    /// Towers on one GPU, against the host alone
    Training,
    /// Errors, and that sessions go on after them
    Errors,
    /// The article's network, step by step
    Speed,
}

impl Part {
    const ALL: [Part; 4] = [Part::Ops, Part::Training, Part::Errors, Part::Speed];

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
    }

    /// How long it may take.
    fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Part::Ops => 150,
            Part::Training => 80,
            Part::Errors => 25,
            Part::Speed => 165,
        })
    }

    fn run(self, items: &mut Items) {
        match self {
            Part::Ops => ops::run(items),
            Part::Training => training::run(items),
            Part::Errors => errors::run(items),
            Part::Speed => speed::run(items),
        }
    }
}

/// The most processes that one part is given, where they die.
const MOST_PROCESSES: usize = 12;

/// How long a process may go on after its time, to end what it is at.
const GRACE: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let args = Args::parse();
    if let (Some(from), [part]) = (args.child, &args.parts[..]) {
        let mut items = Items::new(from, args.quick, part.budget());
        part.run(&mut items);
        return items.end();
    }
    let found = CudaReport::find();
    print!("{}", found.text());
    if let Some(why) = &found.why_not {
        eprintln!("Error: there is no CUDA GPU to check: {why}");
        return ExitCode::from(2);
    }
    for gpu in cuda::identities().unwrap_or_default() {
        let gib = gpu.memory_bytes as f64 / (1u64 << 30) as f64;
        println!("GPU {}: {}, {gib:.0} GiB, at {}", gpu.ordinal, gpu.name, gpu.pci);
    }
    let parts = if args.parts.is_empty() { &Part::ALL[..] } else { &args.parts[..] };
    let mut total = Counts::default();
    for &part in parts {
        println!("\n== {}", part.name());
        let (began, counts) = (Instant::now(), in_processes(part, args.quick));
        println!("{counts} in {:.1} s", began.elapsed().as_secs_f64());
        total.passed += counts.passed;
        total.failed += counts.failed;
    }
    println!("\n{total}");
    if total.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Runs a part in a process, and in another one from the next item on where that one died.
fn in_processes(part: Part, quick: bool) -> Counts {
    let mut counts = Counts::default();
    let deadline = Instant::now() + part.budget();
    let mut from = 0;
    for _ in 0..MOST_PROCESSES {
        let mut at = from;
        match in_a_process(part, quick, from, deadline, &mut counts, &mut at) {
            Ok(true) => return counts,
            Ok(false) => {}
            Err(why) => {
                println!("FAILED: {why}");
                counts.failed += 1;
            }
        }
        if Instant::now() >= deadline {
            return counts;
        }
        from = at + 1;
    }
    println!("FAILED: the rest of this part was left out after {MOST_PROCESSES} processes");
    counts.failed += 1;
    counts
}

/// Runs a part from an item on; true if it came to its end, false if it lost the GPU and said so.
fn in_a_process(
    part: Part,
    quick: bool,
    from: usize,
    deadline: Instant,
    counts: &mut Counts,
    at: &mut usize,
) -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|e| format!("the program's own path is not known: {e}"))?;
    let mut command = Command::new(program);
    command.args(["--parts", &part.name(), "--child", &from.to_string()]);
    if quick {
        command.arg("--quick");
    }
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot run this program again: {e}"))?;
    let Some(out) = child.stdout.take() else { return Err("a process without output".into()) };
    let (sender, lines) = channel();
    std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
    let in_time = follow(&lines, deadline + GRACE, counts, at);
    if !in_time {
        // It is ended for good, whatever it is at.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| format!("a process that cannot be waited for: {e}"))?;
    match status.code() {
        _ if !in_time => Err(format!("item {at} did not end in time")),
        Some(0) => Ok(true),
        Some(LOST) => Ok(false),
        _ => Err(format!("the process died at item {at}: {status}")),
    }
}

/// Prints what a process prints, and counts what it says to this one; false if it goes on beyond its time.
fn follow(lines: &Receiver<String>, until: Instant, counts: &mut Counts, at: &mut usize) -> bool {
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => match line.strip_prefix('@') {
                Some("pass") => counts.passed += 1,
                Some("fail") => counts.failed += 1,
                Some(item) => *at = item.parse().unwrap_or(*at),
                None => println!("{line}"),
            },
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}
