//! Cases of devices and placement.
