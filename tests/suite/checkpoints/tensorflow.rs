//! What TensorFlow 2.21 wrote beyond plain variables: an array in three parts, types that turret stores and such that it
//! does not. The files are those of `tf.raw_ops.SaveV2`.

use std::path::PathBuf;
use turret::base::{Array, Code};
use turret::interop::checkpoint::Checkpoint;

#[test]
fn parts_and_rare_types_are_read() {
    let prefix = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/checkpoints/tensorflow/parts");
    let checkpoint = Checkpoint::open(&prefix).expect("it is whole");
    let listed: Vec<String> =
        checkpoint.arrays().map(|a| format!("{} {} {:?} {}", a.name, a.stored, a.shape, a.parts)).collect();
    let want = [
        "bf bfloat16 [2] 1",
        "c complex64 [1] 1",
        "h float16 [1] 1",
        "p float32 [4, 6, 3] 3",
        "q int32 [2] 1",
        "sc float64 [] 1",
        "str string [2] 1",
        "u uint8 [2] 1",
    ];
    assert_eq!(listed, want);
    let read = |name: &str| checkpoint.read(name).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(read("p").to_f64(), (0..72).map(f64::from).collect::<Vec<_>>());
    assert_eq!(read("bf"), Array::new(&[2], &[1.5f32, 2.0].map(half::bf16::from_f32)).expect("it fits"));
    assert_eq!(read("h"), Array::new(&[1], &[half::f16::from_f32(1.5)]).expect("it fits"));
    assert_eq!(read("u"), Array::new(&[2], &[1u8, 255]).expect("it fits"));
    assert_eq!(read("sc"), Array::scalar(3.5f64));
    for (name, part) in [("c", "complex64"), ("str", "string")] {
        let e = checkpoint.read(name).expect_err("turret holds no such values");
        assert!(e.code() == Code::Unimplemented && e.to_string().contains(part), "{e}");
    }
}
