//! The items of one part, as the process that runs them tells of them: `@N` before item N, `@pass` and `@fail` after.

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The exit code of a process that lost a GPU, has said so, and can go on in another one.
pub const LOST: i32 = 3;

/// Lines of an error that are shown.
const SHOWN: usize = 8;

/// The items of a part.
pub struct Items {
    from: usize,
    next: usize,
    /// Less of everything.
    pub quick: bool,
    began: Instant,
    budget: Duration,
    left_out: usize,
}

impl Items {
    /// Items from number `from` on.
    pub fn new(from: usize, quick: bool, budget: Duration) -> Items {
        Items { from, next: 0, quick, began: Instant::now(), budget, left_out: 0 }
    }

    /// True in the process that does the first item.
    pub fn is_first_process(&self) -> bool {
        self.from == 0
    }

    /// Checks one item, unless an earlier process did, or there is no time left. A check gives what is to be told of it,
    /// or why it failed.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<String, String>) {
        let item = self.next;
        self.next += 1;
        if item < self.from {
            return;
        }
        if self.began.elapsed() >= self.budget {
            self.left_out += 1;
            return;
        }
        println!("@{item}");
        match check() {
            Ok(told) => {
                println!("@pass");
                if !told.is_empty() {
                    println!("{told}");
                }
            }
            Err(why) => {
                let lines = why.lines().count();
                let more =
                    if lines > SHOWN { format!("\n… and {} more lines", lines - SHOWN) } else { String::new() };
                let shown: Vec<&str> = why.lines().take(SHOWN).collect();
                println!("@fail\nFAILED: {name}: {}{more}", shown.join("\n"));
                if why.contains("lost to this program") || why.contains("cannot be used any more") {
                    std::process::exit(LOST);
                }
            }
        }
    }

    /// The end of the process.
    pub fn end(self) -> ExitCode {
        if self.left_out > 0 {
            println!("@fail\nFAILED: {} of {} items were left out for want of time", self.left_out, self.next);
        }
        ExitCode::SUCCESS
    }
}

/// An error as text.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// True if two numbers differ by at most `tolerance` of the larger of the wanted one and 1.
pub fn is_near(got: f64, want: f64, tolerance: f64) -> bool {
    (got - want).abs() <= tolerance * want.abs().max(1.0)
}
