//! Checkpoints that are cut, flipped or false in every way, and writes that stop at every step.

use super::messages::{BundleEntry, BundleHeader, Extent, TensorSlice};
use super::table::TableWriter;
use super::*;
use crate::base::{Array, Code};
use crate::interop::checksum::masked;
use crate::interop::files::steps;
use crate::interop::graphdef::{Dim, TensorShapeProto, VersionDef};
use prost::Message;
use std::path::{Path, PathBuf};

/// An empty folder of this name.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("turret-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn arrays(from: f32) -> Vec<(&'static str, Array)> {
    vec![
        ("b", Array::new(&[2, 2], &[from, from + 1.0, 3.0, 4.0]).unwrap()),
        ("a/w", Array::new(&[3], &[from as i64, 2, -1]).unwrap()),
        ("empty", Array::new::<f32>(&[0, 3], &[]).unwrap()),
        ("c", Array::scalar(true as u8)),
    ]
}

fn write(prefix: &Path, from: f32, shards: usize) -> crate::base::Result<()> {
    let arrays = arrays(from);
    let list: Vec<_> = arrays.iter().map(|(n, a)| (*n, a)).collect();
    write_checkpoint(prefix, &list, shards)
}

/// The first element of `b` where all arrays are as `write` wrote them.
fn read(prefix: &Path) -> crate::base::Result<f32> {
    let checkpoint = Checkpoint::open(prefix)?;
    let from = checkpoint.read("b")?.as_slice::<f32>()?[0];
    for (name, want) in arrays(from) {
        assert_eq!(checkpoint.read(name)?, want, "{name}");
    }
    Ok(from)
}

#[test]
fn what_is_written_is_read_from_any_number_of_files() {
    let folder = scratch("shards");
    for shards in [1, 2, 3, 7] {
        let prefix = folder.join(format!("model-{shards}"));
        write(&prefix, 1.0, shards).unwrap();
        assert_eq!(read(&prefix).unwrap(), 1.0);
        let files = std::fs::read_dir(&folder).unwrap().filter(|f| {
            let name = f.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with(&format!("model-{shards}.data-"))
        });
        assert_eq!(files.count(), shards);
    }
    let e = Checkpoint::open(folder.join("model")).err().unwrap();
    let told = "there are model-1, model-2, model-3, model-7, or name the folder";
    assert!(e.code() == Code::NotFound && e.to_string().contains(told), "{e}");
    let data = folder.join("model-1.data-00000-of-00001");
    assert!(Checkpoint::open(data).err().unwrap().to_string().contains("a file by itself"));
    let names: Vec<_> =
        Checkpoint::open(folder.join("model-1.index")).unwrap().arrays().map(|a| a.name.clone()).collect();
    assert_eq!(names, ["a/w", "b", "c", "empty"]);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_write_that_stops_at_any_step_leaves_the_old_or_the_new() {
    let folder = scratch("steps");
    let prefix = folder.join("model.ckpt");
    write(&prefix, 0.0, 1).unwrap();
    let mut old = 0.0;
    // Once with the old one's files named as of one, once as of two.
    for round in 1..=4 {
        let new = round as f32 * 10.0;
        let mut done = false;
        let mut stops = 0;
        while !done {
            steps::allow(Some(stops));
            done = write(&prefix, new, 1).is_ok();
            steps::allow(None);
            stops += 1;
            let now = read(&prefix).unwrap_or_else(|e| panic!("after {stops} steps: {e}"));
            assert!(now == old || now == new, "after {stops} steps: {now}");
            assert!(!done || now == new);
        }
        assert!(stops > 10, "{stops} steps");
        old = new;
        // Where a stopped write had renamed, the next one goes to the other files; nothing else is left.
        write(&prefix, new, 1).unwrap();
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert!(left.len() <= 3, "{left:?}");
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn every_cut_and_every_flipped_bit_is_told() {
    let folder = scratch("flips");
    let prefix = folder.join("model.ckpt");
    write(&prefix, 1.0, 1).unwrap();
    let mut told = std::collections::BTreeSet::new();
    for suffix in [".index", ".data-00000-of-00001"] {
        let path = folder.join(format!("model.ckpt{suffix}"));
        let whole = std::fs::read(&path).unwrap();
        let mut check = |bytes: &[u8], what: &str| {
            std::fs::write(&path, bytes).unwrap();
            let e = read(&prefix).expect_err(what);
            assert!(e.to_string().contains("model.ckpt"), "{what}: {e}");
            assert_eq!(e.diagnostics().len(), 1);
            told.insert(e.code());
        };
        for len in 0..whole.len() {
            check(&whole[..len], &format!("{suffix} cut to {len}"));
        }
        for at in 0..whole.len() {
            for bit in [0, 3, 7] {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                // The padding of the footer and the unused block of the table hold nothing that counts.
                let unused = suffix == ".index" && {
                    std::fs::write(&path, &bytes).unwrap();
                    read(&prefix).is_ok()
                };
                if unused {
                    let from_end = whole.len() - at;
                    assert!((9..100).contains(&from_end), "byte {at} of {} counts for nothing", whole.len());
                } else {
                    check(&bytes, &format!("{suffix} byte {at} bit {bit}"));
                }
            }
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert_eq!(read(&prefix).unwrap(), 1.0);
    assert!(told.iter().all(|c| *c == Code::DataLoss), "{told:?}");
    let _ = std::fs::remove_dir_all(folder);
}

/// An index of these entries, whose checksums are right.
fn index(header: BundleHeader, entries: &[(Vec<u8>, BundleEntry)]) -> Vec<u8> {
    let mut table = TableWriter::default();
    table.add(b"", &header.encode_to_vec());
    entries.iter().for_each(|(key, entry)| table.add(key, &entry.encode_to_vec()));
    table.finish()
}

fn header() -> BundleHeader {
    BundleHeader { num_shards: 1, endianness: 0, version: Some(VersionDef { producer: 1, ..VersionDef::default() }) }
}

fn entry(dims: &[i64], offset: i64, size: i64) -> BundleEntry {
    let shape = TensorShapeProto {
        dim: dims.iter().map(|&size| Dim { size, ..Dim::default() }).collect(),
        unknown_rank: false,
    };
    BundleEntry { dtype: 1, shape: Some(shape), offset, size, ..BundleEntry::default() }
}

#[test]
fn false_claims_are_told_before_memory_is_taken() {
    let folder = scratch("claims");
    let prefix = folder.join("m");
    std::fs::write(folder.join("m.data-00000-of-00001"), [0; 16]).unwrap();
    let check = |header: BundleHeader, entries: &[(&str, BundleEntry)], part: &str| {
        let keyed: Vec<_> = entries.iter().map(|(k, e)| (k.as_bytes().to_vec(), e.clone())).collect();
        std::fs::write(folder.join("m.index"), index(header, &keyed)).unwrap();
        let e = match Checkpoint::open(&prefix) {
            Ok(_) => panic!("want {part}"),
            Err(e) => e.to_string(),
        };
        assert!(e.contains(part) && e.contains("m."), "want {part} in {e}");
    };
    let huge = i64::MAX;
    check(header(), &[("w", entry(&[huge, huge], 0, 16))], "more than can be");
    check(header(), &[("w", entry(&[huge / 4], 0, huge - 3))], "the file has 16");
    check(header(), &[("w", entry(&[4], huge, 16))], "the file has 16");
    check(header(), &[("w", entry(&[5], 0, 16))], "is float32 [5] but has 16 bytes");
    check(header(), &[("w", entry(&[-4], 0, 16))], "negative");
    check(header(), &[("w", entry(&[4], -1, 16))], "16 bytes at -1");
    check(header(), &[("w", entry(&[4], 4, 16))], "cut short");
    check(header(), &[("a", entry(&[3], 0, 12)), ("b", entry(&[2], 8, 8))], "'b' at 8 overlaps 'a', which ends at 12");
    check(header(), &[("w", BundleEntry { shard_id: 1, ..entry(&[4], 0, 16) })], "is in data file 1 of 1");
    check(header(), &[("w", BundleEntry { shard_id: -1, ..entry(&[4], 0, 16) })], "is in data file -1 of 1");
    let two = BundleHeader { num_shards: 2, ..header() };
    check(two, &[("w", BundleEntry { shard_id: 1, ..entry(&[4], 0, 16) })], "m.data-00001-of-00002': No such file");
    check(BundleHeader { num_shards: huge as i32, ..header() }, &[], "data files");
    check(BundleHeader { endianness: 1, ..header() }, &[], "big-endian");
    let newer = Some(VersionDef { producer: 9, min_consumer: 9, ..VersionDef::default() });
    check(BundleHeader { version: newer, ..header() }, &[], "wants a reader of version 9");
    let half = TensorSlice { extent: vec![Extent { start: 0, length: Some(2) }] };
    let parts = BundleEntry { slices: vec![half], ..entry(&[4], 0, 0) };
    check(header(), &[("w", parts.clone())], "lacks its part at [0..2]");
    let beyond = TensorSlice { extent: vec![Extent { start: 3, length: Some(huge) }] };
    check(header(), &[("w", BundleEntry { slices: vec![beyond], ..parts })], "not inside of [4]");
    std::fs::write(folder.join("m.index"), b"").unwrap();
    assert!(Checkpoint::open(&prefix).is_err());
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn parts_are_put_together() {
    let folder = scratch("parts");
    let halves: Vec<Vec<u8>> =
        [[1f32, 2.0], [3.0, 4.0]].iter().map(|h| h.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    std::fs::write(folder.join("m.data-00000-of-00001"), halves.concat()).unwrap();
    let whole = Extent { start: 0, length: None };
    let slice = |i: i64| TensorSlice { extent: vec![whole, Extent { start: i, length: Some(1) }] };
    let part = |i: usize| BundleEntry { crc32c: masked(&halves[i]), ..entry(&[2, 1], 8 * i as i64, 8) };
    let mut entries = vec![
        (super::slices::key("w", &slice(0)), part(0)),
        (super::slices::key("w", &slice(1)), part(1)),
        (b"w".to_vec(), BundleEntry { slices: vec![slice(0), slice(1)], ..entry(&[2, 2], 0, 0) }),
    ];
    std::fs::write(folder.join("m.index"), index(header(), &entries)).unwrap();
    let checkpoint = Checkpoint::open(folder.join("m")).unwrap();
    let info = checkpoint.array("w").unwrap();
    assert_eq!((info.parts, info.bytes, checkpoint.arrays().count()), (2, 16, 1));
    assert_eq!(checkpoint.read("w").unwrap().to_f64(), [1.0, 3.0, 2.0, 4.0]);
    entries[2].1.slices.pop();
    std::fs::write(folder.join("m.index"), index(header(), &entries)).unwrap();
    assert!(Checkpoint::open(folder.join("m")).err().unwrap().to_string().contains("2 of 4 elements"));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let folder = scratch("names");
    let one = Array::scalar(1f32);
    for list in [vec![("a", &one), ("a", &one)], vec![("", &one)], vec![("\0a", &one)]] {
        assert_eq!(write_checkpoint(folder.join("m"), &list, 1).unwrap_err().code(), Code::InvalidArgument);
    }
    assert!(write_checkpoint(folder.join("m"), &[("a", &one)], 0).is_err());
    assert!(
        write_checkpoint(folder.join("absent/m"), &[("a", &one)], 1).unwrap_err().to_string().contains("no folder")
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let _ = std::fs::remove_dir_all(folder);
}
