//! Rules for where variables live, whatever device scope they are made in.

use super::node::{DeviceRequest, DeviceRule};
use crate::base::DeviceSpec;
use crate::device::Machine;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Where variables live. A rule is set on a variable scope, and wins over the device scopes around the request.
#[derive(Clone)]
pub struct VariablePlacement {
    rule: Rule,
    /// Bytes given to each GPU so far; shared by all scopes that the rule is set on.
    loads: Arc<Mutex<Vec<u64>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Host,
    Gpu(u32),
    RoundRobin,
    LeastBytes,
}

impl VariablePlacement {
    /// Every variable on `/device:CPU:0`.
    pub fn host() -> VariablePlacement {
        VariablePlacement::new(Rule::Host, 0)
    }

    /// Every variable on this GPU.
    pub fn gpu(index: u32) -> VariablePlacement {
        VariablePlacement::new(Rule::Gpu(index), 0)
    }

    /// One after the other over GPUs `0..gpus`, in the order of creation.
    pub fn round_robin(gpus: u32) -> VariablePlacement {
        VariablePlacement::new(Rule::RoundRobin, gpus)
    }

    /// Each on the GPU of `0..gpus` that holds the fewest bytes of variables so far; the lowest index where equal.
    pub fn least_bytes(gpus: u32) -> VariablePlacement {
        VariablePlacement::new(Rule::LeastBytes, gpus)
    }

    fn new(rule: Rule, gpus: u32) -> VariablePlacement {
        // No machine has more GPUs, so that a variable beyond would never find its own.
        let gpus = (gpus as usize).clamp(1, Machine::MAX_GPUS);
        VariablePlacement { rule, loads: Arc::new(Mutex::new(vec![0; gpus])) }
    }

    /// The rule's name, as the placement tables print it.
    pub fn name(&self) -> &'static str {
        match self.rule {
            Rule::Host => "host",
            Rule::Gpu(_) => "one GPU",
            Rule::RoundRobin => "spread round robin",
            Rule::LeastBytes => "spread by least bytes",
        }
    }

    /// The device of the next variable, of so many bytes; counts it.
    pub fn place(&self, bytes: u64) -> DeviceRequest {
        let mut loads = self.loads.lock().unwrap_or_else(|e| e.into_inner());
        let least = |loads: &[u64]| (0..loads.len()).min_by_key(|&i| loads[i]).unwrap_or(0);
        let spec = match self.rule {
            Rule::Host => DeviceSpec::device("CPU", 0),
            Rule::Gpu(index) => DeviceSpec::device("GPU", index),
            // Counting variables instead of bytes makes the least loaded the next in turn.
            Rule::RoundRobin => {
                let next = least(&loads);
                loads[next] += 1;
                DeviceSpec::device("GPU", next as u32)
            }
            Rule::LeastBytes => {
                let next = least(&loads);
                loads[next] = loads[next].saturating_add(bytes);
                DeviceSpec::device("GPU", next as u32)
            }
        };
        DeviceRequest { spec, rule: DeviceRule::Variable(self.name().to_string()) }
    }
}

impl fmt::Debug for VariablePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
