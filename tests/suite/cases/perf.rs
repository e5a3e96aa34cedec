//! Cases of copies, memory and speed.
