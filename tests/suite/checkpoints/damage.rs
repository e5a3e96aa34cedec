//! Files of arrays that are cut or flipped at every byte: an error that names the file, or the arrays as they were, never
//! other values of an array that a checksum guards.

use super::scratch;
use std::path::Path;
use turret::base::{Array, Bool8, Result};
use turret::graph::{Graph, Init};
use turret::interop::Saver;
use turret::interop::arrays::{ArrayFile, WriteOptions, write_arrays};
use turret::run::{Session, SessionOptions};

fn arrays() -> Vec<(&'static str, Array)> {
    let half: Vec<half::f16> = [1.5, -2.0].map(half::f16::from_f32).to_vec();
    vec![
        ("a/w", Array::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, -6.0]).expect("it fits")),
        ("b", Array::scalar(7i64)),
        ("c", Array::new(&[2], &[Bool8::from(true), Bool8::from(false)]).expect("it fits")),
        ("empty", Array::new::<f64>(&[0, 4], &[]).expect("it fits")),
        ("half", Array::new(&[2], &half).expect("it fits")),
    ]
}

fn read(path: &Path) -> Result<Vec<(String, Array)>> {
    let file = ArrayFile::open(path)?;
    file.arrays().map(|a| Ok((a.name.clone(), file.read(&a.name)?))).collect()
}

/// Calls `check` with the file cut at every length and with every byte changed; the file is as before then.
fn spoil(path: &Path, mut check: impl FnMut(String)) {
    let whole = std::fs::read(path).expect("the file is there");
    for len in 0..whole.len() {
        std::fs::write(path, &whole[..len]).expect("it is written");
        check(format!("cut to {len}"));
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(path, &bytes).expect("it is written");
        check(format!("byte {at}"));
    }
    std::fs::write(path, whole).expect("it is written");
}

#[test]
fn every_format_keeps_every_type() {
    let folder = scratch("formats");
    let want = arrays();
    let list: Vec<_> = want.iter().map(|(n, a)| (*n, a)).collect();
    for name in ["m.npz", "m.safetensors", "m.ckpt"] {
        let path = folder.join(name);
        write_arrays(&path, &list, &WriteOptions::default()).expect("it is written");
        let got = read(&path).expect("it is read");
        assert_eq!(got.len(), want.len(), "{name}");
        for (name, array) in &want {
            assert!(got.iter().any(|(n, a)| n == name && a == array), "{name} of {}", path.display());
        }
        let e = ArrayFile::open(&path).and_then(|f| f.read("a/v")).expect_err("it is not there").to_string();
        assert!(e.contains("did you mean 'a/w'?"), "{e}");
    }
    // What a format cannot hold is refused before anything is written.
    let brain = Array::new(&[1], &[half::bf16::from_f32(1.0)]).expect("it fits");
    for (name, part) in [("b.npz", "cast it to float32"), ("b.safetensors", ""), ("b", "")] {
        let written = write_arrays(folder.join(name), &[("x", &brain)], &WriteOptions::default());
        assert_eq!(written.is_ok(), part.is_empty(), "{name}");
        assert!(written.err().is_none_or(|e| e.to_string().contains(part)));
    }
    assert_eq!(read(&folder.join("b.safetensors")).expect("it is read"), [("x".to_string(), brain)]);
    assert!(!folder.join("b.npz").exists());
    let one = Array::scalar(1f32);
    for name in ["t.npz", "t.safetensors", "t"] {
        let twice = write_arrays(folder.join(name), &[("x", &one), ("x", &one)], &WriteOptions::default());
        assert!(twice.expect_err("twice").to_string().contains("'x' is there twice"), "{name}");
    }
    let left = std::fs::read_dir(&folder).expect("a folder").map(|f| f.expect("an entry").file_name());
    assert!(left.into_iter().all(|f| !f.to_string_lossy().contains("saving")));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn archives_that_are_damaged_are_told() {
    let folder = scratch("npz");
    let path = folder.join("m.npz");
    let want = arrays();
    let list: Vec<_> = want.iter().map(|(n, a)| (*n, a)).collect();
    write_arrays(&path, &list, &WriteOptions::default()).expect("it is written");
    let mut told = 0;
    spoil(&path, |what| match read(&path) {
        Err(e) => {
            told += 1;
            assert!(e.to_string().contains("m.npz"), "{what}: {e}");
        }
        // Times and permissions are not guarded; arrays and their names are.
        Ok(got) => {
            for (name, array) in got {
                assert!(want.iter().any(|(n, a)| *n == name && *a == array), "{what}: '{name}' {array:?}");
            }
        }
    });
    assert!(told > 1500, "{told}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn headers_that_are_damaged_are_told() {
    let folder = scratch("safetensors");
    let path = folder.join("m.safetensors");
    let want = arrays();
    let list: Vec<_> = want.iter().map(|(n, a)| (*n, a)).collect();
    write_arrays(&path, &list, &WriteOptions::default()).expect("it is written");
    let bytes: usize = want.iter().map(|(_, a)| a.bytes().len()).sum();
    let mut told = 0;
    spoil(&path, |what| match read(&path) {
        Err(e) => {
            told += 1;
            assert!(e.to_string().contains("m.safetensors"), "{what}: {e}");
        }
        // The format has no checksums: what can be read is as large as it was.
        Ok(got) => assert_eq!(got.iter().map(|(_, a)| a.bytes().len()).sum::<usize>(), bytes, "{what}"),
    });
    assert!(told > 300, "{told}");
    for (claim, part) in [(u64::MAX, "claims 18446744073709551615"), (1 << 30, "claims 1073741824"), (3, "damaged")] {
        let mut file = std::fs::read(&path).expect("it is there");
        file[..8].copy_from_slice(&claim.to_le_bytes());
        std::fs::write(folder.join("claim.safetensors"), file).expect("it is written");
        let e = read(&folder.join("claim.safetensors")).expect_err("a false claim").to_string();
        assert!(e.contains(part), "{e}");
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_damaged_file_of_any_kind_changes_no_variable() {
    let folder = scratch("spoilt");
    let g = Graph::new();
    let w = g.get_variable("w", [2], Init::Zeros);
    let v = g.get_variable("v", [3], Init::Zeros);
    let x = g.random_uniform([2], 0.0, 1.0, 5);
    let s = Session::new(&g, SessionOptions::on(crate::gpus::machine(1))).expect("a session");
    s.initialize().expect("initial values");
    s.run(&[], &[x], &[]).expect("a draw");
    let saver = Saver::new(&g);
    let path = saver.save(&s, folder.join("m"), None).expect("it is saved");
    let (one, two) = (Array::new(&[2], &[1f32, 2.0]).expect("it fits"), Array::new(&[3], &[3f32; 3]).expect("it fits"));
    let start = s.snapshot(&[w, v]).expect("values");
    for file in ["m.index", "m.data-00000-of-00001"] {
        spoil(&folder.join(file), |what| {
            s.load_all(&[(w, &one), (v, &two)]).expect("it fits");
            let before = s.snapshot(&[w, v]).expect("values");
            match saver.restore(&s, &path) {
                Err(_) => {
                    let after = s.snapshot(&[w, v]).expect("values");
                    assert_eq!((after.values, after.generators), (before.values, before.generators), "{what}");
                }
                Ok(_) => {
                    let after = s.snapshot(&[w, v]).expect("values");
                    assert_eq!(
                        (after.values, after.generators),
                        (start.values.clone(), start.generators.clone()),
                        "{what}"
                    );
                }
            }
        });
    }
    let _ = std::fs::remove_dir_all(folder);
}
