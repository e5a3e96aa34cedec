//! The examples run and say what they should, and the README shows nothing that is not there.
//!
//! `cargo test` builds the examples before it runs this; where they are not there (`cargo test --test main`), this does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("cannot read {path}: {e}"))
}

/// The binary of an example, built with the profile of this test.
pub fn example_binary(name: &str) -> PathBuf {
    static BUILD: Once = Once::new();
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests are in PROFILE/deps").join("examples");
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !path.exists() {
        BUILD.call_once(|| {
            let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
            let build = ["build", "--offline", "--examples", "--profile", profile];
            let output = Command::new(env!("CARGO")).args(build).current_dir(root()).output().expect("cargo runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        });
    }
    path
}

fn run(binary: &Path, args: &[&str]) -> Output {
    Command::new(binary).args(args).output().unwrap_or_else(|e| panic!("cannot run {}: {e}", binary.display()))
}

/// What an example prints to standard output.
fn output_of(name: &str, args: &[&str]) -> String {
    let output = run(&example_binary(name), args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?} failed: {error}");
    String::from_utf8(output.stdout).expect("examples print UTF-8")
}

fn example_names() -> BTreeSet<String> {
    let entries = std::fs::read_dir(root().join("examples")).expect("there are examples");
    (entries.map(|e| e.expect("an entry can be read").path()))
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .map(|p| p.file_stem().expect("a file has a name").to_string_lossy().to_string())
        .collect()
}

/// The article's listing for one GPU, without the lines of tensor objects.
fn article_listing() -> String {
    let layers = ["affine0", "affine1", "affine2", "affine_last"];
    let variables: Vec<String> = layers.iter().flat_map(|l| [format!("{l}/w"), format!("{l}/b")]).collect();
    let mut text: String = variables.iter().map(|v| format!("{v}: /device:CPU:0\n")).collect();
    text.push_str("towerGrads:\ngrads---tower_0\n");
    for (i, variable) in variables.iter().enumerate() {
        let op = if i % 2 == 0 { "MatMul" } else { "add" };
        let suffix = if i < 2 { String::new() } else { format!("_{}", i / 2) };
        text.push_str(&format!(
            "\ttower_0/gradients/tower_0/{op}{suffix}_grad/tuple/control_dependency_1\n\t{variable}\n"
        ));
    }
    text.push_str("ALL variables:\n");
    variables.iter().for_each(|v| text.push_str(&format!("\t{v}\n")));
    text
}

#[test]
fn the_articles_program_prints_the_articles_listing() {
    let output = output_of("multi_gpu_mlp", &["--gpus", "1", "--batch", "20", "--steps", "1"]);
    let shapes = ["[600, 512]", "[]", "[512, 128]", "[]", "[128, 128]", "[]", "[128, 1]", "[]"];
    let objects: Vec<&str> = output.lines().filter(|l| l.starts_with('(')).collect();
    assert_eq!(objects.len(), shapes.len(), "{output}");
    for (object, shape) in objects.iter().zip(shapes) {
        assert!(object.contains(&format!("control_dependency_1:0' shape={shape} dtype=float32>")), "{object}");
    }
    let lines: Vec<&str> = output.lines().filter(|l| !l.starts_with('(')).collect();
    let (closing, listing) = lines.split_last().expect("the program prints lines");
    assert_eq!(listing.join("\n") + "\n", article_listing());
    let seconds = closing.strip_prefix("1块GPU用时: ").and_then(|s| s.strip_suffix('s')).expect(closing);
    assert!(seconds.parse::<f64>().is_ok(), "{closing}");
}

#[test]
fn the_articles_program_trains_with_any_optimizer_and_placement() {
    let sizes = ["--gpus", "2", "--dim-in", "6", "--dims", "5,4", "--batch", "8", "--steps", "3", "--quiet"];
    for optimizer in ["sgd", "momentum", "adam", "rmsprop", "adagrad"] {
        for variables in ["cpu", "gpu", "spread"] {
            let rest = ["--optimizer", optimizer, "--variables", variables, "--init-scale", "0.3"];
            let output = output_of("multi_gpu_mlp", &[&sizes[..], &rest[..]].concat());
            assert!(output.starts_with("2块GPU用时: ") && output.lines().count() == 1, "{output}");
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused_as_in_the_article() {
    let output = run(&example_binary("multi_gpu_mlp"), &["--gpus", "3", "--devices", "sim:2", "--batch", "6"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("could not satisfy explicit device specification '/device:GPU:2'"), "{error}");
    assert!(error.contains("the devices are /device:CPU:0, /device:GPU:0, /device:GPU:1"), "{error}");
}

#[test]
fn towers_with_placeholders_of_their_own_fit_the_line() {
    let output = output_of("per_tower_inputs", &["--gpus", "3"]);
    for line in ["tower_2/input_2 on /device:GPU:2", "w = 2.0000", "b = 1.0000"] {
        assert!(output.lines().any(|l| l == line), "want '{line}' in\n{output}");
    }
}

#[test]
fn digits_are_told_apart_with_one_tower_and_with_four() {
    let output = output_of("train_digits", &[]);
    let accuracies = output.lines().filter(|l| l.starts_with("test accuracy, ")).count();
    assert_eq!(accuracies, 2, "{output}");
}

#[test]
fn tables_are_printed_for_each_rule() {
    let tables = output_of("placement_table", &["--batch", "64"]);
    let costs = output_of("placement_benchmark", &["--batch", "32", "--dims", "16", "--rounds", "2"]);
    for rule in ["host", "one GPU", "spread by least bytes"] {
        assert!(tables.contains(&format!("== variables: {rule}")), "{tables}");
        assert_eq!(costs.matches(rule).count(), 3, "{costs}");
    }
}

#[test]
fn graph_files_are_inspected() {
    let graph = root().join("tests/fixtures/graphs/lstm_2towers_vars-cpu.pb");
    let graph = graph.to_str().expect("the path is UTF-8");
    let output = output_of("inspect_graph", &[graph, "--devices", "sim:2", "--target", "train"]);
    for part in ["written by version 2474", "| MatMul ", "| cell/kernel ", "the file's device", "total: 26 copies, "] {
        assert!(output.contains(part), "want '{part}' in\n{output}");
    }
}

#[test]
fn without_cuda_there_is_nothing_to_check() {
    let mut command = Command::new(example_binary("device_check"));
    // Where there are GPUs, the driver hides them.
    let output = command.env("CUDA_VISIBLE_DEVICES", "-1").arg("--quick").output().expect("it starts");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{error}");
    assert!(error.starts_with("Error: there is no CUDA GPU to check: libcuda.so "), "{error}");
    assert!(out.starts_with("CUDA cannot be used: libcuda.so ") && out.contains("| libnvrtc.so "), "{out}");
}

#[test]
fn readers_of_examples_may_leave() {
    for (name, args) in [
        ("first", &[][..]),
        ("multi_gpu_mlp", &["--batch", "4", "--dims", "3", "--steps", "1"]),
        ("per_tower_inputs", &["--steps", "2"]),
        ("placement_table", &[]),
        ("placement_benchmark", &["--batch", "4", "--dims", "3", "--rounds", "1"]),
        ("train_digits", &["--epochs", "1", "--towers", "1"]),
        ("inspect_graph", &["tests/fixtures/graphs/lstm_2towers_vars-cpu.pb"]),
    ] {
        let closed = std::io::pipe().expect("there are pipes").1;
        let output = Command::new(example_binary(name)).args(args).stdout(closed).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &error[..]), (Some(0), ""), "{name}");
    }
}

#[test]
fn sizes_of_nothing_are_refused() {
    for (name, args) in [
        ("multi_gpu_mlp", &["--batch", "0"][..]),
        ("multi_gpu_mlp", &["--dim-in", "0"]),
        ("multi_gpu_mlp", &["--dims", "3,0"]),
        ("placement_table", &["--batch", "0"]),
        ("placement_benchmark", &["--rounds", "0"]),
        ("placement_benchmark", &["--towers", "0"]),
        ("train_digits", &["--batch", "0"]),
        ("train_digits", &["--batch", "5000"]),
        ("train_digits", &["--towers", "0"]),
    ] {
        let output = run(&example_binary(name), args);
        let error = String::from_utf8_lossy(&output.stderr);
        let fails = matches!(output.status.code(), Some(1 | 2)) && error.to_lowercase().starts_with("error: ");
        assert!(fails && error.contains(args[0]), "{name} {args:?}: {error}");
    }
    let linear = ["--dim-in", "3", "--batch", "2", "--steps", "1", "--dims"];
    for none in [&linear[..], &[&linear[..], &[""]].concat()] {
        let output = output_of("multi_gpu_mlp", none);
        assert!(output.starts_with("affine_last/w: "), "{output}");
    }
}

/// The fenced blocks of the README in this language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read("README.md");
    let mut found = Vec::new();
    let mut lines = readme.lines();
    while let Some(line) = lines.next() {
        let Some(tag) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
        if tag == language {
            found.push(block.join("\n") + "\n");
        }
    }
    found
}

/// The command lines of the README: in fenced blocks, after a `$` or not.
fn commands() -> Vec<String> {
    let blocks = [blocks("sh"), blocks("console")].concat();
    let lines = blocks.iter().flat_map(|b| b.lines().map(|l| l.strip_prefix("$ ").unwrap_or(l).to_string()));
    lines.filter(|l| l.starts_with("cargo ") || l.starts_with("turret ")).collect()
}

#[test]
fn the_readmes_first_program_is_an_example() {
    let first = read("examples/first.rs");
    let body = first.split_once("\n\n").expect("a header, an empty line, the program").1;
    assert_eq!(blocks("rust").first().map(String::as_str), Some(body), "README.md and examples/first.rs differ");
    let output = output_of("first", &[]);
    let shown = blocks("text").contains(&output);
    assert!(shown, "README.md does not show what examples/first.rs prints:\n{output}");
}

#[test]
fn cifar10_trains_stops_and_goes_on() {
    let folder = std::env::temp_dir().join(format!("turret-cifar10-test-{}", std::process::id()));
    let path = folder.to_str().expect("a path in UTF-8");
    let args = ["--gpus", "1", "--batch", "2", "--steps", "2", "--checkpoint-dir", path];
    let first = output_of("cifar10_multi_gpu", &args);
    assert!(first.starts_with("400 images to train on, 100 to test on (made up)\n"), "{first}");
    assert!(first.contains("step 0, loss = 4.6") && first.contains("model.ckpt-2"), "{first}");
    let second = output_of("cifar10_multi_gpu", &args);
    assert!(second.contains(&format!("going on from {path}/model.ckpt-2")), "{second}");
    assert!(second.contains("step 3, loss = 4.") && second.contains("precision @ 1 = "), "{second}");
    std::fs::write(folder.join("data_batch_1.bin"), [0; 100]).expect("the folder is there");
    let refused = run(&example_binary("cifar10_multi_gpu"), &["--data-dir", path]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("data_batch_1.bin': it has 100 bytes, want a multiple of the 3073"), "{message}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn mobilenet_v2_has_its_papers_parameters_and_trains() {
    let output = output_of("mobilenet_v2", &["--gpus", "1", "--size", "32", "--batch", "1", "--steps", "2"]);
    assert!(output.contains("parameters: 3504872 trained, 34112 of moving statistics\n"), "{output}");
    let losses: Vec<f64> =
        (output.lines()).filter_map(|l| l.split_once("loss = ")?.1.split(' ').next()?.parse().ok()).collect();
    assert!(losses.len() == 2 && (losses[0] - 1000f64.ln()).abs() < 0.1 && losses[1] < losses[0], "{output}");
}

#[test]
fn the_readme_tells_of_every_example_and_no_other() {
    let told: BTreeSet<String> = (commands().iter())
        .filter_map(|c| c.split_once("--example ").map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default()))
        .map(str::to_string)
        .collect();
    assert_eq!(told, example_names());
}

#[test]
fn the_readmes_flags_are_there() {
    for command in commands() {
        let words: Vec<&str> = command.split_whitespace().take_while(|w| *w != "|" && *w != ">").collect();
        let (help, args) = match (words.iter().position(|w| *w == "--example"), words[0]) {
            (Some(at), _) => {
                let args = words.iter().position(|w| *w == "--").map_or(&[][..], |i| &words[i + 1..]);
                (run(&example_binary(words[at + 1]), &["--help"]), args)
            }
            (None, "turret") => {
                // `turret checkpoint` has subcommands of its own.
                let subcommand = &words[1..if words[1] == "checkpoint" { 3 } else { 2 }];
                (run(Path::new(env!("CARGO_BIN_EXE_turret")), &[subcommand, &["--help"]].concat()), &words[2..])
            }
            (None, _) => continue,
        };
        if args.is_empty() {
            continue;
        }
        assert!(help.status.success(), "{command}: {}", String::from_utf8_lossy(&help.stderr));
        let help = String::from_utf8_lossy(&help.stdout);
        for flag in args.iter().filter(|a| a.starts_with("--")) {
            let flag = flag.split('=').next().unwrap_or(flag);
            let named = help.split(|c: char| !(c.is_alphanumeric() || c == '-')).any(|word| word == flag);
            assert!(named, "{command}: no {flag} in\n{help}");
        }
    }
}
