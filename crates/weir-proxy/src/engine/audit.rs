//! What must hold between any two turns, whatever happened: one pass over all machines of a worker.
//!
//! Called by simulations and tests after each turn; no other code pays for it. A broken invariant
//! is found at the turn that broke it, not when a client notices. Bounds are those of
//! docs/buffers.md.

use super::Engine;

impl Engine {
    /// Looks for impossible states. Call when all actions of a turn were taken.
    ///
    /// # Errors
    /// A bug of weir: the first broken invariant, in words.
    pub fn audit(&self) -> Result<(), String> {
        let Engine { cx, clients, upstreams, .. } = self;
        if !cx.posts[usize::from(cx.worker)].is_empty() {
            return Err("a worker's mail to itself was not delivered".to_owned());
        }
        let carried = upstreams.audit(cx)?;
        clients.conns().audit(&carried, cx)?;
        super::flows::audit(self)?;
        if let Some(client) =
            upstreams.private().clients().find(|client| !clients.conns().is_there(*client))
        {
            return Err(format!("connections have outlived client {client}"));
        }
        let twice = |(client, _): &(_, _)| {
            clients
                .conns()
                .tunnel_conn(*client, cx)
                .is_some_and(|conn| upstreams.pool().is_tunnel(conn))
        };
        match clients.conns().relays().find(twice) {
            Some((client, _)) => {
                Err(format!("the tunnel of client {client} is the driver's and the engine's"))
            }
            None => Ok(()),
        }
    }

    /// Looks for queues that hold more bytes than docs/buffers.md allows, with receives of at most
    /// 64 KiB of a server and 1 MiB of a client in a turn. Call when all actions of a turn were
    /// taken.
    ///
    /// # Errors
    /// A bug of weir: the first exceeded bound, in words.
    pub fn audit_bytes(&self) -> Result<(), String> {
        self.upstreams.pool().audit_bytes()?;
        self.clients.conns().audit_bytes(&self.cx)
    }
}
