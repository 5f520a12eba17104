//! The registers of interrupted code, as the interrupt entry code saves them.

use crate::mem;
use drivers::nmi;

/// Registers of the interrupted code, as the assembly (interrupts.s) pushed them.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    /// The first argument of a function that has just begun.
    pub rdi: u64,
    rsi: u64,
    /// Frame pointer: where a backtrace starts.
    pub rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    /// The vector.
    pub vector: u64,
    /// The error code; 0 if the exception has none.
    pub error: u64,
    /// Its instruction pointer.
    pub rip: u64,
    cs: u64,
    /// Its flags.
    pub rflags: u64,
    /// Its stack.
    pub rsp: u64,
    ss: u64,
}

impl Frame {
    /// Whether the interrupted code used the stack that this frame is on. For an event with a stack of its own: its own handler
    /// was interrupted. The frame is at the stack's top.
    pub fn is_nested(&self) -> bool {
        let top = core::ptr::from_ref(self).addr().saturating_add(size_of::<Self>()) as u64;
        nmi::is_on_own_stack(self.rsp, top, mem::INTERRUPT_STACK)
    }
}
