//! A guest that leaves rings behind, as firmware does, and fills their pages with noise.

use anyhow::Result;
use control::Command;

use crate::boot::{Boot, alone};
use crate::guests::{module_name, with_config};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::number;
use crate::setup::{Content, Module};

/// MiB of each guest.
const MEMORY_MIB: u32 = 64;
/// The guests: a name, the key of their kernel, and its module.
const GUESTS: [(&str, &str, Content); 2] =
    [("firmware", "firmware", Content::ProbeFirmware), ("kernel", "kernel", Content::Probe)];

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "a guest started as firmware leaves its rings of a network device and a disk behind: nothing of the noise in \
                 their pages is read as a request, nothing is written, and both work after a reset; one started as a kernel \
                 is polled, and breaks both off";
    vec![alone(Scenario::new("firmware-noise", about, QEMU), noise)]
}

fn noise(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let entry = |(name, key, content): &(&str, &str, Content)| {
        format!(
            "[[guest]]\nname = \"{name}\"\nmemory = \"{MEMORY_MIB}M\"\n{key} = \"{}\"\ncmdline = \"do=noise\"\nrequests = \"poll\"\n\
             autostart = false\n\n[[guest.net]]\n\n[[guest.block]]\ndisk = \"ram\"\nsize = \"1M\"\n\n",
            module_name(content)
        )
    };
    let config: String = GUESTS.iter().map(entry).collect();
    let mut setup = with_config("firmware-noise", &config, 4, 2 * (MEMORY_MIB + 1) + 160);
    setup.modules.extend(GUESTS.map(|(_, _, content)| Module::new(module_name(&content), content)));
    let mut session = context.boot(&setup)?;
    for (name, _, content) in GUESTS {
        session.ask(Command::Start(name.to_owned()), seconds(20))?;
        let said = session.result(name, "noise", seconds(120))?;
        let (changed, resets) = (number(&said, "changed")?, number(&said, "resets")?);
        let figures = &mut context.figures;
        figures.exactly(&format!("{name}: disks that were read after a reset"), u64::from(said["read"] == true), 1)?;
        if content == Content::ProbeFirmware {
            figures.exactly(&format!("{name}: bytes of the noise that were changed"), changed, 0)?;
            figures.exactly(&format!("{name}: devices that took the noise for requests"), resets, 0)?;
        } else {
            // Otherwise the noise proves nothing.
            figures.exactly(&format!("{name}: devices that took the noise for requests"), resets, 2)?;
        }
    }
    session.shut_down().map(drop)
}
