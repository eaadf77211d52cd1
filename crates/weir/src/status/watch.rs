//! `weir status --watch` on a terminal: queries regularly, shows the page of [`super::screen`],
//! handles keys, and restores the terminal. If weir ends, it waits for a new one.
//!
//! Called by `status`. A separate thread queries, so that keys work even without a response.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyEventKind};
use crossterm::style::Print;
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};

use super::figures::span;
use super::overview::{Look, watched};
use super::screen::{Page, View, Wish};
use super::{Seen, What, detail, seen};
use crate::client::{Client, Unanswered};
use crate::failure::Failure;
use crate::terminal;

/// How long a key or a response may wait to be noticed.
const NOTICE: Duration = Duration::from_millis(50);
/// Columns and rows of a terminal that does not report its size.
const SIZE: (usize, usize) = (80, 24);

type News = Result<Seen, Unanswered>;

/// A terminal with the screen on it; dropping this restores it.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Screen> {
        enable_raw_mode()?;
        // From here on the drop undoes everything after a failure.
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut out = Vec::new();
        queue!(out, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&out)?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, no one can read an error.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// The source of keys: as in crossterm, standard input if that is a terminal, else that of the
/// session.
struct Keys(OwnedFd);

/// The result of waiting for a key.
enum Heard {
    Nothing,
    /// A key, or another size.
    Something,
    /// The terminal is gone.
    End,
}

impl Keys {
    fn open() -> io::Result<Keys> {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return stdin.as_fd().try_clone_to_owned().map(Keys);
        }
        File::open("/dev/tty").map(|terminal| Keys(terminal.into()))
    }

    /// Waits as long as [`NOTICE`]. It does not call crossterm when the terminal is gone: crossterm
    /// would read the end of the file again and again, and never return.
    fn wait(&self) -> io::Result<Heard> {
        let mut keys = [PollFd::new(&self.0, PollFlags::IN)];
        let notice = Timespec { tv_sec: 0, tv_nsec: NOTICE.subsec_nanos().into() };
        match poll(&mut keys, Some(&notice)) {
            // A signal, such as that of another size.
            Err(Errno::INTR) => {}
            outcome => drop(outcome?),
        }
        if keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Heard::End);
        }
        Ok(if event::poll(Duration::ZERO)? { Heard::Something } else { Heard::Nothing })
    }
}

/// Watches until a key or a signal ends it, or the terminal is gone. `first` is the response from
/// before it began.
///
/// # Errors
/// The terminal's.
pub(super) fn watch(
    client: Client,
    what: Option<What>,
    pause: Duration,
    first: Seen,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Running(format!("weir: the terminal: {error}\n"));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(failed)?;
    }
    let (sender, receiver) = sync_channel(0);
    let asking = std::thread::Builder::new().name("weir-asks".to_owned());
    asking.spawn(move || ask(&client, what.as_ref(), pause, &sender)).map_err(failed)?;
    let keys = Keys::open().map_err(failed)?;
    let mut screen = Some(Screen::enter().map_err(failed)?);
    let mut watched =
        Watched { seen: first, at: Instant::now(), away: None, view: View::default() };
    // The terminal is restored before an error about it is printed.
    let outcome = attend(&mut watched, &mut screen, &keys, &receiver, &ended);
    drop(screen);
    outcome.map_err(failed)
}

/// Queries until the receiver is gone.
fn ask(client: &Client, what: Option<&What>, pause: Duration, sender: &SyncSender<News>) {
    loop {
        std::thread::sleep(pause);
        if sender.send(seen(client, what).map(|(seen, _)| seen)).is_err() {
            return;
        }
    }
}

/// The last response, and the user's view of it.
struct Watched {
    seen: Seen,
    at: Instant,
    /// Why it is not newer.
    away: Option<String>,
    view: View,
}

fn attend(
    watched: &mut Watched,
    screen: &mut Option<Screen>,
    keys: &Keys,
    receiver: &Receiver<News>,
    ended: &AtomicBool,
) -> io::Result<()> {
    while !ended.load(Ordering::Relaxed) {
        if let Some(screen) = screen {
            screen.draw(&watched.frame())?;
        }
        let mut is_new = false;
        while !is_new && !ended.load(Ordering::Relaxed) {
            is_new = watched.hear(receiver);
            match keys.wait()? {
                Heard::Nothing => continue,
                Heard::Something => {}
                Heard::End => return Ok(()),
            }
            is_new = true;
            let wish = match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => watched.view.press(key),
                _ => Wish::Look,
            };
            match wish {
                Wish::End => return Ok(()),
                Wish::Stop => {
                    *screen = None;
                    signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
                    *screen = Some(Screen::enter()?);
                }
                Wish::Look | Wish::Nothing => {}
            }
        }
    }
    Ok(())
}

impl Watched {
    /// Takes a response; false: none has arrived.
    fn hear(&mut self, receiver: &Receiver<News>) -> bool {
        match receiver.try_recv() {
            Ok(Ok(seen)) => (self.seen, self.at, self.away) = (seen, Instant::now(), None),
            Ok(Err(Unanswered::Away(_))) => self.away = Some("no running weir found".to_owned()),
            Ok(Err(Unanswered::Refused(text))) => self.away = Some(text),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return false,
        }
        true
    }

    fn frame(&mut self) -> Vec<String> {
        let (columns, rows) = terminal::size().unwrap_or(SIZE);
        let look = Look { width: columns, colour: terminal::wants_colour() };
        let page = match &self.seen {
            Seen::All(status) => watched(status, look, self.view.sort),
            Seen::Server(status) => {
                let text = detail::detail(status, look);
                let mut lines = text.lines().map(str::to_owned);
                Page {
                    head: lines.next().into_iter().collect(),
                    body: lines.collect(),
                    sorted: false,
                }
            }
        };
        let age = span(self.at.elapsed());
        let away =
            self.away.as_ref().map(|why| format!("{why}; this is {age} old, and weir retries"));
        self.view.frame(&page, (columns, rows), away.as_deref(), look.colour)
    }
}
