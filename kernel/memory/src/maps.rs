//! Decides what a core of the hypervisor maps. A core maps what its role needs: see [`Layout::base`].
//!
//! Guests' memory is in no core's base map. A core gets a guest's memory by [`Layout::guest`] for as long as it works for
//! that guest.

extern crate alloc;
use crate::tables::{Access, Format, FrameSource, MapError, Tables};
use alloc::vec::Vec;

/// Physical addresses: start and end (exclusive), multiples of 4 KiB.
pub type Range = (u64, u64);

/// What a core is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs the consoles, the guests' lives and the drivers' slow parts. It may also be an engine.
    Control,
    /// It runs an engine.
    Engine,
    /// It runs a vCPU of the guest with this number.
    Guest(usize),
    /// It has nothing to do.
    Idle,
}

/// A run of addresses that is mapped with one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First virtual address.
    pub at: u64,
    /// First physical address.
    pub to: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What is allowed.
    pub access: Access,
}

impl Piece {
    /// Maps a physical range at its own address.
    #[must_use]
    pub const fn identity((start, end): Range, access: Access) -> Self {
        Self { at: start, to: start, bytes: end - start, access }
    }
}

/// A guest's part of the memory.
#[derive(Clone, Debug, Default)]
pub struct GuestLayout {
    /// The guest's memory.
    pub memory: Vec<Range>,
    /// Pages that only the hypervisor's code on the guest's cores needs, and the control core: the vCPUs' pages, the nested
    /// tables.
    pub state: Vec<Range>,
    /// The guest's part of the heap. Engines need it too.
    pub heap: Vec<Range>,
}

/// What there is to map.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The parts of the hypervisor's image that every core maps, in ascending order.
    pub image: Vec<(Range, Access)>,
    /// The part of the image's data that only the control core and engines' cores map. It is between two parts of `image`.
    pub control_image: Range,
    /// All usable memory, in any order. Ranges may overlap, as firmware lists them.
    pub memory: Vec<Range>,
    /// The part of the heap that every core maps.
    pub heap: Vec<Range>,
    /// Registers of devices. No two of them overlap, and none overlaps memory.
    pub devices: Vec<Range>,
    /// The screen's memory. It overlaps nothing else.
    pub screen: Option<Range>,
    /// The guests, by number.
    pub guests: Vec<GuestLayout>,
}

impl Layout {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            image: Vec::new(),
            control_image: (0, 0),
            memory: Vec::new(),
            heap: Vec::new(),
            devices: Vec::new(),
            screen: None,
            guests: Vec::new(),
        }
    }

    /// Returns what a core with this role maps all the time, besides its own stacks:
    ///
    /// - every core: the image without [`control_image`](Self::control_image), and [`heap`](Self::heap);
    /// - the control core: all memory that is not a guest's, all of the image, the registers of devices, and the screen;
    /// - an engine's core: the same without the guests' [`state`](GuestLayout::state) and without the screen;
    /// - a guest's core and an idle core: nothing else.
    ///
    /// No two pieces overlap, and none is memory of a guest. Page 0 is not mapped, so that a null pointer faults.
    #[must_use]
    pub fn base(&self, role: Role) -> Vec<Piece> {
        let control = matches!(role, Role::Control | Role::Engine).then_some((self.control_image, Access::RW));
        let image = self.image.iter().copied().chain(control);
        let image = image.map(|(range, access)| Piece::identity(range, access));
        let mut pieces: Vec<Piece> = image.filter(|piece| piece.bytes != 0).collect();
        let mut holes: Vec<Range> = [(0, 4096)].into();
        if let (Some(&((start, _), _)), Some(&((_, end), _))) = (self.image.first(), self.image.last()) {
            holes.push((start, end));
        }
        holes.extend(self.guests.iter().flat_map(|guest| &guest.memory));
        let memory = match role {
            Role::Control => &self.memory,
            Role::Engine => {
                holes.extend(self.guests.iter().flat_map(|guest| &guest.state));
                &self.memory
            }
            Role::Guest(_) | Role::Idle => &self.heap,
        };
        pieces.extend(without(memory, &holes).into_iter().map(|range| Piece::identity(range, Access::RW)));
        if matches!(role, Role::Control | Role::Engine) {
            pieces.extend(self.devices.iter().map(|&range| Piece::identity(range, Access::DEVICE)));
        }
        if role == Role::Control {
            pieces.extend(self.screen.map(|range| Piece::identity(range, Access::DEVICE)));
        }
        pieces
    }

    /// Returns what a core with this role maps besides while it works for a guest: the guest's memory, and on the guest's
    /// own cores its [`state`](GuestLayout::state) and its part of the heap. Nothing for a guest that a core with this role cannot work for.
    #[must_use]
    pub fn guest(&self, role: Role, number: usize) -> Vec<Piece> {
        let Some(guest) = self.guests.get(number) else { return Vec::new() };
        let ranges = match role {
            Role::Idle => return Vec::new(),
            Role::Guest(own) if own != number => return Vec::new(),
            Role::Guest(_) => [&guest.memory[..], &guest.state, &guest.heap].concat(),
            Role::Control | Role::Engine => guest.memory.clone(),
        };
        // The frames of tables come one after the other. As one range they need fewer entries.
        without(&ranges, &[]).into_iter().map(|range| Piece::identity(range, Access::RW)).collect()
    }
}

/// Makes the hypervisor's own tables from these pieces. `gigabyte_pages`: whether the CPU has pages of 1 GiB.
///
/// # Errors
/// There is no frame for a table, or pieces overlap.
pub fn tables(pieces: &[Piece], gigabyte_pages: bool, frames: &mut impl FrameSource) -> Result<Tables, MapError> {
    let mut tables = Tables::new(Format::Host, gigabyte_pages, frames).map_err(MapError::OutOfMemory)?;
    for piece in pieces {
        tables.map(piece.at, piece.to, piece.bytes, piece.access, frames)?;
    }
    Ok(tables)
}

/// Returns the ranges as whole pages without the `holes`, sorted. Ranges that touch or overlap become one.
fn without(ranges: &[Range], holes: &[Range]) -> Vec<Range> {
    let pages = |&(start, end): &Range| (start & !0xfff, end.next_multiple_of(0x1000));
    let mut sorted: Vec<Range> = ranges.iter().map(pages).filter(|(start, end)| start < end).collect();
    sorted.sort_unstable();
    let mut joined: Vec<Range> = Vec::new();
    for (start, end) in sorted {
        match joined.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    let mut holes: Vec<Range> = holes.iter().map(pages).collect();
    holes.sort_unstable();
    let mut out = Vec::new();
    for (mut start, end) in joined {
        for &(from, to) in holes.iter().filter(|&&(from, to)| from < end && from < to) {
            if start < from {
                out.push((start, from));
            }
            start = start.max(to);
        }
        if start < end {
            out.push((start, end));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::tests::Leaked;
    use proptest::{collection::vec, prelude::*};

    const MIB: u64 = 1 << 20;

    fn layout() -> Layout {
        let guest = |at: u64, bytes: u64, state: u64| GuestLayout {
            memory: vec![(at, at + bytes)],
            state: vec![(state, state + 0x1000), (state + 0x1000, state + 0x3000)],
            heap: vec![(state + 0x8000, state + 0x9000)],
        };
        Layout {
            image: vec![
                ((2 * MIB, 2 * MIB + 0x1000), Access::RW),
                ((2 * MIB + 0x1000, 3 * MIB), Access::RX),
                ((3 * MIB, 3 * MIB), Access::R),
                ((3 * MIB + 0x2000, 3 * MIB + 0x3000), Access::RW),
            ],
            control_image: (3 * MIB, 3 * MIB + 0x2000),
            memory: vec![(MIB, 512 * MIB), (0, 0x9_f000)],
            heap: vec![(4 * MIB, 8 * MIB)],
            devices: vec![(0xb000_0000, 0xc000_0000)],
            screen: Some((0xb_8000, 0xb_9000)),
            guests: vec![guest(448 * MIB, 64 * MIB, 16 * MIB), guest(320 * MIB, 128 * MIB, 17 * MIB)],
        }
    }

    fn maps(pieces: &[Piece], address: u64) -> bool {
        pieces.iter().any(|piece| (piece.at..piece.at + piece.bytes).contains(&address))
    }

    #[test]
    fn each_role_maps_what_it_needs_and_no_guests_memory() {
        let layout = layout();
        let table = [
            // Image, the control core's part of it, everybody's part of the heap, a guest's state, its part of the heap, other
            // memory, a device, the screen, page 0, a guest's memory.
            (Role::Control, [true, true, true, true, true, true, true, true, false, false]),
            (Role::Engine, [true, true, true, false, true, true, true, false, false, false]),
            (Role::Guest(0), [true, false, true, false, false, false, false, false, false, false]),
            (Role::Idle, [true, false, true, false, false, false, false, false, false, false]),
        ];
        for (role, expected) in table {
            let base = layout.base(role);
            let (image, control) = (2 * MIB + 0x1000, 3 * MIB + 0x1000);
            let state = 17 * MIB;
            let at = [image, control, 5 * MIB, state, state + 0x8000, 64 * MIB, 0xb000_0000, 0xb_8000, 8, 448 * MIB];
            assert_eq!(at.map(|at| maps(&base, at)), expected, "{role:?}");
        }
    }

    #[test]
    fn a_guest_core_gets_its_own_guest_and_an_engine_the_memory_of_any() {
        let layout = layout();
        let own = layout.guest(Role::Guest(1), 1);
        assert_eq!(
            own,
            [
                Piece::identity((17 * MIB, 17 * MIB + 0x3000), Access::RW),
                Piece::identity((17 * MIB + 0x8000, 17 * MIB + 0x9000), Access::RW),
                Piece::identity((320 * MIB, 448 * MIB), Access::RW)
            ]
        );
        assert_eq!(layout.guest(Role::Guest(1), 0), []);
        assert_eq!(layout.guest(Role::Idle, 0), []);
        assert_eq!(layout.guest(Role::Engine, 2), [], "there is no such guest");
        for role in [Role::Control, Role::Engine] {
            assert_eq!(layout.guest(role, 0), [Piece::identity((448 * MIB, 512 * MIB), Access::RW)]);
        }
    }

    #[test]
    fn registers_and_framebuffers_above_4_gib_are_mapped_where_they_are() {
        let framebuffer = (0x38_0000_0000, 0x38_0000_0000 + 1920 * 1080 * 4);
        let layout = Layout { devices: vec![framebuffer, (0x90_0000_0000, 0x90_0001_0000)], ..layout() };
        for gigabyte_pages in [false, true] {
            let tables = tables(&layout.base(Role::Control), gigabyte_pages, &mut Leaked).unwrap();
            for at in [framebuffer.0, framebuffer.1 - 1, 0x90_0000_0000, 0x90_0000_ffff] {
                let (to, _, entry) = tables.lookup(at).unwrap();
                assert_eq!(to, at);
                assert_eq!(entry & (1 << 63 | 0x1f), 1 << 63 | 0x1b, "writable, not cached, not executable");
            }
            assert_eq!(tables.lookup(framebuffer.1), None);
        }
    }

    #[test]
    fn ranges_are_joined_and_cut() {
        let ranges = [(0x5000, 0x6fff), (0x1000, 0x3000), (0x2000, 0x5000), (0x9000, 0x9000)];
        assert_eq!(without(&ranges, &[]), [(0x1000, 0x7000)]);
        let holes = [(0x6000, 0x9000), (0, 0x1800), (0x3000, 0x3000), (0x4000, 0x4001)];
        assert_eq!(without(&ranges, &holes), [(0x2000, 0x4000), (0x5000, 0x6000)]);
    }

    /// Up to eight pages in a space of 64, in any place.
    fn ranges() -> impl Strategy<Value = Vec<Range>> {
        vec((0_u64..64, 0_u64..8), 0..6)
            .prop_map(|all| all.into_iter().map(|(start, pages)| (start << 12, (start + pages) << 12)).collect())
    }

    proptest! {
        #[test]
        fn whatever_the_firmware_lists_no_base_map_has_a_guests_memory_and_nothing_is_mapped_twice(
            memory in ranges(),
            heap in ranges(),
            guests in vec((ranges(), ranges(), ranges()), 0..4),
        ) {
            let image = vec![((0x2000, 0x3000), Access::RX), ((0x4000, 0x5000), Access::RW)];
            let control_image = (0x3000, 0x4000);
            let guests: Vec<_> = guests.into_iter().map(|(memory, state, heap)| GuestLayout { memory, state, heap }).collect();
            let layout = Layout { image, control_image, memory, heap, devices: vec![(1 << 30, 2 << 30)], screen: None, guests };
            let within = |ranges: &[Range], page: u64| ranges.iter().any(|&(start, end)| (start..end).contains(&page));
            for role in [Role::Control, Role::Engine, Role::Guest(0), Role::Idle] {
                let base = layout.base(role);
                for page in (0..80_u64).map(|page| page << 12) {
                    let count = base.iter().filter(|piece| (piece.at..piece.at + piece.bytes).contains(&page)).count();
                    let everybodys = matches!(role, Role::Control | Role::Engine) || page != 0x3000;
                    let in_image = (0x2000..0x5000).contains(&page);
                    let guest = layout.guests.iter().any(|guest| within(&guest.memory, page));
                    let state = layout.guests.iter().any(|guest| within(&guest.state, page));
                    let wanted = page != 0 && !guest && match role {
                        Role::Control => within(&layout.memory, page),
                        Role::Engine => within(&layout.memory, page) && !state,
                        Role::Guest(_) | Role::Idle => within(&layout.heap, page),
                    };
                    prop_assert_eq!(count, usize::from(in_image && everybodys || wanted && !in_image), "{:?} at {:#x}", role, page);
                }
            }
        }
    }
}
