//! Names of upstreams and listeners by their place: an option that names one finds it in one step,
//! however many exist. Called by [`super::compile`]'s parts.

use std::collections::HashMap;

use super::{BLOCKS_MAX, Compiler};
use crate::check::Checked;
use crate::problem::{PROBLEMS_MAX, Problem, nearest};
use crate::steps;

/// The names of all upstreams that are compiled, in the order of the text.
pub(super) struct Names<'a> {
    all: Vec<&'a str>,
    /// The first place of each.
    places: HashMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    /// Returns the names in the document.
    pub(super) fn of_upstreams(document: &'a Checked) -> Names<'a> {
        let blocks = document.all("upstream").take(BLOCKS_MAX);
        let all: Vec<&str> = blocks.map(|upstream| upstream.text("name")).collect();
        let mut places = HashMap::with_capacity(all.len());
        all.iter().enumerate().for_each(|(at, name)| _ = places.entry(*name).or_insert(at));
        Names { all, places }
    }

    /// Returns the place of a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        steps::add(1);
        self.places.get(name).copied()
    }

    /// Returns the name at a place.
    pub(super) fn at(&self, place: usize) -> &'a str {
        self.all[place]
    }

    /// Returns the known name that is most similar to an unknown one.
    fn like(&self, name: &str) -> Option<&'a str> {
        steps::add(self.all.len());
        nearest(name, self.all.iter().copied())
    }
}

/// The names of listeners for `route`, each with its index in the plan.
pub(super) struct ListenerNames<'a>(HashMap<&'a str, usize>);

impl<'a> ListenerNames<'a> {
    /// Returns the names in the document.
    pub(super) fn new(compiler: &mut Compiler<'_>, document: &'a Checked) -> ListenerNames<'a> {
        let mut places: HashMap<&str, (usize, &Checked)> = HashMap::new();
        for (at, block) in document.all("listen").take(BLOCKS_MAX).enumerate() {
            let name = block.text("name");
            if name.is_empty() {
                continue;
            }
            if let Some((_, first)) = places.get(name) {
                let message = format!("another listener already has the name `{name}`");
                let problem = Problem::new("duplicate", &block.place("name"), message);
                compiler.push(problem.related(&first.place("name"), "first here"));
            } else {
                places.insert(name, (at, block));
            }
        }
        ListenerNames(places.into_iter().map(|(name, (at, _))| (name, at)).collect())
    }

    /// Returns the listeners that a route names. An unknown name is reported.
    pub(super) fn of_route(&self, compiler: &mut Compiler<'_>, route: &Checked) -> Vec<usize> {
        let mut found = Vec::new();
        for name in route.texts("listen") {
            steps::add(1);
            let Some(at) = self.0.get(name) else {
                let message =
                    format!("no `listen` outside of `forward` and `tcp` has the name `{name}`");
                let help = format!("name it: listen \"0.0.0.0:80\" name=\"{name}\"");
                let place = route.place("listen");
                compiler.push(Problem::new("unknown-listener", &place, message).help(help));
                continue;
            };
            if !found.contains(at) {
                found.push(*at);
            }
        }
        found
    }
}

impl Compiler<'_> {
    /// Returns the index of the upstream that an option names. None: it does not exist, which is
    /// reported, or the option is absent.
    pub(super) fn upstream_named(
        &mut self,
        block: &Checked,
        option: &str,
        names: &Names<'_>,
    ) -> Option<usize> {
        let name = block.text(option);
        let target = names.find(name);
        // A missing or wrong name has been reported already.
        if target.is_none() && !name.is_empty() {
            self.unknown_upstream(block, option, names);
        }
        target
    }

    /// Reports an option that names an unknown upstream. The comparison with all names is only for
    /// problems that are shown.
    fn unknown_upstream(&mut self, block: &Checked, option: &str, names: &Names<'_>) {
        let name = block.text(option);
        let problem = Problem::new(
            "unknown-upstream",
            &block.place(option),
            format!("unknown upstream `{name}`"),
        );
        let known = if self.problems.len() < PROBLEMS_MAX { names.like(name) } else { None };
        self.push(match known {
            Some(known) => problem.help(format!("did you mean `{known}`?")),
            None => problem
                .help(format!("define it: upstream \"{name}\" {{ server \"127.0.0.1:9090\" }}")),
        });
    }
}
