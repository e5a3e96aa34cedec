//! The one integration binary: recorded figures, users' trouble cases, and the rules of the house.
//!
//! The code of the tests lives in `tests/suite`, the recorded figures in `tests/fixtures`; the environment variable
//! `TURRET_FIXTURES` names another folder of the same layout to judge by.

#[path = "suite/averaging.rs"]
mod averaging;
#[path = "suite/cases/mod.rs"]
mod cases;
#[path = "suite/checkpoints/mod.rs"]
mod checkpoints;
#[path = "suite/classifier.rs"]
mod classifier;
#[path = "suite/command.rs"]
mod command;
#[path = "suite/command_models.rs"]
mod command_models;
#[path = "suite/conditionals.rs"]
mod conditionals;
#[path = "suite/cuda/mod.rs"]
mod cuda;
#[path = "suite/differential/mod.rs"]
mod differential;
#[path = "suite/dumps.rs"]
mod dumps;
#[path = "suite/equivalence.rs"]
mod equivalence;
#[path = "suite/examples.rs"]
mod examples;
#[path = "suite/fixtures/mod.rs"]
mod fixtures;
#[path = "suite/functions.rs"]
mod functions;
#[path = "suite/gpus.rs"]
mod gpus;
#[path = "suite/graphdef/mod.rs"]
mod graphdef;
#[path = "suite/house.rs"]
mod house;
#[path = "suite/kernels.rs"]
mod kernels;
#[path = "suite/layers/mod.rs"]
mod layers;
#[path = "suite/measuring.rs"]
mod measuring;
#[path = "suite/planning.rs"]
mod planning;
#[path = "suite/robust/mod.rs"]
mod robust;
#[path = "suite/shapes.rs"]
mod shapes;
#[path = "suite/updates/mod.rs"]
mod updates;
