//! What a configuration says, without where in the file it stands. Two files that mean the same are equal then.

use control::is_name;

use crate::config::Config;
use crate::disk::Disk;
use crate::guest::{GuestDevice, Places};
use crate::mistake::Place;

impl Config {
    /// Forgets all places in the file, names that ports with a mistake have from their devices, what was found out about compressed
    /// modules, and `[management]` of a guest that was left out.
    #[must_use]
    pub fn written(mut self) -> Self {
        if self.managing().is_none() {
            self.management = None;
        }
        let places = self.modules.iter_mut().map(|module| &mut module.place);
        let places = places.chain(self.management.iter_mut().map(|management| &mut management.place));
        let places = places.chain(self.engines.iter_mut().map(|engine| &mut engine.place));
        let places = places.chain(self.uplinks.iter_mut().map(|uplink| &mut uplink.place));
        places.chain(self.stages.iter_mut().map(|stage| &mut stage.place)).for_each(forget);
        for uplink in &mut self.uplinks {
            // The entry has a mistake, and the name is the address of the device that it does not get.
            if uplink.device.is_none() && !is_name(&uplink.name) {
                uplink.name.clear();
            }
        }
        for guest in &mut self.guests {
            guest.places = Places::default();
            for device in &mut guest.devices {
                match device {
                    GuestDevice::Net(_) => {}
                    GuestDevice::Block(block) => {
                        forget(&mut block.place);
                        block.partition.iter_mut().for_each(|partition| forget(&mut partition.place));
                        if let Disk::Module { unpacked, .. } = &mut block.disk {
                            *unpacked = None;
                        }
                    }
                    GuestDevice::Entropy(entropy) => forget(&mut entropy.place),
                    GuestDevice::Console(console) => forget(&mut console.place),
                }
            }
        }
        self
    }
}

fn forget(place: &mut Place) {
    *place = Place::default();
}
