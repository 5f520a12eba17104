//! AMD SVM (APM vol. 2 ch. 15), the back-end behind [`machine::vcpu::Vcpu`].
//!
//! Order of use:
//!
//! 1. Once on each core: [`Capabilities::read`], then [`enable`] with a page for the processor.
//! 2. Once for the machine: fill a [`PermissionMaps`].
//! 3. For each vCPU, on the core that will run it: [`SvmVcpu::new`] with one [`VcpuPages`], then `reset`, then `run`
//!    for ever. The core's GDT, TSS and GS base must be final before that.
//!
//! `reset` flushes. While a vCPU runs, its nested tables may gain mappings. Whoever changes or removes one calls
//! `flush_nested` before the vCPU enters again.
//!
//! ```text
//!   vcpu.rs ──▶ world.rs    CLGI, kick?, VMLOAD, VMRUN, VMSAVE, STGI
//!      │──────▶ exit.rs     EXITCODE ──▶ Exit
//!      │──────▶ event.rs    EVENTINJ, EXITINTINFO          nmi.rs  mask until IRET
//!      │──────▶ asid.rs     what to flush                  core_state.rs  FPU, XCR0, DRs
//!      └──────▶ vmcb.rs, fields.rs   the layout            permission.rs  MSRs, ports
//! ```
//!
//! Only vcpu.rs (its calls), world.rs, core_state.rs and probe.rs touch hardware. The rest is tested on the development
//! machine.
//!
//! Interrupts are off whenever host code runs here (RFLAGS.IF clear). A physical interrupt makes the guest exit and
//! stays pending. [`machine::vcpu::Exit::ExternalInterrupt`] asks the caller to enable interrupts for a moment.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod asid;
mod core_state;
mod event;
mod exit;
mod exit_code;
mod fields;
mod nmi;
mod permission;
mod probe;
mod state;
mod vcpu;
mod vmcb;
mod world;

pub use permission::PermissionMaps;
pub use probe::{Capabilities, Missing, enable};
pub use vcpu::{How, SvmVcpu, VcpuPages};
