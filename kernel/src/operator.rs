//! The control core after boot. Once per tick it serves the shell on COM1, the JSON lines on COM2 and the guests' life
//! cycles.
//!
//! Nothing here is urgent, and nothing here may block. A later tick checks what takes time, for example a guest that
//! does not react to its power button.

use crate::{
    arch::{idle, time, timer},
    console,
    cores::Core,
    disks, emulator, engines,
    guests::Guests,
    options, pci, power, report,
};
use alloc::{format, string::String, vec::Vec};
use control::{Action, Command, Event, LineReader, Request, Shell, View, table};
use core::{fmt::Write, sync::atomic::Ordering};
use lifecycle::Refused;

/// Microseconds between two ticks.
const TICK: u64 = 1_000;
/// Most bytes that are read from each port in a tick. A UART of 115,200 baud receives 12 in this time; an emulated one may
/// have any number. The rest waits in the UART, which loses and counts what does not fit.
const INPUT_BYTES: usize = 256;
/// Most commands of each port that are carried out in a tick.
const COMMANDS: usize = 4;

/// The operator's side of the machine.
pub struct Operator {
    shell: Shell,
    lines: LineReader,
    guests: Guests,
    /// What to do once all guests are down.
    ending: Option<Ending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Reboot,
}

impl Operator {
    /// Makes the operator's side for these guests.
    pub fn new(guests: Guests) -> Self {
        Self { shell: Shell::new(), lines: LineReader::new(), guests, ending: None }
    }

    /// Runs until the machine is switched off. Between ticks the core halts. If an engine shares this core, the core
    /// runs its turns instead.
    pub fn run(mut self, core: &'static Core) -> ! {
        console::stop_waiting();
        self.guests.start_all();
        options::self_test();
        self.reply_prompt();
        let mut next = time::tsc();
        loop {
            if time::tsc() >= next {
                next = time::tsc() + time::micros(TICK);
                self.tick();
            }
            if !engines::turn() {
                timer::arm(next);
                idle::wait(&core.kick);
                core.kick.store(false, Ordering::SeqCst);
            }
        }
    }

    fn tick(&mut self) {
        console::tick();
        let mut commands = 0;
        for _ in 0..INPUT_BYTES {
            let Some(byte) = console::read() else { break };
            commands += usize::from(self.typed(byte));
            if commands == COMMANDS {
                break;
            }
        }
        let mut commands = 0;
        for _ in 0..INPUT_BYTES {
            let Some(byte) = console::receive() else { break };
            match self.lines.push(byte) {
                Some(Ok(line)) => self.received(&line),
                Some(Err(error)) => reply(None, Err(format!("{error}"))),
                None => continue,
            }
            commands += 1;
            if commands == COMMANDS {
                break;
            }
        }
        disks::service();
        engines::service();
        self.guests.poll(self.shell.attached());
        console::pump();
        if self.guests.wants_end() && self.ending.is_none() {
            self.end("all guests have stopped");
        }
        if let Some(ending) = self.ending
            && self.guests.all_over()
        {
            match ending {
                Ending::Shutdown => self.end("shutdown"),
                Ending::Reboot => self.end("reboot"),
            }
        }
    }

    /// Takes a typed byte. Returns whether it was the end of a command.
    fn typed(&mut self, byte: u8) -> bool {
        let mut out = String::new();
        let action = self.shell.feed(byte, &mut out).unwrap_or(Action::None);
        console::print_bytes(out.as_bytes());
        match action {
            Action::None => {}
            Action::ToGuest(guest, byte) => {
                let _ = self.guests.input(&guest, &[byte]);
            }
            Action::Left(_) => console::QUIET.store(false, Ordering::Relaxed),
            Action::Run(command) => {
                self.carry_out_for_person(command);
                self.reply_prompt();
                return true;
            }
        }
        false
    }

    fn reply_prompt(&self) {
        let mut out = String::new();
        let _ = self.shell.prompt(&mut out);
        console::print_bytes(out.as_bytes());
    }

    fn carry_out_for_person(&mut self, command: Command) {
        let mut out = String::new();
        let _ = match command {
            Command::List => table::list(&self.guests.list(), &mut out),
            Command::Show(view) => table::show(view, &self.guests.counters(None), &mut out),
            Command::Report => {
                report::show();
                Ok(())
            }
            Command::Version => writeln!(out, "sidecore {}", env!("CARGO_PKG_VERSION")),
            Command::Attach { guest, raw } => match self.guests.find(&guest) {
                Ok(_) => {
                    console::QUIET.store(true, Ordering::Relaxed);
                    let attached = self.shell.attach(guest.clone(), &mut out);
                    console::print_bytes(out.as_bytes());
                    out.clear();
                    console::attach(raw);
                    self.guests.backlog(&guest).for_each(console::print_backlog);
                    attached
                }
                Err(e) => writeln!(out, "{e}"),
            },
            other => match self.carry_out(other) {
                Ok(()) => Ok(()),
                Err(e) => writeln!(out, "{e}"),
            },
        };
        console::print(format_args!("{out}"));
    }

    /// Carries out a command that is the same on COM1 and COM2.
    fn carry_out(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Start(g) | Command::Restart(g) if self.ending.is_some() => Err(Refused::ShuttingDown.explain(&g)),
            Command::Start(g) => self.guests.start(&g),
            Command::Stop(g) => self.guests.stop(&g),
            Command::Kill(g) => self.guests.kill(&g),
            Command::Restart(g) => self.guests.restart(&g),
            Command::Input { guest, text } => self.guests.input(&guest, text.as_bytes()),
            Command::Port { guest, port, open } => self.guests.open_port(&guest, &port, open),
            Command::PortInput { guest, port, text } => {
                // A character is a byte, so that any byte can be sent.
                let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
                let bytes = bytes.map_err(|_| "`text` for a port has characters up to U+00FF, one for each byte")?;
                self.guests.port_input(&guest, &port, &bytes)
            }
            Command::Shutdown => self.begin(Ending::Shutdown),
            Command::Reboot => self.begin(Ending::Reboot),
            Command::Help
            | Command::List
            | Command::Attach { .. }
            | Command::Show(_)
            | Command::Report
            | Command::Version => Ok(()),
            Command::Watch(on) => {
                engines::all().iter().for_each(|engine| engine.watch(on));
                Ok(())
            }
        }
    }

    fn begin(&mut self, ending: Ending) -> Result<(), String> {
        options::self_test_at_shutdown();
        self.ending = Some(ending);
        self.guests.shut_down();
        Ok(())
    }

    fn received(&mut self, line: &str) {
        #[cfg(feature = "read-memory")]
        if crate::read_memory::received(line) {
            return;
        }
        let request = match Request::from_line(line) {
            Ok(r) => r,
            Err(refused) => return reply(refused.id, Err(refused.error)),
        };
        let id = request.id;
        match request.command {
            Command::Show(View::Counters) => {
                console::answer(&Event::Counters(self.guests.counters(id)), id);
            }
            Command::List => {
                let guests = Some(self.guests.list());
                console::answer(&Event::Reply { id, ok: true, error: None, guests, version: None }, id);
            }
            Command::Version => {
                let version = Some(env!("CARGO_PKG_VERSION").into());
                console::answer(&Event::Reply { id, ok: true, error: None, guests: None, version }, id);
            }
            Command::Report => {
                report::answer();
                reply(id, Ok(()));
            }
            other => {
                let result = self.carry_out(other);
                reply(id, result);
            }
        }
    }

    /// Sends the last counters, shuts the disks down, clears bus mastering, and switches the machine off or resets it. If the machine cannot
    /// be switched off, the core halts.
    fn end(&mut self, reason: &'static str) -> ! {
        console::wait_again();
        console::drain();
        self.guests.finish_output();
        console::send_event(&Event::Counters(self.guests.counters(None)));
        console::flush();
        console::send_event(&Event::End { reason: reason.into() });
        console::print(format_args!("\nsidecore ends: {reason}\n"));
        disks::shut_down(|| _ = engines::turn());
        pci::clear_bus_masters(false);
        emulator::leave_emulator(true);
        if self.ending == Some(Ending::Reboot) {
            power::reset();
        }
        console::flush();
        power::switch_off();
        console::print(format_args!("it is now safe to switch the machine off\n"));
        loop {
            x86_64::instructions::interrupts::disable();
            x86_64::instructions::hlt();
        }
    }
}

fn reply(id: Option<u64>, result: Result<(), String>) {
    let (ok, error) = match result {
        Ok(()) => (true, None),
        Err(e) => (false, Some(e)),
    };
    console::answer(&Event::Reply { id, ok, error, guests: None, version: None }, id);
}
