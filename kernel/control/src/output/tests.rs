use core::iter::once;

use proptest::prelude::*;

use super::*;

type Small = Output<32, 64>;

fn push(output: &mut Small, class: Class, text: &str) -> bool {
    output.push(class, once(text.as_bytes()))
}

/// Pumps into a UART that takes `fifo` bytes once.
fn fifo(output: &mut Small, fifo: usize) -> String {
    let (mut sent, mut left) = (Vec::new(), fifo);
    output.pump(|chunk| {
        let taken = chunk.len().min(left);
        left -= taken;
        sent.extend_from_slice(&chunk[..taken]);
        taken
    });
    String::from_utf8(sent).unwrap()
}

#[test]
fn a_tick_writes_what_the_uart_takes_and_never_more_than_its_budget() {
    let mut output = Small::new(64);
    assert!(push(&mut output, Class::Event, "0123456789abcdefghij\n"));
    output.begin_tick(1000);
    assert_eq!(fifo(&mut output, 16), "0123456789abcdef");
    assert_eq!(fifo(&mut output, 0), "", "a full FIFO is asked once and not waited for");
    output.begin_tick(3);
    assert_eq!(fifo(&mut output, 16), "ghi");
    assert_eq!(fifo(&mut output, 16), "", "the budget is spent");
    output.begin_tick(3);
    assert_eq!(fifo(&mut output, 16), "j\n");
    assert!(output.is_empty());
}

#[test]
fn an_answer_goes_before_what_waits_but_not_into_a_line() {
    let mut output = Small::new(64);
    push(&mut output, Class::Guest, "first\n");
    push(&mut output, Class::Event, "second\n");
    output.begin_tick(100);
    assert_eq!(fifo(&mut output, 2), "fi");
    push(&mut output, Class::Answer, "answer\n");
    assert_eq!(fifo(&mut output, 100), "rst\nanswer\nsecond\n");
}

#[test]
fn a_line_that_never_ends_does_not_hold_answers() {
    let mut output = Small::new(64);
    push(&mut output, Class::Event, "no end");
    output.begin_tick(100);
    assert_eq!(fifo(&mut output, 100), "no end");
    push(&mut output, Class::Answer, "answer\n");
    assert_eq!(fifo(&mut output, 100), "answer\n");
}

#[test]
fn guests_cannot_take_the_room_of_events_and_events_not_that_of_answers() {
    let mut output = Small::new(40);
    assert!(push(&mut output, Class::Guest, &"g".repeat(40)));
    assert!(!push(&mut output, Class::Guest, "g"));
    assert!(push(&mut output, Class::Event, &"e".repeat(24)));
    assert!(!push(&mut output, Class::Event, "e"));
    assert!(push(&mut output, Class::Answer, &"a".repeat(32)));
    assert!(!push(&mut output, Class::Answer, "a"));
    assert_eq!(output.total_loss(), Loss { messages: 3, bytes: 3 });
}

#[test]
fn what_does_not_fit_is_dropped_whole_and_told_once() {
    let mut output = Small::new(64);
    assert_eq!(output.untold(), None);
    assert!(!output.push(Class::Event, ["x".repeat(60), "y".repeat(5)].iter().map(|text| text.as_bytes())));
    assert!(output.is_empty());
    assert_eq!(output.untold(), Some(Loss { messages: 1, bytes: 65 }));
    output.told();
    assert_eq!((output.untold(), output.total_loss()), (None, Loss { messages: 1, bytes: 65 }));
}

#[test]
fn a_uart_that_takes_nothing_for_a_while_is_stalled_until_it_takes_a_byte() {
    let mut output = Small::new(64);
    let wait = |output: &mut Small, ticks| (0..ticks).for_each(|_| output.begin_tick(100));
    wait(&mut output, 1000);
    assert!(!output.is_stalled(), "nothing waits");
    push(&mut output, Class::Event, "abc\n");
    wait(&mut output, STALL_TICKS - 1);
    assert!(!output.is_stalled());
    wait(&mut output, 1);
    assert!(output.is_stalled());
    assert_eq!(fifo(&mut output, 1), "a");
    assert!(!output.is_stalled());
}

proptest! {
    /// Whatever is pushed and however the UART takes it: each message that was accepted arrives once and whole, messages of
    /// a queue keep their order, and the others are counted.
    #[test]
    fn accepted_messages_arrive_whole_and_the_others_are_counted(
        steps in proptest::collection::vec((0..4_usize, 1..20_usize, 0..20_usize), 0..200),
    ) {
        let mut output = Small::new(40);
        let (mut sent, mut accepted, mut lost) = (String::new(), [Vec::new(), Vec::new()], 0);
        for (number, (what, length, takes)) in steps.into_iter().enumerate() {
            let class = [Class::Answer, Class::Event, Class::Guest].get(what).copied();
            if let Some(class) = class {
                let text = format!("{number}{}\n", "x".repeat(length));
                if push(&mut output, class, &text) {
                    accepted[usize::from(class != Class::Answer)].push(text);
                } else {
                    lost += 1;
                }
            }
            output.begin_tick(takes.max(1));
            sent += &fifo(&mut output, takes);
        }
        while !output.is_empty() {
            output.begin_tick(7);
            sent += &fifo(&mut output, 5);
        }
        prop_assert_eq!(output.total_loss().messages, lost);
        let arrived: Vec<String> = sent.split_inclusive('\n').map(String::from).collect();
        prop_assert_eq!(arrived.len(), accepted[0].len() + accepted[1].len());
        for queue in accepted {
            let of_queue: Vec<String> = arrived.iter().filter(|line| queue.contains(line)).cloned().collect();
            prop_assert_eq!(of_queue, queue);
        }
    }
}

#[test]
fn a_printed_line_that_does_not_fit_is_dropped_whole() {
    let mut output = Small::new(64);
    output.print(format_args!("{}{}\n{}\nshort\n", "one ", "line", "x".repeat(60)));
    assert_eq!(output.total_loss(), Loss { messages: 1, bytes: 62 });
    output.print(format_args!("{}", "y".repeat(64)));
    output.print(format_args!("no end"));
    assert_eq!(output.total_loss(), Loss { messages: 2, bytes: 62 + 64 });
    output.begin_tick(100);
    assert_eq!(fifo(&mut output, 100), "one line\r\nshort\r\nno end");
}
