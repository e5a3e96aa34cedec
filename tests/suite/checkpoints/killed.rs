//! A program that is killed while it trains and saves: the next one finds a whole checkpoint and ends with the same bits.

use super::resume::{Way, batch, build, session, train, values};
use super::scratch;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use turret::graph::Graph;
use turret::interop::{Saver, latest_checkpoint};

/// The folder that a child saves to; its presence makes a test one.
const FOLDER: &str = "TURRET_TEST_CHECKPOINTS";

const WAY: Way = Way { optimizer: "adam", towers: 2, on_gpus: true, dropout: true };

/// Trains to the end from what is there, saves after every step, and says so. One that is told to aborts after a step
/// in the middle, in which a save is under way in another thread.
#[test]
fn child_trains_and_saves() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let steps: usize = std::env::var("TURRET_TEST_STEPS").expect("a number").parse().expect("a number");
    let abort: Option<usize> = std::env::var("TURRET_TEST_ABORT").ok().map(|n| n.parse().expect("a number"));
    let g = Graph::new();
    let program = build(&g, WAY);
    let s = session(&g, WAY.towers);
    s.initialize().expect("initial values");
    let saver = Saver::new(&g).max_to_keep(2);
    let mut at = 0;
    if let Some(path) = latest_checkpoint(&folder).expect("a whole state file") {
        saver.restore(&s, &path).expect("a whole checkpoint");
        at = s.value(g.find_variable("global_step").expect("a counter")).expect("a value").get_f64(0) as usize;
    }
    while at < steps {
        train(&s, &program, at..at + 1);
        at += 1;
        if abort == Some(at) {
            std::thread::scope(|scope| {
                scope.spawn(|| saver.save(&s, folder.join("model.ckpt"), at as i64));
                scope.spawn(|| std::process::abort());
            });
        }
        saver.save(&s, folder.join("model.ckpt"), at as i64).expect("it is saved");
        println!("saved {at}");
    }
}

fn child(folder: &PathBuf, steps: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its program"));
    command.args(["--exact", "checkpoints::killed::child_trains_and_saves", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).env("TURRET_TEST_STEPS", steps.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// The step of the latest checkpoint, whose values must be whole.
fn latest(folder: &PathBuf) -> Option<(usize, Vec<(String, turret::base::Array)>)> {
    let path = latest_checkpoint(folder).expect("a whole state file")?;
    let g = Graph::new();
    build(&g, WAY);
    let s = session(&g, WAY.towers);
    Saver::new(&g).restore(&s, &path).unwrap_or_else(|e| panic!("{e}"));
    let step = s.value(g.find_variable("global_step").expect("a counter")).expect("a value").get_f64(0) as usize;
    assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(&format!("model.ckpt-{step}")[..]));
    Some((step, values(&s)))
}

#[test]
fn a_killed_program_leaves_a_whole_checkpoint_and_is_gone_on_with() {
    if std::env::var_os(FOLDER).is_some() || std::env::var_os("TURRET_TEST_CUDA").is_some() {
        return;
    }
    let folder = scratch("killed");
    let steps = 60;
    let mut reached = 0;
    // Killed at odd moments after a few saves, again and again; in the middle by its own abort.
    for (round, wait) in [0, 3, 1, 7, 2, 11, 5].into_iter().enumerate() {
        let mut command = child(&folder, steps);
        if round == 3 {
            command.env("TURRET_TEST_ABORT", (reached + 2).to_string());
        }
        let mut running = command.spawn().expect("it starts");
        let out = BufReader::new(running.stdout.take().expect("it is piped"));
        let mut told = reached;
        let saved = out.lines().map_while(Result::ok).filter_map(|l| l.rsplit("saved ").next()?.parse().ok());
        for at in saved {
            told = at;
            if round != 3 && at >= reached + 3 {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(wait));
        let _ = running.kill();
        let ended = running.wait().expect("it ended");
        assert!(!ended.success() || told == steps, "round {round}: {ended}");
        let (at, _) = latest(&folder).expect("a checkpoint");
        assert!(at >= told && at <= steps, "{at} after {told} were saved");
        assert!(round == 3 || at >= reached + 3, "round {round}: {at} after {reached}");
        reached = at;
    }
    // The last one ends by itself.
    assert!(child(&folder, steps).stdout(Stdio::null()).status().expect("it starts").success());
    let (at, got) = latest(&folder).expect("a checkpoint");
    assert_eq!(at, steps);
    let g = Graph::new();
    let program = build(&g, WAY);
    let s = session(&g, WAY.towers);
    s.initialize().expect("initial values");
    train(&s, &program, 0..steps);
    assert_eq!(got, values(&s), "as if nothing had been killed");
    assert_ne!(batch(0), batch(1));
    let _ = std::fs::remove_dir_all(folder);
}
