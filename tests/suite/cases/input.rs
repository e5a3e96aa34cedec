//! Cases of inputs, schedules and randomness.
