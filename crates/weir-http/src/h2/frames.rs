//! Frames other than DATA and header blocks: resets, settings, windows, priorities, and ignored
//! frames (RFC 9113 §6.3 to §6.9, RFC 9218 §7.1).
//!
//! Each useless frame is paid for from the budget of chatter. A fault of one stream ends that
//! stream and is paid for as well, because work was done for nothing (CVE-2025-8671).

use super::budget::{Budget, Cost};
use super::error::{Code, Failure};
use super::frame::{self, ACK, Kind, Setting};
use super::glitch::Glitch;
use super::mux::WINDOW_MAX;
use super::priority::Priority;
use super::read::{Reading, Step};
use super::stream::{Answer, Stream};

impl Reading<'_, '_> {
    /// Takes a complete frame of the connection, or of a stream, without content.
    pub(super) fn take_control(&mut self, payload: &[u8]) -> Result<Option<Step>, Failure> {
        let head = self.mux.reader.frame;
        match head.kind {
            Kind::RstStream => return self.take_reset(head.stream, first_number(payload)),
            Kind::WindowUpdate => {
                return self.take_window_update(head.stream, first_number(payload));
            }
            Kind::Priority => return self.take_priority(head.stream, payload),
            Kind::Settings if head.has(ACK) => self.take_settings_ack()?,
            Kind::Settings => self.take_settings(payload)?,
            Kind::Ping => {
                self.chatter(Cost::Small)?;
                if let (false, Some(payload)) = (head.has(ACK), payload.first_chunk()) {
                    frame::put_pong(&mut self.mux.out, payload);
                }
            }
            Kind::Goaway => {
                self.chatter(Cost::Large)?;
                let code = Code::of(payload.get(4..).map_or(0, first_number));
                return Ok(Some(Step::Leaving { code }));
            }
            Kind::PriorityUpdate => self.take_priority_update(payload)?,
            Kind::Data
            | Kind::Headers
            | Kind::PushPromise
            | Kind::Continuation
            | Kind::Unknown(_) => {}
        }
        Ok(None)
    }

    // ---- streams ----

    /// RFC 9113 §6.4.
    fn take_reset(&mut self, id: u32, code: u32) -> Result<Option<Step>, Failure> {
        self.not_idle(id)?;
        let Some(stream) = self.mux.forget(id) else {
            // Both sides have closed it now: nothing may follow.
            if !self.mux.recent.remove(id) {
                self.closed_stream()?;
            }
            return Ok(None);
        };
        if stream.answer == Answer::Awaited {
            self.mux.glitch(Glitch::ResetEarly);
            self.mux.budget.reset_early(self.turn.now_us)?;
        }
        Ok(Some(Step::Reset { stream: id, tag: stream.tag, code: Code::of(code), by_client: true }))
    }

    /// RFC 9113 §6.9.
    fn take_window_update(&mut self, id: u32, increment: u32) -> Result<Option<Step>, Failure> {
        let increment = i64::from(increment & 0x7fff_ffff);
        self.note_chatter(|budget, now_us| budget.window_update(now_us))?;
        if id == 0 {
            if increment == 0 {
                return Err(Failure { code: Code::ProtocolError, why: "a window update of 0" });
            }
            self.mux.sending.window += increment;
            if self.mux.sending.window > WINDOW_MAX {
                return Err(Failure {
                    code: Code::FlowControlError,
                    why: "the connection's window is too large",
                });
            }
            return Ok(None);
        }
        self.not_idle(id)?;
        let initial = self.mux.sending.stream_initial;
        let Some(stream) = self.mux.streams.find_mut(id) else { return Ok(None) };
        stream.credit += increment;
        let too_large = initial + stream.credit > WINDOW_MAX;
        match (increment, too_large) {
            (0, _) => self.stream_error(id, Code::ProtocolError),
            (_, true) => self.stream_error(id, Code::FlowControlError),
            _ => Ok(None),
        }
    }

    /// RFC 9113 §6.3: only its form is looked at.
    fn take_priority(&mut self, id: u32, payload: &[u8]) -> Result<Option<Step>, Failure> {
        self.chatter(Cost::Small)?;
        self.mux.glitch(Glitch::Priority);
        let fault = match payload.first_chunk() {
            Some(&parent) if payload.len() == 5 => (frame::number31(parent) == id)
                .then_some((Code::ProtocolError, "a stream depends on itself")),
            _ => Some((Code::FrameSizeError, "PRIORITY has the wrong length")),
        };
        match fault {
            None => Ok(None),
            // A stream that is not open cannot be reset.
            Some((code, why)) if self.mux.streams.find(id).is_none() => Err(Failure { code, why }),
            Some((code, _)) => self.stream_error(id, code),
        }
    }

    /// RFC 9218 §7.1. Priorities of streams that are not open are discarded.
    fn take_priority_update(&mut self, payload: &[u8]) -> Result<(), Failure> {
        self.chatter(Cost::Small)?;
        let Some((id, value)) = payload.split_first_chunk() else { return Ok(()) };
        let id = frame::number31(*id);
        if id.is_multiple_of(2) {
            return Err(Failure {
                code: Code::ProtocolError,
                why: "PRIORITY_UPDATE for no stream of requests",
            });
        }
        if let Some(stream) = self.mux.streams.find_mut(id) {
            stream.priority = Priority::parse(value);
        }
        Ok(())
    }

    // ---- settings ----

    /// RFC 9113 §6.5.
    fn take_settings(&mut self, payload: &[u8]) -> Result<(), Failure> {
        self.chatter(Cost::Large)?;
        let mut initial = None;
        for (setting, value) in frame::settings(payload) {
            setting.check(value)?;
            match setting {
                Setting::HeaderTableSize => {
                    self.mux.sending.table_changed |= value != self.mux.sending.table_bytes;
                    self.mux.sending.table_bytes = value;
                }
                // A frame may repeat it some thousand times, and each would visit all streams.
                Setting::InitialWindowSize => initial = Some(i64::from(value)),
                _ => {}
            }
        }
        if let Some(initial) = initial {
            self.move_windows(initial)?;
        }
        frame::put_settings_ack(&mut self.mux.out);
        Ok(())
    }

    /// RFC 9113 §6.9.2: windows of all streams move, and may become negative.
    fn move_windows(&mut self, initial: i64) -> Result<(), Failure> {
        let overflows = |stream: &Stream| initial + stream.credit > WINDOW_MAX;
        if self.mux.streams.iter().any(overflows) {
            return Err(Failure {
                code: Code::FlowControlError,
                why: "SETTINGS make a window too large",
            });
        }
        if initial < self.mux.sending.stream_initial && !self.mux.streams.is_empty() {
            self.mux.glitch(Glitch::WindowShrunk);
        }
        self.mux.sending.stream_initial = initial;
        Ok(())
    }

    /// Our settings apply from here on: streams that began with the default get what was announced.
    fn take_settings_ack(&mut self) -> Result<(), Failure> {
        let announced = i64::from(self.mux.receiving.stream_full);
        let moved =
            announced - std::mem::replace(&mut self.mux.receiving.stream_initial, announced);
        if moved == 0 {
            return self.chatter(Cost::Large);
        }
        self.mux.streams.iter_mut().for_each(|stream| stream.window += moved);
        Ok(())
    }

    // ---- faults and budgets ----

    /// Ends a stream because of an error of the client, which pays for it. Nothing more of it is
    /// expected.
    pub(super) fn stream_error(&mut self, id: u32, code: Code) -> Result<Option<Step>, Failure> {
        self.mux.glitch(Glitch::ForcedReset);
        self.mux.budget.forced_reset()?;
        let stream = self.mux.forget(id);
        self.mux.recent.add(id);
        frame::put_reset(&mut self.mux.out, id, code);
        let Some(stream) = stream else { return Ok(None) };
        if stream.answer == Answer::Awaited {
            self.mux.budget.reset_early(self.turn.now_us)?;
        }
        Ok(Some(Step::Reset { stream: id, tag: stream.tag, code, by_client: false }))
    }

    /// RFC 9113 §5.1: the stream was never opened.
    pub(super) fn not_idle(&self, id: u32) -> Result<(), Failure> {
        let idle = id > self.mux.last || id.is_multiple_of(2);
        if idle {
            Err(Failure { code: Code::ProtocolError, why: "a frame for a stream that is idle" })
        } else {
            Ok(())
        }
    }

    /// Whether frames on a closed stream are ignored: weir has closed it, or announced that it is
    /// not accepted.
    pub(super) fn passes_over(&self, id: u32) -> bool {
        self.mux.recent.has(id) || self.is_left(id)
    }

    /// A frame for a stream that is closed.
    pub(super) fn closed_stream(&mut self) -> Result<(), Failure> {
        self.mux.glitch(Glitch::ClosedStream);
        self.chatter(Cost::Closed)
    }

    /// Charges a useless frame.
    pub(super) fn chatter(&mut self, cost: Cost) -> Result<(), Failure> {
        self.note_chatter(|budget, now_us| budget.spend(cost, now_us))
    }

    fn note_chatter(
        &mut self,
        spend: impl FnOnce(&mut Budget, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let spent = spend(&mut self.mux.budget, self.turn.now_us);
        if spent.is_err() {
            self.mux.glitch(Glitch::Chatter);
        }
        spent
    }
}

/// Returns the number at the beginning of a payload, whose length was checked.
fn first_number(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
