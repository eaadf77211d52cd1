//! Socket options of `listen` and `upstream` -> plan. Called where these are compiled.

use std::sync::Arc;

use weir_proxy::plan::{ARMS_MAX, Congestion, Tunable, Tuning, UNIX};

use super::Compiler;
use crate::check::Checked;
use crate::options::SOCKETS;
use crate::problem::Problem;
use crate::schema::Setting;
use crate::texts::sockets as texts;

/// Returns the written options; None: none is written.
pub(super) fn tuning(block: &Checked) -> Option<Arc<Tuning>> {
    let device = Some(block.text("device")).filter(|name| !name.is_empty());
    let mut tuning = Tuning::by(device);
    let keepalive = Some(block.text("tcp-keepalive")).filter(|text| !text.is_empty());
    tuning.keepalive = keepalive.and_then(|text| texts::asking(text).ok());
    for option in Tunable::ALL {
        tuning.set(option, value(block, option));
    }
    (tuning != Tuning::default()).then(|| Arc::new(tuning))
}

/// Returns the value in the unit of the plan. Wrong values have been reported.
fn value(block: &Checked, option: Tunable) -> Option<u64> {
    match block.setting(option.word())? {
        Setting::Time(us) => Some(us.div_ceil(1000)),
        Setting::Size(number) | Setting::Count(number) => Some(*number),
        Setting::Text(text) => match option {
            Tunable::Dscp => texts::code_point(text),
            Tunable::MaxRate => texts::bytes_per_second(text).ok(),
            _ => text.parse().ok(),
        },
        Setting::Flag(_) | Setting::Word(_) => None,
    }
}

/// Returns the congestion controls that a block names.
pub(super) fn congestion(block: &Checked) -> Congestion {
    Congestion::new(block.texts("congestion").into_iter())
}

/// Several congestion controls are compared by connections that begin and end with those of
/// clients.
pub(super) fn check_undivided(compiler: &mut Compiler<'_>, block: &Checked, whose: &str) {
    if congestion(block).is_divided() {
        let message = format!(
            "`congestion` has several names: only {whose} can divide its connections among them"
        );
        compiler
            .push(Problem::new("conflict", &block.place("congestion"), message).help("name one"));
    }
}

/// Checks that not too many are compared, and each once.
pub(super) fn check_arms(compiler: &mut Compiler<'_>, block: &Checked) {
    let names = block.texts("congestion");
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    let message = match twice {
        Some((_, name)) => {
            format!("`congestion` names `{name}` twice, but each name gets an equal share")
        }
        None if names.len() > ARMS_MAX => {
            format!("`congestion` has {} names, but at most {ARMS_MAX} are allowed", names.len())
        }
        None => return,
    };
    compiler.push(Problem::new("conflict", &block.place("congestion"), message));
}

/// Returns the names of the options that are written in a block.
pub(super) fn chosen(block: &Checked) -> impl Iterator<Item = &'static str> {
    SOCKETS.iter().map(|row| row.name).filter(|name| block.chosen(name).is_some())
}

/// Reports TCP socket options of an upstream whose servers are on unix sockets.
pub(super) fn check_servers(compiler: &mut Compiler<'_>, upstream: &Checked) {
    let Some(server) =
        upstream.all("server").find(|server| server.text("address").starts_with(UNIX))
    else {
        return;
    };
    for name in chosen(upstream) {
        let message = format!(
            "`{name}` needs TCP connections, but `{}` is a unix socket",
            server.text("address")
        );
        let problem = Problem::new("conflict", &upstream.place(name), message);
        compiler.push(
            problem
                .related(&server.place("address"), "here")
                .help("put TCP servers and unix sockets into separate upstreams"),
        );
    }
}
