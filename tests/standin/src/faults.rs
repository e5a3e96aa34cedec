//! Faults on demand: `TURRET_STANDIN_FAULT`, or the control function, with a list of them between commas.
//!
//! | fault | what happens |
//! |---|---|
//! | `alloc:N` | the N-th allocation of device memory from now fails: out of memory |
//! | `alloc>BYTES` | every allocation of more bytes does |
//! | `launch:N`, `launch:NAME:N` | the N-th launch of a kernel (of that name) or graph is refused: out of resources |
//! |  | a graph's name is `graph`, products are `sgemm`, `dgemm`, `gemm` and `matmul` |
//! | `async:N`, `async:NAME:N` | the N-th kernel that runs from now fails then: illegal address, for good in its context |
//! | `corrupt:peer`, `corrupt:peer:A>B` | copies between GPUs (from A to B) turn bytes over |
//! | `corrupt:N` | the N-th copy that runs from now does |
//! | `lost:GPU`, `lost:GPU:N` | the GPU is gone, at once or once it ran N operations: every call gives `DEVICE_UNAVAILABLE` |
//! | `register`, `hostalloc`, `graph`, `nvrtc` | pinning memory, pinned memory, instances of graphs, compiling fail |

/// One fault that is asked for. Counts go down and the fault is used up when it strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The allocation that fails.
    Alloc(u64),
    /// The size over which allocations fail.
    AllocOver(u64),
    /// The launch that is refused, of a name or of any.
    Launch(Option<String>, u64),
    /// The kernel that fails while it runs.
    Async(Option<String>, u64),
    /// Copies between two GPUs, or any two.
    CorruptPeer(Option<(usize, usize)>),
    /// The copy that turns bytes over.
    Corrupt(u64),
    /// The GPU that is lost, and after how many operations.
    Lost(usize, u64),
    /// A kind of call that fails until faults are cleared.
    Always(String),
}

fn number<T: std::str::FromStr>(text: &str, whole: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("fault '{whole}': '{text}' is no number"))
}

/// Reads a list of faults.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(one).collect()
}

fn one(text: &str) -> Result<Fault, String> {
    if let Some(bytes) = text.strip_prefix("alloc>") {
        return Ok(Fault::AllocOver(number(bytes, text)?));
    }
    let parts: Vec<&str> = text.split(':').collect();
    Ok(match parts[..] {
        ["alloc", n] => Fault::Alloc(number(n, text)?),
        ["launch", n] => Fault::Launch(None, number(n, text)?),
        ["launch", name, n] => Fault::Launch(Some(name.into()), number(n, text)?),
        ["async", n] => Fault::Async(None, number(n, text)?),
        ["async", name, n] => Fault::Async(Some(name.into()), number(n, text)?),
        ["corrupt", "peer"] => Fault::CorruptPeer(None),
        ["corrupt", "peer", pair] => {
            let (a, b) = pair.split_once('>').ok_or(format!("fault '{text}': write the GPUs as 'A>B'"))?;
            Fault::CorruptPeer(Some((number(a, text)?, number(b, text)?)))
        }
        ["corrupt", n] => Fault::Corrupt(number(n, text)?),
        ["lost", gpu] => Fault::Lost(number(gpu, text)?, 0),
        ["lost", gpu, n] => Fault::Lost(number(gpu, text)?, number(n, text)?),
        [kind @ ("register" | "hostalloc" | "graph" | "nvrtc")] => Fault::Always(kind.into()),
        _ => return Err(format!("unknown fault '{text}'; the faults are those of turret_standin::faults")),
    })
}

/// The faults that are still to strike.
#[derive(Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Counts one event down in all faults that `counter` picks, and says whether one of them strikes.
    fn strike(&mut self, counter: impl Fn(&mut Fault) -> Option<&mut u64>) -> bool {
        let mut struck = false;
        self.0.retain_mut(|fault| {
            let Some(n) = counter(fault) else { return true };
            *n = n.saturating_sub(1);
            struck |= *n == 0;
            *n > 0
        });
        struck
    }

    /// True when this allocation fails.
    pub fn alloc(&mut self, bytes: usize) -> bool {
        let over = self.0.iter().any(|f| matches!(f, Fault::AllocOver(limit) if bytes as u64 > *limit));
        self.strike(|f| if let Fault::Alloc(n) = f { Some(n) } else { None }) || over
    }

    /// True when this launch is refused.
    pub fn launch(&mut self, name: &str) -> bool {
        self.strike(|f| match f {
            Fault::Launch(want, n) if want.as_deref().is_none_or(|w| w == name) => Some(n),
            _ => None,
        })
    }

    /// True when this kernel fails while it runs.
    pub fn kernel(&mut self, name: &str) -> bool {
        self.strike(|f| match f {
            Fault::Async(want, n) if want.as_deref().is_none_or(|w| w == name) => Some(n),
            _ => None,
        })
    }

    /// True when this copy turns bytes over; the GPUs where it goes between two.
    pub fn copy(&mut self, peers: Option<(usize, usize)>) -> bool {
        let peer = |f: &Fault| match f {
            Fault::CorruptPeer(None) => peers.is_some(),
            Fault::CorruptPeer(pair) => peers == *pair,
            _ => false,
        };
        let peer = self.0.iter().any(peer);
        self.strike(|f| if let Fault::Corrupt(n) = f { Some(n) } else { None }) || peer
    }

    /// True when a GPU is lost with the operation that it runs now, or was asked to be lost at once.
    pub fn lost(&mut self, gpu: usize) -> bool {
        self.strike(|f| match f {
            Fault::Lost(g, n) if *g == gpu => Some(n),
            _ => None,
        })
    }

    /// The GPUs to be lost at once; used up.
    pub fn lost_now(&mut self) -> Vec<usize> {
        let gone = self.0.iter().filter_map(|f| if let Fault::Lost(g, 0) = f { Some(*g) } else { None }).collect();
        self.0.retain(|f| !matches!(f, Fault::Lost(_, 0)));
        gone
    }

    /// True while calls of a kind fail.
    pub fn always(&self, kind: &str) -> bool {
        self.0.iter().any(|f| matches!(f, Fault::Always(k) if k == kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_strike_at_their_count() {
        let mut faults = Faults(parse("alloc:2, launch:saxpy:1, alloc>100").unwrap());
        assert!(!faults.alloc(1) && faults.alloc(1) && !faults.alloc(1) && faults.alloc(101));
        assert!(!faults.launch("other") && faults.launch("saxpy") && !faults.launch("saxpy"));
        assert!(parse("alloc:x").unwrap_err().contains("no number"));
        assert!(parse("nonsense").unwrap_err().contains("unknown fault"));
    }
}
