//! What a tower program uses, in the words of the people who run it.

use std::fmt;

/// Towers, their devices and their batches, to print before a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TowerSummary {
    /// The device of each tower.
    pub devices: Vec<String>,
    /// Rows of one step over all towers; `None` where only a run knows it.
    pub global_batch: Option<usize>,
    /// Rows of one step in each tower; empty where only a run knows them.
    pub tower_batches: Vec<usize>,
    /// The rule for where variables live, if one was given.
    pub variables: Option<String>,
    /// The machine's number of GPUs, if told by [`TowerSummary::on_machine`].
    pub machine_gpus: Option<usize>,
}

impl TowerSummary {
    /// The same with the machine's number of GPUs, so that idle ones can be named.
    #[must_use]
    pub fn on_machine(mut self, gpus: usize) -> TowerSummary {
        self.machine_gpus = Some(gpus);
        self
    }

    /// The machine's GPUs that no tower runs on; empty where the machine is not known.
    pub fn idle_gpus(&self) -> Vec<usize> {
        let used: Vec<Option<u32>> = (self.devices.iter())
            .filter_map(|d| crate::base::DeviceSpec::parse(d).ok())
            .filter(|d| d.device_type.as_deref() == Some("GPU"))
            .map(|d| d.device_index)
            .collect();
        (0..self.machine_gpus.unwrap_or(0)).filter(|i| !used.contains(&Some(*i as u32))).collect()
    }
}

impl fmt::Display for TowerSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "towers: {} on {}", self.devices.len(), self.devices.join(", "))?;
        let equal = self.tower_batches.windows(2).all(|w| w[0] == w[1]);
        match (self.global_batch, &self.tower_batches[..]) {
            (Some(global), [one, ..]) if equal => writeln!(f, "batch: global {global}, per tower {one}")?,
            (Some(global), all) => {
                let rows: Vec<String> = all.iter().map(|n| n.to_string()).collect();
                writeln!(f, "batch: global {global}, by tower {}", rows.join(" + "))?;
            }
            (None, _) => writeln!(f, "batch: known when run")?,
        }
        if let Some(rule) = &self.variables {
            writeln!(f, "variables: {rule}")?;
        }
        if let Some(gpus) = self.machine_gpus {
            let idle: Vec<String> = self.idle_gpus().iter().map(|i| format!("/gpu:{i}")).collect();
            match idle.is_empty() {
                true => writeln!(f, "idle GPUs: none of {gpus}")?,
                false => writeln!(f, "idle GPUs: {} of {gpus} ({})", idle.len(), idle.join(", "))?,
            }
        }
        Ok(())
    }
}
