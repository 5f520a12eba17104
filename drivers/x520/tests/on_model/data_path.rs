//! The cases of `cargo mk bench nic` work.

use crate::cases::CASES;

#[test]
fn each_case_of_the_benchmark_runs_with_every_size_of_batch() {
    for (name, run) in CASES {
        for batch in [1, 8, 32, 64] {
            eprintln!("{name} {batch}");
            // Enough for the rings to wrap.
            run(batch, 1200 / batch + 3);
        }
    }
}
