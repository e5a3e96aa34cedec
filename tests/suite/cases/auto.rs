//! Cases of automatic differentiation at its edges.
