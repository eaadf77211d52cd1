//! `weir lab link`: a slow and lossy link between two network namespaces. The link is
//! `weir_lab::link`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_lab::link::{
    self, End, Figures, Link, LinkOptions, Obstacle, Place, QUEUE_DEFAULT, Queue, Terms, show_rate,
};
use weir_lab::units::{duration_us, show_ns};

use crate::failure::Failure;
use crate::{run, terminal};

/// How often to check whether the link still exists.
const LOOK: Duration = Duration::from_millis(250);

/// `weir lab`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  weir lab link --delay 20ms --rate 20Mbit/s --loss 1% -- ping -c 5 198.18.0.1")]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    what: Lab,
}

/// What the laboratory has.
#[derive(Subcommand, Debug)]
enum Lab {
    /// Emulate delay, rate, jitter, loss and reordering between two namespaces
    Link(Box<LinkArgs>),
}

/// `weir lab link`.
#[derive(Args, Debug)]
#[command(after_help = "\
A thread carries packets between two TUN devices, one in each namespace. It does what netem does, \
and works where netem is missing. A value holds for both directions; two values with a comma hold \
from a to b, and back. The devices disappear when weir ends, for any reason. COMMAND runs in the \
namespace of b and ends the link, with its exit code; without one, Ctrl-C does. \
Needs root, or: unshare --user --map-root-user --net weir lab link ...

Example:
  weir origin --listen 0.0.0.0:9090 &
  weir lab link --delay 20ms --rate 20Mbit/s --loss 1% \\
    -- curl -so /dev/null 'http://198.18.0.1:9090/?size=4000000'
  weir lab link --delay 300ms --rate 20Mbit/s,2Mbit/s --queue 1s --loss 0.5% --burst 4")]
pub(crate) struct LinkArgs {
    /// Delay of each packet, up to 1m
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = link::times)]
    delay: [u64; 2],
    /// Random extra delay up to this, evenly distributed; packets keep their order
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = link::times)]
    jitter: [u64; 2],
    /// Rate in kbit/s, Mbit/s or Gbit/s, or none
    #[arg(long, value_name = "RATE", default_value = "none", value_parser = link::rates)]
    rate: [Option<u64>; 2],
    /// Longest wait of a packet for the line, or bytes that may wait: 100ms, 64KiB [default: 100ms]
    #[arg(long, value_name = "TIME|SIZE", value_parser = link::queues)]
    queue: Option<[Queue; 2]>,
    /// Lost packets, in percent
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = link::shares)]
    loss: [f64; 2],
    /// Packets lost at a time, on average [default: independent losses]
    #[arg(long, value_name = "N", value_parser = link::bursts)]
    burst: Option<[f64; 2]>,
    /// Packets delayed so that others overtake them, in percent
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = link::shares)]
    reorder: [f64; 2],
    /// Extra delay of reordered packets
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = link::times)]
    reorder_by: [u64; 2],
    /// Seed of all random values
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Names of the interfaces
    #[arg(long, value_name = "A,B", default_value = "wa,wb", value_parser = link::names)]
    names: [String; 2],
    /// Addresses of the interfaces; may be repeated
    #[arg(
        long,
        value_name = "A/LENGTH,B/LENGTH",
        default_value = "198.18.0.1/30,198.18.0.2/30",
        value_parser = link::addresses
    )]
    addresses: Vec<[(IpAddr, u8); 2]>,
    /// Namespace of a: a process, a name of `ip netns`, or a path [default: the current one]
    #[arg(long, value_name = "NAMESPACE", value_parser = link::place)]
    netns_a: Option<Place>,
    /// Namespace of b [default: a new one, which disappears with the link]
    #[arg(long, value_name = "NAMESPACE", value_parser = link::place)]
    netns_b: Option<Place>,
    /// Longest packet, bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1500",
        value_parser = clap::value_parser!(u32).range(68..=65_535)
    )]
    mtu: u32,
    /// Print figures at this interval; 0s: only at the end [default: 1s, with a COMMAND 0s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    every: Option<u64>,
    /// Print figures as JSON, with totals in each line
    #[arg(long)]
    json: bool,
    /// Command to run in the namespace of b
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses `--every`: 0, or a time that is long enough to be useful. Microseconds.
fn interval(text: &str) -> Result<u64, String> {
    match duration_us(text)? {
        us @ 1..10_000 => Err(format!("{us} us is too short: use 10ms or more, or 0s")),
        us => Ok(us),
    }
}

/// Runs the verb.
///
/// # Errors
/// Contradictory options, missing abilities or rights of the machine, a lost end, a failed command.
pub(crate) fn lab(arguments: LabArgs) -> Result<(), Failure> {
    let Lab::Link(arguments) = arguments.what;
    let signals = watch_signals().map_err(|error| run::failed("signals", &error))?;
    let options = options(&arguments)?;
    let mut link = Link::spawn(&options).map_err(failure)?;
    let begin = Instant::now();
    let mut view = View::new(&arguments, &options);
    terminal::print_error(&title(&options, &link, arguments.command.is_empty()));
    let child = start(&arguments.command, &link)?;
    let ended = watch(&mut link, child, &signals, &mut view, begin);
    view.show(begin.elapsed(), link.figures(), true);
    link.stop().map_err(|why| Failure::Running(format!("weir lab link: {why}\n")))?;
    match ended.map(code) {
        None | Some(0) => Ok(()),
        Some(code) => Err(Failure::Command(code)),
    }
}

fn options(arguments: &LinkArgs) -> Result<LinkOptions, Failure> {
    if arguments.queue.is_some() && arguments.rate == [None; 2] {
        let why = "--queue: without --rate, no packet waits";
        return Err(Failure::Usage(format!("weir lab link: {why}\n")));
    }
    let queue = arguments.queue.unwrap_or([QUEUE_DEFAULT; 2]);
    let way = |at: usize| Terms {
        rate: arguments.rate[at],
        queue: queue[at],
        loss: arguments.loss[at],
        burst: arguments
            .burst
            .filter(|_| arguments.loss[at] > 0.0 || arguments.loss == [0.0; 2])
            .map(|burst| burst[at]),
        delay_ns: arguments.delay[at],
        jitter_ns: arguments.jitter[at],
        reorder: arguments.reorder[at],
        reorder_ns: arguments.reorder_by[at],
    };
    let (a, b) = (
        arguments.netns_a.clone().unwrap_or(Place::Here),
        arguments.netns_b.clone().unwrap_or(Place::New),
    );
    let end = |at: usize, place| End {
        name: arguments.names[at].clone(),
        place,
        addresses: arguments.addresses.iter().map(|pair| pair[at]).collect(),
    };
    Ok(LinkOptions {
        ends: [end(0, a), end(1, b)],
        ways: [way(0), way(1)],
        seed: arguments.seed,
        mtu: arguments.mtu,
    })
}

fn failure(obstacle: Obstacle) -> Failure {
    let say = |why: String| format!("weir lab link: {why}\n");
    match obstacle {
        Obstacle::Usage(why) => Failure::Usage(say(why)),
        Obstacle::Privilege(why) => Failure::Privilege(say(why)),
        Obstacle::Failed(why) => Failure::Running(say(why)),
    }
}

fn title(options: &LinkOptions, link: &Link, says_how_to_enter: bool) -> String {
    let mut text = String::from("weir lab link:");
    for end in &options.ends {
        let addresses: Vec<String> =
            end.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect();
        text += &format!(" {} {} ({}),", end.name, end.place.text(), addresses.join(", "));
    }
    text += &format!(" seed {}\n", options.seed);
    let [a, b] = options.ends.each_ref().map(|end| &end.name);
    let [there, back] = options.ways.each_ref().map(Terms::text);
    text += &format!("  {a} > {b}  {there}\n  {b} > {a}  {back}\n");
    if says_how_to_enter && options.ends[1].place == Place::New {
        let net = link.entrance(1);
        text += &format!("Enter by: nsenter --net={net} COMMAND\n");
        if let Some(user) = link::user_entrance() {
            text += &format!(
                "From outside of this user namespace: nsenter --user={user} --preserve-credentials \
                    --net={net} COMMAND\n"
            );
        }
    }
    text
}

/// Starts the command in the namespace of the second end.
fn start(command: &[OsString], link: &Link) -> Result<Option<Child>, Failure> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let started = link.namespace(1).enter(|| Command::new(program).args(arguments).spawn());
    let started = started.and_then(|started| started);
    let why = |error| {
        Failure::Running(format!("weir lab link: can't run {}: {error}\n", program.display()))
    };
    started.map(Some).map_err(why)
}

/// Sends each signal that concerns a link.
fn watch_signals() -> std::io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Shows figures until a signal comes, the command ends, or an end of the link is lost. Returns how
/// the command has ended.
fn watch(
    link: &mut Link,
    mut child: Option<Child>,
    signals: &Receiver<i32>,
    view: &mut View,
    begin: Instant,
) -> Option<ExitStatus> {
    let mut due = view.every;
    // Whether the loss of the link has been reported.
    let mut is_told = false;
    loop {
        let wait = due.saturating_sub(begin.elapsed()).min(LOOK);
        let signal = signals.recv_timeout(wait);
        // Checked each time, because it may have ended before this function began to watch for
        // that.
        if let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
            return Some(status);
        }
        match (signal, &child) {
            (Ok(SIGCHLD), _) => {}
            // A terminal also sends it to the command, which knows best how to handle it.
            (Ok(SIGINT), Some(_)) => {}
            (Ok(_), Some(child)) => {
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            (Ok(_) | Err(RecvTimeoutError::Disconnected), None) => return None,
            (Err(_), None) if link.is_over() => return None,
            (Err(_), Some(child)) if !is_told && link.is_over() => {
                is_told = true;
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            (Err(_), _) => {}
        }
        if begin.elapsed() >= due {
            view.show(begin.elapsed(), link.figures(), false);
            due += view.every;
        }
    }
}

/// Returns the exit code that a shell would return.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The figures while it runs, and at the end.
struct View {
    names: [String; 2],
    every: Duration,
    is_json: bool,
    /// Standard output belongs to the command.
    is_aside: bool,
    last: (Duration, [Figures; 2]),
}

impl View {
    fn new(arguments: &LinkArgs, options: &LinkOptions) -> View {
        let is_aside = !arguments.command.is_empty();
        let every = arguments.every.unwrap_or(if is_aside { 0 } else { 1_000_000 });
        View {
            names: options.ends.each_ref().map(|end| end.name.clone()),
            every: if every == 0 { Duration::MAX } else { Duration::from_micros(every) },
            is_json: arguments.json,
            is_aside,
            last: Default::default(),
        }
    }

    fn show(&mut self, elapsed: Duration, figures: [Figures; 2], is_end: bool) {
        let text = if self.is_json {
            self.json(elapsed, figures, is_end)
        } else {
            self.text(elapsed, figures, is_end)
        };
        self.last = (elapsed, figures);
        if self.is_aside { terminal::print_error(&text) } else { terminal::print(&text) }
    }

    fn json(&self, elapsed: Duration, figures: [Figures; 2], is_end: bool) -> String {
        let [a, b] = &self.names;
        let ways: Vec<_> = [(a, b), (b, a)]
            .into_iter()
            .zip(figures)
            .map(|((from, to), figures)| {
                let mut way = figures.json();
                way["from"] = json!(from);
                way["to"] = json!(to);
                way
            })
            .collect();
        format!("{}\n", json!({ "seconds": elapsed.as_secs_f64(), "end": is_end, "ways": ways }))
    }

    fn text(&self, elapsed: Duration, figures: [Figures; 2], is_end: bool) -> String {
        let (since, before) = if is_end { Default::default() } else { self.last };
        let seconds = (elapsed - since).as_secs_f64().max(1e-6);
        let [a, b] = &self.names;
        let mut text = String::new();
        for ((from, to), (now, before)) in
            [(a, b), (b, a)].into_iter().zip(figures.iter().zip(&before))
        {
            let part = now.since(before);
            text += &format!(
                "{:8.1} s {} {from} > {to}  {}, {} packets, {} lost, {} dropped",
                elapsed.as_secs_f64(),
                if is_end { "in all" } else { "lately" },
                show_rate(part.bytes_out as f64 * 8.0 / seconds),
                part.packets_out,
                part.lost,
                part.dropped,
            );
            let more = [
                (part.reordered, "reordered"),
                (part.refused, "refused"),
                (part.held, "held"),
                (part.overrun, "OVERRUN"),
            ];
            for (count, word) in more.into_iter().filter(|(count, _)| *count > 0) {
                text += &format!(", {count} {word}");
            }
            if is_end {
                text += &format!(
                    ", late by {}, at most {}",
                    show_ns(now.late_mean_ns()),
                    show_ns(now.late_max_ns)
                );
            }
            text.push('\n');
        }
        if is_end && figures.iter().any(|figures| figures.overrun > 0) {
            text += "weir lab link: packets came faster than weir could read them (overrun): the \
                link did not have the requested properties\n";
        }
        text
    }
}
