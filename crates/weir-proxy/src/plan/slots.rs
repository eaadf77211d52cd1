//! The number of a server over all upstreams: its slot, which it keeps as long as anything of it is
//! left.
//!
//! A plan that was just compiled numbers servers upstream after upstream. A successor
//! ([`Plan::merged`]) leaves all of them where they are and appends, or gives away a vacant slot.
//! So data that is shared by all workers, counted or in progress never has to be renumbered.

use std::collections::BTreeMap;

use super::{Plan, ServerPlan, UpstreamPlan};

impl Plan {
    /// Returns for each slot the index of the upstream, and of the server in it.
    pub fn places(&self) -> Vec<(u16, u16)> {
        if !self.slots.is_empty() {
            return self.slots.clone();
        }
        let of = |(upstream, plan): (usize, &UpstreamPlan)| {
            (0..plan.servers.len()).map(move |at| (upstream, at))
        };
        self.upstreams
            .iter()
            .enumerate()
            .flat_map(of)
            .map(|(upstream, at)| (upstream as u16, at as u16))
            .collect()
    }

    /// Returns the number of slots that are taken.
    pub fn servers(&self) -> usize {
        if self.slots.is_empty() {
            self.upstreams.iter().map(|plan| plan.servers.len()).sum()
        } else {
            self.slots.len()
        }
    }

    /// Returns the server in a slot, and its upstream; None for an unused slot.
    pub fn server(&self, slot: usize) -> Option<(&UpstreamPlan, &ServerPlan)> {
        let (upstream, index) = self.place(slot)?;
        let plan = self.upstreams.get(upstream)?;
        Some((plan, plan.servers.get(index)?))
    }

    fn place(&self, slot: usize) -> Option<(usize, usize)> {
        if let Some((upstream, index)) = self.slots.get(slot) {
            return Some((usize::from(*upstream), usize::from(*index)));
        }
        let mut index = slot;
        for (upstream, plan) in self.upstreams.iter().enumerate().filter(|_| self.slots.is_empty())
        {
            if index < plan.servers.len() {
                return Some((upstream, index));
            }
            index -= plan.servers.len();
        }
        None
    }

    /// Returns for each slot the last slot before it whose server had the same name, in an upstream
    /// of the same name. A plan that was just compiled has none.
    pub fn predecessors(&self) -> Vec<Option<usize>> {
        if self.slots.is_empty() {
            return vec![None; self.servers()];
        }
        let mut last = BTreeMap::new();
        let places =
            self.places().into_iter().map(|(upstream, index)| [upstream, index].map(usize::from));
        let names = places.map(|[upstream, index]| {
            let plan = &self.upstreams[upstream];
            (plan.name.as_str(), plan.servers[index].name.as_str())
        });
        names.enumerate().map(|(slot, names)| last.insert(names, slot)).collect()
    }

    /// Whether the configuration no longer has a server in a slot.
    pub fn is_retired(&self, slot: usize) -> bool {
        self.server(slot).is_none_or(|(upstream, server)| upstream.is_retired() || server.retired)
    }
}

impl UpstreamPlan {
    /// Whether the configuration no longer has it: no route leads here, and requests that were
    /// routed before are finished.
    pub fn is_retired(&self) -> bool {
        self.servers.first().is_some_and(|server| server.orphaned)
    }

    /// Returns its servers in the configuration.
    pub fn present(&self) -> impl Iterator<Item = &ServerPlan> {
        self.servers.iter().filter(|server| !server.retired)
    }
}

impl ServerPlan {
    /// Returns the effective weight: the ordered one, or else the configured one.
    pub fn weight_now(&self) -> u32 {
        self.weight_ordered.unwrap_or(self.weight)
    }
}
