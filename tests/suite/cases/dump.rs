//! Cases of names and of graph dumps.
