//! `turret devices`: what there is to run on.

use super::options::GlobalOptions;
use super::{print, print_json};
use anyhow::Result;
use serde_json::json;
use turret::device::{DeviceKind, Machine};
use turret::report::{human_bytes, table};

pub(super) fn devices(global: &GlobalOptions) -> Result<()> {
    let machine = global.machine()?;
    if global.json {
        return print_json(&as_json(&machine));
    }
    let rows = machine.devices().iter().map(|d| {
        let memory = d.memory_limit.map_or("no limit".to_string(), human_bytes);
        vec![d.short_name(), d.name.to_string(), kind(d.kind).to_string(), d.physical(), memory]
    });
    let mut text = table(&["device", "full name", "kind", "physical", "memory"], &[], rows);
    text.push_str(&format!("\nGPU to GPU: {}\n", links_in_words(&machine)));
    print(&text)
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Host => "CPU",
        DeviceKind::SimulatedGpu => "simulated GPU",
    }
}

fn as_json(machine: &Machine) -> serde_json::Value {
    let devices: Vec<_> = (machine.devices().iter())
        .map(|d| {
            json!({
                "name": d.short_name(),
                "full_name": d.name.to_string(),
                "kind": if d.kind == DeviceKind::Host { "CPU" } else { "GPU" },
                "simulated": d.kind == DeviceKind::SimulatedGpu,
                "physical": d.physical(),
                "memory_bytes": d.memory_limit,
            })
        })
        .collect();
    let mut links = Vec::new();
    for (i, a) in machine.devices().iter().enumerate() {
        for b in &machine.devices()[i + 1..] {
            let direct = machine.has_direct_link(a.id, b.id);
            links.push(json!({"from": a.short_name(), "to": b.short_name(), "direct": direct}));
        }
    }
    json!({"devices": devices, "links": links})
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
