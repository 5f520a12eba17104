//! Tables are a head and structures one after another, each of which begins with its type and its length.

/// The structures in `bytes`: type, and all bytes of each. `head` reads type and length of the structure that begins there; `least`: bytes of
/// both together. The structures end where one is cut off or shorter than that. So they end, whatever the lengths are.
pub(crate) fn structures(
    bytes: &[u8],
    least: usize,
    head: impl Fn(&[u8]) -> Option<(u16, usize)>,
) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (kind, len) = head(rest).filter(|&(_, len)| len >= least)?;
        let (structure, behind) = rest.split_at_checked(len)?;
        rest = behind;
        Some((kind, structure))
    })
}

/// The structures of a MADT or an SRAT, from offset `first` on: type and length have a byte each (ACPI 6.5, 5.2.12, 5.2.16).
pub(crate) fn entries(table: &[u8], first: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let head = |bytes: &[u8]| bytes.first_chunk().map(|&[kind, len]| (kind.into(), len.into()));
    structures(table.get(first..).unwrap_or_default(), 2, head)
}
