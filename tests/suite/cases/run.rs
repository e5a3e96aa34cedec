//! Cases of sessions and running.
