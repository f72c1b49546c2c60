//! Mistakes in networks.

use super::Editor::{Blind, Sees};
use super::{Mistake, mistake};

/// A rule with this `when`, and a set of networks called `offices`.
macro_rules! when {
    ($when:literal) => {
        concat!(
            "limits: { free: token-bucket capacity=60 refill=1/s }\nnetworks: { offices: [198.51.100.0/24] }\nrules:\n",
            "  - { name: offices, domain: d, when: { ip: { networks: offices } }, key: [], limit: free }\n",
            "  - { name: a, domain: d, when: ",
            $when,
            ", key: [], limit: block }\n"
        )
    };
}

macro_rules! overriding {
    ($key:literal) => {
        concat!("limits: { free: token-bucket capacity=60 refill=1/s }\nrules:\n  - name: a\n    domain: d\n    key: [{ first_of: [api_key, ip] }, peer]\n    limit: free\n    overrides:\n      - { limit: block, key: ", $key, " }\n")
    };
}

macro_rules! networks {
    ($networks:literal) => {
        concat!(
            "limits: { free: token-bucket capacity=60 refill=1/s }\nnetworks: ",
            $networks,
            "\nrules:\n  - { name: a, domain: d, when: { ip: { networks: a } }, key: [], limit: free }\n"
        )
    };
}

pub(super) const NETWORKS: &[Mistake] = &[
    mistake("no address", Blind, when!("{ ip: 300.1.1.1 }")),
    mistake("a name", Blind, when!("{ ip: [10.0.0.0/8, example.com] }")),
    mistake("an empty text", Blind, when!("{ ip: '' }")),
    mistake("too many bits", Blind, when!("{ ip: [10.0.0.1/33, 2001:db8::/129] }")),
    mistake("bits after the prefix", Blind, when!("{ ip: [10.0.0.1/24, 2001:db8::1/56] }")),
    mistake("no number of bits", Blind, when!("{ ip: [10.0.0.0/, 10.0.0.0/255.0.0.0] }")),
    mistake(
        "an excluded network with host bits",
        Blind,
        when!("{ ip: { none_of: [10.0.0.1/24] } }"),
    ),
    mistake("the name of a set alone", Blind, when!("{ ip: offices }")),
    mistake("an unknown set", Blind, when!("{ ip: { networks: ofices } }")),
    mistake("an unknown set with no similar name", Blind, when!("{ ip: { networks: elsewhere } }")),
    mistake("a network as a set", Sees, when!("{ ip: { networks: 10.0.0.0/8 } }")),
    mistake("a set of another attribute", Blind, when!("{ peer: { networks: office } }")),
    mistake("a network of another attribute", Sees, when!("{ peer: { network: 300.1.1.1/x } }")),
    mistake("a network as text", Blind, when!("{ remote_address: [10.0.0.0/8, 192.0.2.7] }")),
    mistake("a glob of addresses", Blind, when!("{ ip: 10.* }")),
    mistake("a text of addresses", Blind, when!("{ ip: { exact: 198.51.100.0/24 } }")),
    mistake("the text of one IPv6 address", Blind, when!("{ ip: { exact: '2001:db8::1' } }")),
    mistake("two conditions", Sees, when!("{ ip: { network: 10.0.0.0/8, networks: offices } }")),
    mistake("an override for no address", Blind, overriding!("{ ip: secret, peer: p }")),
    mistake("an override for host bits", Blind, overriding!("{ ip: 10.0.0.1/24, peer: p }")),
    mistake(
        "an override for an unknown set",
        Blind,
        overriding!("{ ip: { networks: x }, peer: p }"),
    ),
    mistake(
        "an override for two networks",
        Blind,
        overriding!("{ ip: 10.0.0.0/8, peer: { network: 10.0.0.0/8 } }"),
    ),
    mistake("an override for nothing", Sees, overriding!("{ ip: {}, peer: p }")),
    mistake(
        "an override for a network and a set",
        Sees,
        overriding!("{ ip: { network: 10.0.0.0/8, networks: x }, peer: p }"),
    ),
    mistake(
        "the same network twice",
        Blind,
        overriding!(
            "{ ip: 10.0.0.0/8, peer: p } }\n      - { limit: allow, key: { ip: '::ffff:10.0.0.0/104', peer: p }"
        ),
    ),
    mistake("a list", Sees, networks!("[10.0.0.0/8]")),
    mistake("an empty set", Sees, networks!("{ a: }")),
    mistake("a set that is a text", Sees, networks!("{ a: blocked.txt }")),
    mistake("a set without a file", Sees, networks!("{ a: {} }")),
    mistake("a file without a name", Sees, networks!("{ a: { file: '' } }")),
    mistake("a file where none is read", Blind, networks!("{ a: { file: blocked.txt } }")),
    mistake("no networks", Blind, networks!("{ a: [] }")),
    mistake("invalid networks", Sees, networks!("{ a: [10.0.0.0/8, 300.1.1.1, [], example.com] }")),
    mistake("a name with a space", Sees, networks!("{ a: [10.0.0.0/8], 'b c': [10.0.0.0/8] }")),
    mistake("a set that no rule uses", Blind, networks!("{ a: [10.0.0.0/8], b: [10.0.0.0/8] }")),
    mistake("a set twice", Blind, networks!("{ a: [10.0.0.0/8], a: [11.0.0.0/8] }")),
];
