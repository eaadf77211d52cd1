// SPDX-License-Identifier: Apache-2.0
// Leads TCP connections that this machine forwards from one interface to another into a network namespace, whose sockets end and continue them, and
// what those sockets send back out again. Nothing of the stack of this machine is changed: what is no connection of that namespace, and not about to
// become one, goes the way that it always has. Programs of tcx (Linux 6.6), whose links end with the process that has them:
//
//   client interface, in:   packets of connections that are there -> inside
//   server interface, out:  first packets of connections from clients, which this machine has routed and let through -> inside
//   server interface, in:   packets of connections that are there -> inside
//   from inside:            to servers by their interface, to clients by theirs
//
// What is sent inside need not be received here to be sent on. Where an interface can have one beside it (macvlan), whose packets leave by it:
//
//   namespace, out:         to servers and to clients -> the one beside theirs
//   either interface, out:  what comes of that -> to its neighbour
//
// Where clients are to hear what their server says (`src/intercept.rs`, `Hold`), two of them are in the namespace, and one more is here:
//
//   namespace, in:          first packets of connections that are new there -> a device whose packets weir reads (TUN)
//   that device, in:        first packets -> the listener there; what weir answers itself -> out of the namespace
//   client interface, out:  errors that this machine reports of a connect of ours -> inside
//
// Where a server is asked while its client is accepted, one of them is in the namespace, which gives that device copies of the same packets.
//
// What is never led inside: first packets with options that a second connection could not keep (MD5 and AO of TCP, Multipath TCP), from one of the ports
// themselves, whose addresses or ports this machine has changed (NAT), or for which nobody listens inside, or while weir does not run; fragments; IPv6 with extension headers. Errors
// of ICMP about a packet of ours reach it, and so does what comes for a connection that is over, so that it is told.
// Compiled by `bpf/compile`; loaded by `src/intercept.rs`, which says what the maps hold. Needs no header of the system.

#include "common.h"

// linux/bpf.h and linux/pkt_cls.h: map types, verdicts, numbers of helpers.
enum { ARRAY = 2, PERCPU_ARRAY = 6, LRU_HASH = 9 };
// TCX_NEXT: whatever else is there decides.
enum { NEXT = -1, DROP = 2 };

struct sk_buff {
    u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex;
};
struct sock {
    u32 bound_dev_if, family, type, protocol, mark, priority, src_ip4, src_ip6[4], src_port;
    u16 dst_port, zero;
    u32 dst_ip4, dst_ip6[4], state;
};

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static long (*const store_bytes)(struct sk_buff *skb, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*const clone_redirect)(struct sk_buff *skb, u32 ifindex, u64 flags) = (void *)13;
static long (*const redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*const load_bytes)(const struct sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;
static long (*const change_head)(struct sk_buff *skb, u32 len, u64 flags) = (void *)43;
static long (*const sk_release)(void *sock) = (void *)86;
static struct sock *(*const skc_lookup_tcp)(void *skb, void *tuple, u32 size, u64 netns, u64 flags) = (void *)99;
static long (*const redirect_neigh)(u32 ifindex, void *params, int size, u64 flags) = (void *)152;
static long (*const redirect_peer)(u32 ifindex, u64 flags) = (void *)155;

struct settings {
    // The namespace, as this one calls it (RTM_GETNSID), and the interface here that leads there.
    u32 netns, inside;
    // The interfaces of clients and of servers, and how long the header of their links is: 14 bytes of Ethernet, or none.
    u32 client, server, client_header, server_header;
    // Not 0: no new connections.
    u32 pass_by;
    // The address of the interface inside, and two bytes of nothing.
    u8 hardware[8];
    // The interfaces inside whose packets leave by those of clients and of servers; 0: there is none.
    u32 beside_client, beside_server;
};
struct map SECTION("maps") settings = {ARRAY, 4, sizeof(struct settings), 1, 0};
// In the namespace: the device that first packets are read from, and the interface that leads out of it.
struct holding {
    u32 device, out;
    // Not 0: first packets go to the listener at once.
    u32 let_through;
    // The address at both ends of that interface, and two bytes of nothing.
    u8 hardware[8];
    // Not 0: they go to both.
    u32 is_copied;
};
struct map SECTION("maps") holding = {ARRAY, 4, sizeof(struct holding), 1, 0};
// Until when weir is known to run, nanoseconds of CLOCK_MONOTONIC. A process that is stopped, or that hangs, puts it off no more.
struct map SECTION("maps") alive = {ARRAY, 4, 8, 1, 0};
// A bit for each port whose connections are taken.
struct map SECTION("maps") ports = {ARRAY, 4, 8, 1024, 0};
// Whose first packet came by the clients' interface, from there to there: 0, or 1 when it was taken. Addresses of IPv4 are in the last words.
struct ends {
    u32 source[4], destination[4];
    u16 source_port, destination_port;
};
struct map SECTION("maps") begun = {LRU_HASH, sizeof(struct ends), 1, 1, 0};
// What became of first packets.
enum { TAKEN, PASSED_BY, WITH_OPTIONS, CHANGED, UNSERVED };
struct map SECTION("maps") counts = {PERCPU_ARRAY, 4, 8, 5, 0};

enum { ICMP = 1, ICMPV6 = 58 };
// RFC 791: the bits of a fragment's place and of one that more follow, in the order of the wire.
enum { FRAGMENT = BE16(0x3fff) };
// RFC 9293: flags in byte 13.
enum { SYN = 2, ACK = 16 };
// IANA, TCP option kinds.
enum { END = 0, NOTHING = 1, MD5 = 19, AO = 29, MULTIPATH = 30 };
// include/net/tcp_states.h.
enum { TIME_WAIT = 6, LISTEN = 10, NEW_SYN_RECV = 12 };
// BPF_F_CURRENT_NETNS.
#define HERE ((u64)-1)

// struct bpf_sock_tuple, of either family.
struct tuple4 {
    u32 source, destination;
    u16 source_port, destination_port;
};
struct tuple6 {
    u32 source[4], destination[4];
    u16 source_port, destination_port;
};

// A packet of TCP, or one that an error of ICMP is about.
struct packet {
    struct tuple6 six;
    struct tuple4 four;
    // Where the header of TCP begins.
    u32 at;
    u8 is_four, is_error;
};

// Reads the addresses and ports of a packet whose header of IP begins there. 0: it is none of TCP that can be followed.
INLINE int read_ip(struct sk_buff *skb, u32 at, u8 is_four, struct packet *packet, u8 *protocol) {
    packet->is_four = is_four;
    if (is_four) {
        struct ipv4 ip = {};
        if (load_bytes(skb, at, &ip, sizeof ip) || ip.fragment & FRAGMENT || (ip.version_and_words & 15) < 5)
            return 0;
        packet->four.source = ip.source;
        packet->four.destination = ip.destination;
        packet->at = at + (ip.version_and_words & 15) * 4;
        *protocol = ip.protocol;
        return 1;
    }
    struct ipv6 ip = {};
    if (load_bytes(skb, at, &ip, sizeof ip))
        return 0;
    __builtin_memcpy(packet->six.source, ip.source, sizeof ip.source);
    __builtin_memcpy(packet->six.destination, ip.destination, sizeof ip.destination);
    packet->at = at + sizeof ip;
    *protocol = ip.next;
    return 1;
}

INLINE int read_ports(struct sk_buff *skb, struct packet *packet) {
    u16 both[2] = {0, 0};
    if (load_bytes(skb, packet->at, both, sizeof both))
        return 0;
    packet->four.source_port = packet->six.source_port = both[0];
    packet->four.destination_port = packet->six.destination_port = both[1];
    return 1;
}

// Reads a packet, or the one that an error of ICMP is about: that one was sent the other way, so its ends are exchanged.
INLINE int read(struct sk_buff *skb, u32 header, struct packet *packet) {
    u8 protocol = 0, kind = 0;
    u8 is_four = skb->protocol == IPV4;
    if (skb->vlan_present || (!is_four && skb->protocol != IPV6) || !read_ip(skb, header, is_four, packet, &protocol))
        return 0;
    packet->is_error = 0;
    if (protocol == TCP)
        return read_ports(skb, packet);
    if (protocol != (is_four ? ICMP : ICMPV6) || load_bytes(skb, packet->at, &kind, 1))
        return 0;
    // RFC 792: destination unreachable, time exceeded; RFC 4443: the same, and packet too big.
    int is_error = is_four ? kind == 3 || kind == 11 : kind == 1 || kind == 2 || kind == 3;
    if (!is_error || !read_ip(skb, packet->at + 8, is_four, packet, &protocol) || protocol != TCP || !read_ports(skb, packet))
        return 0;
    packet->is_error = 1;
    u32 address = packet->four.source;
    packet->four.source = packet->four.destination;
    packet->four.destination = address;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        address = packet->six.source[word];
        packet->six.source[word] = packet->six.destination[word];
        packet->six.destination[word] = address;
    }
    u16 port = packet->four.source_port;
    packet->four.source_port = packet->six.source_port = packet->four.destination_port;
    packet->four.destination_port = packet->six.destination_port = port;
    return 1;
}

INLINE int is_port_ours(u16 on_wire) {
    u32 port = BE16(on_wire), word = port / 64;
    u64 *bits = map_lookup(&ports, &word);
    return bits && *bits >> port % 64 & 1;
}

INLINE void count(u32 which) {
    u64 *number = map_lookup(&counts, &which);
    if (number)
        *number += 1;
}

INLINE struct settings *known(void) {
    u32 first = 0;
    return map_lookup(&settings, &first);
}

// Between whom a packet is; `back`: the other way round.
INLINE struct ends ends_of(const struct packet *packet, int back) {
    struct ends ends = {};
    if (packet->is_four) {
        ends.source[3] = back ? packet->four.destination : packet->four.source;
        ends.destination[3] = back ? packet->four.source : packet->four.destination;
    } else {
        __builtin_memcpy(ends.source, back ? packet->six.destination : packet->six.source, sizeof ends.source);
        __builtin_memcpy(ends.destination, back ? packet->six.source : packet->six.destination, sizeof ends.destination);
    }
    ends.source_port = back ? packet->four.destination_port : packet->four.source_port;
    ends.destination_port = back ? packet->four.source_port : packet->four.destination_port;
    return ends;
}

// The state of the socket that a packet is for, in this namespace; 0: there is none.
INLINE u32 state_in(struct sk_buff *skb, struct packet *packet, u64 netns) {
    struct sock *sock = packet->is_four ? skc_lookup_tcp(skb, &packet->four, sizeof packet->four, netns, 0)
                                        : skc_lookup_tcp(skb, &packet->six, sizeof packet->six, netns, 0);
    if (!sock)
        return 0;
    u32 state = sock->state;
    sk_release(sock);
    return state;
}

INLINE int is_first(struct sk_buff *skb, const struct packet *packet) {
    u8 flags = 0;
    return !load_bytes(skb, packet->at + 13, &flags, 1) && (flags & (SYN | ACK)) == SYN;
}

int SECTION("classifier/from_outside") from_outside(struct sk_buff *skb) {
    struct settings *at = known();
    struct packet packet = {};
    if (!at)
        return NEXT;
    int is_client = skb->ifindex == at->client;
    if (!read(skb, is_client ? at->client_header : at->server_header, &packet))
        return NEXT;
    if (!packet.is_error && is_first(skb, &packet)) {
        // Others decide whether it goes on; until then it is none of ours.
        if (is_client && is_port_ours(packet.four.destination_port)) {
            struct ends ends = ends_of(&packet, 0);
            u8 taken = 0;
            map_update(&begun, &ends, &taken, 0);
        }
        return NEXT;
    }
    u32 state = state_in(skb, &packet, at->netns);
    // Of a handshake that is not over anybody can provoke an error, and each would count as a packet that was dropped (tcp_req_err, net/ipv4/tcp_ipv4.c).
    if (packet.is_error && state == NEW_SYN_RECV)
        return NEXT;
    if (state && state != LISTEN)
        return redirect_peer(at->inside, 0);
    if (packet.is_error)
        return NEXT;
    // One that is over: whoever sends still is told by a reset.
    struct ends ends = ends_of(&packet, !is_client);
    u8 *taken = map_lookup(&begun, &ends);
    return taken && *taken ? redirect_peer(at->inside, 0) : NEXT;
}

// Whether a first packet has options that a second connection could not keep.
INLINE int has_odd_options(struct sk_buff *skb, u32 at, u32 bytes) {
#pragma unroll
    for (int options = 0; options < 40; options++) {
        u8 option[2] = {0, 0};
        if (bytes == 0 || load_bytes(skb, at, option, 1) || option[0] == END)
            return 0;
        u32 len = 1;
        if (option[0] != NOTHING) {
            if (option[0] == MD5 || option[0] == AO || option[0] == MULTIPATH)
                return 1;
            if (bytes < 2 || load_bytes(skb, at, option, 2) || option[1] < 2)
                return 0;
            len = option[1];
        }
        if (len > bytes)
            return 0;
        at += len;
        bytes -= len;
    }
    return 0;
}

// Whether what is sent inside is for a server. No connection is from one of the ports to another. What an error is about went the other way, and its ends
// are exchanged.
INLINE int is_to_server(const struct packet *packet) {
    return is_port_ours(packet->four.destination_port);
}

// Whether a packet was sent inside, and is about to leave as it is: with the address of the pair, which no other interface has.
INLINE int is_sent_inside(struct sk_buff *skb, struct settings *at) {
    u32 first = 0, first_of = 0;
    u16 last = 0, last_of = 0;
    if (!(at->beside_client | at->beside_server) || load_bytes(skb, 6, &first, sizeof first) || load_bytes(skb, 10, &last, sizeof last))
        return 0;
    __builtin_memcpy(&first_of, at->hardware, sizeof first_of);
    __builtin_memcpy(&last_of, at->hardware + 4, sizeof last_of);
    return first == first_of && last == last_of;
}

// Whether nobody would accept a connection: its handshake would be done by the kernel, and nothing would come after that.
INLINE int is_silent(void) {
    u32 first = 0;
    u64 *until = map_lookup(&alive, &first);
    return !until || ktime_get_ns() > *until;
}

int SECTION("classifier/to_servers") to_servers(struct sk_buff *skb) {
    struct settings *at = known();
    struct packet packet = {};
    u8 words = 0;
    if (at && is_sent_inside(skb, at))
        return redirect_neigh(at->server, (void *)0, 0, 0);
    if (!at || skb->ingress_ifindex != at->client || !read(skb, at->server_header, &packet) || packet.is_error)
        return NEXT;
    if (!is_first(skb, &packet) || !is_port_ours(packet.four.destination_port) || is_port_ours(packet.four.source_port))
        return NEXT;
    struct ends ends = ends_of(&packet, 0);
    u8 *taken = map_lookup(&begun, &ends);
    if (!taken) {
        count(CHANGED);
        return NEXT;
    }
    u32 bytes = load_bytes(skb, packet.at + 12, &words, 1) ? 0 : (words >> 4) * 4;
    if (bytes < 20 || has_odd_options(skb, packet.at + 20, bytes - 20)) {
        count(WITH_OPTIONS);
        return NEXT;
    }
    // One that comes again, or whose ends had a connection a moment ago, belongs where its other packets go.
    u32 state = state_in(skb, &packet, at->netns);
    if (!state || (at->pass_by && state == LISTEN)) {
        count(PASSED_BY);
        return NEXT;
    }
    if (state == LISTEN && is_silent()) {
        count(UNSERVED);
        return NEXT;
    }
    u8 hardware[6];
    __builtin_memcpy(hardware, at->hardware, sizeof hardware);
    if (store_bytes(skb, 0, hardware, sizeof hardware, 0))
        return NEXT;
    *taken = 1;
    count(TAKEN);
    return redirect(at->inside, 0);
}

int SECTION("classifier/onward") onward(struct sk_buff *skb) {
    struct settings *at = known();
    return at && is_sent_inside(skb, at) ? redirect_neigh(at->client, (void *)0, 0, 0) : NEXT;
}

int SECTION("classifier/from_inside") from_inside(struct sk_buff *skb) {
    struct settings *at = known();
    struct packet packet = {};
    if (!at || !read(skb, 14, &packet))
        return DROP;
    return redirect_neigh(is_to_server(&packet) ? at->server : at->client, (void *)0, 0, 0);
}

int SECTION("classifier/leave") leave(struct sk_buff *skb) {
    struct settings *at = known();
    struct packet packet = {};
    if (!at || !read(skb, 14, &packet))
        return NEXT;
    u32 beside = is_to_server(&packet) ? at->beside_server : at->beside_client;
    if (!beside)
        return NEXT;
    // Marks of the namespace mean nothing where it goes.
    skb->mark = 0;
    return redirect(beside, 0);
}

// A machine that nobody finds on the link is this machine's to report, to the client as it believes: weir is to say it in its own words.
int SECTION("classifier/to_clients") to_clients(struct sk_buff *skb) {
    struct settings *at = known();
    struct packet packet = {};
    // What came from elsewhere did so past the other programs.
    if (!at || skb->ingress_ifindex || at->client_header != 14 || !read(skb, 14, &packet) || !packet.is_error)
        return NEXT;
    u32 state = state_in(skb, &packet, at->netns);
    if (!state || state == LISTEN)
        return NEXT;
    u8 hardware[6];
    __builtin_memcpy(hardware, at->hardware, sizeof hardware);
    return store_bytes(skb, 0, hardware, sizeof hardware, 0) ? NEXT : redirect(at->inside, 0);
}

INLINE struct holding *held(void) {
    u32 first = 0;
    return map_lookup(&holding, &first);
}

int SECTION("classifier/hold") hold(struct sk_buff *skb) {
    struct holding *at = held();
    struct packet packet = {};
    if (!at || at->let_through || !read(skb, 14, &packet) || packet.is_error || !is_first(skb, &packet))
        return NEXT;
    // One that the listener has answered already is its affair.
    u32 state = state_in(skb, &packet, HERE);
    if (state && state != LISTEN && state != TIME_WAIT)
        return NEXT;
    if (!at->is_copied)
        return redirect(at->device, 0);
    // Nobody needs one where nobody listens any more.
    if (state)
        clone_redirect(skb, at->device, 0);
    return NEXT;
}

int SECTION("classifier/release") release(struct sk_buff *skb) {
    struct holding *at = held();
    struct packet packet = {};
    if (!at || !read(skb, 0, &packet))
        return DROP;
    // When nobody listens any more the client tries again, and passes by.
    if (!packet.is_error && is_first(skb, &packet))
        return state_in(skb, &packet, HERE) ? NEXT : DROP;
    u8 header[14] = {};
    __builtin_memcpy(header, at->hardware, 6);
    __builtin_memcpy(header + 6, at->hardware, 6);
    u16 protocol = packet.is_four ? IPV4 : IPV6;
    __builtin_memcpy(header + 12, &protocol, sizeof protocol);
    if (change_head(skb, sizeof header, 0) || store_bytes(skb, 0, header, sizeof header, 0))
        return DROP;
    return redirect(at->out, 0);
}

// No helper here asks for the GPL.
char SECTION("license") LICENSE[] = "Apache-2.0";
