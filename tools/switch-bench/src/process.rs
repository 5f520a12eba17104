//! Pins threads to processors; stops and resumes processes.

#![allow(unsafe_code, reason = "affinity and signals")]

use std::{fs, io, thread};

use anyhow::{Result, bail};

/// Keeps this thread on a processor.
pub fn pin(core: usize) -> Result<()> {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        bail!("there is no processor {core}");
    }
    // SAFETY: within the set, as checked; 0 is this thread.
    let result = unsafe {
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if result != 0 {
        bail!("processor {core}: {}", io::Error::last_os_error());
    }
    Ok(())
}

fn signal(process: i32, signal: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(process, signal) } != 0 {
        bail!("process {process}: {}", io::Error::last_os_error());
    }
    Ok(())
}

/// Stops a process while others have their turn.
pub fn stop(process: i32) -> Result<()> {
    signal(process, libc::SIGSTOP)
}

/// Stops a process, and waits until none of its threads runs.
pub fn stop_all(process: i32) -> Result<()> {
    stop(process)?;
    loop {
        let mut running = false;
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            // A thread that has ended meanwhile does not run.
            let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
            // The state is behind the name, which may have any character.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            running |= !matches!(state, Some('T' | 't' | 'Z' | 'X'));
        }
        if !running {
            return Ok(());
        }
        thread::yield_now();
    }
}

/// Lets a stopped process go on.
pub fn resume(process: i32) -> Result<()> {
    signal(process, libc::SIGCONT)
}
