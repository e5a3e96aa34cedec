//! Event files: what is written is read, damage is told, and a traced run is there node by node.

use super::*;
use crate::base::{Code, DType};
use crate::graph::{Graph, Init};
use crate::interop::graphdef::export_graph;
use crate::run::{Session, SessionOptions};

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("turret-{}-events-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn read(path: &Path) -> Vec<Event> {
    EventReader::open(path).unwrap().collect::<Result<_>>().unwrap()
}

#[test]
fn what_is_written_is_read() {
    let folder = scratch("all");
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [4, 3], "x");
    let w = g.device("/gpu:0", || g.get_variable("w", [3, 2], Init::Ones));
    let y = g.device("/gpu:1", || x.matmul(w).relu());
    let s = Session::new(&g, SessionOptions::devices("sim:2").unwrap()).unwrap();
    s.initialize().unwrap();
    let rows = Array::zeros(DType::F32, &[4, 3]).unwrap();
    let (_, metadata) = s.run_traced(&[(x, &rows)], &[y], &[]).unwrap();

    let mut writer = EventWriter::new(&folder).unwrap();
    let graph = export_graph(&g).unwrap();
    writer.graph(&graph).unwrap();
    writer.scalar("loss", 0.25, 7).unwrap();
    writer.scalar("loss", f32::NAN, -8).unwrap();
    let values = Array::new(&[3], &[1.0f32, -2.0, 0.5]).unwrap();
    writer.histogram("w", &values, 1 << 40).unwrap();
    let e = writer.histogram("bad", &Array::scalar(f64::INFINITY), 1).unwrap_err().to_string();
    assert!(e.contains("histogram 'bad'") && e.contains("inf"), "{e}");
    writer.run_metadata("step 9", &metadata, s.machine(), 9).unwrap();
    writer.flush().unwrap();

    let name = writer.path().file_name().unwrap().to_str().unwrap().to_string();
    let seconds = name.strip_prefix("events.out.tfevents.").unwrap().split('.').next().unwrap();
    assert!(seconds.len() == 10 && seconds.parse::<u64>().is_ok(), "{name}");
    let events = read(writer.path());
    assert_eq!(events.iter().map(|e| e.step).collect::<Vec<_>>(), [0, 0, 7, -8, 1 << 40, 9]);
    assert!(events.windows(2).all(|pair| pair[0].wall_time <= pair[1].wall_time && pair[0].wall_time > 1e9));
    assert_eq!(events[0].kind, EventKind::FileVersion("brain.Event:2".into()));
    assert_eq!(events[1].kind, EventKind::Graph(graph.encode_to_vec()));
    assert_eq!(events[2].kind, EventKind::Summary(vec![("loss".into(), SummaryFigure::Scalar(0.25))]));
    assert!(
        matches!(&events[3].kind, EventKind::Summary(f) if matches!(f[0].1, SummaryFigure::Scalar(v) if v.is_nan()))
    );
    let histogram = Histogram::of(&values).unwrap();
    assert_eq!(events[4].kind, EventKind::Summary(vec![("w".into(), SummaryFigure::Histogram(histogram))]));
    let EventKind::RunMetadata { tag, nodes } = &events[5].kind else { panic!("{:?}", events[5]) };
    assert_eq!((&tag[..], nodes.len()), ("step 9", metadata.spans.len()));
    let product = nodes.iter().find(|n| n.name == "MatMul").unwrap();
    assert!(product.device.ends_with("device:GPU:1") && product.bytes == 32 && product.label == "MatMul = MatMul");
    let copy = nodes.iter().find(|n| n.name == "copy/w/read→gpu:1").unwrap();
    assert_eq!((copy.bytes, &copy.label[..]), (24, "[24 B] gpu:0 → gpu:1"));
    assert!(nodes.iter().all(|n| n.took_micros >= 0 && n.start_micros > 1_000_000_000_000_000));

    // A second writer in the same second has a file of its own.
    let others: Vec<EventWriter> = (0..3).map(|_| EventWriter::new(&folder).unwrap()).collect();
    assert!(others.iter().all(|w| w.path() != writer.path() && read(w.path()).len() == 1));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn what_is_held_back_is_written_at_the_end() {
    let folder = scratch("end");
    let mut writer = EventWriter::new(&folder).unwrap();
    let path = writer.path().to_path_buf();
    writer.scalar("a", 1.0, 1).unwrap();
    assert_eq!(read(&path).len(), 1);
    drop(writer);
    assert_eq!(read(&path).len(), 2);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn every_cut_ends_a_file_and_every_flipped_bit_is_told() {
    let folder = scratch("damage");
    let mut writer = EventWriter::new(&folder).unwrap();
    writer.scalar("a", 1.0, 1).unwrap();
    writer.histogram("b", &Array::scalar(2.0f32), 2).unwrap();
    writer.flush().unwrap();
    let path = writer.path().to_path_buf();
    let (whole, want) = (std::fs::read(&path).unwrap(), read(&path));
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let got = read(&path);
        assert!(got.len() < want.len() && got[..] == want[..got.len()], "cut to {len}");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&path, bytes).unwrap();
        let got: Vec<Result<Event>> = EventReader::open(&path).unwrap().collect();
        let e = got.last().unwrap().as_ref().unwrap_err();
        assert!(e.code() == Code::DataLoss && e.to_string().contains("checksum"), "byte {at}: {e}");
        assert!(got[..got.len() - 1].iter().zip(&want).all(|(g, w)| g.as_ref().unwrap() == w));
    }
    assert_eq!(EventReader::open(folder.join("absent")).err().unwrap().code(), Code::NotFound);
    let _ = std::fs::remove_dir_all(folder);
}
