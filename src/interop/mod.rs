//! Other programs' files: TensorFlow's graphs.
//!
//! Invariant: a file is never trusted. What a header claims is held against what is there before memory is taken for
//! it, and everything wrong is an error with the file's part in it.

pub mod graphdef;
