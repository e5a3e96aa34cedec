//! Random programs, run by a session on several simulated devices and by something much simpler; both must agree.
//! All seeds are fixed.

mod convolutions;
mod graphs;
mod random;
mod step_ops;
mod steps;
mod training;
mod variables;
