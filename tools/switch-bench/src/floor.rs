//! The bare copy loop: the least that a switch has to do. It reads descriptors, copies bytes and writes used rings. It
//! looks up no address and checks nothing. It has only two queues.

use std::sync::atomic::{AtomicBool, Ordering};

use vhost_front::area::Area;
use vhost_front::ring::Device;

/// Copies from `tx` to `rx` until `run` is false. Sleeps while `turn` is false.
pub fn copy_loop(tx: Area, rx: Area, run: &AtomicBool, turn: &AtomicBool) {
    let (mut from, mut to) = (Device::new(tx), Device::new(rx));
    while run.load(Ordering::Relaxed) {
        if !turn.load(Ordering::Acquire) {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        }
        let n = from.available().min(to.available()).min(64);
        if n == 0 {
            std::hint::spin_loop();
            continue;
        }
        for _ in 0..n {
            let len = to.copy_from(&from);
            from.used(0);
            to.used(len);
        }
        to.publish();
        from.publish();
    }
}
