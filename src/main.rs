//! The `turret` command.
fn main() {}
