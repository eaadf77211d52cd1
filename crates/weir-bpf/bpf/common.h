// SPDX-License-Identifier: Apache-2.0
// What programs have in common: words, how maps are written, and headers of packets in the order of the wire (RFC 791, RFC 8200).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// How a map is written; the kernel's number of its kind (linux/bpf.h: enum bpf_map_type).
struct map {
    u32 kind, key_size, value_size, max_entries, flags;
};

#define BE16(number) ((u16)((number) << 8 | (number) >> 8))
enum { IPV4 = BE16(0x0800), IPV6 = BE16(0x86dd) };
enum { TCP = 6 };

struct ipv4 {
    u8 version_and_words, service;
    u16 length, id, fragment;
    u8 hops, protocol;
    u16 checksum;
    u32 source, destination;
};
struct ipv6 {
    u32 version;
    u16 length;
    u8 next, hops;
    u32 source[4], destination[4];
};
