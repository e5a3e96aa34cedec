//! Cases of tower gradients and their averaging.
