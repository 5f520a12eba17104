//! The control core after boot. Once per tick it serves the shell on COM1, the JSON lines on COM2 and the guests' life
//! cycles.
//!
//! Nothing here is urgent, and nothing here may block. A later tick checks what takes time, for example a guest that
//! does not react to its power button.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::{
    arch::{idle, time, timer},
    console,
    cores::{self, Core},
    disks, emulator, engines,
    guests::Guests,
    options, pci, power, report,
    trace::Reader,
};
use alloc::vec::Vec;
use control::{
    Action, Caller, Command, Event, LineReader, NoMemory, Permissions, Request, Shell, Text, TraceStep, View, Way,
    sentence, table,
};
use core::{fmt, sync::atomic::Ordering};
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
    trace: Reader,
    /// Whoever is at the other end of COM1.
    person: Caller,
    /// Whoever is at the other end of COM2.
    script: Caller,
    /// What to do once all guests are down.
    ending: Option<Ending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Reboot,
}

impl Operator {
    /// Makes the operator's side for these guests. `com2`: what may be asked on COM2.
    pub fn new(guests: Guests, com2: Permissions, trace: Reader) -> Self {
        let person = Caller::cable(Way::Com1, Permissions::all());
        let script = Caller::cable(Way::Com2, com2);
        Self { shell: Shell::new(), lines: LineReader::new(), guests, trace, person, script, ending: None }
    }

    /// Runs until the machine is switched off. Between ticks the core halts. If an engine shares this core, the core
    /// runs its turns instead.
    pub fn run(mut self, core: &'static Core) -> ! {
        console::stop_waiting();
        core.works();
        self.guests.start_all();
        options::self_test();
        self.reply_prompt();
        let mut next = time::tsc();
        loop {
            if time::tsc() >= next {
                next = time::tsc().saturating_add(time::micros(TICK));
                core.works();
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
        let mut commands = 0_usize;
        for _ in 0..INPUT_BYTES {
            let Some(byte) = console::read() else { break };
            commands = usize::from(self.typed(byte)).saturating_add(commands);
            if commands == COMMANDS {
                break;
            }
        }
        let mut commands = 0_usize;
        for _ in 0..INPUT_BYTES {
            let Some(byte) = console::receive() else { break };
            match self.lines.push(byte) {
                Some(Ok(line)) => self.received(&line),
                Some(Err(error)) => reply(None, Err(sentence(error))),
                None => continue,
            }
            commands = commands.saturating_add(1);
            if commands == COMMANDS {
                break;
            }
        }
        disks::service();
        engines::service();
        self.guests.poll(self.shell.attached());
        self.trace.tick();
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
        match self.shell.feed(byte, &mut console::Com1).unwrap_or(Action::None) {
            Action::None => {}
            Action::ToGuest(byte) => {
                if let Some(guest) = self.shell.attached() {
                    let _ = self.guests.input(guest, &[byte]);
                }
            }
            Action::Left => console::QUIET.store(false, Ordering::Relaxed),
            Action::Run(command) => {
                self.carry_out_for_person(command);
                self.reply_prompt();
                return true;
            }
        }
        false
    }

    fn reply_prompt(&self) {
        let _ = self.shell.prompt(&mut console::Com1);
    }

    fn carry_out_for_person(&mut self, command: Command) {
        if let Err(why) = self.show_to_person(command) {
            console::print(format_args!("{why}\n"));
        }
    }

    fn show_to_person(&mut self, command: Command) -> Result<(), Text> {
        command.check(&self.person)?;
        match command {
            Command::List => {
                let guests = self.guests.list()?;
                console::print(format_args!("{}", fmt::from_fn(|f| table::list(&guests, f))));
            }
            Command::Show(view) => {
                let counters = self.guests.counters(None)?;
                console::print(format_args!("{}", fmt::from_fn(|f| table::show(view, &counters, f))));
            }
            Command::Trace { step: TraceStep::Show, .. } => {
                let state = self.trace.state(None)?;
                console::print(format_args!("{}", fmt::from_fn(|f| ::control::trace::show(&state, f))));
            }
            Command::Trace { step: TraceStep::Save, .. } => {
                return Err("records are sent on COM2: ask there, or use `sidecore-trace record`".into());
            }
            Command::Report => report::show(),
            Command::Version => console::print(format_args!("sidecore {}\n", env!("CARGO_PKG_VERSION"))),
            Command::Attach { guest, raw } => {
                self.guests.find(&guest)?;
                console::QUIET.store(true, Ordering::Relaxed);
                console::attach(raw);
                let _ = self.shell.attach(guest, &mut console::Com1);
                if let Some(guest) = self.shell.attached() {
                    self.guests.backlog(guest).for_each(console::print_backlog);
                }
            }
            other => self.carry_out(other)?,
        }
        Ok(())
    }

    /// Carries out a command that is the same on COM1 and COM2.
    fn carry_out(&mut self, command: Command) -> Result<(), Text> {
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
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(text.chars().count()).map_err(|_| NoMemory)?;
                for character in text.chars() {
                    let byte = u8::try_from(character);
                    bytes.push(byte.map_err(|_| "`text` for a port has characters up to U+00FF, one for each byte")?);
                }
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
            Command::Trace { step: TraceStep::On, stop, classes } => {
                self.trace.start(::control::trace::classes(&classes)?, stop)
            }
            Command::Trace { step: TraceStep::Off, .. } => {
                self.trace.stop();
                Ok(())
            }
            Command::Trace { step: TraceStep::Save, .. } => self.trace.save(),
            Command::Trace { step: TraceStep::Show, .. } => Ok(()),
            Command::Watch(on) => {
                engines::all().iter().for_each(|engine| engine.watch(on));
                Ok(())
            }
        }
    }

    fn begin(&mut self, ending: Ending) -> Result<(), Text> {
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
        if let Err(why) = request.command.check(&self.script) {
            return reply(id, Err(why));
        }
        match request.command {
            Command::Show(View::Counters) => {
                console::answer(self.guests.counters(id).map(Event::Counters), id);
            }
            Command::List => {
                let reply = |guests| Event::Reply { id, ok: true, error: None, guests: Some(guests), version: None };
                console::answer(self.guests.list().map(reply), id);
            }
            Command::Version => {
                let version = Some(env!("CARGO_PKG_VERSION").into());
                console::answer(Ok(Event::Reply { id, ok: true, error: None, guests: None, version }), id);
            }
            Command::Trace { step: TraceStep::Show, .. } => {
                console::answer(self.trace.state(id).map(Event::TraceState), id);
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
        // From here on it may wait for long, and for disks.
        if let Some(core) = cores::get(0) {
            core.rests();
        }
        console::wait_again();
        console::drain();
        self.guests.finish_output();
        console::send_event(self.guests.counters(None).map(Event::Counters));
        console::flush();
        console::send_event(Ok(Event::End { reason: reason.into() }));
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

fn reply(id: Option<u64>, result: Result<(), Text>) {
    let event = match result {
        Ok(()) => Event::done(id),
        Err(why) => Event::refused(id, why),
    };
    console::answer(Ok(event), id);
}
