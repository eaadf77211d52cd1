//! Interfaces inside the namespace that send through the interfaces of clients and servers
//! (macvlan). They keep the host from receiving an interception's own packets on their way out.

use std::fmt::Write as _;
use std::fs;
use std::io;

use weir_bpf::{Intercept, Side};
use weir_io::{Interfaces, Layer, Link, Namespace};

use super::Route;
use super::place::PACKETS;
use crate::log::Event;

/// Their names, towards clients and towards servers.
const NAMES: [&str; 2] = ["toclients", "toservers"];

/// The interfaces that exist, to be removed at the end.
pub(super) struct Beside {
    /// Of the namespace; None: it cannot be queried.
    interfaces: Option<Interfaces>,
    indices: Vec<u32>,
}

impl Beside {
    /// Makes them where possible. Elsewhere it reports why not, and packets use the pair of
    /// interfaces.
    pub(super) fn make(
        here: &mut Interfaces,
        sides: [&mut (Side, Link); 2],
        namespace: &Namespace,
        mtu: u32,
    ) -> Beside {
        let mut indices = Vec::new();
        for (name, (side, link)) in NAMES.into_iter().zip(sides) {
            match make(here, name, (side, link), namespace, mtu) {
                Ok(index) => {
                    side.beside = Some(index);
                    indices.push(index);
                }
                Err(why) => {
                    let sentence = format_args!(
                        "{}: {why}; packets that weir sends there pass through the stack twice",
                        side.name
                    );
                    Event::InterceptFallback.says(sentence).log();
                }
            }
        }
        Beside { interfaces: namespace.enter(|| Interfaces::here().ok()).ok().flatten(), indices }
    }

    /// Whether any exists.
    pub(super) fn is_any(&self) -> bool {
        !self.indices.is_empty()
    }

    /// Removes them. A user has no right to do this; then they disappear with the namespace.
    pub(super) fn remove(self) {
        let Some(mut interfaces) = self.interfaces else { return };
        for index in self.indices {
            let _ = interfaces.remove(index);
        }
    }
}

/// Makes one of them. Returns its number in the namespace, or why it is impossible.
fn make(
    here: &mut Interfaces,
    name: &str,
    (side, link): (&Side, &Link),
    namespace: &Namespace,
    mtu: u32,
) -> Result<u32, String> {
    if !Intercept::may_leave() {
        return Err("this kernel would leak memory (CVE-2025-40183, fixed in 6.6.113, 6.12.54, \
            6.17.4 and 6.18)"
            .into());
    }
    match link.layer {
        // A macvlan on it would belong to the interface below, and bypass the programs of this one.
        Layer::Macvlan => return Err("it is a macvlan itself".into()),
        Layer::Bridge => {
            return Err("it is a bridge, which would have to receive all packets".into());
        }
        Layer::Other if !link.is_ethernet() => return Err("it is not Ethernet".into()),
        Layer::Other => {}
    }
    let none = |error: io::Error| format!("it cannot have a macvlan ({error})");
    here.make_macvlan(name, side.index, namespace).map_err(none)?;
    let set_up = || {
        let mut interfaces = Interfaces::here()?;
        let index = interfaces.index(name)?.ok_or(io::ErrorKind::NotFound)?;
        let done = set_up(&mut interfaces, name, index, mtu);
        if done.is_err() {
            let _ = interfaces.remove(index);
        }
        done.map(|()| index)
    };
    namespace.enter(set_up).and_then(|done| done).map_err(none)
}

/// Sets up an interface that sends nothing unasked and ignores what it hears: routers announce
/// addresses and routes of IPv6.
fn set_up(interfaces: &mut Interfaces, name: &str, index: u32, mtu: u32) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done?,
    }
    interfaces.set_limits(index, mtu, PACKETS)?;
    interfaces.set_up_unasked(index)
}

/// Shows the commands that one would type for this: interfaces, or programs.
pub(super) fn shown(route: &Route, is_programs: bool) -> String {
    let mut text = String::new();
    for (name, side) in NAMES.into_iter().zip([&route.client, &route.server]) {
        if is_programs {
            let _ = writeln!(text, "#   {side}, out: packets of {name} go to their neighbour");
        } else {
            let _ = writeln!(
                text,
                "# ip link add link {side} name {name} netns NS type macvlan mode private"
            );
            let _ =
                writeln!(text, "# ip netns exec NS sysctl -w net.ipv6.conf.{name}.disable_ipv6=1");
            let _ = writeln!(
                text,
                "# ip -n NS link set {name} mtu MTU txqueuelen {PACKETS} arp off up"
            );
        }
    }
    text
}
