//! Where the means of the towers' gradients run: on one device, beside their variables, spread over the towers, or on
//! all of them.
//!
//! The towers' devices are read off their gradients. Invariant: where a mean runs never changes what it is, but for the
//! order in which NCCL sums.

use super::optimizer::GradAndVar;
use crate::base::DeviceSpec;
use crate::graph::{DeviceRule, Gradient, Variable};

/// Gradients of fewer bytes than this are small for [`AveragePlace::BySize`]: a copy between devices takes some ten
/// microseconds to begin, in which a PCIe link moves about as much.
pub const SMALL_GRADIENT_BYTES: usize = 128 << 10;

/// Where averages run. Gradients that are rows run beside their variables wherever dense ones run, except with
/// [`AveragePlace::Around`] and [`AveragePlace::Device`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum AveragePlace {
    /// Where the device scopes around say.
    #[default]
    Around,
    /// On this device.
    Device(String),
    /// Each on its variable's own device, whatever scopes are open: the mean then needs no copy to be applied.
    BesideVariables,
    /// Each on one of the towers' devices, balanced by bytes: the largest first, each to the device with the fewest
    /// bytes so far, the first of equals. Every device gets its share of the gradients, as in a reduce-scatter by
    /// variables, and sends on the means only.
    Spread,
    /// Sums on all towers' devices, by one [`AllReduceN`](crate::ops::AllReduceN) for each variable, which is one NCCL
    /// call where NCCL can be used; the quotient where the variable is, or on the first tower's device.
    AllReduce,
    /// By the gradients' bytes. Below [`SMALL_GRADIENT_BYTES`] a copy's start costs more than its bytes, so such means
    /// run beside their variables, whose device needs them anyway. Larger ones are bound by the links: they are spread,
    /// so that all links are used, and the variables' device gets one mean rather than every tower's gradient. Where
    /// the variables are on several of the towers' devices, larger ones are all-reduced instead: each device then needs
    /// means, and a ring loads all links equally.
    BySize,
}

/// Where one variable's mean runs.
pub(super) enum Home {
    /// Where the scopes around say.
    Around,
    /// With the variable.
    Beside,
    /// On this device, for this reason.
    On(DeviceSpec, DeviceRule),
    /// Summed on all towers' devices; the quotient on the device of this tower.
    AllReduce(usize, DeviceSpec, DeviceRule),
}

impl AveragePlace {
    /// The rule's name, as placement tables print it.
    fn rule(&self) -> DeviceRule {
        let name = match self {
            AveragePlace::Around | AveragePlace::Device(_) => return DeviceRule::Scope,
            AveragePlace::BesideVariables => "beside variables",
            AveragePlace::Spread => "spread",
            AveragePlace::AllReduce => "all-reduce",
            AveragePlace::BySize => "by size",
        };
        DeviceRule::Averaging(name.into())
    }

    /// Where the mean of each of the first tower's variables runs, in their order.
    ///
    /// # Errors
    /// A name that is no device; towers whose gradients ask for no device where there is something to spread.
    pub(super) fn homes(&self, towers: &[Vec<GradAndVar<'_>>]) -> Result<Vec<Home>, String> {
        let all = |home: &dyn Fn() -> Home| towers[0].iter().map(|_| home()).collect();
        match self {
            AveragePlace::Around => return Ok(all(&|| Home::Around)),
            AveragePlace::BesideVariables => return Ok(all(&|| Home::Beside)),
            AveragePlace::Device(name) => {
                let spec = DeviceSpec::parse(name).map_err(|e| e.diagnostics()[0].message.clone())?;
                return Ok(all(&|| Home::On(spec.clone(), DeviceRule::Scope)));
            }
            _ => {}
        }
        let devices: Vec<DeviceSpec> = towers.iter().map(|t| device_of(t)).collect();
        let mut distinct: Vec<&DeviceSpec> = Vec::new();
        for device in devices.iter().filter(|d| !d.is_empty()) {
            if !distinct.iter().any(|d| is_same(d, device)) {
                distinct.push(device);
            }
        }
        let dense: Vec<bool> = towers[0].iter().map(|gv| is_dense(towers, gv.var)).collect();
        if distinct.is_empty() {
            if *self == AveragePlace::BySize || !dense.contains(&true) {
                return Ok(all(&|| Home::Beside));
            }
            return Err(format!(
                "averages cannot be {}: no gradient asks for a device; build each tower in a device scope, or average on \
                 one device (AverageOptions::device) or beside the variables",
                if *self == AveragePlace::Spread { "spread over the towers" } else { "all-reduced" }
            ));
        }
        let bytes: Vec<usize> = towers[0].iter().map(|gv| bytes_of(gv.var)).collect();
        let reduces = match self {
            AveragePlace::AllReduce => true,
            AveragePlace::BySize => {
                let holds = |d: &DeviceSpec| towers[0].iter().any(|gv| is_same(&gv.var.device(), d));
                distinct.iter().filter(|d| holds(d)).count() > 1
            }
            _ => false,
        };
        let stays = |i: usize| !dense[i] || *self == AveragePlace::BySize && bytes[i] < SMALL_GRADIENT_BYTES;
        let moving: Vec<usize> = (0..bytes.len()).filter(|&i| !stays(i)).collect();
        let mut homes: Vec<Home> = all(&|| Home::Beside);
        if reduces {
            for i in moving {
                let tower = tower_of(towers, &devices, towers[0][i].var);
                homes[i] = Home::AllReduce(tower, devices[tower].clone(), self.rule());
            }
            return Ok(homes);
        }
        let sizes: Vec<usize> = moving.iter().map(|&i| bytes[i]).collect();
        for (i, device) in moving.into_iter().zip(balance(&sizes, distinct.len())) {
            homes[i] = Home::On(distinct[device].clone(), self.rule());
        }
        Ok(homes)
    }
}

/// For each size one of so many places: the largest first, to the place with the least so far.
fn balance(sizes: &[usize], places: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    let mut loads = vec![0usize; places];
    let mut chosen = vec![0; sizes.len()];
    for i in order {
        let least = (0..places).min_by_key(|&p| loads[p]).unwrap_or(0);
        loads[least] = loads[least].saturating_add(sizes[i]);
        chosen[i] = least;
    }
    chosen
}

/// The device that most of a tower's gradients ask for; the first of equals, and an empty name where none asks.
fn device_of(tower: &[GradAndVar<'_>]) -> DeviceSpec {
    let mut counts: Vec<(DeviceSpec, usize)> = Vec::new();
    for spec in tower.iter().filter_map(|gv| Some(gv.grad?.values().device())).filter(|d| !d.is_empty()) {
        match counts.iter_mut().find(|(s, _)| *s == spec) {
            Some((_, count)) => *count += 1,
            None => counts.push((spec, 1)),
        }
    }
    let most = counts.iter().map(|(_, n)| *n).max().unwrap_or(0);
    counts.into_iter().find(|(_, n)| *n == most).map_or_else(DeviceSpec::any, |(spec, _)| spec)
}

/// True unless all gradients of the variable are rows.
fn is_dense(towers: &[Vec<GradAndVar<'_>>], var: Variable<'_>) -> bool {
    let grads = towers.iter().filter_map(|t| GradAndVar::find(t, var)?.grad);
    grads.into_iter().any(|g| matches!(g, Gradient::Dense(_)))
}

/// The first tower on the variable's device that has a gradient for it; else the first that has one.
fn tower_of(towers: &[Vec<GradAndVar<'_>>], devices: &[DeviceSpec], var: Variable<'_>) -> usize {
    let has = |i: &usize| GradAndVar::find(&towers[*i], var).is_some_and(|gv| gv.grad.is_some());
    let home = var.device();
    let mut present = (0..towers.len()).filter(has);
    let first = present.clone().next().unwrap_or(0);
    present.find(|&i| is_same(&home, &devices[i])).unwrap_or(first)
}

/// True if two names, full or partial, are of one device.
fn is_same(a: &DeviceSpec, b: &DeviceSpec) -> bool {
    a.device_type.is_some() && a.device_index.is_some() && (a.allows(b) || b.allows(a))
}

fn bytes_of(var: Variable<'_>) -> usize {
    let dims = var.shape().to_dims().unwrap_or_default();
    dims.iter().product::<usize>().saturating_mul(var.dtype().size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_go_first_to_the_least_loaded() {
        assert_eq!(balance(&[1, 9, 5, 5, 1, 1], 2), [0, 0, 1, 1, 0, 1]);
        assert_eq!(balance(&[4, 4, 4, 4], 3), [0, 1, 2, 0]);
        assert_eq!(balance(&[7], 4), [0]);
        assert_eq!(balance(&[], 2), [0usize; 0]);
    }

    #[test]
    fn partial_names_are_of_the_device_that_they_allow() {
        let spec = |text: &str| DeviceSpec::parse(text).unwrap();
        assert!(is_same(&spec("/gpu:1"), &spec("/job:localhost/task:0/device:GPU:1")));
        assert!(!is_same(&spec("/gpu:1"), &spec("/gpu:0")) && !is_same(&spec("/gpu:0"), &spec("/cpu:0")));
        assert!(!is_same(&spec(""), &spec("/gpu:0")) && !is_same(&spec("/job:a/gpu:0"), &spec("/job:b/gpu:0")));
    }
}
