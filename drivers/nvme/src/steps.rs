//! The admin commands of the bring-up and of a running controller, one at a time (NVMe Base 2.0, 3.5.1, 5).

use crate::admin::Kind;
use crate::command::{Command, Completion, admin};
use crate::controller::{BusMaster, Controller, Namespace};
use crate::dma::PAGE;
use crate::gate::Order;
use crate::health::{ERROR_BYTES, ErrorEntry, HEALTH_BYTES, Health, Warnings};
use crate::identify::{BadNamespace, Format, Identity};
use crate::registers::Registers;
use crate::state::{Event, Failure, Reason, State, Step};
use crate::table::{CACHE, DEALLOCATE, Known, MAX_NAMESPACES, WRITE_ZEROES};

/// All namespaces.
const ALL: u32 = u32::MAX;
const CNS_NAMESPACE: u32 = 0;
const CNS_CONTROLLER: u32 = 1;
const CNS_LIST: u32 = 2;
const FEATURE_CACHE: u32 = 0x06;
const FEATURE_QUEUES: u32 = 0x07;
const FEATURE_EVENTS: u32 = 0x0b;
const LOG_ERRORS: u8 = 1;
const LOG_HEALTH: u8 = 2;
const LOG_CHANGED: u8 = 4;
/// Bits of Asynchronous Event Configuration: all SMART warnings.
const EVENT_WARNINGS: u32 = 0xff;
/// Bit of Asynchronous Event Configuration: namespace attribute notices.
const EVENT_NAMESPACES: u32 = 1 << 8;
/// Dword 11 of Create I/O Queue: physically contiguous.
const CONTIGUOUS: u32 = 1;

/// The result of a step.
pub(crate) enum Outcome {
    /// Go on with this step. `None`: there is none.
    Next(Option<Step>),
    /// The controller cannot be used.
    Unusable(Failure),
    /// The step failed and is necessary.
    Reset(Reason),
}

impl<R: Registers, B: BusMaster> Controller<R, B> {
    /// Sends the command of the step that is next.
    pub(crate) fn send_step(&mut self, now: u64) {
        let Some(step) = self.step else { return };
        if self.admin.is_busy(Kind::Step) {
            return;
        }
        self.admin.page.clear();
        let page = self.admin.page.bus();
        let identify = |cns, namespace| Command::new(admin::IDENTIFY, namespace).with_data(page, 0).with_10_11(cns, 0);
        let log = |id: u8, bytes: u32| {
            let dwords = (bytes / 4).saturating_sub(1);
            Command::new(admin::GET_LOG_PAGE, ALL).with_data(page, 0).with_10_11(u32::from(id) | dwords << 16, 0)
        };
        let queue = |index: u16| (u32::from(index) + 1) | u32::from(self.depth.saturating_sub(1)) << 16;
        let memory = |index: u16| self.gates.get(usize::from(index)).map_or((0, 0), |(_, sq, cq)| (*sq, *cq));
        let command = match step {
            Step::Identify => identify(CNS_CONTROLLER, 0),
            Step::Queues => {
                let count = u32::from(self.config.queues.saturating_sub(1));
                Command::new(admin::SET_FEATURES, 0).with_10_11(FEATURE_QUEUES, count | count << 16)
            }
            Step::CreateCompletion(index) => {
                Command::new(admin::CREATE_CQ, 0).with_data(memory(index).1, 0).with_10_11(queue(index), CONTIGUOUS)
            }
            Step::CreateSubmission(index) => Command::new(admin::CREATE_SQ, 0)
                .with_data(memory(index).0, 0)
                .with_10_11(queue(index), CONTIGUOUS | (u32::from(index) + 1) << 16),
            Step::List => identify(CNS_LIST, 0),
            Step::Namespace(index) => identify(CNS_NAMESPACE, self.namespaces.get(index).map_or(ALL, |n| n.id)),
            Step::Cache => Command::new(admin::GET_FEATURES, 0).with_10_11(FEATURE_CACHE, 0),
            Step::Events => {
                let namespaces = self.identity.as_ref().is_some_and(Identity::tells_of_namespaces);
                let events = EVENT_WARNINGS | if namespaces { EVENT_NAMESPACES } else { 0 };
                Command::new(admin::SET_FEATURES, 0).with_10_11(FEATURE_EVENTS, events)
            }
            Step::Health => log(LOG_HEALTH, HEALTH_BYTES),
            Step::Errors => log(LOG_ERRORS, ERROR_BYTES),
            Step::Changed => log(LOG_CHANGED, PAGE as u32),
            Step::Clear(id) => log(id, HEALTH_BYTES),
            Step::DeleteSubmission(index) => Command::new(admin::DELETE_SQ, 0).with_10_11(u32::from(index) + 1, 0),
            Step::DeleteCompletion(index) => Command::new(admin::DELETE_CQ, 0).with_10_11(u32::from(index) + 1, 0),
        };
        let deadline = now.saturating_add(self.config.admin_time);
        self.admin.submit(&self.registers, Kind::Step, &command, deadline);
    }

    /// A step's command was completed. Returns how to go on.
    pub(crate) fn step_done(&mut self, step: Step, completion: &Completion) -> Outcome {
        let status = completion.status;
        let failed = !status.is_success();
        let setting_up = self.state == State::SettingUp;
        match step {
            Step::Identify | Step::Queues if failed => Outcome::Reset(Reason::AdminFailed(status)),
            Step::Identify => self.identified(),
            Step::Queues => {
                let (submission, completion) = (completion.result as u16, (completion.result >> 16) as u16);
                self.granted = submission.min(completion).saturating_add(1).min(self.config.queues);
                Outcome::Next(Some(Step::CreateCompletion(0)))
            }
            Step::CreateCompletion(index) | Step::CreateSubmission(index) if failed => {
                // The queues before this one are enough, if there are any.
                self.granted = index;
                if index == 0 { Outcome::Reset(Reason::AdminFailed(status)) } else { Outcome::Next(Some(Step::List)) }
            }
            Step::CreateCompletion(index) => Outcome::Next(Some(Step::CreateSubmission(index))),
            Step::CreateSubmission(index) => {
                Outcome::Next(Some(self.queue_after(index).map_or(Step::List, Step::CreateCompletion)))
            }
            Step::List => {
                self.listed(failed);
                Outcome::Next(self.namespace_from(0, setting_up))
            }
            Step::Namespace(index) => {
                self.described(index, failed);
                Outcome::Next(self.namespace_from(index.saturating_add(1), setting_up))
            }
            Step::Cache => {
                self.cache_on = !failed && completion.result & 1 != 0;
                Outcome::Next(Some(Step::Events))
            }
            Step::Events => Outcome::Next(Some(Step::Health)),
            Step::Health => {
                if !failed {
                    self.told_health();
                }
                Outcome::Next(None)
            }
            Step::Errors => {
                let entry = if failed { None } else { ErrorEntry::parse(&self.admin.page.copy::<64>()) };
                if let Some(entry) = entry {
                    if self.last_error != Some(entry) {
                        self.tell(Event::Error(entry));
                    }
                    self.last_error = Some(entry);
                }
                Outcome::Next(None)
            }
            // All namespaces are looked at: the list does not say what has changed.
            Step::Changed => Outcome::Next(Some(Step::List)),
            Step::Clear(_) => Outcome::Next(None),
            Step::DeleteSubmission(index) => Outcome::Next(Some(Step::DeleteCompletion(index))),
            Step::DeleteCompletion(index) => Outcome::Next(self.queue_after(index).map(Step::DeleteSubmission)),
        }
    }

    /// The next I/O queue that the controller has.
    fn queue_after(&self, index: u16) -> Option<u16> {
        index.checked_add(1).filter(|next| *next < self.granted)
    }

    fn namespace_from(&self, index: usize, setting_up: bool) -> Option<Step> {
        if index < self.namespaces.len() {
            Some(Step::Namespace(index))
        } else {
            let has_cache = self.identity.as_ref().is_some_and(|identity| identity.volatile_cache);
            setting_up.then_some(if has_cache { Step::Cache } else { Step::Events })
        }
    }

    fn identified(&mut self) -> Outcome {
        let identity = match Identity::parse(&self.admin.page.copy()) {
            Ok(identity) => identity,
            Err(why) => return Outcome::Unusable(Failure::Unusable(why)),
        };
        if self.identity.as_ref().is_some_and(|before| before.serial != identity.serial) {
            return Outcome::Unusable(Failure::OtherSerial);
        }
        let most = self.config.list_bytes().min(self.config.max_bytes);
        let transfer = identity.max_transfer.map_or(most, |limit| most.min(u32::try_from(limit).unwrap_or(most)));
        let flag = |on, flag| if on { flag } else { 0 };
        let flags = flag(identity.volatile_cache, CACHE)
            | flag(identity.can_deallocate(), DEALLOCATE)
            | flag(identity.can_write_zeroes(), WRITE_ZEROES);
        self.table.set_limits(transfer, flags);
        self.identity = Some(identity);
        self.granted = 0;
        Outcome::Next(Some(if self.config.queues == 0 { Step::List } else { Step::Queues }))
    }

    /// Takes the active namespace list. `failed`: a controller of version 1.0 does not know it; then all identifiers
    /// are tried.
    fn listed(&mut self, failed: bool) {
        let data: [u8; PAGE] = self.admin.page.copy();
        let listed = data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let count = self.identity.as_ref().map_or(0, |identity| identity.namespaces);
        let (mut last, mut unlisted) = (0, 0_u32);
        let mut ids = [0; MAX_NAMESPACES];
        let mut places = ids.iter_mut();
        let mut add = |id: u32| {
            // The list ascends. What does not is no namespace.
            if id > last && id < ALL - 1 {
                last = id;
                match places.next() {
                    Some(place) => *place = id,
                    None => unlisted = unlisted.saturating_add(1),
                }
            }
        };
        if failed {
            (1..=count.min(MAX_NAMESPACES as u32)).for_each(&mut add);
        } else {
            listed.take_while(|id| *id != 0).for_each(&mut add);
        }
        self.unlisted = unlisted;
        let mut gone = [0; MAX_NAMESPACES];
        let missing = self.namespaces.iter().map(|n| n.id).filter(|id| !ids.contains(id));
        gone.iter_mut().zip(missing).for_each(|(place, id)| *place = id);
        for id in gone.into_iter().filter(|id| *id != 0) {
            self.namespaces.retain(|n| n.id != id);
            self.table.set(id, None);
            self.tell(Event::Namespace(id));
        }
        for id in ids.into_iter().filter(|id| *id != 0) {
            if !self.namespaces.iter().any(|n| n.id == id) {
                self.namespaces.push(Namespace { id, format: Err(BadNamespace::NoAnswer) });
            }
        }
        self.namespaces.sort_unstable_by_key(|n| n.id);
    }

    /// Takes a namespace's description.
    fn described(&mut self, index: usize, failed: bool) {
        let mut format = if failed {
            Err(BadNamespace::NoAnswer)
        } else {
            Format::parse(&self.admin.page.copy(), self.table.transfer())
        };
        let Some(namespace) = self.namespaces.get_mut(index) else { return };
        if failed && namespace.format.is_ok() {
            // The command failed. That says nothing about a namespace that is in use.
            return;
        }
        let id = namespace.id;
        let known = format.as_ref().ok().map(|f| Known { shift: f.shift, blocks: f.blocks, read_only: f.read_only });
        // A namespace that is new and cannot be used takes no place.
        let listed = known.is_some() || self.table.get(id).is_some();
        if listed && !self.table.set(id, known) {
            format = Err(BadNamespace::TooMany);
        }
        let before = core::mem::replace(&mut namespace.format, format);
        if self.running_since == 0 || before == format {
            return;
        }
        match (before, format) {
            (Ok(before), Ok(now))
                if before.blocks != now.blocks && (Format { blocks: now.blocks, ..before }) == now =>
            {
                self.tell(Event::Capacity(id, now.blocks));
            }
            _ => self.tell(Event::Namespace(id)),
        }
    }

    fn told_health(&mut self) {
        let health = Health::parse(&self.admin.page.copy::<512>());
        let before = self.health.map_or(Warnings(0), |h| h.warnings);
        if health.warnings != before {
            self.tell(Event::Health(health.warnings));
        }
        self.health = Some(health);
    }

    /// Arms the next asynchronous event.
    pub(crate) fn arm_event(&mut self) {
        if !self.admin.is_busy(Kind::Event) {
            self.admin.submit(&self.registers, Kind::Event, &Command::new(admin::ASYNC_EVENT, 0), u64::MAX);
        }
    }

    /// An asynchronous event has come (Base 2.0, 5.2). Reading its log page lets the controller send the next one of
    /// its type.
    pub(crate) fn event_came(&mut self, completion: &Completion) {
        if !completion.status.is_success() {
            // The controller does not take the request. It is not armed again before the next reset.
            return;
        }
        let log = (completion.result >> 16) as u8;
        match (completion.result & 7, log) {
            (0, _) => self.want(Step::Errors),
            (1, _) => self.want(Step::Health),
            (2, LOG_CHANGED) => self.want(Step::Changed),
            (_, 0) => {}
            _ => self.want(Step::Clear(log)),
        }
        self.arm_event();
    }

    /// Asks the controller to abort what the queues want to be aborted. One at a time: every controller takes one.
    pub(crate) fn abort(&mut self, now: u64) {
        if self.admin.is_busy(Kind::Abort) {
            return;
        }
        let wanted = (1_u16..).zip(&self.gates).find_map(|(id, (gate, ..))| Some((id, gate.take_abort()?)));
        if let Some((queue, cid)) = wanted {
            let command = Command::new(admin::ABORT, 0).with_10_11(u32::from(queue) | u32::from(cid) << 16, 0);
            let deadline = now.saturating_add(self.config.admin_time);
            self.admin.submit(&self.registers, Kind::Abort, &command, deadline);
        }
    }

    /// Opens the queues that the controller has, and closes the others, which have no commands on the device.
    pub(crate) fn open_queues(&self) {
        for (index, (gate, ..)) in (0..).zip(&self.gates) {
            gate.give(if index < self.granted { Order::Open } else { Order::Close });
        }
    }
}
