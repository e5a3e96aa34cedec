//! What the command measures: documents keep their keys, and their figures add up. Nothing here compares times.

use crate::command::{self, SMALL, good, turret};
use serde_json::Value;

fn run(args: &[&str]) -> String {
    good(args).out
}

fn document(args: &[&str]) -> Value {
    command::document(&good(args))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number '{key}' in {value}"))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn about(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

const BENCH: [&str; 8] = ["bench", "--steps", "3", "--warmup", "1", "--variables", "cpu", "--towers"];

#[test]
fn a_row_of_bench_tells_where_a_step_goes() {
    let doc = document(&[&BENCH[..], &["1,2", "--json", "--threads", "1"], &SMALL[..]].concat());
    assert_eq!(doc["peak_rss_bytes"].is_u64(), cfg!(target_os = "linux"));
    for row in doc["rows"].as_array().expect("a list of rows") {
        let step = &row["step"];
        assert_eq!(keys(step), ["copies_ms", "ms", "others_ms", "products_ms", "waiting_ms"]);
        let parts = ["products_ms", "others_ms", "copies_ms", "waiting_ms"].map(|part| number(step, part));
        assert!(parts.iter().all(|ms| *ms > 0.0) && about(parts.iter().sum(), number(step, "ms")), "{row}");
        assert_eq!(row["threads"], 1);
        assert!(about(number(row, "gflops_per_s") * number(row, "ms_median") * 1e6, number(row, "flops")), "{row}");
        // At least the products, forward and for the gradients of the weights.
        assert!(number(row, "flops") >= 4.0 * 8.0 * (4.0 * 3.0 + 3.0) && number(row, "kernel_bytes") > 0.0, "{row}");
    }
    let text = run(&[&BENCH[..], &["1"], &SMALL[..]].concat());
    let heads = ["traced", "products", "others", "copies", "waiting", "kernels' bytes"];
    assert!(text.lines().any(|line| heads.iter().all(|head| line.contains(head))), "{text}");
}

#[test]
fn a_line_of_bench_is_as_other_programs_print_theirs() {
    let lines = |more: &[&str]| run(&[&BENCH[..], &["1,2", "--lines"], &SMALL[..], more].concat());
    let out = lines(&[]);
    let all: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(all.len(), 2);
    for line in &all {
        let want = ["min_ms", "ms", "peer", "rss_mb", "threads", "towers", "variant", "workload"];
        assert_eq!(keys(line), want);
        assert!(line["peer"] == "turret" && line["workload"] == "mlp", "{line}");
        assert!(number(line, "min_ms") <= number(line, "ms"), "{line}");
        assert_eq!(line["variant"], "sim:2, variables cpu");
    }
    assert!(lines(&["--fetch-loss"]).contains("variables cpu, fetched"));
    let both = turret(&["bench", "--lines", "--json"]);
    assert!(both.code == 1 && both.err.contains("--json"), "{}", both.err);
}

#[test]
fn a_profile_adds_up_by_op_and_by_node() {
    let profile = |of: &str| {
        let args = ["run", "--steps", "4", "--json", "--towers", "2", "--target", "GradientDescent", of];
        let doc = document(&[&args[..], &SMALL[..]].concat());
        assert_eq!(doc["steps"].as_array().map(Vec::len), Some(4));
        doc["profile"].clone()
    };
    let (ops, nodes) = (profile("--profile"), profile("--profile=nodes"));
    for table in [&ops, &nodes] {
        assert_eq!(keys(table), ["queue_ms", "queues", "rows", "step_ms", "steps", "waiting_ms"]);
        assert_eq!((&table["steps"], &table["queues"]), (&3.into(), &3.into()), "all but the first step");
        let rows = table["rows"].as_array().expect("a list of rows");
        let sum: f64 = rows.iter().map(|r| number(r, "ms")).sum();
        assert!(about(sum + number(table, "waiting_ms"), number(table, "queue_ms")), "{table}");
        assert!(about(number(table, "step_ms") * 3.0, number(table, "queue_ms")), "{table}");
        let ms: Vec<f64> = rows.iter().map(|r| number(r, "ms")).collect();
        assert!(ms.is_sorted_by(|a, b| a >= b), "{ms:?}");
    }
    let copies = |table: &Value| {
        let rows = table["rows"].as_array().expect("a list of rows").clone();
        rows.into_iter().filter(|r| r["op"] == "copy").map(|r| number(&r, "count")).sum::<f64>()
    };
    let listed = document(&[&["copies", "--towers", "2", "--json"][..], &SMALL[..]].concat());
    let listed = listed["copies"].as_array().map_or(0, Vec::len) as f64;
    assert_eq!((copies(&ops), copies(&nodes)), (listed, listed));
    let product = nodes["rows"].as_array().expect("a list of rows").iter().find(|r| r["node"] == "tower_1/MatMul");
    assert!(product.is_some_and(|r| r["device"] == "/device:GPU:1" && r["count"] == 1.0), "{product:?}");
    let text = run(&[&["run", "--profile"][..], &SMALL[..]].concat());
    assert!(text.starts_with("step 1: loss ") && text.contains("(waiting)"), "{text}");
}

#[test]
fn plans_are_timed_by_stages_that_add_up() {
    let sizes = ["--towers", "1,2", "--variable-counts", "4,8", "--steps", "1"];
    let doc = document(&[&["bench", "--plan", "--json"], &sizes[..], &SMALL[..]].concat());
    let plans = doc["plans"].as_array().expect("a list of plans");
    let cases: Vec<(&Value, &Value)> = plans.iter().map(|p| (&p["case"], &p["size"])).collect();
    assert_eq!(cases.len(), 6);
    assert!(cases[0] == (&"towers".into(), &1.into()) && cases[5] == (&"wide".into(), &8.into()), "{cases:?}");
    for (i, plan) in plans.iter().enumerate() {
        let stages = plan["stages_ms"].as_object().expect("the stages");
        let known = [
            "forward",
            "gradients",
            "average",
            "apply",
            "check",
            "resolve",
            "place",
            "prune",
            "partition",
            "passes",
            "schedule",
            "memory",
            "load",
            "start",
            "initialize",
            "first step",
        ];
        let sum =
            |from: usize, to: usize| known[from..to].iter().map(|s| stages[*s].as_f64().expect("ms")).sum::<f64>();
        assert_eq!(stages.len(), known.len(), "{plan}");
        assert!(about(sum(0, 4), number(plan, "build_ms")) && about(sum(4, 14), number(plan, "plan_ms")), "{plan}");
        assert!(about(number(plan, "build_ms") + number(plan, "plan_ms"), number(plan, "ready_ms")), "{plan}");
        let growth = plan["growth"].as_object();
        assert_eq!(growth.is_some_and(|g| !g.is_empty()), i % 2 == 1, "{plan}");
        assert!(plan["graph_nodes"].as_u64() > plan["step_nodes"].as_u64(), "{plan}");
    }
    let text = run(&[&["bench", "--plan=towers,wide"], &sizes[..], &SMALL[..]].concat());
    assert!(text.contains("| towers ") && text.contains("| variables, wide |") && !text.contains("deep"), "{text}");
    for (args, part) in [
        (&["bench", "--plan", "x.pb"][..], "graph file"),
        (&["bench", "--plan", "--variable-counts", "1"], "2"),
        (&["bench", "--variable-counts", "4"], "--plan"),
        (&["bench", "--plan", "--lines"], "--lines"),
        (&["bench", "x.pb", "--fetch-loss"], "--fetch-loss"),
        (&["bench", "x.pb", "--towers", "2"], "--towers"),
        (&["run", "--steps", "0", "--profile"], "--steps"),
    ] {
        let ran = turret(args);
        assert!(ran.code == 1 && ran.err.contains(part), "{}", ran.err);
    }
}
