//! The CIFAR-10 binary format: records of one label byte and 3072 bytes of pixels, red, green and blue planes of 32 by 32
//! in turn. Absent: downloading; a small set in this format can be made up.

use std::path::{Path, PathBuf};
use turret::base::{Array, Error};

/// The height and width of an image.
pub const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;
const RECORD: usize = 1 + 3 * PLANE;
pub const CLASSES: usize = 10;

/// An image, channel by channel, and what it shows.
pub struct Image {
    pixels: Vec<u8>,
    pub label: u8,
}

/// A generator of numbers that are the same in every run (Marsaglia, 2003).
pub struct Numbers(pub u64);

impl Numbers {
    /// A number from 0 up to, not including, `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// A number from `low` to `high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.below(1 << 20) as f32 / (1 << 20) as f32
    }
}

/// The images of the files in a folder whose names begin so and end in `.bin`, in the order of the names.
///
/// # Errors
/// A folder without such files, and files that are no whole records or have a label that is no class.
pub fn read(folder: &Path, beginning: &str) -> turret::Result<Vec<Image>> {
    let refuse = |path: &Path, what: String| Error::invalid(format!("cannot read '{}': {what}", path.display()));
    let entries = std::fs::read_dir(folder).map_err(|e| refuse(folder, e.to_string()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|f| {
        let name = f.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(beginning) && name.ends_with(".bin")
    });
    files.sort();
    if files.is_empty() {
        return Err(refuse(
            folder,
            format!("it has no file {beginning}*.bin; name the folder of CIFAR-10's binary version"),
        ));
    }
    let mut images = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).map_err(|e| refuse(&file, e.to_string()))?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
            let size = bytes.len();
            return Err(refuse(&file, format!("it has {size} bytes, want a multiple of the {RECORD} of a record")));
        }
        for (i, record) in bytes.chunks_exact(RECORD).enumerate() {
            if record[0] as usize >= CLASSES {
                return Err(refuse(&file, format!("record {i} has label {}, want 0 to {}", record[0], CLASSES - 1)));
            }
            images.push(Image { pixels: record[1..].to_vec(), label: record[0] });
        }
    }
    Ok(images)
}

/// Writes a small set that can be learned: each class has a colour and a place of its own, in noise.
///
/// # Errors
/// What the file system says.
pub fn make_up(folder: &Path, images: usize) -> turret::Result<()> {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let failed = |e: std::io::Error| Error::invalid(format!("cannot write to '{}': {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (file, count) in [("data_batch_1.bin", images), ("test_batch.bin", images / 4)] {
        let mut bytes = Vec::with_capacity(count * RECORD);
        for i in 0..count {
            let label = i % CLASSES;
            bytes.push(label as u8);
            let (row, column) = (8 + 12 * (label / 5), 6 + 5 * (label % 5));
            for channel in 0..3 {
                for place in 0..PLANE {
                    let (y, x) = (place / SIDE, place % SIDE);
                    let inside = y.abs_diff(row) < 5 && x.abs_diff(column) < 4 && label % 3 != channel;
                    bytes.push((numbers.below(90) + if inside { 150 } else { 40 }) as u8);
                }
            }
        }
        std::fs::write(folder.join(file), bytes).map_err(failed)?;
    }
    Ok(())
}

/// A batch `[images, size, size, 3]` as the tutorial prepares it: for training a random part of each image, mirrored half
/// the time, with random brightness and contrast; else the middle. Then each has mean 0 and deviation 1.
///
/// # Errors
/// When the host has no memory for it.
pub fn batch(images: &[&Image], size: usize, mut training: Option<&mut Numbers>) -> turret::Result<Array> {
    let mut all = Vec::with_capacity(images.len() * size * size * 3);
    for image in images {
        let (mut y, mut x, mut mirrored, mut brightness, mut contrast) =
            ((SIDE - size) / 2, (SIDE - size) / 2, false, 0.0, 1.0);
        if let Some(numbers) = &mut training {
            (y, x) = (numbers.below(SIDE - size + 1), numbers.below(SIDE - size + 1));
            mirrored = numbers.below(2) == 1;
            (brightness, contrast) = (numbers.between(-63.0, 63.0), numbers.between(0.2, 1.8));
        }
        let start = all.len();
        for row in 0..size {
            for column in 0..size {
                let column = if mirrored { size - 1 - column } else { column };
                let place = (y + row) * SIDE + x + column;
                all.extend((0..3).map(|c| image.pixels[c * PLANE + place] as f32 + brightness));
            }
        }
        let own = &mut all[start..];
        let count = (size * size) as f32;
        for channel in 0..3 {
            let mean = own.iter().skip(channel).step_by(3).sum::<f32>() / count;
            own.iter_mut().skip(channel).step_by(3).for_each(|v| *v = (*v - mean) * contrast + mean);
        }
        let mean = own.iter().sum::<f32>() / (3.0 * count);
        let variance = own.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / (3.0 * count);
        let deviation = variance.sqrt().max(1.0 / (3.0 * count).sqrt());
        own.iter_mut().for_each(|v| *v = (*v - mean) / deviation);
    }
    Array::new(&[images.len(), size, size, 3], &all)
}
