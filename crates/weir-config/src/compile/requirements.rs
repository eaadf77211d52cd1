//! Requirements of a route on requests: `content-types`, `method-override`, `host-address`. Called
//! by `compile::route`.

use std::net::IpAddr;

use weir_proxy::request::rules::requirements::{Requirements, is_address};

use super::Compiler;
use crate::check::Checked;
use crate::problem::Problem;

/// Returns the requirements of a route.
pub(super) fn requirements(compiler: &mut Compiler<'_>, route: &Checked) -> Requirements {
    let refuses = |name: &str| route.word(name) == "refuse";
    let host = route.text("host");
    if refuses("host-address") && (is_address(host.as_bytes()) || host.parse::<IpAddr>().is_ok()) {
        let message =
            format!("this route serves only the address `{host}`, which `host-address` refuses");
        let problem = Problem::new("conflict", &route.place("host-address"), message);
        compiler.push(problem.help("remove the line, or use it in routes for names and for `*`"));
    }
    Requirements {
        content_types: route.texts("content-types").iter().map(|one| (*one).to_owned()).collect(),
        no_override: refuses("method-override"),
        no_address: refuses("host-address"),
    }
}
