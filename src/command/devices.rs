//! `turret devices`: what there is to run on.

use super::options::GlobalOptions;
use super::{print, print_json};
use anyhow::Result;
use serde::Serialize;
use turret::device::cuda::{self, Library};
use turret::device::{DeviceInfo, DeviceKind, Machine};
use turret::report::{human_bytes, table};

pub(super) fn devices(global: &GlobalOptions) -> Result<()> {
    let machine = global.machine()?;
    if global.json {
        return print_json(&Rows::of(&machine));
    }
    let rows = machine.devices().iter().map(|d| {
        let memory = memory_bytes(d).map_or("no limit".to_string(), human_bytes);
        vec![d.short_name(), d.name.to_string(), kind(d.kind).to_string(), d.physical(), memory]
    });
    let mut text = table(&["device", "full name", "kind", "physical", "memory"], &[], rows);
    text.push_str(&format!("\nGPU to GPU: {}\n", links_in_words(&machine)));
    let found = Cuda::find();
    let rows = found.libraries.iter().map(|l| {
        let not_found = format!("{} was ", l.file);
        let why_not = l.why_not.as_ref().map(|w| w.strip_prefix(&not_found).unwrap_or(w).to_string());
        let state = why_not.unwrap_or_else(|| "found".into());
        vec![l.file.to_string(), l.purpose.to_string(), state]
    });
    text.push_str(&format!("\n{}\n", found.in_words()));
    text.push_str(&table(&["CUDA library", "what for", "state"], &[], rows));
    print(&text)
}

/// The most bytes that sessions may take: the limit, or what the card has.
fn memory_bytes(device: &DeviceInfo) -> Option<u64> {
    device.memory_limit.or(device.cuda.as_ref().map(|c| c.memory_bytes))
}

/// What of CUDA is there.
#[derive(Serialize)]
struct Cuda {
    driver_version: Option<String>,
    gpus: usize,
    why_not: Option<String>,
    libraries: Vec<LibraryRow>,
}

#[derive(Serialize)]
struct LibraryRow {
    file: &'static str,
    purpose: &'static str,
    needed: bool,
    found: bool,
    why_not: Option<String>,
}

impl Cuda {
    fn find() -> Cuda {
        let libraries = Library::ALL.iter().map(|l| {
            let why_not = cuda::find(*l).err();
            let (file, purpose, needed) = (l.file(), l.purpose(), l.is_needed());
            LibraryRow { file, purpose, needed, found: why_not.is_none(), why_not }
        });
        let libraries: Vec<LibraryRow> = libraries.collect();
        let count = cuda::device_count();
        let missing = libraries.iter().find(|l| l.needed && !l.found).and_then(|l| l.why_not.clone());
        Cuda {
            driver_version: cuda::driver_version().ok(),
            gpus: *count.as_ref().unwrap_or(&0),
            why_not: count.err().or(missing),
            libraries,
        }
    }

    fn in_words(&self) -> String {
        let gpus = if self.gpus == 1 { "1 GPU".to_string() } else { format!("{} GPUs", self.gpus) };
        match (&self.why_not, &self.driver_version) {
            (Some(why), _) => format!("CUDA cannot be used: {why}"),
            (None, Some(version)) => format!("CUDA can be used: {gpus}, driver for CUDA {version} (--devices cuda)"),
            (None, None) => format!("CUDA can be used: {gpus} (--devices cuda)"),
        }
    }
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Host => "CPU",
        DeviceKind::SimulatedGpu => "simulated GPU",
        DeviceKind::Cuda => "CUDA GPU",
    }
}

#[derive(Serialize)]
struct DeviceRow {
    name: String,
    kind: &'static str,
    simulated: bool,
    physical: String,
    memory_bytes: Option<u64>,
    full_name: String,
    /// A CUDA GPU's number or identifier before `CUDA_VISIBLE_DEVICES`.
    #[serde(skip_serializing_if = "Option::is_none")]
    physical_index: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pci: Option<String>,
}

#[derive(Serialize)]
struct LinkRow {
    from: String,
    to: String,
    direct: bool,
}

#[derive(Serialize)]
struct Rows {
    devices: Vec<DeviceRow>,
    links: Vec<LinkRow>,
    cuda: Cuda,
}

impl Rows {
    fn of(machine: &Machine) -> Rows {
        let all = machine.devices();
        let devices = all.iter().map(|d| DeviceRow {
            name: d.short_name(),
            kind: if d.kind == DeviceKind::Host { "CPU" } else { "GPU" },
            simulated: d.kind == DeviceKind::SimulatedGpu,
            physical: d.physical(),
            memory_bytes: memory_bytes(d),
            full_name: d.name.to_string(),
            physical_index: d.cuda.as_ref().map(|c| c.physical.clone()),
            pci: d.cuda.as_ref().map(|c| c.pci.clone()),
        });
        let pairs = all.iter().enumerate().flat_map(|(i, a)| all[i + 1..].iter().map(move |b| (a, b)));
        let links = pairs.map(|(a, b)| LinkRow {
            from: a.short_name(),
            to: b.short_name(),
            direct: machine.has_direct_link(a.id, b.id),
        });
        Rows { devices: devices.collect(), links: links.collect(), cuda: Cuda::find() }
    }
}

fn links_in_words(machine: &Machine) -> String {
    let gpus = &machine.devices()[1..];
    let pairs = gpus.iter().enumerate().flat_map(|(i, a)| gpus[i + 1..].iter().map(move |b| (a.id, b.id)));
    let (direct, through): (Vec<_>, Vec<_>) = pairs.partition(|(a, b)| machine.has_direct_link(*a, *b));
    match (direct.len(), through.len()) {
        (0, 0) => "no pair".to_string(),
        (_, 0) => "every pair directly".to_string(),
        (0, _) => "every pair through the host".to_string(),
        (n, _) => {
            let shown: Vec<String> = direct.iter().take(8).map(|(a, b)| format!("{a}–{b}")).collect();
            let more = if n > 8 { ", …" } else { "" };
            format!("directly {}{more}; the others through the host", shown.join(", "))
        }
    }
}
