//! What Linux's 8250 driver does to a UART before it trusts it, and the interrupts it lives by.

use super::*;
use proptest::prelude::*;

fn put(u: &mut Uart, offset: u16, value: u8) -> Line {
    u.write(offset, value, |b| panic!("{b:#x} was transmitted"))
}

fn get(u: &mut Uart, offset: u16) -> u8 {
    u.read(offset).0
}

/// A UART in use: FIFOs on, trigger at 8 bytes, connected to its interrupt line.
fn running(ier: u8) -> Uart {
    let mut u = Uart::new();
    put(&mut u, 2, 0x81);
    put(&mut u, 4, 0x0b);
    put(&mut u, 1, ier);
    u
}

#[test]
fn linux_recognises_a_16550a_with_a_fifo_of_16() {
    let mut u = Uart::new();
    // There is something: IER can be cleared and set, its upper half not.
    put(&mut u, 1, 0);
    assert_eq!(get(&mut u, 1), 0);
    put(&mut u, 1, 0xff);
    assert_eq!(get(&mut u, 1), 0x0f);
    put(&mut u, 1, 0);
    // Loop-back: OUT2 and RTS come back as DCD and CTS.
    put(&mut u, 4, 0x1a);
    assert_eq!(get(&mut u, 6) & 0xf0, 0x90);
    put(&mut u, 4, 0);
    // FIFOs can be switched on.
    put(&mut u, 2, 1);
    assert_eq!(get(&mut u, 2) >> 6, 3);
    // With DLAB set, register 2 is still the IIR and not an EFR (16650), and register 7 the scratch register.
    put(&mut u, 3, 0xbf);
    assert_ne!(get(&mut u, 2), 0);
    put(&mut u, 3, 0xe0);
    assert_eq!(get(&mut u, 2) & 0x10, 0, "not a National part with a bank register");
    put(&mut u, 3, 0);
    // The FIFO's size, by loop-back.
    put(&mut u, 2, 0x07);
    put(&mut u, 4, 0x10);
    put(&mut u, 3, 0x80);
    put(&mut u, 0, 1);
    put(&mut u, 1, 0);
    put(&mut u, 3, 0x03);
    for i in 0..=255 {
        put(&mut u, 0, i);
    }
    assert_ne!(get(&mut u, 5) & 0x02, 0, "overrun");
    let mut count = 0;
    while get(&mut u, 5) & 1 != 0 && count < 256 {
        assert_eq!(get(&mut u, 0), count as u8);
        count += 1;
    }
    assert_eq!(count, 16);
}

#[test]
fn linux_finds_no_fault_in_the_transmit_interrupt() {
    let mut u = running(0);
    assert_eq!(put(&mut u, 1, 2), Line::Rose, "the transmitter is empty");
    assert_eq!(get(&mut u, 2), 0xc2);
    assert_eq!(put(&mut u, 1, 0), Line::Low);
    assert_eq!(put(&mut u, 1, 2), Line::Rose, "and is so again when enabled again");
    assert_eq!(u.read(2), (0xc2, Line::Low), "reading the IIR takes it back");
    assert_eq!(u.read(2), (0xc1, Line::Low));
}

#[test]
fn each_transmitted_byte_raises_an_edge() {
    let mut u = running(2);
    let mut sent = Vec::new();
    for byte in *b"hi" {
        assert_eq!(u.write(0, byte, |b| sent.push(b)), Line::Rose, "it drops while the byte is sent");
    }
    assert_eq!(sent, b"hi");
    assert_eq!(get(&mut u, 5), 0x60);
    assert_eq!(get(&mut u, 2), 0xc2);
    assert_eq!(u.write(0, b'!', |_| {}), Line::Rose);
}

#[test]
fn without_out2_or_enabled_interrupts_the_line_stays_low() {
    let mut u = Uart::new();
    put(&mut u, 1, 0x0f);
    assert_eq!(u.write(0, b'x', |_| {}), Line::Low);
    assert_eq!(u.receive(b'y'), (true, Line::Low));
    assert_eq!(put(&mut u, 4, 8), Line::Rose);
    assert_eq!(put(&mut u, 1, 0), Line::Low);
}

#[test]
fn reception_interrupts_at_once_and_says_whether_the_trigger_was_reached() {
    let mut u = running(1);
    assert_eq!(u.receive(b'0'), (true, Line::Rose));
    assert_eq!(get(&mut u, 2), 0xcc, "time-out: fewer than 8");
    for byte in *b"1234567" {
        assert_eq!(u.receive(byte), (true, Line::High));
    }
    assert_eq!(get(&mut u, 2), 0xc4);
    assert_eq!(u.read(0), (b'0', Line::High));
    assert_eq!(get(&mut u, 2), 0xcc);
    for byte in *b"1234567" {
        assert_eq!(get(&mut u, 5) & 1, 1);
        assert_eq!(get(&mut u, 0), byte);
    }
    assert_eq!(u.read(2), (0xc1, Line::Low));
    assert_eq!(get(&mut u, 5) & 1, 0);
}

#[test]
fn input_waits_for_the_guest_and_is_neither_lost_nor_reordered() {
    let mut u = running(0);
    let accepted: Vec<u8> = (0..=u8::MAX).chain(0..=u8::MAX).take_while(|b| u.receive(*b).0).collect();
    assert_eq!(accepted.len(), 16 + 256);
    let mut seen = Vec::new();
    while get(&mut u, 5) & 1 != 0 {
        seen.push(get(&mut u, 0));
    }
    assert_eq!(seen, accepted);
}

#[test]
fn interrupts_are_identified_by_priority() {
    let mut u = running(0);
    put(&mut u, 4, 0x1b); // loop-back: the modem's lines change, and bytes overrun
    for i in 0..17 {
        put(&mut u, 0, i);
    }
    put(&mut u, 4, 0x0b);
    assert_eq!(put(&mut u, 1, 0x0f), Line::Rose);
    assert_eq!(get(&mut u, 2), 0xc6);
    assert_eq!(get(&mut u, 5), 0x63);
    assert_eq!(get(&mut u, 2), 0xc4);
    put(&mut u, 2, 0x83); // clears the receiver
    assert_eq!(get(&mut u, 2), 0xc2);
    put(&mut u, 4, 0x1b - 1);
    put(&mut u, 4, 0x0b);
    assert_eq!(get(&mut u, 2), 0xc0, "modem status");
    assert_eq!(get(&mut u, 6), 0xb2, "DSR changed");
    assert_eq!(get(&mut u, 2), 0xc1);
    assert_eq!(get(&mut u, 6), 0xb0);
}

#[test]
fn plain_registers_hold_what_is_written() {
    let mut u = Uart::new();
    put(&mut u, 7, 0xa5);
    put(&mut u, 3, 0x83);
    put(&mut u, 0, 0x34);
    put(&mut u, 1, 0x12);
    assert_eq!([get(&mut u, 0), get(&mut u, 1)], [0x34, 0x12]);
    put(&mut u, 3, 0x03);
    assert_eq!((get(&mut u, 0), get(&mut u, 3), get(&mut u, 7)), (0, 3, 0xa5));
    put(&mut u, 5, 0xff);
    put(&mut u, 6, 0xff);
    assert_eq!((get(&mut u, 5), get(&mut u, 6)), (0x60, 0xb0), "read-only");
}

proptest! {
    /// Whatever is done, nothing panics, nothing received is lost outside loop-back and FIFO resets, and the line is
    /// what the IIR says.
    #[test]
    fn hostile_accesses_are_harmless(accesses in proptest::collection::vec((any::<u16>(), any::<u8>(), 0u8..3), 1..300)) {
        let mut u = Uart::new();
        for (offset, value, what) in accesses {
            let line = match what {
                0 => u.write(offset, value, |_| {}),
                1 => u.read(offset).1,
                _ => u.receive(value).1,
            };
            let wanted = u.mcr.contains(Mcr::OUT2) && !u.mcr.contains(Mcr::LOOP) && u.identify() != NO_INTERRUPT;
            prop_assert_eq!(line != Line::Low, wanted);
            prop_assert!(u.received.len() <= 16);
        }
    }
}
