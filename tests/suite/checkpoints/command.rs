//! `turret checkpoint`, and `turret run` with files of variables.

use super::scratch;
use crate::command::{self, SMALL, good, turret};
use serde_json::{Value, json};

fn ok(args: &[&str]) -> String {
    good(args).out
}

fn document(args: &[&str]) -> Value {
    command::document(&good(args))
}

#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let ran = turret(args);
    assert_eq!((ran.code, &ran.out[..]), (1, ""), "{args:?}: {}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{args:?}: want {part:?} in {}", ran.err);
    }
}

#[test]
fn a_file_is_listed_without_a_graph() {
    let fixture = crate::fixtures::path("saver/model.ckpt-7");
    let fixture = fixture.to_str().expect("a path in UTF-8");
    let doc = document(&["checkpoint", "ls", fixture, "--json"]);
    assert_eq!((&doc["format"], &doc["generators"]), (&json!("checkpoint"), &json!(0)));
    let arrays = doc["arrays"].as_array().expect("a list");
    let w = arrays.iter().find(|a| a["name"] == "affine0/w/Adam_1").expect("it is listed");
    assert_eq!(*w, json!({"name": "affine0/w/Adam_1", "dtype": "float32", "shape": [5, 4], "bytes": 80, "parts": 1}));
    let sum: u64 = arrays.iter().map(|a| a["bytes"].as_u64().expect("a number")).sum();
    assert_eq!((&doc["total_bytes"], sum), (&json!(307), 307));
    let text = ok(&["checkpoint", "ls", fixture]);
    assert!(text.contains("| global_step      | int64   | []     |     8 |"), "{text}");
    assert!(text.ends_with("model.ckpt-7: 10 arrays, 307 B\n"), "{text}");
    // A folder stands for its latest.
    let folder = crate::fixtures::path("saver");
    assert_eq!(ok(&["checkpoint", "ls", folder.to_str().expect("a path in UTF-8")]), text);
    refused(&["checkpoint", "ls", "absent/model.ckpt"], &["cannot read 'absent/model.ckpt.index'", "No such file"]);
    refused(&["checkpoint", "ls", "Cargo.toml"], &["'Cargo.toml': it is a file by itself"]);
    refused(&["checkpoint", "ls"], &["<PATH>"]);
}

#[test]
fn formats_are_made_of_one_another() {
    let folder = scratch("convert");
    let at = |name: &str| folder.join(name).to_str().expect("a path in UTF-8").to_string();
    let fixture = crate::fixtures::path("saver/model.ckpt-7");
    let fixture = fixture.to_str().expect("a path in UTF-8").to_string();
    let mut from = fixture.clone();
    for to in [at("a.npz"), at("b.safetensors"), at("c.ckpt"), at("d.safetensors"), at("e.npz"), at("f")] {
        ok(&["checkpoint", "convert", &from, &to]);
        from = to;
    }
    let bytes = |prefix: &str, suffix: &str| std::fs::read(format!("{prefix}{suffix}")).expect("it is there");
    for suffix in [".index", ".data-00000-of-00001"] {
        assert_eq!(bytes(&from, suffix), bytes(&fixture, suffix), "{suffix} after six conversions");
    }
    ok(&["checkpoint", "convert", &fixture, &at("g"), "--shards", "3"]);
    assert!(folder.join("g.data-00002-of-00003").exists());
    let arrays = |path: &str| document(&["checkpoint", "ls", path, "--json"])["arrays"].clone();
    assert_eq!(arrays(&at("g")), arrays(&fixture));

    std::fs::write(at("map"), "affine0/w  net/kernel\n\n d double\n").expect("it is written");
    let doc = document(&["checkpoint", "convert", &fixture, &at("h.npz"), "--name-map", &at("map"), "--json"]);
    let names: Vec<&str> =
        doc["arrays"].as_array().expect("a list").iter().map(|a| a["name"].as_str().expect("a name")).collect();
    assert!(names.contains(&"net/kernel") && names.contains(&"double") && !names.contains(&"affine0/w"), "{names:?}");
    for (map, part) in [
        ("affine0/ww y", "did you mean 'affine0/w'?"),
        ("affine0/w", "line 1 is not 'OLD NEW'"),
        ("affine0/w d", "two arrays would have the name 'd'"),
        ("d a\nd b", "'d' is there twice"),
    ] {
        std::fs::write(at("map"), map).expect("it is written");
        refused(&["checkpoint", "convert", &fixture, &at("i.npz"), "--name-map", &at("map")], &[part]);
    }
    assert!(!folder.join("i.npz").exists());
    refused(&["checkpoint", "convert", &fixture, &at("absent/x.npz")], &["there is no folder", "absent"]);
    refused(&["checkpoint", "convert", &fixture, &at("x"), "--shards", "0"], &["0 data files"]);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn steps_go_on_from_every_format() {
    let folder = scratch("run");
    let steps = |args: &[&str]| {
        let doc = document(&[&["run"], &SMALL[..], &["--json", "--optimizer", "adam"], args].concat());
        let losses = doc["steps"].as_array().expect("a list").iter().map(|s| s["fetches"]["loss"].clone());
        losses.collect::<Vec<Value>>()
    };
    let all = steps(&["--steps", "4"]);
    for name in ["m.npz", "m.safetensors", "m.ckpt"] {
        let path = folder.join(name);
        let path = path.to_str().expect("a path in UTF-8");
        let first = steps(&["--steps", "2", "--save-variables", path]);
        // With another number of towers too: the names are the variables'.
        let rest = steps(&["--steps", "2", "--variables-from", path, "--towers", "2"]);
        assert_eq!(first, all[..2], "{name}");
        for (got, want) in rest.iter().zip(&all[2..]) {
            let (got, want) = (got.as_f64().expect("a number"), want.as_f64().expect("a number"));
            assert!((got - want).abs() <= 1e-5 * want.abs(), "{name}: {got}, want {want}");
        }
        assert_eq!(steps(&["--steps", "2", "--variables-from", path]), all[2..], "{name}");
        let listed = document(&["checkpoint", "ls", path, "--json"]);
        assert_eq!(listed["arrays"].as_array().map(Vec::len), Some(14), "{name}");
    }
    let report =
        turret(&[&["run"], &SMALL[..], &["--variables-from", folder.join("m.ckpt").to_str().unwrap()]].concat());
    assert!(report.err.contains("restored 4 of 4 variables") && report.err.contains("10 of the file's names unused"));
    let _ = std::fs::remove_dir_all(folder);
}
