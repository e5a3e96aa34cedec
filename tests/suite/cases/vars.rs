//! Cases of variables, scopes and reuse.
