//! The parameters of a link, and how people write them. Called by the command line and by every
//! user of a link; pure.

use std::net::IpAddr;
use std::path::PathBuf;

use weir_io::INTERFACE_NAME_BYTES_MAX;

use super::loss::burst_min;
use crate::units::{duration_us, number, show_ns};

/// Longest delay, jitter, wait, and distance of reordered packets.
const TIME_US_MAX: u64 = 60_000_000;
/// Lowest and highest rate, bits a second.
const RATES: [f64; 2] = [1e3, 100e9];
/// Largest queue.
const QUEUE_BYTES_MAX: f64 = (1u64 << 30) as f64;
/// How long packets wait at most by default.
pub const QUEUE_DEFAULT: Queue = Queue::Time(100_000_000);
/// The shortest MTU that IPv6 has (RFC 8200 §5).
const MTU_OF_IPV6_MIN: u32 = 1280;

/// What one direction does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Bits a second that the line sends; None: all at once.
    pub rate: Option<u64>,
    /// How much may wait for the line.
    pub queue: Queue,
    /// Share of packets that are lost, from 0 to 1.
    pub loss: f64,
    /// Mean length of a burst of losses; None: each loss is independent.
    pub burst: Option<f64>,
    /// How long a packet takes after the line, nanoseconds.
    pub delay_ns: u64,
    /// Maximum additional delay, nanoseconds.
    pub jitter_ns: u64,
    /// Share of packets that come later, from 0 to 1.
    pub reorder: f64,
    /// By how much, nanoseconds.
    pub reorder_ns: u64,
}

/// The limit of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// No packet waits longer, nanoseconds.
    Time(u64),
    /// No more bytes wait, including those that are being sent.
    Bytes(u64),
}

/// One end of a link.
#[derive(Debug, Clone)]
pub struct End {
    /// The name of its interface.
    pub name: String,
    /// Its namespace.
    pub place: Place,
    /// Its addresses, with the number of bits that those of its network have in common.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The one of the caller.
    Here,
    /// A new one, which is gone when no process uses it any more.
    New,
    /// The one that this path leads to; and the text that named it.
    At(PathBuf, String),
}

/// A link.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Its ends.
    pub ends: [End; 2],
    /// From the first end to the second, and back.
    pub ways: [Terms; 2],
    /// The seed of everything random.
    pub seed: u64,
    /// The longest packet, bytes.
    pub mtu: u32,
}

impl LinkOptions {
    /// Checks that the parameters are compatible.
    ///
    /// # Errors
    /// A text that names the incompatible options.
    pub fn check(&self) -> Result<(), String> {
        let [a, b] = &self.ends;
        if a.name == b.name {
            return Err(format!("--names: both ends have the name `{}`", a.name));
        }
        for terms in &self.ways {
            match terms.burst {
                Some(_) if terms.loss <= 0.0 => {
                    return Err("--burst shapes --loss: add --loss".to_owned());
                }
                Some(_) if terms.loss >= 1.0 => {
                    return Err(
                        "--burst: all packets are lost, so bursts have no meaning".to_owned()
                    );
                }
                Some(mean) if mean < burst_min(terms.loss) => {
                    let (loss, least) = (show_share(terms.loss), burst_min(terms.loss));
                    return Err(format!(
                        "--burst: a loss of {loss} needs bursts of at least {least:.1} packets"
                    ));
                }
                _ => {}
            }
        }
        let has_ipv6 =
            self.ends.iter().flat_map(|end| &end.addresses).any(|(address, _)| address.is_ipv6());
        if has_ipv6 && self.mtu < MTU_OF_IPV6_MIN {
            return Err(format!("--mtu: IPv6 needs {MTU_OF_IPV6_MIN} or more"));
        }
        Ok(())
    }
}

impl Terms {
    /// For people.
    pub fn text(&self) -> String {
        let mut parts =
            vec![self.rate.map_or_else(|| "any rate".to_owned(), |rate| show_rate(rate as f64))];
        match (self.rate, self.queue) {
            (None, _) => {}
            (_, Queue::Time(ns)) => parts.push(format!("queue {}", show_ns(ns))),
            (_, Queue::Bytes(bytes)) => parts.push(format!("queue {bytes} bytes")),
        }
        if self.loss > 0.0 {
            let bursts =
                self.burst.map_or_else(String::new, |mean| format!(" in bursts of {mean}"));
            parts.push(format!("loss {}{bursts}", show_share(self.loss)));
        }
        if self.delay_ns > 0 {
            parts.push(format!("delay {}", show_ns(self.delay_ns)));
        }
        if self.jitter_ns > 0 {
            parts.push(format!("jitter {}", show_ns(self.jitter_ns)));
        }
        if self.reorder > 0.0 {
            parts.push(format!(
                "reorder {} by {}",
                show_share(self.reorder),
                show_ns(self.reorder_ns)
            ));
        }
        parts.join(", ")
    }
}

fn show_share(share: f64) -> String {
    format!("{} %", (share * 100.0 * 1e6).round() / 1e6)
}

/// Bits a second with three digits in the unit that fits.
pub fn show_rate(bits: f64) -> String {
    let (unit, value) = match bits {
        ..999_500.0 => ("kbit/s", bits / 1e3),
        ..999_500_000.0 => ("Mbit/s", bits / 1e6),
        _ => ("Gbit/s", bits / 1e9),
    };
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Reads a value for both ways, or two with a comma.
fn both<T: Clone>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<[T; 2], String> {
    match text.split_once(',') {
        None => read(text).map(|value| [value.clone(), value]),
        Some((there, back)) => Ok([read(there.trim())?, read(back.trim())?]),
    }
}

/// Reads a time, up to a minute. Nanoseconds.
///
/// # Errors
/// A text that says what is expected; the same applies to all that follow.
pub fn time(text: &str) -> Result<u64, String> {
    match duration_us(text)? {
        us @ 0..=TIME_US_MAX => Ok(us * 1000),
        _ => Err(format!("`{text}` is more than a minute")),
    }
}

/// Reads times. Nanoseconds.
pub fn times(text: &str) -> Result<[u64; 2], String> {
    both(text, time)
}

/// Reads rates: `20Mbit/s`, `none`. Bits a second.
pub fn rates(text: &str) -> Result<[Option<u64>; 2], String> {
    both(text, rate)
}

fn rate(text: &str) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || format!("`{text}` is not a rate such as 20Mbit/s, 500kbit/s, 1Gbit/s, or none");
    let (digits, unit) = split(text);
    let unit = unit.to_ascii_lowercase();
    let factor = match unit.strip_suffix("/s").unwrap_or(&unit) {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(wrong()),
    };
    let bits = number(digits).map_err(|_| wrong())? * factor;
    if !(RATES[0]..=RATES[1]).contains(&bits) {
        return Err(format!(
            "`{text}` is not a rate from 1kbit/s to 100Gbit/s; use none for no limit"
        ));
    }
    Ok(Some(bits as u64))
}

/// Reads limits of queues: a time or a size.
pub fn queues(text: &str) -> Result<[Queue; 2], String> {
    both(text, queue)
}

fn queue(text: &str) -> Result<Queue, String> {
    let (digits, unit) = split(text);
    let factor = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        _ => {
            let wrong =
                |_| format!("`{text}` is neither a time such as 100ms nor a size such as 64KiB");
            return duration_us(text).map_err(wrong).and_then(|_| time(text)).map(Queue::Time);
        }
    };
    match number(digits) {
        Ok(value) if value * factor <= QUEUE_BYTES_MAX => Ok(Queue::Bytes((value * factor) as u64)),
        Ok(_) => Err(format!("`{text}` is more than 1 GiB")),
        Err(_) => Err(format!("`{text}` is not a size such as 64KiB")),
    }
}

/// Reads shares of packets: `1%`. From 0 to 1.
pub fn shares(text: &str) -> Result<[f64; 2], String> {
    both(text, share)
}

fn share(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a share from 0% to 100%, such as 1% or 0.05%");
    let percent = number(text.strip_suffix('%').ok_or_else(wrong)?).map_err(|_| wrong())?;
    if percent <= 100.0 { Ok(percent / 100.0) } else { Err(wrong()) }
}

/// Reads mean lengths of bursts, packets.
pub fn bursts(text: &str) -> Result<[f64; 2], String> {
    both(text, |text| match number(text) {
        Ok(mean) if (1.0..=1e6).contains(&mean) => Ok(mean),
        _ => Err(format!("`{text}` is not a mean length of bursts, from 1 packet")),
    })
}

/// Reads names of interfaces.
pub fn names(text: &str) -> Result<[String; 2], String> {
    let (a, b) = text
        .split_once(',')
        .ok_or_else(|| format!("`{text}` is not two names with a comma, such as wa,wb"))?;
    for name in [a, b] {
        let is_odd =
            |byte: u8| byte <= b' ' || byte >= 0x7f || matches!(byte, b'/' | b':' | b'%' | b',');
        if name.is_empty()
            || name.len() > INTERFACE_NAME_BYTES_MAX
            || name.bytes().any(is_odd)
            || matches!(name, "." | "..")
        {
            return Err(format!(
                "`{name}` is not a name of an interface: 1 to {INTERFACE_NAME_BYTES_MAX} letters \
                    and digits"
            ));
        }
    }
    Ok([a.to_owned(), b.to_owned()])
}

/// Reads the place of an end: a process, a name of `ip netns`, or a path.
pub fn place(text: &str) -> Result<Place, String> {
    let path = match text {
        "" => return Err("expected a process, a name of `ip netns`, or a path".to_owned()),
        pid if pid.bytes().all(|byte| byte.is_ascii_digit()) => format!("/proc/{pid}/ns/net"),
        path if path.contains('/') => path.to_owned(),
        name => format!("/run/netns/{name}"),
    };
    Ok(Place::At(path.into(), text.to_owned()))
}

/// Reads the addresses of both ends: `198.18.0.1/30,198.18.0.2/30`.
pub fn addresses(text: &str) -> Result<[(IpAddr, u8); 2], String> {
    let (a, b) = text.split_once(',').ok_or_else(|| {
        format!("`{text}` is not two addresses with a comma: 198.18.0.1/30,198.18.0.2/30")
    })?;
    let ends = [address(a.trim())?, address(b.trim())?];
    let [(first, prefix), (second, other)] = ends;
    if first == second {
        return Err(format!("both ends have {first}"));
    }
    if prefix != other || !shares_network(first, second, prefix) {
        return Err(format!("`{a}` and `{b}` are not in the same network"));
    }
    Ok(ends)
}

fn address(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || {
        format!("`{text}` is not an address with the length of its network, such as 198.18.0.1/30")
    };
    let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
    let (address, prefix): (IpAddr, u8) =
        (address.parse().map_err(|_| wrong())?, prefix.parse().map_err(|_| wrong())?);
    let width = if address.is_ipv4() { 32 } else { 128 };
    // With one address in the network the other end has no place in it.
    if !(1..width).contains(&prefix) {
        return Err(format!("`{text}`: a network of a link has a length from 1 to {}", width - 1));
    }
    if address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err(format!("{address} is not an address that an end can have"));
    }
    if let IpAddr::V4(four) = address
        && prefix < 31
    {
        let host = u32::from(four) << prefix >> prefix;
        if host == 0 || host == u32::MAX >> prefix {
            return Err(format!("{address} is the network itself, or all of it (broadcast)"));
        }
    }
    Ok((address, prefix))
}

/// Whether two addresses have the first `prefix` bits in common.
pub(super) fn shares_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let differs = |width: u32, different: u128| different >> (width - u32::from(prefix)) != 0;
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => !differs(32, u128::from(u32::from(a) ^ u32::from(b))),
        (IpAddr::V6(a), IpAddr::V6(b)) => !differs(128, u128::from(a) ^ u128::from(b)),
        _ => false,
    }
}

/// Returns digits, and the text after them.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_for_both_ways_or_for_each() {
        assert_eq!(times("20ms"), Ok([20_000_000; 2]));
        assert_eq!(times("1us,0s"), Ok([1_000, 0]));
        assert_eq!(rates("20Mbit/s,2mbit"), Ok([Some(20_000_000), Some(2_000_000)]));
        assert_eq!(rates("1.5Gbit/s, none"), Ok([Some(1_500_000_000), None]));
        assert_eq!(queues("100ms,64KiB"), Ok([Queue::Time(100_000_000), Queue::Bytes(65_536)]));
        assert_eq!(queues("3000B"), Ok([Queue::Bytes(3000); 2]));
        assert_eq!(shares("1%,0.05%"), Ok([0.01, 0.0005]));
        assert_eq!(shares("100%"), Ok([1.0; 2]));
        assert_eq!(bursts("1,2.5"), Ok([1.0, 2.5]));
        assert_eq!(names("a-1,b_2"), Ok(["a-1".to_owned(), "b_2".to_owned()]));
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for text in ["", "20", "-1ms", "2m", "1ms,", ",1ms", "1ms,2ms,3ms"] {
            assert!(times(text).is_err(), "{text}");
        }
        for text in
            ["", "20", "0Mbit/s", "999bit/s", "101Gbit/s", "20MB/s", "Mbit/s", "-1Mbit/s", "20M"]
        {
            assert!(rates(text).is_err(), "{text}");
        }
        for text in ["", "64", "64kB", "2m", "1025MiB", "-1B"] {
            assert!(queues(text).is_err(), "{text}");
        }
        for text in ["", "1", "%", "-1%", "100.1%", "nan%", "1%%"] {
            assert!(shares(text).is_err(), "{text}");
        }
        for text in ["0", "0.5", "x", ""] {
            assert!(bursts(text).is_err(), "{text}");
        }
        for text in
            ["wa", "wa,", ",wb", "a/b,c", "a b,c", "a,b,c", "..,b", "sixteen-letters-,b", "%d,b"]
        {
            assert!(names(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_are_of_one_network() {
        let good =
            ["198.18.0.1/30,198.18.0.2/30", "10.0.0.0/31,10.0.0.1/31", "fd00::1/64,fd00::2/64"];
        for text in good {
            let [(a, _), (b, _)] = addresses(text).unwrap();
            assert_eq!(
                format!("{a} {b}"),
                text.replace(',', " ").replace("/30", "").replace("/31", "").replace("/64", "")
            );
        }
        for text in [
            "198.18.0.1/30",
            "198.18.0.1,198.18.0.2",
            "198.18.0.1/32,198.18.0.2/32",
            "198.18.0.1/0,198.18.0.2/0",
            "198.18.0.1/30,198.18.0.1/30",
            "198.18.0.1/30,198.18.0.5/30",
            "198.18.0.1/30,198.18.0.2/29",
            "198.18.0.0/30,198.18.0.1/30",
            "198.18.0.1/30,198.18.0.3/30",
            "198.18.0.1/30,fd00::1/64",
            "127.0.0.1/8,127.0.0.2/8",
            "fd00::1/128,fd00::2/128",
            "x/30,y/30",
        ] {
            assert!(addresses(text).is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_processes_names_and_paths() {
        let path = |text| match place(text) {
            Ok(Place::At(path, said)) if said == text => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(path("4711"), PathBuf::from("/proc/4711/ns/net"));
        assert_eq!(path("client"), PathBuf::from("/run/netns/client"));
        assert_eq!(path("./x"), PathBuf::from("./x"));
        assert!(place("").is_err());
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let terms = Terms {
            rate: Some(20_000_000),
            queue: Queue::Time(100_000_000),
            loss: 0.0125,
            burst: Some(3.0),
            delay_ns: 20_000_000,
            jitter_ns: 0,
            reorder: 0.001,
            reorder_ns: 5_000_000,
        };
        let said = "20.0 Mbit/s, queue 100 ms, loss 1.25 % in bursts of 3, delay 20.0 ms, reorder \
            0.1 % by 5.00 ms";
        assert_eq!(terms.text(), said);
        let end =
            |name: &str| End { name: name.to_owned(), place: Place::Here, addresses: Vec::new() };
        let good = LinkOptions { ends: [end("a"), end("b")], ways: [terms; 2], seed: 1, mtu: 1500 };
        assert_eq!(good.check(), Ok(()));
        let with = |change: &dyn Fn(&mut LinkOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert!(with(&|options| options.ends[1].name = "a".to_owned()).contains("--names"));
        assert!(with(&|options| options.ways[1].loss = 0.0).contains("--loss"));
        assert!(with(&|options| options.ways[0].loss = 1.0).contains("--burst"));
        assert!(with(&|options| options.ways[0].loss = 0.9).contains("at least 9.0 packets"));
        let six = |options: &mut LinkOptions| {
            options.ends[0].addresses.push(("fd00::1".parse().unwrap(), 64));
            options.mtu = 1279;
        };
        assert!(with(&six).contains("1280"));
    }
}
