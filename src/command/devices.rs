//! `turret devices`: what there is to run on.

use super::options::GlobalOptions;
use super::{print, print_json};
use anyhow::Result;
use serde::Serialize;
use turret::device::{DeviceInfo, DeviceKind, Machine};
use turret::report::{CudaReport, human_bytes, table};

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
    text.push_str(&format!("\n{}", CudaReport::find().text()));
    print(&text)
}

/// The most bytes that sessions may take: the limit, or what the card has.
fn memory_bytes(device: &DeviceInfo) -> Option<u64> {
    device.memory_limit.or(device.cuda.as_ref().map(|c| c.memory_bytes))
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
    cuda: CudaReport,
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
        Rows { devices: devices.collect(), links: links.collect(), cuda: CudaReport::find() }
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
