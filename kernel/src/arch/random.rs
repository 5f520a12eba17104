//! The CPU's random numbers: RDSEED and RDRAND (SDM vol. 1 7.3.17, APM vol. 3).

#![allow(unsafe_code, reason = "executes RDSEED")]

use super::time;
use core::arch::asm;
use entropy::cpu::{Cpu, Instructions};
use raw_cpuid::CpuId;
use x86_64::instructions::{port::PortReadOnly, random::RdRand};

/// Times that are sampled. Each has at least a fraction of a bit of jitter, and 256 bits are wanted.
const SAMPLES: usize = 4096;

/// The instructions of this CPU. All cores are alike.
pub struct CpuRandom {
    has_seed: bool,
    rdrand: Option<RdRand>,
}

impl CpuRandom {
    fn new() -> Self {
        let features = CpuId::new().get_extended_feature_info();
        Self { has_seed: features.is_some_and(|features| features.has_rdseed()), rdrand: RdRand::new() }
    }
}

impl Instructions for CpuRandom {
    fn seed(&mut self) -> Option<u64> {
        if !self.has_seed {
            return None;
        }
        let (word, valid): (u64, u8);
        // SAFETY: the CPU has RDSEED. It writes two registers and the flags.
        unsafe { asm!("rdseed {}", "setc {}", out(reg) word, out(reg_byte) valid, options(nomem, nostack)) };
        (valid != 0).then_some(word)
    }

    fn random(&mut self) -> Option<u64> {
        self.rdrand?.get_u64()
    }
}

/// The source of random bytes for guests.
pub type Random = Cpu<CpuRandom>;

/// Makes the source, seeded now.
pub fn source() -> Random {
    Cpu::new(CpuRandom::new(), times())
}

/// Returns what guests' random bytes come from, for the report.
pub fn describe() -> &'static str {
    let cpu = CpuRandom::new();
    match (cpu.has_seed, cpu.rdrand) {
        (true, _) => "random bytes for guests come from RDSEED",
        (false, Some(_)) => "random bytes for guests come from RDRAND: this CPU has no RDSEED",
        (false, None) => {
            "random bytes for guests come from a generator that only the times of boot have seeded: this CPU has neither \
             RDSEED nor RDRAND"
        }
    }
}

/// Times of accesses to a slow bus, and of the clock. Their low bits have jitter, because the bus has a clock of its own.
fn times() -> impl Iterator<Item = u64> {
    // The speaker's control port. A read has no effect, and every PC has it.
    let mut port = PortReadOnly::<u8>::new(0x61);
    core::iter::once(time::wall_clock()).chain((0..SAMPLES).map(move |_| {
        // SAFETY: reading this port has no effect.
        let state = unsafe { port.read() };
        time::tsc() ^ u64::from(state) << 56
    }))
}
