//! Looks at a machine on which Linux runs, and says what sidecore's capability report would say of it: whether it will run, which
//! completion it will choose, which NICs it can drive, and what to change in the firmware's setup.
//!
//! ```text
//!  CPUID, /dev/cpu/0/msr ──────┐
//!  /sys/firmware, /sys/bus/pci ┼──▶ linux::Linux ──▶ look::look ──▶ findings (the hypervisor's own sentences) ──▶ Line
//!  /proc ──────────────────────┘
//! ```
//!
//! What cannot be read is `unknown`, never well.

pub mod advice;
pub mod linux;
pub mod look;
pub mod save;
