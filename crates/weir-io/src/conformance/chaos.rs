//! Everything at once, in an order drawn from a seed, with few buffers. The test records the state
//! of each socket, and the received bytes must be the sent ones. A failure shows the seed.
//! `CHAOS_SEEDS=100` runs that many.

use std::collections::HashMap;

use super::{Bench, Subject, pattern, suite};
use crate::{Class, Driver, Options, Payload, Receive, Socket};

const STEPS: usize = 1500;
const PAIRS_MAX: usize = 24;

/// A small generator of numbers (Lehmer): tests need no better one.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// One end of a connection as the test knows it.
struct End {
    peer: Socket,
    /// Everything given to send.
    sent: Vec<u8>,
    /// Sends given; each must come back.
    sends: usize,
    shut: bool,
}

/// The test's own records.
struct World {
    dice: Dice,
    ends: HashMap<Socket, End>,
    /// In the order of creation, because the order of a map is not drawn from the seed.
    order: Vec<Socket>,
}

impl World {
    fn open<S: Subject>(&mut self, bench: &mut Bench<'_, S>) {
        let (near, far) = bench.pair();
        for (one, peer) in [(near, far), (far, near)] {
            self.ends.insert(one, End { peer, sent: Vec::new(), sends: 0, shut: false });
            self.order.push(one);
        }
    }

    fn send<S: Subject>(&mut self, bench: &mut Bench<'_, S>, socket: Socket) {
        let Some(end) = self.ends.get_mut(&socket) else { return };
        if end.shut || bench.of(socket).sent.len() < end.sends {
            return;
        }
        let len = [1, 150, 5_000, 70_000, 900_000][self.dice.roll(5)];
        let bytes = pattern(len, end.sent.len());
        end.sent.extend_from_slice(&bytes);
        end.sends += 1;
        let payload = match self.dice.roll(3) {
            0 => Payload::Owned(bytes),
            1 => Payload::Shared(bytes.into()),
            _ => Payload::Vectored(
                bytes.chunks(len / 7 + 1).map(|part| part.to_vec().into()).collect(),
            ),
        };
        bench.driver.send(socket, payload);
    }

    fn receive<S: Subject>(&mut self, bench: &mut Bench<'_, S>, socket: Socket) {
        let class = [Class::Small, Class::Large][self.dice.roll(2)];
        let how = [Receive::Off, Receive::Once(class), Receive::Many(class), Receive::Many(class)]
            [self.dice.roll(4)];
        bench.receive(socket, how);
    }

    fn close<S: Subject>(&mut self, bench: &mut Bench<'_, S>, socket: Socket) {
        self.check(bench, socket);
        self.ends.remove(&socket);
        self.order.retain(|&other| other != socket);
        if self.dice.roll(3) == 0 {
            bench.reset(socket);
        } else {
            bench.close(socket);
        }
    }

    /// The received bytes are a prefix of the bytes that the peer sent; a closed peer is no longer
    /// known.
    fn check<S: Subject>(&self, bench: &mut Bench<'_, S>, socket: Socket) {
        let Some(peer) = self.ends.get(&self.ends[&socket].peer) else { return };
        let received = &bench.of(socket).received;
        assert!(peer.sent.starts_with(received), "other bytes than were sent");
    }

    fn step<S: Subject>(&mut self, bench: &mut Bench<'_, S>) {
        if self.order.is_empty() {
            return self.open(bench);
        }
        let socket = self.order[self.dice.roll(self.order.len())];
        match self.dice.roll(20) {
            0 if self.order.len() < 2 * PAIRS_MAX => self.open(bench),
            1 => self.close(bench, socket),
            2 if self.dice.roll(4) == 0 => {
                let end = self.ends.get_mut(&socket).expect("it is open");
                if bench.of(socket).sent.len() == end.sends {
                    end.shut = true;
                    bench.driver.shutdown_write(socket);
                }
            }
            3..=8 => self.send(bench, socket),
            9..=14 => self.receive(bench, socket),
            _ => bench.turn(0),
        }
    }

    /// Reads the rest: on intact pairs everything arrives and every send comes back.
    fn settle<S: Subject>(&mut self, bench: &mut Bench<'_, S>) {
        for &socket in &self.order {
            bench.receive(socket, Receive::Many(Class::Large));
        }
        for &socket in &self.order {
            let end = &self.ends[&socket];
            let sends = end.sends;
            bench.until("all sends", |bench| bench.of(socket).sent.len() == sends);
            let Some(peer) = self.ends.get(&end.peer) else {
                bench.until("the end", |bench| bench.of(socket).is_over());
                continue;
            };
            bench.expect(socket, &peer.sent);
            if peer.shut {
                bench.until("the end", |bench| bench.of(socket).ended);
            }
            assert!(bench.of(socket).sent.iter().all(|(_, result)| result.is_ok()));
        }
    }
}

/// See the head of the file.
pub fn k2_chaos<S: Subject>(subject: &S) {
    let seeds = std::env::var("CHAOS_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(2);
    for seed in 1..=seeds {
        let options = Options {
            small_count: 6,
            large_count: 6,
            small_armed: 4,
            large_armed: 2,
            ..Options::default()
        };
        let mut bench = Bench::with(subject, options);
        println!("seed {seed}");
        let mut world = World { dice: Dice(seed), ends: HashMap::new(), order: Vec::new() };
        for _ in 0..STEPS {
            world.step(&mut bench);
        }
        world.settle(&mut bench);
        bench.finish();
    }
}

suite!(simulated: k2_chaos);
