// SPDX-License-Identifier: Apache-2.0
// Which worker gets a new connection: of two, which the hash of the connection names, the one where it waits less (power of two choices). Whoever takes
// nobody, or is late in a turn, is passed over. Two and not all: between two turns of a worker what it tells is old, and all would go to the same one.
//
// The kernel asks at the first packet of a connection, a round trip before anybody can accept it. So what is given is counted here (`assigned`), and a
// worker that has something assigned and does not wake up is not late: the client may be far away. Whether it has its core says `starved_permille`.
//
// Of a listener that is closed the kernel asks where to those go that wait there ("migrate"). Whatever can't be answered here is left to the kernel, which
// goes by the hash. Compiled by `bpf/compile`; loaded by `src/accept.rs`, which says what the maps hold. Needs no header of the system.

#include "common.h"

// linux/bpf.h: map types, flags, verdicts, numbers of helpers.
enum { HASH = 1, ARRAY = 2, REUSEPORT_SOCKARRAY = 20 };
enum { MMAPABLE = 1 << 10 };
enum { PASS = 1 };

struct sk_reuseport_md {
    void *data, *data_end;
    u32 len, eth_protocol, ip_protocol, bind_inany, hash, unused;
    // A listener of the group; a connection that waited at one that is closed.
    void *sk, *migrating_sk;
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const now_ns)(void) = (void *)5;
static u32 (*const this_core)(void) = (void *)8;
static u64 (*const cookie_of)(void *sk) = (void *)46;
static long (*const select)(struct sk_reuseport_md *md, void *map, const void *key, u64 flags) = (void *)82;

// The load board (weir-io, board.rs, `Line`).
struct board_line {
    u64 turn_began_us;
    u32 turns, open_requests, sessions, assigned, service_ns, starved_permille, flags, unused[7];
};
enum { ACCEPTS = 1, DRAINS = 2 };
enum { LATE_TURN_US = 5000, ASSIGNED_NS = 10000, SHORT_TURN_US = 200, STARVED_MIN = 200, STARVED_NS = 4000000 };

struct map SECTION("maps") board = {ARRAY, 4, sizeof(struct board_line), 1, MMAPABLE};
// Listeners, group after group, as many places in each as there are workers; and by the cookie of a listener the first place of its group.
struct map SECTION("maps") sockets = {REUSEPORT_SOCKARRAY, 4, 4, 1, 0};
struct map SECTION("maps") groups = {HASH, 8, 4, 1, 0};
// How many workers there are.
struct map SECTION("maps") workers = {ARRAY, 4, 4, 1, 0};
// By core: its worker, from 1 on; 0: it has none.
struct map SECTION("maps") cores = {ARRAY, 4, 4, 1024, 0};

// Workers that are looked at for one that is not late.
enum { LOOKED_AT_MAX = 8 };
// Less than a wake-up takes: whoever costs so much more is as good.
enum { NEGLIGIBLE_NS = 50000 };
#define NOBODY ((u32)-1)

INLINE struct board_line *line_of(u32 worker) {
    return map_lookup(&board, &worker);
}

INLINE u64 turn_us(const struct board_line *line, u64 now_us) {
    u64 began = line->turn_began_us;
    return began && now_us > began ? now_us - began : 0;
}

// `Line::cost`.
INLINE u64 cost_of(const struct board_line *line, u64 now_us) {
    u64 turn = turn_us(line, now_us), starved = line->starved_permille;
    u64 cost = (u64)line->open_requests * line->service_ns + (u64)line->assigned * ASSIGNED_NS;
    if (turn > SHORT_TURN_US)
        cost += turn * 1000;
    if (starved >= STARVED_MIN)
        cost += (starved > 1000 ? 1000 : starved) * STARVED_NS / 1000;
    return cost;
}

INLINE u64 held_by(const struct board_line *line) {
    return (u64)line->sessions + line->assigned;
}

INLINE int takes(const struct board_line *line, u64 now_us) {
    return (line->flags & (ACCEPTS | DRAINS)) == ACCEPTS && turn_us(line, now_us) <= LATE_TURN_US;
}

// The first one from `from` on that is not `but`.
INLINE u32 next(u32 from, u32 all, u32 but, u64 now_us) {
    for (u32 step = 0; step < LOOKED_AT_MAX && step < all; step++) {
        u32 worker = from + step;
        if (worker >= all)
            worker -= all;
        struct board_line *line = line_of(worker);
        if (line && worker != but && takes(line, now_us))
            return worker;
    }
    return NOBODY;
}

// Whether the second is the better one.
INLINE int is_better(const struct board_line *one, const struct board_line *other, u64 now_us) {
    u64 cost = cost_of(one, now_us), others = cost_of(other, now_us);
    u64 between = cost > others ? cost - others : others - cost;
    // Connections that rest cost nothing now. But who has more of them will have more to do.
    return between > NEGLIGIBLE_NS ? others < cost : held_by(other) < held_by(one);
}

// Whether `near` is nearly as good as `best`, in what it costs (a fifth) and what it holds (a sixteenth, for with both ends on one core all would go there).
INLINE int is_nearly(const struct board_line *near, const struct board_line *best, u64 now_us) {
    return cost_of(near, now_us) * 5 <= cost_of(best, now_us) * 6 + NEGLIGIBLE_NS * 5 && held_by(near) * 16 <= held_by(best) * 17 + 8;
}

// 1: it gets the connection.
INLINE int give(struct sk_reuseport_md *md, u32 first_place, u32 worker) {
    u32 place = first_place + worker;
    struct board_line *line = line_of(worker);
    if (!line || select(md, &sockets, &place, 0))
        return 0;
    __sync_fetch_and_add(&line->assigned, 1);
    return 1;
}

int SECTION("sk_reuseport/migrate") choose(struct sk_reuseport_md *md) {
    u32 zero = 0, core = this_core();
    u64 cookie = cookie_of(md->sk);
    u32 *first_place = map_lookup(&groups, &cookie);
    u32 *count = map_lookup(&workers, &zero);
    if (!first_place || !count || !*count)
        return PASS;
    u32 all = *count, hash = md->hash;
    u64 now_us = now_ns() / 1000;
    u32 from = hash % all;
    u32 one = next(from, all, NOBODY, now_us);
    if (one == NOBODY)
        return PASS;
    // Knuth, The Art of Computer Programming, volume 3, section 6.4: another hash.
    u32 other_from = all > 1 ? (from + 1 + (hash * 2654435761u >> 8) % (all - 1)) % all : 0;
    u32 other = next(other_from, all, one, now_us);
    struct board_line *of_one = line_of(one), *of_other = line_of(other);
    if (of_one && of_other && is_better(of_one, of_other, now_us)) {
        u32 worse = one;
        one = other;
        other = worse;
    }
    u32 *near = map_lookup(&cores, &core);
    struct board_line *best = line_of(one);
    if (near && *near && best) {
        u32 worker = *near - 1;
        struct board_line *of_near = line_of(worker);
        if (of_near && worker != one && takes(of_near, now_us) && is_nearly(of_near, best, now_us)) {
            other = one;
            one = worker;
        }
    }
    // A worker may have no listener here, or has closed it.
    if (!give(md, *first_place, one) && other != NOBODY)
        give(md, *first_place, other);
    return PASS;
}

// No helper here asks for the GPL.
char SECTION("license") LICENSE[] = "Apache-2.0";
