//! Front-ends beside each other, over an engine whose back-end keeps the requests of one of them for as long as the test
//! wants.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::Devices;
use engine::engine::Engine;
use engine::observe::Unobserved;
use engine::requests::{Requests, ServiceMode};
use engine::schedule::{PerDevice, Portion, Served};
use memory::copy::Copier;
use vhost_front::disk::{Buffer, DiskOptions, kind};
use virtio::chain::Segments;
use virtio::config::DeviceConfig;
use virtio::queue::Token;

use crate::backends::{Config, Control};
use crate::calls::Calls;
use crate::client::Client;
use crate::control::EngineControl;
use crate::disk::Disk;
use crate::kicks::Kicks;
use crate::port::Port;
use crate::{clock, config, server};

/// Longest wait. The machine may be busy with something else for that long.
const LIMIT: Duration = Duration::from_secs(120);
/// The slot whose requests are kept.
const SLOW: usize = 0;

/// What the test and the back-end share.
#[derive(Default)]
struct Told {
    /// Requests that the back-end keeps.
    kept: AtomicU32,
    /// How often the engine has asked for them, because their device is to be detached.
    asked: AtomicU32,
    /// They may be completed.
    release: AtomicBool,
}

/// Keeps the requests of one slot, and completes those of others at once.
struct Keeping {
    told: Arc<Told>,
    kept: Vec<Token>,
    segments: Segments,
}

impl Backend for Keeping {
    type Config = Config;

    fn attached(&mut self, _: usize, _: &DeviceConfig, _: Config) {}
    fn detached(&mut self, _: usize) {}
    fn activated(&mut self, _: usize, _: &mut Device, _: bool) {}

    fn service_mode(&self, _: usize, _: u16) -> ServiceMode {
        ServiceMode::AsConfigured
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, _: u64) -> Served {
        let mut served = Served::default();
        while served.requests < portion.requests {
            self.segments.clear();
            let Some(device) = devices.get_mut(slot) else { break };
            let Some(request) = device.pop(queue, &mut self.segments) else { break };
            if slot == SLOW {
                self.kept.push(request.token);
                self.told.kept.fetch_add(1, Ordering::Release);
            } else {
                device.complete(request.token, 1);
            }
            served.requests += 1;
        }
        served
    }

    fn poll(&mut self, devices: &mut Devices, _: u64) -> u32 {
        if !self.told.release.load(Ordering::Acquire) {
            return 0;
        }
        let complete = |token| devices.get_mut(SLOW).is_some_and(|device| device.complete(token, 1));
        self.kept.drain(..).map(complete).filter(|done| *done).count() as u32
    }

    fn reclaim(&mut self, _: &mut Devices) {
        self.told.asked.fetch_add(1, Ordering::Release);
    }

    fn cancel(&mut self, _: &mut Devices, slot: usize) -> bool {
        slot != SLOW || self.kept.is_empty()
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited for {what}");
        thread::yield_now();
    }
}

/// Serves two disks. Returns their sockets.
fn serve(told: &Arc<Told>, control: &'static Control) -> [PathBuf; 2] {
    let folder = std::env::temp_dir().join(format!("sidecore-vhost-beside-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let sockets = ["slow", "quick"].map(|name| folder.join(name));
    let ports = [0, 1].map(|n| {
        let config: config::Disk = toml::from_str(&format!("socket = {:?}\nsize = \"1M\"", sockets[n])).unwrap();
        Arc::new(Port::of_disk(n, &config, Requests::Poll, &Disk::make(&config).unwrap()))
    });
    let backend = Keeping { told: Arc::clone(told), kept: Vec::new(), segments: Segments::new() };
    let mut engine = Box::new(Engine::new(control, backend, PerDevice::new(64), Calls));
    thread::spawn(move || engine::engine::run(&mut *engine, &clock::now, &Unobserved));
    let clients = Arc::new(EngineControl::new(control));
    let kicks = Arc::new(Kicks::start(ports.iter().map(|port| port.shared).collect()).unwrap());
    for (port, socket) in ports.into_iter().zip(&sockets) {
        let listener = UnixListener::bind(socket).unwrap();
        let client = Client::new(Arc::clone(&port), Arc::clone(&clients), Arc::clone(&kicks), Copier::default());
        thread::spawn(move || server::accept(&listener, &port, client));
    }
    sockets
}

/// Sends GET_VRING_BASE, in a thread of its own. Returns where the answer arrives.
fn stop(mut disk: vhost_front::disk::Disk) -> mpsc::Receiver<(u16, vhost_front::disk::Disk)> {
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || {
        let base = disk.stop(0).unwrap();
        // Nobody waits any more if the test has failed.
        let _ = sender.send((base, disk));
    });
    answer
}

#[test]
fn a_front_end_whose_requests_take_long_does_not_hold_up_the_messages_of_another() {
    let (told, control): (Arc<Told>, &'static Control) = (Arc::default(), Box::leak(Box::default()));
    let sockets = serve(&told, control);
    let [mut slow, mut quick] =
        sockets.each_ref().map(|socket| vhost_front::disk::Disk::connect(socket, &DiskOptions::default()).unwrap());
    for disk in [&mut slow, &mut quick] {
        disk.submit(0, kind::IN, 0, &Buffer::In(512)).unwrap();
    }
    until("the request that is completed at once", || quick.completed(0).is_some());
    until("the request that is kept", || told.kept.load(Ordering::Acquire) == 1);

    let slow = stop(slow);
    until("the engine to drain the first one's device", || told.asked.load(Ordering::Acquire) != 0);
    let (base, mut quick) = stop(quick).recv_timeout(LIMIT).expect("the second one waits for the first one's request");
    assert_eq!(base, 1);
    // It can even be set up and used again.
    quick.resume(0, base).unwrap();
    quick.submit(0, kind::IN, 0, &Buffer::In(512)).unwrap();
    until("a request while the first one's device is drained", || quick.completed(0).is_some());
    assert!(slow.try_recv().is_err(), "the first one's answer waits for its request");

    told.release.store(true, Ordering::Release);
    let (base, mut slow) = slow.recv_timeout(LIMIT).expect("the answer to the first one");
    assert_eq!((base, slow.completed(0).is_some()), (1, true));
    control.stop();
    std::fs::remove_dir_all(sockets[0].parent().unwrap()).unwrap();
}
