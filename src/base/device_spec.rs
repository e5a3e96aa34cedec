//! Full and partial device names: TensorFlow's parsing, merging and printing.

use super::error::{Error, Result};
use std::fmt;

/// A device name of which any part may be left open, as in `/job:worker/device:GPU:*`.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct DeviceSpec {
    /// The job, as in `/job:localhost`.
    pub job: Option<String>,
    /// The replica.
    pub replica: Option<u32>,
    /// The task.
    pub task: Option<u32>,
    /// The device type, upper case for `CPU` and `GPU`.
    pub device_type: Option<String>,
    /// The index among the devices of that type.
    pub device_index: Option<u32>,
}

impl DeviceSpec {
    /// The spec that leaves everything open.
    pub fn any() -> DeviceSpec {
        DeviceSpec::default()
    }

    /// `/device:TYPE:INDEX`.
    pub fn device(device_type: &str, index: u32) -> DeviceSpec {
        DeviceSpec { device_type: Some(device_type.into()), device_index: Some(index), ..DeviceSpec::default() }
    }

    /// Parses a full or partial name. `*` leaves an index open, the leading slash may be missing.
    ///
    /// # Errors
    /// Unknown attributes, indices that are no numbers, and more than one device type, each with the whole text.
    pub fn parse(text: &str) -> Result<DeviceSpec> {
        let mut spec = DeviceSpec::default();
        for part in text.split('/').filter(|p| !p.is_empty()) {
            let fields: Vec<&str> = part.split(':').collect();
            let unknown = || {
                Error::invalid(format!(
                    "unknown attribute: '{part}' in device '{text}'; want parts like /job:NAME, /task:0, /cpu:0, /device:GPU:1"
                ))
            };
            match (fields[0].to_ascii_lowercase().as_str(), &fields[1..]) {
                ("job", [job]) if !job.is_empty() => spec.job = Some(job.to_string()),
                ("replica", [n]) => spec.replica = index(n, text)?,
                ("task", [n]) => spec.task = index(n, text)?,
                ("device", [ty]) if !ty.is_empty() => spec.set_type(ty, None, text)?,
                ("device", [ty, n]) if !ty.is_empty() => spec.set_type(ty, index(n, text)?, text)?,
                ("cpu" | "gpu", []) => spec.set_type(fields[0], None, text)?,
                ("cpu" | "gpu", [n]) => spec.set_type(fields[0], index(n, text)?, text)?,
                _ => return Err(unknown()),
            }
        }
        Ok(spec)
    }

    fn set_type(&mut self, device_type: &str, index: Option<u32>, text: &str) -> Result<()> {
        if self.device_type.is_some() {
            return Err(Error::invalid(format!("cannot specify multiple device types in device '{text}'")));
        }
        let upper = device_type.to_ascii_uppercase();
        let known = matches!(upper.as_str(), "CPU" | "GPU");
        self.device_type = Some(if known { upper } else { device_type.to_string() });
        self.device_index = index;
        Ok(())
    }

    /// This spec with what it leaves open taken from `outer`, field by field as TensorFlow does it.
    pub fn merged_into(&self, outer: &DeviceSpec) -> DeviceSpec {
        DeviceSpec {
            job: self.job.clone().or_else(|| outer.job.clone()),
            replica: self.replica.or(outer.replica),
            task: self.task.or(outer.task),
            device_type: self.device_type.clone().or_else(|| outer.device_type.clone()),
            device_index: self.device_index.or(outer.device_index),
        }
    }

    /// True if this leaves everything open.
    pub fn is_empty(&self) -> bool {
        *self == DeviceSpec::default()
    }

    /// True if the full name `device` is one of those that this spec allows.
    pub fn allows(&self, device: &DeviceSpec) -> bool {
        fn open<T: PartialEq>(want: &Option<T>, have: &Option<T>) -> bool {
            want.is_none() || want == have
        }
        open(&self.job, &device.job)
            && open(&self.replica, &device.replica)
            && open(&self.task, &device.task)
            && open(&self.device_type, &device.device_type)
            && open(&self.device_index, &device.device_index)
    }
}

fn index(text: &str, whole: &str) -> Result<Option<u32>> {
    if text == "*" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| Error::invalid(format!("'{text}' is not an index in device '{whole}'; want a number or *")))
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.device_type, self.device_index) {
            (Some(ty), Some(i)) => write!(f, "/device:{ty}:{i}"),
            (Some(ty), None) => write!(f, "/device:{ty}:*"),
            (None, Some(i)) => write!(f, "/device:*:{i}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_as_tensorflow() {
        for (text, want) in [
            ("/cpu:0", "/device:CPU:0"),
            ("gpu:1", "/device:GPU:1"),
            ("/GPU:*", "/device:GPU:*"),
            ("/job:a/replica:0/task:2/device:GPU:1", "/job:a/replica:0/task:2/device:GPU:1"),
            ("", ""),
        ] {
            assert_eq!(DeviceSpec::parse(text).unwrap().to_string(), want);
        }
        for bad in ["/gpu:x", "/cpu:0/gpu:0", "/nonsense:1", "/job", "/gpu:0:1"] {
            let message = DeviceSpec::parse(bad).unwrap_err().to_string();
            assert!(message.contains(bad), "{message}");
        }
    }

    #[test]
    fn type_and_index_merge_apart() {
        let outer = DeviceSpec::parse("/cpu:1").unwrap();
        let inner = DeviceSpec::parse("/gpu").unwrap();
        assert_eq!(inner.merged_into(&outer).to_string(), "/device:GPU:1");
    }
}
