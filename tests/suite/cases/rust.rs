//! Cases that libraries in Rust have met.
