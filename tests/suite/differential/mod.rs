//! Random programs, run by a session on several simulated devices and by something much simpler; both must agree.
//! All seeds are fixed.

mod graphs;
mod random;
mod variables;
