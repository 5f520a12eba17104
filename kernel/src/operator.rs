//! The control core after boot. Once per tick it serves the shell on COM1, the JSON lines on COM2 and those of the management
//! guest, and the guests' life cycles.
//!
//! Nothing here is urgent, and nothing here may block. A later tick checks what takes time, for example a guest that
//! does not react to its power button.

use crate::{
    apply::{Apply, Wanted},
    arch::{idle, time, timer},
    boots, channel, console,
    cores::{self, Core},
    disks, emulator, engines,
    guests::Guests,
    machine_watchdog, management, modules, options, pci, power, report,
    trace::{
        self,
        reader::{EndAtPort, Reader},
    },
};
use ::boots::settling::Settling;
use ::trace::frames::{FIRST_UPLINK, Port};
use alloc::{string::String, vec::Vec};
use config::{Config, Setting, Shown};
use control::{
    Action, AfterKey, ApplyState, Audit, COMMANDS, Caller, Command, Event, Latency, LineReader, NoMemory, Note, Notice,
    Outcome, Permissions, Record, Refused, Request, Shell, Text, Top, TraceState, TraceStep, View, Way, capture, eoi,
    sentence, table, take_input,
};
use core::{fmt, sync::atomic::Ordering};
use spin::Mutex;

/// Microseconds between two ticks.
const TICK: u64 = 1_000;

/// Who changed what. Only the control core touches it.
#[expect(unsafe_code, reason = "in data that guests' cores and idle cores do not map")]
// SAFETY: the section is data like any other.
#[unsafe(link_section = ".control")]
static AUDIT: Mutex<Audit> = Mutex::new(Audit::new());

/// Microseconds between two readings of the counters for `top`.
const TOP_PERIOD: u64 = 1_000_000;

/// In the audit, of captures that nobody takes any more.
const READER_GONE: &str = "the reader is gone: the captures of this channel have ended";

/// The operator's side of the machine.
pub struct Operator {
    shell: Shell,
    lines: LineReader,
    guests: Guests,
    trace: Reader,
    /// `top`, if it has COM1.
    top: Option<LiveTop>,
    /// Whoever is at the other end of COM1.
    person: Caller,
    /// Whoever is at the other end of COM2.
    script: Caller,
    /// The configuration that runs.
    config: Config,
    /// What was applied to it.
    apply: Apply,
    /// By which way a module comes.
    putting: Option<Way>,
    /// What to do once all guests are down.
    ending: Option<Ending>,
    /// `None`: this boot has come to run.
    settling: Option<Settling>,
}

/// `top`, and when it is drawn.
struct LiveTop {
    top: Top,
    /// The TSC at which it reads the counters again.
    read_at: u64,
    /// A key has changed what it shows.
    changed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Reboot,
}

impl Operator {
    /// Makes the operator's side for these guests. `config`: what runs.
    pub fn new(guests: Guests, config: Config, trace: Reader) -> Self {
        let person = Caller::cable(Way::Com1, Permissions::all());
        let script = Caller::cable(Way::Com2, config.com2);
        if !config.com2.contains(Permissions::CONSOLE) {
            console::keep_guests_off_com2();
        }
        Self {
            shell: Shell::new(),
            lines: LineReader::new(),
            guests,
            trace,
            top: None,
            person,
            script,
            config: config.written(),
            apply: Apply::default(),
            putting: None,
            ending: None,
            settling: Some(Settling::new()),
        }
    }

    /// Runs until the machine is switched off. Between ticks the core halts. If an engine shares this core, the core
    /// runs its turns instead.
    pub fn run(mut self, core: &'static Core) -> ! {
        console::stop_waiting();
        core.works();
        boots::runs();
        self.guests.start_all();
        options::self_test();
        self.reply_prompt();
        let mut next = time::tsc();
        loop {
            if time::tsc() >= next {
                next = time::tsc().saturating_add(time::micros(TICK));
                core.works();
                let begun = time::tsc();
                self.tick();
                trace::tick(core.index, time::tsc().wrapping_sub(begun));
            }
            if !engines::turn() {
                timer::arm(next);
                idle::wait(&core.kick);
                core.kick.store(false, Ordering::SeqCst);
            }
        }
    }

    fn tick(&mut self) {
        machine_watchdog::feed();
        console::tick();
        self.refresh_top();
        take_input(console::read, |byte| self.typed(byte));
        take_input(console::receive, |byte| {
            let line = self.lines.push(byte);
            let ended = line.is_some();
            match line {
                Some(Ok(line)) => self.received(&line),
                Some(Err(error)) => self.reply(&self.script, None, Err(sentence(error))),
                None => {}
            }
            ended
        });
        self.serve_management();
        disks::service();
        engines::service();
        self.guests.poll(self.shell.attached());
        self.settle();
        self.apply.tick(time::now_millis(), &mut self.guests, &mut self.config, self.ending.is_some());
        if let Some(ended) = self.trace.tick(|| management::trace_port(&self.guests)) {
            management::end_trace(&self.guests);
            if ended == EndAtPort::ReaderOfCaptures {
                // Nobody takes these frames any more, and whoever wanted them can say no word. What COM1 or COM2 wants is still
                // captured, and can be sent elsewhere.
                if self.trace.end_captures(Way::Channel) {
                    let captures = Note::from(&Command::Captures);
                    note(&Caller::cable(Way::Channel, Permissions::empty()), &captures, Outcome::Failed, READER_GONE);
                }
                engines::choose_loops();
            }
        }
        console::pump();
        if console::PROMPT.is_missing() && console::com1_is_idle() {
            self.reply_prompt();
        }
        // Between two lives of a guest that is changed nobody may be up.
        if self.guests.wants_end() && self.ending.is_none() && self.apply.is_idle() {
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

    /// Looks whether this boot has come to run, until it has.
    fn settle(&mut self) {
        let Some(settling) = &mut self.settling else { return };
        let starting = self.guests.are_starting();
        if !starting {
            options::self_test_with_guests(boots::took_previous());
        }
        if settling.has_settled(time::now_millis(), starting) {
            self.settling = None;
            boots::has_come_to_run();
        }
    }

    /// Takes a typed byte. Returns whether it was the end of a command.
    fn typed(&mut self, byte: u8) -> bool {
        if let Some(live) = &mut self.top {
            match live.top.feed(byte, &mut console::Com1) {
                // It is drawn when COM1 has sent the picture before.
                Ok(AfterKey::Refresh) => live.changed = true,
                Ok(AfterKey::Leave) => self.leave_top(),
                Ok(AfterKey::Nothing) | Err(_) => {}
            }
            return false;
        }
        if console::PROMPT.is_missing() {
            self.reply_prompt();
        }
        match self.shell.feed(byte, &mut console::Com1).unwrap_or(Action::None) {
            Action::None => {}
            Action::Complete => _ = self.shell.complete(self.guests.names(), &mut console::Com1),
            Action::ToGuest(byte) => {
                if let Some(guest) = self.shell.attached() {
                    let _ = self.guests.input(guest, &[byte]);
                }
            }
            Action::Left => {
                console::QUIET.store(false, Ordering::Relaxed);
                console::PROMPT.shown();
            }
            Action::Run(command) => {
                console::PROMPT.ended();
                self.carry_out_for_person(command);
                self.reply_prompt();
                return true;
            }
        }
        false
    }

    /// Draws `top` once a period, with new counters, and after a key, when COM1 has sent the picture before.
    fn refresh_top(&mut self) {
        let Some(live) = &mut self.top else { return };
        let now = time::tsc();
        let reads = now >= live.read_at;
        if !(reads || live.changed) || !console::com1_is_idle() {
            return;
        }
        if reads {
            match self.guests.counters(None) {
                Ok(counters) => live.top.read(counters),
                Err(NoMemory) => return self.leave_top(),
            }
            live.read_at = now.saturating_add(time::micros(TOP_PERIOD));
        }
        live.changed = false;
        let _ = live.top.refresh(&mut console::Com1);
    }

    fn leave_top(&mut self) {
        self.top = None;
        console::leave_full_screen();
        self.reply_prompt();
    }

    /// Shows the prompt and what is typed, unless a guest or `top` has the terminal.
    fn reply_prompt(&self) {
        if self.shell.attached().is_none() && self.top.is_none() {
            let _ = self.shell.prompt(&mut console::Com1);
            console::PROMPT.shown();
        }
    }

    fn carry_out_for_person(&mut self, command: Command) {
        let person = self.person.clone();
        let result =
            allowed(&person, &command).and_then(|()| audited(&person, command, |command| self.show_to_person(command)));
        if let Err(why) = result {
            console::print(format_args!("{why}\n"));
        }
    }

    fn show_to_person(&mut self, command: Command) -> Result<(), Text> {
        match command {
            Command::Show(View::Audit) => {
                let audit = AUDIT.lock();
                console::print(format_args!("{}", fmt::from_fn(|f| audit.show(f))));
            }
            Command::Show(View::Config) => console::print(format_args!("{}", Shown(&self.config))),
            Command::Show(View::Modules) => {
                let modules = modules::all().list()?;
                console::print(format_args!("{}", fmt::from_fn(|f| ::control::show_modules(&modules, f))));
            }
            Command::Show(View::Apply) => console::print(format_args!("{}", self.apply.text())),
            Command::Apply { .. } => {
                let (_, text) = self.begin_apply(command)?;
                console::print(format_args!("{text}"));
            }
            Command::Show(View::Latency) => {
                let latency = self.latency(None)?;
                console::print(format_args!("{}", fmt::from_fn(|f| ::control::latency::show(&latency, f))));
            }
            Command::List => {
                let guests = self.guests.list()?;
                console::print(format_args!("{}", fmt::from_fn(|f| table::list(&guests, f))));
            }
            Command::Show(view) => {
                let counters = self.guests.counters(None)?;
                console::print(format_args!("{}", fmt::from_fn(|f| table::show(view, &counters, f))));
            }
            Command::Trace { step: TraceStep::Show, .. } => {
                let state = self.trace_state(None)?;
                console::print(format_args!("{}", fmt::from_fn(|f| ::control::trace::show(&state, f))));
            }
            Command::Trace { step: TraceStep::Save | TraceStep::SaveWithoutRips, .. } => {
                return Err("records are sent on COM2 or to the management guest: ask there".into());
            }
            Command::Report => report::show(),
            Command::Version => console::print(format_args!("sidecore {}\n", env!("CARGO_PKG_VERSION"))),
            Command::Top => {
                console::take_full_screen();
                match Top::new(&mut console::Com1) {
                    Ok(top) => self.top = Some(LiveTop { top, read_at: 0, changed: false }),
                    Err(no_memory) => {
                        console::leave_full_screen();
                        return Err(no_memory.into());
                    }
                }
            }
            Command::Attach { guest, raw } => {
                self.guests.find(&guest)?;
                console::QUIET.store(true, Ordering::Relaxed);
                console::attach(raw);
                let _ = self.shell.attach(guest, &mut console::Com1);
                if let Some(guest) = self.shell.attached() {
                    self.guests.backlog(guest).for_each(console::print_backlog);
                }
            }
            other => self.carry_out(Way::Com1, other)?,
        }
        Ok(())
    }

    /// Carries out a command that is the same by all ways in.
    fn carry_out(&mut self, way: Way, command: Command) -> Result<(), Text> {
        match command {
            Command::Start(g) | Command::Restart(g) if self.ending.is_some() => {
                Err(lifecycle::Refused::ShuttingDown.explain(&g))
            }
            Command::Start(g) => self.guests.start(&g),
            Command::Stop(g) => self.guests.stop(&g),
            Command::Kill(g) => self.guests.kill(&g),
            Command::Restart(g) => self.guests.restart(&g),
            Command::Set { guest, key, value } => {
                self.guests.set(&guest, Setting::read(key, &value)?, &mut self.config)
            }
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
            Command::Put { module, bytes, sha256 } => {
                let is_used = |name: &str| self.apply.uses(&self.config, name);
                modules::all().begin(time::now_millis(), &module, bytes, &sha256, is_used)
            }
            Command::PutData { module, at, data } => modules::all().add(time::now_millis(), &module, at, &data),
            Command::PutEnd(module) => modules::all().end(&module, |name| self.apply.uses(&self.config, name)),
            Command::Forget(module) => modules::all().forget(&module, |name| self.apply.uses(&self.config, name)),
            Command::Confirm => self.apply.confirm(),
            Command::Shutdown => self.begin(Ending::Shutdown),
            Command::Reboot => self.begin(Ending::Reboot),
            Command::Help
            | Command::List
            | Command::Attach { .. }
            | Command::Follow { .. }
            | Command::Show(_)
            | Command::Top
            | Command::Audit
            | Command::Notice { .. }
            | Command::Config
            | Command::Latency
            | Command::Modules
            | Command::Apply { .. }
            | Command::Applied
            | Command::Report
            | Command::Version => Ok(()),
            Command::Trace { step: TraceStep::On, stop, classes } => {
                self.trace.start(::control::trace::wanted(&classes)?, stop)?;
                engines::choose_loops();
                Ok(())
            }
            Command::Trace { step: TraceStep::Off, .. } => {
                self.trace.stop();
                engines::choose_loops();
                Ok(())
            }
            Command::Trace { step: TraceStep::Save, .. } => self.trace.save(true),
            Command::Trace { step: TraceStep::SaveWithoutRips, .. } => self.trace.save(false),
            Command::Trace { step: TraceStep::Show, .. } => Ok(()),
            Command::Capture { guest, filter } => self.capture(way, &guest, &filter),
            Command::Captures => self.trace.save_captures(),
            Command::TraceEoi { guest, vector } => self.guests.watch_eoi(&guest, eoi::vector(&vector)?),
            Command::Identify { uplink, seconds } => engines::identify(&uplink, seconds),
            Command::Watch(on) => {
                engines::all().iter().for_each(|engine| engine.watch(on));
                Ok(())
            }
        }
    }

    /// Has a guest's output sent as it comes, or no more. Returns the answer with what came before.
    fn follow(&mut self, way: Way, command: Command, id: Option<u64>) -> Result<Option<Event>, Text> {
        let Command::Follow { guest, on } = command else { return Err("not `follow`".into()) };
        let own = self.config.management.as_ref().map(|management| &*management.guest);
        match on {
            true if way == Way::Channel && own == Some(&*guest) => {
                Err("the management guest is not told its own output: attach to it on COM1".into())
            }
            true => self.guests.follow(&guest, way, id).map(Some),
            false => self.guests.unfollow(&guest, way).map(|()| None),
        }
    }

    /// Captures frames at the port of a guest's device or at an uplink, or ends that. A guest goes first if both have this name.
    fn capture(&mut self, way: Way, name: &str, filter: &str) -> Result<(), Text> {
        let capture::Wanted { net, filter } = filter.parse()?;
        let uplink = || self.config.uplinks.iter().position(|uplink| uplink.name == name);
        let slot = match (self.guests.find(name), uplink()) {
            (Ok(_), _) => self.config.net_number(name, net),
            // There are fewer than 256 uplinks.
            (Err(_), Some(uplink)) if net == 0 => Some(Port::uplink(uplink as u8).slot.into()),
            (Err(_), Some(_)) => return Err("`net=` is for guests: an uplink has one port".into()),
            (Err(_), None) => return Err(sentence(format_args!("there is no guest and no uplink `{name}`"))),
        };
        match slot {
            Some(slot) => self.trace.capture(slot, filter, way),
            None => Err(sentence(format_args!("guest `{name}` has no network device {net}"))),
        }
    }

    fn latency(&self, id: Option<u64>) -> Result<Latency, NoMemory> {
        self.trace.latency(id, engines::cores(), |slot| self.config.device_at(slot))
    }

    fn trace_state(&self, id: Option<u64>) -> Result<TraceState, NoMemory> {
        let uplink = |slot: usize| Some((&*self.config.uplinks.get(slot.checked_sub(FIRST_UPLINK.into())?)?.name, 0));
        self.trace.state(id, |slot| uplink(slot).or_else(|| self.config.net_at(slot)))
    }

    /// Begins to change guests to what a file says. Returns what is said of that.
    fn begin_apply(&mut self, command: Command) -> Result<(ApplyState, String), Text> {
        let Command::Apply { dry, restart, module, confirm } = command else { return Err("not `apply`".into()) };
        if self.ending.is_some() && !dry {
            return Err("sidecore is about to end".into());
        }
        self.apply.begin(time::now_millis(), &Wanted { module, dry, restart, confirm }, &self.config)
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
        let caller = self.script.clone();
        self.requested(&caller, Request::from_line(line));
    }

    /// Carries out the commands of the management guest: a few, if it has read the answers to those before.
    fn serve_management(&mut self) {
        if management::tick(&self.guests) {
            self.guests.unfollow_all(Way::Channel);
            if self.putting == Some(Way::Channel) {
                // Whoever has sent the first pieces is gone.
                modules::all().give_up();
            }
        }
        for _ in 0..COMMANDS {
            let Some((caller, request)) = management::next(&self.guests) else { break };
            self.requested(&caller, request);
        }
    }

    /// Answers a caller, by the way in by which the command came.
    fn answer(&self, caller: &Caller, event: Result<Event, NoMemory>, id: Option<u64>) {
        match caller.way {
            Way::Channel => management::answer(&self.guests, event, id),
            Way::Com1 | Way::Com2 => console::answer(event, id),
        }
    }

    fn reply(&self, caller: &Caller, id: Option<u64>, result: Result<(), Text>) {
        let event = match result {
            Ok(()) => Event::done(id),
            Err(why) => Event::refused(id, why),
        };
        self.answer(caller, Ok(event), id);
    }

    /// Carries out a command in JSON, if the caller may ask for it, and answers.
    fn requested(&mut self, caller: &Caller, request: Result<Request, Refused>) {
        let request = match request {
            Ok(request) => request,
            Err(refused) => return self.reply(caller, refused.id, Err(refused.error)),
        };
        let id = request.id;
        if caller.way != Way::Channel && !request.sender.is_empty() {
            return self.reply(caller, id, Err("`who` and `address` are for the agent of the management guest".into()));
        }
        let caller = &caller.with_sender(request.sender);
        if let Err(why) = allowed(caller, &request.command) {
            return self.reply(caller, id, Err(why));
        }
        match request.command {
            // These change nothing, so the audit has only their refusals.
            Command::Show(_) => self.answer(caller, self.guests.counters(id).map(Event::Counters), id),
            Command::Audit => {
                let records = AUDIT.lock().copy();
                self.answer(caller, records.map(|records| Event::Audit { id, records }), id);
            }
            Command::Notice { what, line, why } => {
                let noted = AUDIT.lock().report(wall_clock(), caller, what, &line, &why).map(|new| new.cloned());
                if let (Notice::HostKey, Ok(Some(record))) = (what, &noted) {
                    management::say_host_key(record);
                }
                self.reply(caller, id, noted.map(tell));
            }
            Command::Config => {
                let text = control::write(Shown(&self.config));
                self.answer(caller, text.map(|text| Event::Config { id, text }), id);
            }
            Command::Modules => {
                let modules = modules::all().list();
                self.answer(caller, modules.map(|modules| Event::Modules { id, modules }), id);
            }
            Command::Applied => self.answer(caller, self.apply.answer(id), id),
            // The audit has the beginning and the end of a module.
            Command::PutData { .. } => {
                let result = self.carry_out(caller.way, request.command);
                self.reply(caller, id, result);
            }
            command @ Command::Follow { .. } => {
                let mut said = None;
                let result = audited(caller, command, |command| {
                    said = self.follow(caller.way, command, id)?;
                    Ok(())
                });
                match (result, said) {
                    (Ok(()), Some(output)) => self.answer(caller, Ok(output), id),
                    (result, _) => self.reply(caller, id, result),
                }
            }
            command @ Command::Apply { .. } => {
                let mut said = None;
                let result = audited(caller, command, |command| {
                    said = Some(self.begin_apply(command)?);
                    Ok(())
                });
                match (result, said) {
                    (Ok(()), Some((state, text))) => self.answer(caller, Ok(Event::Applied { id, state, text }), id),
                    (result, _) => self.reply(caller, id, result),
                }
            }
            Command::Latency => self.answer(caller, self.latency(id).map(Event::Latency), id),
            Command::List => {
                let reply = |guests| Event::Reply { id, ok: true, error: None, guests: Some(guests), version: None };
                self.answer(caller, self.guests.list().map(reply), id);
            }
            Command::Version => {
                let version = Some(env!("CARGO_PKG_VERSION").into());
                self.answer(caller, Ok(Event::Reply { id, ok: true, error: None, guests: None, version }), id);
            }
            Command::Trace { step: TraceStep::Show, .. } => {
                self.answer(caller, self.trace_state(id).map(Event::TraceState), id);
            }
            Command::Report => {
                report::answer(|entry| match caller.way {
                    Way::Channel => management::answer_line(entry),
                    Way::Com1 | Way::Com2 => console::answer(entry, None),
                });
                self.reply(caller, id, Ok(()));
            }
            other => {
                let is_put = matches!(other, Command::Put { .. });
                let result = audited(caller, other, |command| match command {
                    Command::Port { .. } if caller.way == Way::Channel => {
                        Err("`port` is a command of COM2, where the port's output goes".into())
                    }
                    Command::Trace { step: step @ (TraceStep::Save | TraceStep::SaveWithoutRips), .. }
                        if caller.way == Way::Channel =>
                    {
                        let rips = step == TraceStep::Save;
                        self.trace.save_to_port(rips, || management::open_trace_port(&self.guests))
                    }
                    Command::Captures if caller.way == Way::Channel => {
                        self.trace.save_captures_to_port(|| management::open_trace_port(&self.guests))
                    }
                    other => self.carry_out(caller.way, other),
                });
                if is_put && result.is_ok() {
                    self.putting = Some(caller.way);
                }
                self.reply(caller, id, result);
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
        machine_watchdog::end();
        console::wait_again();
        console::drain();
        self.guests.finish_output();
        console::send_event(self.guests.counters(None).map(Event::Counters));
        console::flush();
        console::send_event(Ok(Event::End { reason: reason.into() }));
        console::print(format_args!("\nsidecore ends: {reason}\n"));
        disks::shut_down(|| _ = engines::turn());
        boots::ends();
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

/// Whether a caller may ask for a command. The audit has each refusal.
fn allowed(caller: &Caller, command: &Command) -> Result<(), Text> {
    command.check(caller).inspect_err(|why| note(caller, &Note::from(command), Outcome::Refused, why))
}

/// Carries out a command that its caller may ask for, and notes in the audit what became of it.
fn audited(caller: &Caller, command: Command, carry_out: impl FnOnce(Command) -> Result<(), Text>) -> Result<(), Text> {
    let what = Note::from(&command);
    let result = carry_out(command);
    match &result {
        Ok(()) => note(caller, &what, Outcome::Done, ""),
        Err(why) => note(caller, &what, Outcome::Failed, why),
    }
    result
}

fn note(caller: &Caller, what: &Note, outcome: Outcome, why: &str) {
    tell(AUDIT.lock().note(wall_clock(), caller, what, outcome, why).cloned());
}

/// Tells the management guest a record that is new.
fn tell(record: Option<Record>) {
    if let Some(record) = record {
        channel::audited(record);
    }
}

/// Milliseconds since 1970.
fn wall_clock() -> u64 {
    time::wall_clock() / 1_000_000
}
