//! The heap that unpacking takes is at most what [`Header::heap`] says.

#![allow(unsafe_code, reason = "counts what the allocator gives out")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Runs `zstd` over bytes. Returns `None` if this machine does not have it.
fn zstd(argument: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new("zstd");
    command.args([argument, "-qc"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut input = child.stdin.take().expect("a pipe");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it ends").expect("it reads");
    Some(output.stdout)
}

#[test]
fn the_heap_that_it_takes_is_at_most_what_the_header_tells() {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let mut all: Vec<u8> = noise.take(9 << 20).collect();
    all.extend_from_within(..1 << 20);
    let mut into = vec![0; all.len()];
    for argument in ["-3", "-19"] {
        let Some(packed) = zstd(argument, &all) else {
            eprintln!("zstd is not on this machine");
            return;
        };
        let header = unpack::header(&packed).expect("a good file");
        MOST.store(0, Ordering::Relaxed);
        let before = NOW.load(Ordering::Relaxed);
        assert_eq!(unpack::unpack(&packed, &mut into), Ok(all.len()));
        let taken = MOST.load(Ordering::Relaxed) - before;
        eprintln!("zstd {argument}: window {}, heap {taken} of {}", header.window, header.heap());
        assert!(taken as u64 <= header.heap(), "{taken} of {} bytes, window {}", header.heap(), header.window);
        assert!(into == all);
    }
}
