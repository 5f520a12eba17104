//! Shares of the last-level cache and of memory bandwidth: Intel's CAT and MBA (SDM vol. 3B, "Intel Resource Director
//! Technology Allocation Features"), and AMD's cache allocation, which has the same registers (APM vol. 2, "Platform Quality of
//! Service Extension").
//!
//! A core belongs to a class of service. Each class has a mask of the cache's ways that it may fill, and a throttle. Class 0 is for
//! everything without a share.

use heapless::Vec;

/// Most classes that are used, with class 0.
pub const MAX_CLASSES: usize = 16;

/// Least ways of a class. Some CPUs refuse a mask of one.
const LEAST_WAYS: u32 = 2;

/// IA32_PQR_ASSOC: the class of a core is in the upper half.
const ASSOCIATION: u32 = 0xc8f;
/// IA32_L3_QOS_MASK_0. The other classes follow.
const MASKS: u32 = 0xc90;
/// IA32_L2_QOS_EXT_BW_THRTL_0. The other classes follow.
const THROTTLES: u32 = 0xd50;

/// What a guest or an engine is to have, in percent. `None`: as everything without a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Of the ways of the last-level cache, for it alone: 1 to 90.
    pub cache: Option<u8>,
    /// Of the memory bandwidth, at most: 10 to 100.
    pub bandwidth: Option<u8>,
}

impl Share {
    /// Whether it is more than nothing.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        self != Self::default()
    }
}

/// What the CPU can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Ways of the last-level cache that masks name. 0 if there are no masks.
    pub ways: u32,
    /// Classes of the cache.
    pub cache_classes: u32,
    /// Largest throttle in percent. 0 if there are none, or if they are not linear.
    pub most_throttle: u32,
    /// Classes of the bandwidth.
    pub bandwidth_classes: u32,
}

impl Allocation {
    /// Reads CPUID leaf 0x10. `cpuid` returns EAX, EBX, ECX and EDX of a leaf and sub-leaf.
    pub fn from_cpuid(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Self {
        const LEAF: u32 = 0x10;
        let mut found = Self::default();
        if cpuid(0, 0)[0] < LEAF {
            return found;
        }
        let [_, resources, ..] = cpuid(LEAF, 0);
        if resources & 1 << 1 != 0 {
            let [length, _, _, classes] = cpuid(LEAF, 1);
            found.ways = (length & 0x1f).saturating_add(1);
            found.cache_classes = (classes & 0xffff).saturating_add(1);
        }
        if resources & 1 << 3 != 0 {
            let [most, _, linear, classes] = cpuid(LEAF, 3);
            if linear & 1 << 2 != 0 {
                found.most_throttle = (most & 0xfff).saturating_add(1);
                found.bandwidth_classes = (classes & 0xffff).saturating_add(1);
            }
        }
        found
    }

    /// Divides cache and bandwidth. Share number `n` gets class `n + 1`.
    ///
    /// # Errors
    /// It cannot be done: see [`Impossible`].
    pub fn divide(&self, shares: &[Share]) -> Result<Classes, Impossible> {
        let count = (shares.len() as u32).saturating_add(1);
        let (cache, bandwidth) =
            (shares.iter().any(|share| share.cache.is_some()), shares.iter().any(|share| share.bandwidth.is_some()));
        let most = [(cache, self.cache_classes), (bandwidth, self.bandwidth_classes)];
        let most = most.iter().filter(|(wanted, _)| *wanted).map(|(_, classes)| *classes).min().unwrap_or(u32::MAX);
        if cache && self.ways == 0 {
            return Err(Impossible::NoCache);
        }
        if bandwidth && self.most_throttle == 0 {
            return Err(Impossible::NoBandwidth);
        }
        if count > most.min(MAX_CLASSES as u32) {
            return Err(Impossible::Classes { wanted: count, available: most.min(MAX_CLASSES as u32) });
        }
        let ways_of = |percent: u8| (self.ways.saturating_mul(percent.into()) / 100).max(LEAST_WAYS);
        let taken: u32 = shares.iter().filter_map(|share| share.cache).map(ways_of).sum();
        if cache && taken.saturating_add(LEAST_WAYS) > self.ways {
            return Err(Impossible::Ways { wanted: taken, ways: self.ways });
        }
        // From the top downwards. Class 0 has what is left at the bottom, and so has a share without ways of its own.
        let (mut top, mut masks, mut throttles) = (self.ways, Vec::new(), Vec::new());
        let rest = contiguous(0, self.ways.saturating_sub(taken));
        let throttle = |percent: u8| u64::from(100_u8.saturating_sub(percent)).min(u64::from(self.most_throttle));
        // `count` is at most `MAX_CLASSES`, so there is room.
        let _ = (masks.push(rest), throttles.push(0));
        for share in shares {
            let mask = share.cache.map_or(rest, |percent| {
                top = top.saturating_sub(ways_of(percent));
                contiguous(top, ways_of(percent))
            });
            let _ = (masks.push(mask), throttles.push(share.bandwidth.map_or(0, throttle)));
        }
        if !cache {
            masks.clear();
        }
        if !bandwidth {
            throttles.clear();
        }
        Ok(Classes { masks, throttles })
    }
}

/// `count` ones from bit `from` on. `count` is below 64.
fn contiguous(from: u32, count: u32) -> u64 {
    (1_u64 << count).saturating_sub(1) << from
}

/// Why shares cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// The CPU does not divide its cache.
    NoCache,
    /// The CPU does not divide its bandwidth, or not by percent.
    NoBandwidth,
    /// More classes than the CPU has.
    Classes {
        /// Classes for the shares, and one for the rest.
        wanted: u32,
        /// Classes that there are.
        available: u32,
    },
    /// More ways than the cache has. Two stay for everything without a share.
    Ways {
        /// Ways of the shares.
        wanted: u32,
        /// Ways that there are.
        ways: u32,
    },
}

impl core::fmt::Display for Impossible {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NoCache => f.write_str("the CPU does not divide its cache (no CAT)"),
            Self::NoBandwidth => f.write_str("the CPU does not divide its memory bandwidth by percent (no MBA)"),
            Self::Classes { wanted, available } => {
                write!(f, "they need {wanted} classes of service, and the CPU has {available}")
            }
            Self::Ways { wanted, ways } => write!(
                f,
                "they take {wanted} of the cache's {ways} ways, and {LEAST_WAYS} have to stay for everything else"
            ),
        }
    }
}

/// The classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Mask of ways of each class. Empty if the cache is not divided.
    masks: Vec<u64, MAX_CLASSES>,
    /// Throttle of each class in percent. Empty if the bandwidth is not divided.
    throttles: Vec<u64, MAX_CLASSES>,
}

impl Classes {
    /// The MSRs that a core writes when it joins `class`, in this order: first all that describes the classes, because the
    /// registers belong to a package and the core may be the first of its package; then the core's class.
    pub fn writes(&self, class: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let of =
            |first: u32, values: &'_ [u64]| (first..).zip(values.iter().copied().collect::<Vec<u64, MAX_CLASSES>>());
        let join = (ASSOCIATION, (class as u64) << 32);
        of(MASKS, &self.masks).chain(of(THROTTLES, &self.throttles)).chain([join])
    }

    /// Ways that a class may fill. `None` if the cache is not divided.
    #[must_use]
    pub fn ways(&self, class: usize) -> Option<u32> {
        self.masks.get(class).map(|mask| mask.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaf 0x10 of CPUs. Cache: ways, classes. Bandwidth: largest throttle, classes, linear.
    fn cpu(cache: Option<(u32, u32)>, bandwidth: Option<(u32, u32, bool)>) -> Allocation {
        Allocation::from_cpuid(|leaf, subleaf| match (leaf, subleaf, cache, bandwidth) {
            (0, ..) => [0x16, 0, 0, 0],
            (0x10, 0, ..) => [0, u32::from(cache.is_some()) << 1 | u32::from(bandwidth.is_some()) << 3, 0, 0],
            (0x10, 1, Some((ways, classes)), _) => [ways - 1, 0xc00, 4, classes - 1],
            (0x10, 3, _, Some((most, classes, linear))) => [most - 1, 0, u32::from(linear) << 2, classes - 1],
            _ => [0; 4],
        })
    }

    fn cache(percent: u8) -> Share {
        Share { cache: Some(percent), bandwidth: None }
    }

    #[test]
    fn cpus_say_what_they_can() {
        let cpus = [
            ("Xeon E5 v4 (Broadwell): cache only", cpu(Some((20, 16)), None), (20, 16, 0)),
            ("Xeon Scalable (Skylake): both", cpu(Some((11, 16)), Some((90, 8, true))), (11, 16, 90)),
            ("Xeon Scalable 3 (Ice Lake)", cpu(Some((12, 15)), Some((90, 15, true))), (12, 15, 90)),
            ("EPYC (Zen 3): this leaf has the cache alone", cpu(Some((16, 16)), None), (16, 16, 0)),
            ("a throttle that is not linear is not used", cpu(None, Some((90, 8, false))), (0, 0, 0)),
            ("a desktop CPU without either", cpu(None, None), (0, 0, 0)),
        ];
        for (name, found, expected) in cpus {
            assert_eq!((found.ways, found.cache_classes, found.most_throttle), expected, "{name}");
        }
        assert_eq!(
            Allocation::from_cpuid(|leaf, _| if leaf == 0 { [0xd, 0, 0, 0] } else { [!0; 4] }),
            Allocation::default()
        );
    }

    /// Leaf 0x10 of processors, from dumps of CPUID that people have published: the sub-leaves 0, 1 and 3. `None`: the dump has no such
    /// leaf. What follows: ways, classes of the cache, the largest throttle, and the masks of what is left and of a share of 25 percent.
    struct Cpu {
        name: &'static str,
        leaf_10: Option<[[u32; 4]; 2]>,
        bandwidth: Option<[u32; 4]>,
        expected: (u32, u32, u32),
        masks: Option<(u64, u64)>,
    }

    const fn cpu_of(name: &'static str, resources: u32, cache: [u32; 4], expected: (u32, u32, u32)) -> Cpu {
        Cpu { name, leaf_10: Some([[0, resources, 0, 0], cache]), bandwidth: None, expected, masks: None }
    }

    const CPUS: &[Cpu] = &[
        Cpu { name: "Xeon E5-2630 v3 (Haswell)", leaf_10: None, bandwidth: None, expected: (0, 0, 0), masks: None },
        Cpu {
            masks: Some((0x7fff, 0xf8000)),
            ..cpu_of("Xeon E5-2620 v4 (Broadwell)", 2, [0x13, 0xc_0000, 4, 0xf], (20, 16, 0))
        },
        Cpu {
            bandwidth: Some([0x59, 0, 4, 7]),
            masks: Some((0x1ff, 0x600)),
            ..cpu_of("a Xeon of signature 0x50654 (Skylake)", 0xa, [0xa, 0x600, 4, 0xf], (11, 16, 90))
        },
        Cpu {
            masks: Some((0x1ff, 0x600)),
            ..cpu_of("Xeon Platinum 8160 (Skylake)", 0xa, [0xa, 0x600, 4, 0xf], (11, 16, 0))
        },
        Cpu {
            masks: Some((0x1ff, 0x600)),
            ..cpu_of("Xeon Gold 5215 (Cascade Lake)", 0xa, [0xa, 0x600, 4, 0xf], (11, 16, 0))
        },
        Cpu {
            masks: Some((0x1ff, 0xe00)),
            ..cpu_of("Xeon Platinum 8351N (Ice Lake)", 0xa, [0xb, 0xc00, 0, 0xe], (12, 15, 0))
        },
        Cpu {
            masks: Some((0xfff, 0x7000)),
            ..cpu_of("Xeon w7-2475X (Sapphire Rapids)", 0xe, [0xe, 0x6000, 4, 0xe], (15, 15, 0))
        },
        Cpu {
            masks: Some((0xfff, 0xf000)),
            ..cpu_of("Xeon 658X (Granite Rapids)", 0xe, [0xf, 0xc000, 0xe, 0xe], (16, 15, 0))
        },
        Cpu { masks: Some((0xfff, 0xf000)), ..cpu_of("EPYC 7742 (Zen 2)", 2, [0xf, 0, 4, 0xf], (16, 16, 0)) },
        Cpu { masks: Some((0xfff, 0xf000)), ..cpu_of("EPYC 7713 (Zen 3)", 2, [0xf, 0, 4, 0xf], (16, 16, 0)) },
        Cpu { masks: Some((0xfff, 0xf000)), ..cpu_of("EPYC 9654 (Zen 4)", 2, [0xf, 0, 4, 0xf], (16, 16, 0)) },
        Cpu { masks: Some((0xfff, 0xf000)), ..cpu_of("EPYC 9655 (Zen 5)", 2, [0xf, 0, 4, 0xf], (16, 16, 0)) },
        // Ways of the second-level cache only, which are not used.
        cpu_of("Core i9-12900K", 4, [0; 4], (0, 0, 0)),
    ];

    #[test]
    fn twelve_real_cpus_get_the_masks_that_they_take() {
        for Cpu { name, leaf_10, bandwidth, expected, masks } in CPUS {
            let found = Allocation::from_cpuid(|leaf, subleaf| match (leaf, subleaf, leaf_10) {
                (0, ..) => [if leaf_10.is_some() { 0x1f } else { 0xf }, 0, 0, 0],
                (0x10, 0, Some([resources, _])) => *resources,
                (0x10, 1, Some([_, cache])) => *cache,
                (0x10, 3, _) => bandwidth.unwrap_or_default(),
                (leaf, subleaf, _) => panic!("{name} was asked for leaf {leaf:#x}, {subleaf}"),
            });
            assert_eq!((found.ways, found.cache_classes, found.most_throttle), *expected, "{name}");
            let share = Share { cache: Some(25), bandwidth: bandwidth.map(|_| 30) };
            let classes = found.divide(&[share]);
            let Some((rest, top)) = masks else {
                assert_eq!(classes, Err(Impossible::NoCache), "{name}");
                continue;
            };
            let mut wanted = std::vec![(0xc90, *rest), (0xc91, *top)];
            wanted.extend(bandwidth.iter().flat_map(|_| [(0xd50, 0), (0xd51, 70)]));
            wanted.push((0xc8f, 1 << 32));
            assert_eq!(classes.unwrap().writes(1).collect::<std::vec::Vec<_>>(), wanted, "{name}");
        }
    }

    #[test]
    fn shares_have_their_own_ways_and_the_rest_has_what_is_left() {
        let classes = cpu(Some((20, 16)), None).divide(&[cache(25), cache(10), Share::default()]).unwrap();
        let writes: std::vec::Vec<_> = classes.writes(2).collect();
        assert_eq!(
            writes,
            [(0xc90, 0x01fff), (0xc91, 0xf8000), (0xc92, 0x06000), (0xc93, 0x01fff), (0xc8f, 2 << 32)],
            "masks first, then the core's class; no throttle"
        );
        assert_eq!([0, 1, 2].map(|class| classes.ways(class)), [Some(13), Some(5), Some(2)]);
    }

    #[test]
    fn bandwidth_is_throttled_by_what_is_missing_to_a_hundred() {
        let both = Share { cache: Some(20), bandwidth: Some(30) };
        let slowest = Share { cache: None, bandwidth: Some(1) };
        let classes = cpu(Some((11, 16)), Some((90, 8, true))).divide(&[both, slowest]).unwrap();
        let writes: std::vec::Vec<_> = classes.writes(1).collect();
        assert_eq!(
            writes,
            [(0xc90, 0x1ff), (0xc91, 0x600), (0xc92, 0x1ff), (0xd50, 0), (0xd51, 70), (0xd52, 90), (0xc8f, 1 << 32)]
        );
    }

    #[test]
    fn what_cannot_be_divided_is_refused_with_the_reason() {
        let skylake = cpu(Some((11, 4)), None);
        assert_eq!(cpu(None, None).divide(&[cache(10)]), Err(Impossible::NoCache));
        assert_eq!(skylake.divide(&[Share { cache: None, bandwidth: Some(50) }]), Err(Impossible::NoBandwidth));
        assert_eq!(skylake.divide(&[cache(10); 4]), Err(Impossible::Classes { wanted: 5, available: 4 }));
        assert_eq!(skylake.divide(&[cache(50), cache(40)]), Ok(skylake.divide(&[cache(50), cache(40)]).unwrap()));
        assert_eq!(skylake.divide(&[cache(50), cache(50)]), Err(Impossible::Ways { wanted: 10, ways: 11 }));
        assert_eq!(cpu(None, None).divide(&[]), Ok(Classes::default()), "nothing was asked for");
    }

    #[test]
    fn no_leaf_and_no_shares_make_it_panic() {
        for pattern in [0, 1, 0x10, 0x1f, 0xffff, u32::MAX] {
            let found = Allocation::from_cpuid(|_, _| [pattern; 4]);
            for percent in [0, 1, 50, 90, 100, 255] {
                for count in [0, 1, 2, 15, 16, 40] {
                    let _ = found.divide(&std::vec![Share { cache: Some(percent), bandwidth: Some(percent) }; count]);
                }
            }
        }
    }
}
