// SPDX-License-Identifier: Apache-2.0
// Drops packets of who is banned, in the driver of the network card (XDP), before the kernel makes anything of them.
//
// What is let through: all that is not TCP over IPv4 or IPv6, all to ports that are not ours, fragments behind the first, which have no ports, and
// IPv6 with extension headers, of which the next program in the way decides. Compiled by `bpf/compile`; loaded by `src/xdp.rs`, which says what the
// maps hold. Needs no header of the system, so that the same compiler makes the same object everywhere.

#include "common.h"

// linux/bpf.h: enum xdp_action, struct xdp_md, enum bpf_map_type, BPF_F_NO_PREALLOC, numbers of helpers.
enum { XDP_DROP = 1, XDP_PASS = 2 };
enum { HASH = 1, ARRAY = 2, PERCPU_ARRAY = 6, LPM_TRIE = 11 };
enum { NO_PREALLOC = 1 };

struct xdp_md {
    u32 data, data_end;
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;

// A network, as tries have it. Bytes are those of the wire.
struct network4 {
    u32 bits, address;
};
struct network6 {
    u32 bits, address[4];
};

// Until when packets are dropped, nanoseconds of CLOCK_MONOTONIC. Hosts are IPv4 addresses and the first 64 bits of IPv6 ones.
struct map SECTION("maps") hosts4 = {HASH, 4, 8, 1, NO_PREALLOC};
struct map SECTION("maps") hosts6 = {HASH, 8, 8, 1, NO_PREALLOC};
struct map SECTION("maps") networks4 = {LPM_TRIE, sizeof(struct network4), 8, 1, NO_PREALLOC};
struct map SECTION("maps") networks6 = {LPM_TRIE, sizeof(struct network6), 8, 1, NO_PREALLOC};
// Who is never dropped.
struct map SECTION("maps") allowed4 = {LPM_TRIE, sizeof(struct network4), 1, 1, NO_PREALLOC};
struct map SECTION("maps") allowed6 = {LPM_TRIE, sizeof(struct network6), 1, 1, NO_PREALLOC};
// A bit for each port whose packets are looked at.
struct map SECTION("maps") ports = {ARRAY, 4, 8, 1024, 0};
// Packets that were dropped, and their bytes from the header of Ethernet on.
struct count {
    u64 packets, bytes;
};
struct map SECTION("maps") dropped = {PERCPU_ARRAY, 4, sizeof(struct count), 1, 0};

enum { VLAN = BE16(0x8100), VLAN_OF_PROVIDER = BE16(0x88a8) };
// RFC 791: the bits of the fragment's place, in the order of the wire.
enum { FRAGMENT_PLACE = BE16(0x1fff) };

struct ethernet {
    u8 to[6], from[6];
    u16 kind;
};
struct vlan {
    u16 tag, kind;
};
struct tcp {
    u16 source, destination;
};

// Whether a packet to this port, as it stands on the wire, is looked at.
INLINE int is_port_ours(const struct tcp *tcp, const void *end) {
    if ((const void *)(tcp + 1) > end)
        return 0;
    u32 port = BE16(tcp->destination), word = port / 64;
    u64 *bits = map_lookup(&ports, &word);
    return bits && *bits >> port % 64 & 1;
}

INLINE int is_in_force(const u64 *until_ns) {
    return until_ns && *until_ns > ktime_get_ns();
}

INLINE int drops_ipv4(const void *at, const void *end) {
    const struct ipv4 *ip = at;
    if ((const void *)(ip + 1) > end || ip->protocol != TCP)
        return 0;
    u32 head_bytes = (ip->version_and_words & 15) * 4;
    if (head_bytes < sizeof *ip)
        return 0;
    struct network4 host = {32, ip->source};
    if (!is_in_force(map_lookup(&hosts4, &host.address)) && !is_in_force(map_lookup(&networks4, &host)))
        return 0;
    if (map_lookup(&allowed4, &host))
        return 0;
    // A fragment behind the first has no ports: with the first one gone it comes to nothing.
    return !(ip->fragment & FRAGMENT_PLACE) && is_port_ours(at + head_bytes, end);
}

INLINE int drops_ipv6(const void *at, const void *end) {
    const struct ipv6 *ip = at;
    if ((const void *)(ip + 1) > end || ip->next != TCP)
        return 0;
    struct network6 host = {128, {ip->source[0], ip->source[1], ip->source[2], ip->source[3]}};
    u64 first;
    __builtin_memcpy(&first, ip->source, sizeof first);
    if (!is_in_force(map_lookup(&hosts6, &first)) && !is_in_force(map_lookup(&networks6, &host)))
        return 0;
    if (map_lookup(&allowed6, &host))
        return 0;
    return is_port_ours(at + sizeof *ip, end);
}

int SECTION("xdp") drop_banned(struct xdp_md *context) {
    const void *at = (const void *)(u64)context->data, *end = (const void *)(u64)context->data_end;
    const struct ethernet *ethernet = at;
    if ((const void *)(ethernet + 1) > end)
        return XDP_PASS;
    u16 kind = ethernet->kind;
    at += sizeof *ethernet;
#pragma unroll
    for (int tags = 0; tags < 2; tags++) {
        if (kind != VLAN && kind != VLAN_OF_PROVIDER)
            break;
        const struct vlan *vlan = at;
        if ((const void *)(vlan + 1) > end)
            return XDP_PASS;
        kind = vlan->kind;
        at += sizeof *vlan;
    }
    int drops = kind == IPV4 ? drops_ipv4(at, end) : kind == IPV6 ? drops_ipv6(at, end) : 0;
    if (!drops)
        return XDP_PASS;
    u32 first = 0;
    struct count *count = map_lookup(&dropped, &first);
    if (count) {
        count->packets += 1;
        count->bytes += end - (const void *)(u64)context->data;
    }
    return XDP_DROP;
}

// No helper here asks for the GPL.
char SECTION("license") LICENSE[] = "Apache-2.0";
