//! The `turret` command as a user runs it: documents, tables, messages, exit codes, files.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// A small model, so that a debug build runs it at once.
pub const SMALL: [&str; 6] = ["--batch", "8", "--dim-in", "4", "--dims", "3"];

/// What a run of the command gave.
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// Runs the command.
pub fn turret(args: &[&str]) -> Ran {
    // Whatever GPUs there are: `auto` is simulated here.
    let mut command = Command::new(env!("CARGO_BIN_EXE_turret"));
    let output = command.args(args).env("CUDA_VISIBLE_DEVICES", "").output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs the command; it must succeed.
#[track_caller]
pub fn good(args: &[&str]) -> Ran {
    let ran = turret(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    ran
}

/// The document that a run prints.
#[track_caller]
pub fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e} in {}", ran.out))
}

/// Runs a subcommand on the small model; it must succeed.
#[track_caller]
fn small(subcommand: &str, args: &[&str]) -> Ran {
    good(&[&[subcommand], &SMALL[..], args].concat())
}

/// A run that must fail with one message that has these parts, and print nothing else.
#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let ran = turret(args);
    assert_eq!((ran.code, &ran.out[..]), (1, ""), "{args:?}: {}", ran.err);
    assert_eq!(ran.err.lines().filter(|l| l.starts_with("error: ")).count(), 1, "{args:?}: {}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{args:?}: want {part:?} in {}", ran.err);
    }
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Writes a file of NumPy's format with this header text and data.
fn npy(name: &str, header: &str, data: &[u8]) -> String {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    file(name, &bytes)
}

fn file(name: &str, bytes: &[u8]) -> String {
    let path = scratch(name);
    std::fs::write(&path, bytes).expect("the scratch folder can be written");
    path.to_str().expect("the path is UTF-8").to_string()
}

fn header(descr: &str, fortran: bool, shape: &str) -> String {
    let order = if fortran { "True" } else { "False" };
    format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}\n")
}

#[test]
fn devices_are_listed() {
    let ran = turret(&["devices", "--devices", "sim:3@none", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let doc = document(&ran);
    let devices = doc["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4);
    assert_eq!((&devices[0]["name"], &devices[0]["simulated"]), (&json!("/device:CPU:0"), &json!(false)));
    assert_eq!((&devices[3]["kind"], &devices[3]["simulated"]), (&json!("GPU"), &json!(true)));
    assert!(devices.iter().all(|d| d["physical"].is_string() && d.get("memory_bytes").is_some()));
    assert!(
        doc["links"]
            .as_array()
            .unwrap()
            .contains(&json!({"from": "/device:GPU:0", "to": "/device:GPU:2", "direct": false}))
    );
    let text = turret(&["devices"]).out;
    assert!(text.contains("/device:GPU:1") && text.contains("simulated"), "{text}");
}

#[test]
fn placements_are_shown_in_every_form() {
    let doc = document(&small("place", &["--towers", "2", "--variables", "spread", "--ops", "--json"]));
    let variable = &doc["variables"][0];
    for (key, want) in [
        ("name", json!("affine0/w")),
        ("shape", json!([4, 3])),
        ("dtype", json!("float32")),
        ("bytes", json!(48)),
        ("requested", json!("/device:GPU:0")),
        ("device", json!("/device:GPU:0")),
    ] {
        assert_eq!(variable[key], want, "{key}");
    }
    assert!(variable["reason"].as_str().unwrap().contains("spread"));
    // The one apply node shows a part for each device of its variables.
    let ops = doc["ops"].as_array().unwrap();
    let parts: Vec<&Value> = ops.iter().filter(|o| o["op"] == "ApplyGradients").map(|o| &o["device"]).collect();
    assert_eq!(parts, ["/device:GPU:0", "/device:GPU:1"]);
    assert!(ops.iter().all(|o| o["soft"] == false && o["requested"].is_string()));
    assert_eq!(
        document(&small("place", &["--json"]))["ops"],
        json!([]),
        "the shape is the same with and without --ops"
    );

    let short = small("place", &["--short"]).out;
    assert_eq!(short.lines().next(), Some("affine0/w: /device:CPU:0"));
    assert_eq!(small("place", &["--csv"]).out.lines().count(), 5);
    assert!(small("place", &[]).out.contains("| affine_last/b | []     | float32 |"));
    let listing = small("place", &["--listing", "--towers", "2"]).out;
    let want = "grads---tower_1\n(<Tensor 'tower_1/gradients/tower_1/MatMul_grad/tuple/control_dependency_1:0' shape=[4, 3] \
                dtype=float32>, <Variable 'affine0/w' shape=[4, 3] dtype=float32>)\n\
                \ttower_1/gradients/tower_1/MatMul_grad/tuple/control_dependency_1\n\taffine0/w\n";
    assert!(listing.contains(want), "{listing}");
    assert!(
        listing.ends_with("ALL variables:\n\taffine0/w\n\taffine0/b\n\taffine_last/w\n\taffine_last/b\n"),
        "{listing}"
    );
}

#[test]
fn soft_moves_are_marked() {
    let doc =
        document(&small("place", &["--devices", "sim:1", "--towers", "2", "--soft-placement", "--ops", "--json"]));
    assert!(doc["summary"]["soft_moves"].as_u64().unwrap() > 10);
    let moved = doc["ops"].as_array().unwrap().iter().find(|o| o["name"] == "tower_1/MatMul").unwrap();
    assert_eq!(
        (&moved["requested"], &moved["device"], &moved["soft"]),
        (&json!("/device:GPU:1"), &json!("/device:CPU:0"), &json!(true))
    );
    let text = small("place", &["--devices", "sim:1", "--towers", "2", "--soft-placement", "--ops"]).out;
    assert!(text.contains("| moved |"), "{text}");
}

#[test]
fn copies_are_counted() {
    let doc = document(&small("copies", &["--towers", "2", "--variables", "gpu", "--json"]));
    let copies = doc["copies"].as_array().unwrap();
    let sum: u64 = copies.iter().map(|c| c["bytes"].as_u64().unwrap()).sum();
    assert_eq!(doc["total_bytes"], sum);
    let w: Vec<&Value> = copies.iter().filter(|c| c["tensor"] == "affine0/w/read:0").collect();
    assert_eq!(w.len(), 1, "the variable travels once, to the other GPU");
    assert_eq!(
        (&w[0]["from"], &w[0]["to"], &w[0]["shape"]),
        (&json!("/device:GPU:0"), &json!("/device:GPU:1"), &json!([4, 3]))
    );
    assert_eq!((&w[0]["bytes"], &w[0]["route"]), (&json!(48), &json!("direct")));
    assert!(w[0]["consumers"].as_array().unwrap().contains(&json!("tower_1/MatMul")));
    // Fetching one tensor needs less.
    let one = document(&small("copies", &["--towers", "2", "--fetch", "tower_0/MatMul", "--json"]));
    assert!(one["copies"].as_array().unwrap().len() < copies.len());
    let through = small("copies", &["--towers", "2", "--variables", "gpu", "--devices", "sim:2@none"]).out;
    assert!(through.contains("through host") && through.contains("total: "), "{through}");
}

#[test]
fn averages_run_where_they_are_asked_to() {
    let two = ["--devices", "sim:2", "--towers", "2", "--json"];
    let losses = |place: &str| {
        let steps = ["--fetch", "loss", "--target", "GradientDescent", "--steps", "3", "--average-on", place];
        document(&small("run", &[&two[..], &steps].concat()))
    };
    let want = losses("cpu");
    for place in ["gpu", "variables", "spread", "all-reduce", "auto"] {
        assert_eq!(losses(place), want, "{place}");
    }
    let devices = |place: &str| {
        let rows = document(&small("place", &[&two[..], &["--ops", "--average-on", place]].concat()));
        let ops = rows["ops"].as_array().expect("a list of operations").clone();
        let mean = |op: &&Value| op["name"] == "average/affine0/w" || op["name"] == "average/affine_last/w";
        ops.iter().filter(mean).map(|op| (op["device"].clone(), op["reason"].clone())).collect::<Vec<_>>()
    };
    let on = |device: &str, rule: &str| (json!(format!("/device:{device}")), json!(format!("averaging rule: {rule}")));
    assert_eq!(devices("spread"), [on("GPU:0", "spread"), on("GPU:1", "spread")]);
    assert_eq!(devices("all-reduce"), [on("GPU:0", "all-reduce"), on("GPU:0", "all-reduce")]);
    refused(&["bench", "--average-on", "everywhere"], &["everywhere", "all-reduce, auto"]);
}

#[test]
fn steps_run_and_variables_are_kept() {
    let saved = scratch("kept.npz");
    let saved = saved.to_str().unwrap();
    let steps = |args: &[&str]| {
        let doc = document(&small("run", &[&["--json", "--optimizer", "momentum"], args].concat()));
        doc["steps"].as_array().unwrap().iter().map(|s| s["fetches"]["loss"].clone()).collect::<Vec<Value>>()
    };
    let all = steps(&["--steps", "4"]);
    assert!(all[3].as_f64().unwrap() < all[0].as_f64().unwrap(), "{all:?}");
    let first = steps(&["--steps", "2", "--save-variables", saved]);
    let rest = steps(&["--steps", "2", "--variables-from", saved]);
    assert_eq!([first, rest].concat(), all, "two steps, saved and gone on from, are four steps");
    assert_eq!(steps(&["--steps", "4", "--towers", "2"]).len(), 4);

    // A file of fewer variables needs initial values for the rest.
    let plain = scratch("plain.npz");
    let plain = plain.to_str().unwrap();
    small("run", &["--save-variables", plain]);
    let args =
        |more: &[&'static str]| [&["run"], &SMALL[..], &["--optimizer", "momentum", "--variables-from"], more].concat();
    let with =
        |more: &[&'static str]| -> Vec<String> { args(more).iter().map(|s| s.replace("PLAIN", plain)).collect() };
    let strings = with(&["PLAIN"]);
    refused(
        &strings.iter().map(String::as_str).collect::<Vec<_>>(),
        &["has 4 of 8 variables", "affine0/w/Momentum", "--init init"],
    );
    let strings = with(&["PLAIN", "--init", "init"]);
    assert_eq!(turret(&strings.iter().map(String::as_str).collect::<Vec<_>>()).code, 0);
    refused(
        &["run", "--batch", "8", "--dim-in", "5", "--dims", "3", "--variables-from", plain],
        &["'affine0/w' is float32 [4, 3] in the file, float32 [5, 3] in the graph"],
    );

    let fetched =
        document(&small("run", &["--json", "--fetch", "affine_last/w", "--fetch", "split:0", "--steps", "2"]));
    assert_eq!(fetched["steps"][1]["fetches"]["affine_last/w"], json!([[1.0], [1.0], [1.0]]));
    assert_eq!(fetched["steps"][0]["fetches"]["split:0"].as_array().unwrap().len(), 8);
    let text = small("run", &["--steps", "2"]).out;
    assert!(text.starts_with("step 1: loss ") && text.lines().count() == 2, "{text}");
}

#[test]
fn a_timeline_is_written() {
    let path = scratch("trace.json");
    small("run", &["--towers", "2", "--trace", path.to_str().unwrap()]);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().find(|e| e["name"] == name && e["ph"] == "X").unwrap();
    assert_eq!((&named("tower_1/MatMul")["pid"], &named("tower_1/MatMul")["cat"]), (&json!(2), &json!("op")));
    assert_eq!(named("copy/affine0/w/read→gpu:1")["tid"], 1);
}

#[test]
fn feeds_are_read_from_files() {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let rows: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let feed = |path: &str| {
        let feed = format!("input={path}");
        document(&small("run", &["--json", "--fetch", "input", "--feed", &feed]))["steps"][0]["fetches"]["input"]
            .clone()
    };
    let plain = feed(&npy("c.npy", &header("<f4", false, "8, 4"), &floats(&rows)));
    assert_eq!((&plain[0][1], &plain[1][0]), (&json!(1.0), &json!(4.0)));
    // Column after column, big-endian, and of another width, as numpy.random.rand makes them.
    let fortran = feed(&npy("f.npy", &header("<f4", true, "8, 4"), &floats(&rows)));
    assert_eq!((&fortran[0][1], &fortran[1][0]), (&json!(8.0), &json!(1.0)));
    let big: Vec<u8> = rows.iter().flat_map(|v| f64::from(*v).to_be_bytes()).collect();
    assert_eq!(feed(&npy("big.npy", &header(">f8", false, "8, 4"), &big)), plain);
    let half: Vec<u8> = rows.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    assert_eq!(feed(&npy("half.npy", &header("<f2", false, "8, 4"), &half)), plain);
}

#[test]
fn bad_files_are_refused() {
    let feed = |path: &str, parts: &[&str]| {
        let feed = format!("input={path}");
        refused(&[&["run"], &SMALL[..], &["--feed", &feed]].concat(), &[parts, &[path]].concat());
    };
    feed(scratch("absent.npy").to_str().unwrap(), &["cannot read", "No such file"]);
    feed(env!("CARGO_TARGET_TMPDIR"), &["it is no file"]);
    feed(&file("empty.npy", b""), &["it is no .npy file"]);
    feed(&file("other.npy", b"PK\x03\x04 something else"), &["it is no .npy file"]);
    feed(&npy("cut.npy", &header("<f4", false, "8, 4"), &[0; 100]), &["cut short"]);
    feed(&npy("cut_header.npy", "{'descr': '<f4', 'shape': (8", &[]), &["'shape'"]);
    // Headers that promise far more than there is are refused before memory is taken for it.
    for shape in [
        "99999999999, 99999999999",
        "9223372036854775807, 4",
        "4611686018427387904, 4611686018427387904, 0",
        "10000000,",
    ] {
        feed(&npy("huge.npy", &header("<f4", false, shape), &[0; 16]), &["does not fit into"]);
    }
    let mut claim = b"\x93NUMPY\x02\x00".to_vec();
    claim.extend(u32::MAX.to_le_bytes());
    feed(&file("huge_header.npy", &claim), &["claims 4294967295 bytes"]);
    feed(&npy("nested.npy", &format!("{{'shape': (1,), 'x': {}}}", "(".repeat(1500)), &[]), &["header"]);
    feed(&npy("complex.npy", &header("<c8", false, "8, 4"), &[0; 256]), &["<c8", "float32"]);
    feed(&npy("ints.npy", &header("<i4", false, "8, 4"), &[0; 128]), &["int32", "float32"]);
    feed(&npy("shape.npy", &header("<f4", false, "4, 8"), &[0; 128]), &["[4, 8]", "[8, 4]"]);
    let npz = |name: &str, bytes: &[u8], part: &str| {
        let path = file(name, bytes);
        refused(&[&["run"], &SMALL[..], &["--variables-from", &path]].concat(), &["cannot read", &path, part]);
    };
    npz("none.npz", b"", "no .npz file");
    npz("bad.npz", &[0x50; 200], "no .npz file");
    let folder = scratch("absent/out.npz");
    refused(&[&["run"], &SMALL[..], &["--save-variables", folder.to_str().unwrap()]].concat(), &["there is no folder"]);
    refused(&["run", "--variables-from", env!("CARGO_TARGET_TMPDIR")], &["has no file 'checkpoint'"]);
}

#[test]
fn outputs_that_cannot_be_written_are_refused_before_the_first_step() {
    let read_only = file("read_only.npz", b"");
    let mut permissions = std::fs::metadata(&read_only).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&read_only, permissions).unwrap();
    for (path, part) in [(env!("CARGO_TARGET_TMPDIR"), "it is a folder"), (&read_only, "read-only")] {
        for option in ["--save-variables", "--trace", "--timeline"] {
            refused(&[&["run"], &SMALL[..], &[option, path]].concat(), &["cannot write", path, part]);
        }
    }
    std::fs::remove_file(&read_only).unwrap();
    // A device stays what it is; the archive must not take its place.
    if cfg!(unix) {
        refused(
            &[&["run"], &SMALL[..], &["--save-variables", "/dev/null"]].concat(),
            &["'/dev/null'", "it is no file"],
        );
    }
}

/// A stream whose reader has gone.
fn closed_pipe() -> std::io::PipeWriter {
    std::io::pipe().expect("there are pipes").1
}

#[test]
fn readers_may_leave() {
    for args in
        [&["devices"][..], &["place", "--ops"], &["dump", "--format", "dot"], &["run", "--steps", "3"], &["--help"]]
    {
        let sizes = if matches!(args[0], "devices" | "--help") { &[] } else { &SMALL[..] };
        let mut command = Command::new(env!("CARGO_BIN_EXE_turret"));
        let ran = command.args(args).args(sizes).stdout(closed_pipe()).output().expect("the command starts");
        let err = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{args:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("error"), "{args:?}: {err}");
    }
    // Nor does it matter that nobody reads what is told beside the results.
    let mut command = Command::new(env!("CARGO_BIN_EXE_turret"));
    let ran = command.arg("place").args(SMALL).stderr(closed_pipe()).output().expect("the command starts");
    assert_eq!((ran.status.code(), ran.stdout), (Some(0), small("place", &[]).out.into_bytes()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_turret"));
    let ran = command.args(["place", "--towers", "9"]).stderr(closed_pipe()).output().expect("the command starts");
    assert_eq!(ran.status.code(), Some(1));
}

#[test]
fn mistakes_are_refused_with_the_fix() {
    refused(&["place", "--tower", "2"], &["--tower", "--towers"]);
    refused(&["place", "--towers", "0"], &["--towers", "from 1 to 1024"]);
    refused(&["place", "--variables", "cpuu"], &["cpuu", "cpu", "spread"]);
    refused(&["plaice"], &["plaice", "place"]);
    refused(&["place", "--variables", "mirrored"], &["mirrored", "later", "spread"]);
    refused(&["place", "--optimizer", "sdg"], &["sdg", "sgd"]);
    refused(&["place", "--devices", "sim:x"], &["'sim:x'", "sim:N"]);
    refused(&["place", "--devices", "cuda:0"], &["CUDA"]);
    refused(&["place", "--towers", "3"], &["3 towers", "/gpu:2", "sim:2", "--devices sim:3", "--soft-placement"]);
    refused(&["place", "--devices", "cpu"], &["1 tower:", "/gpu:0", "0 GPUs; use --devices sim:1 or --soft-placement"]);
    refused(&["place", "--json", "--csv"], &["'--json'", "'--csv'"]);
    refused(&["copies", "--json", "--csv"], &["'--json'", "'--csv'"]);
    refused(&["place", "--batch", "7", "--towers", "2"], &["--batch 7", "2 towers", "remainder 1", "--batch 6"]);
    refused(&["place", "--dims", "3,x"], &["'x'", "512,128,128"]);
    refused(&["place", "model.pb"], &["cannot read 'model.pb'", "No such file"]);
    refused(&["place", "model.pb", "--graph", "other.pb"], &["'[GRAPH]'", "--graph"]);
    refused(&["copies", "--fetch", "los"], &["'los'"]);
    refused(&["copies", "--target", "GradientDecent"], &["did you mean 'GradientDescent'?"]);
    refused(&["run", "--feed", "input"], &["NAME=FILE.npy"]);
    refused(&["run", "--feed", "inpt=x.npy"], &["'inpt'", "did you mean 'input'?"]);
    refused(&["dump", "--format", "pb", "--stage", "scheduled"], &["built and placed", "--format text or dot"]);
    refused(&["dump", "--format", "pbtxt", "--json"], &["leave one out"]);
    refused(&["dump", "--format", "html"], &["html", "not offered yet"]);
    refused(&["dump", "--stage", "place"], &["place", "placed"]);
    refused(&["simulate", "--topology", "x"], &["not offered yet"]);
    for args in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let ran = turret(args);
        assert_eq!((ran.code, &ran.err[..]), (0, ""), "{args:?}");
    }
}

#[test]
fn bench_compares_rows() {
    let doc = document(&small(
        "bench",
        &["--towers", "1,2", "--variables", "cpu,gpu", "--steps", "3", "--warmup", "1", "--json"],
    ));
    let rows = doc["rows"].as_array().unwrap();
    let cases: Vec<_> =
        rows.iter().map(|r| (r["towers"].as_u64().unwrap(), r["variables"].as_str().unwrap())).collect();
    assert_eq!(cases, [(1, "cpu"), (1, "gpu"), (2, "cpu"), (2, "gpu")]);
    for row in rows {
        let ms = |key: &str| row[key].as_f64().unwrap();
        assert!(0.0 < ms("ms_min") && ms("ms_min") <= ms("ms_median") && ms("ms_median") <= ms("ms_max"), "{row}");
        assert!(row["copies"].as_u64().unwrap() > 0 && row["copy_bytes"].as_u64().unwrap() > 0, "{row}");
        assert!(row["peak_bytes"]["/device:GPU:0"].as_u64().unwrap() > 0 && row["devices"] == "sim:2", "{row}");
    }
}
