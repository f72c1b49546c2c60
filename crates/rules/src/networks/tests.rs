//! Parsing, and longest prefix match compared with a linear search.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn parse_takes_addresses_and_networks() {
    let written = |text: &str| text.parse::<IpNet>().unwrap();
    let too_long = |text: &str| NetworkError::TooLong { address: text.parse().unwrap() };
    for (text, wanted) in [
        ("203.0.113.9", Ok(written("203.0.113.9/32"))),
        ("203.0.113.0/24", Ok(written("203.0.113.0/24"))),
        ("0.0.0.0/0", Ok(written("0.0.0.0/0"))),
        ("2001:db8::1", Ok(written("2001:db8::1/128"))),
        ("2001:db8::/32", Ok(written("2001:db8::/32"))),
        ("::/0", Ok(written("::/0"))),
        ("::ffff:192.0.2.7", Ok(written("192.0.2.7/32"))),
        ("::ffff:192.0.2.0/120", Ok(written("192.0.2.0/24"))),
        ("10.0.0.1/24", Err(NetworkError::HostBits { written: written("10.0.0.1/24") })),
        ("2001:db8::1/56", Err(NetworkError::HostBits { written: written("2001:db8::1/56") })),
        ("10.0.0.1/33", Err(too_long("10.0.0.1"))),
        ("10.0.0.0/256", Err(too_long("10.0.0.0"))),
        ("2001:db8::/129", Err(too_long("2001:db8::"))),
        ("300.1.1.1", Err(NetworkError::Malformed)),
        ("10.0.0.0/+8", Err(NetworkError::Malformed)),
        ("10.0.0.0/", Err(NetworkError::Malformed)),
        ("/8", Err(NetworkError::Malformed)),
        ("", Err(NetworkError::Malformed)),
        ("10.0.0", Err(NetworkError::Malformed)),
        ("010.0.0.1", Err(NetworkError::Malformed)),
        ("example.com", Err(NetworkError::Malformed)),
    ] {
        assert_eq!(parse(text), wanted, "{text}");
    }
}

/// Networks that often lie within each other and at the ends of the address space.
fn network() -> impl Strategy<Value = IpNet> {
    let v4 = (prop_oneof![0..4_u32, u32::MAX - 4..=u32::MAX, any::<u32>()], 0..=32_u8);
    let v4 = v4.prop_map(|(bits, length)| IpNet::new(IpAddr::V4(bits.into()), length).unwrap());
    let v6 = (prop_oneof![0..4_u128, u128::MAX - 4..=u128::MAX, any::<u128>()], 0..=128_u8);
    let v6 = v6.prop_map(|(bits, length)| IpNet::new(IpAddr::V6(bits.into()), length).unwrap());
    prop_oneof![v4, v6].prop_map(|network| network.trunc())
}

proptest! {
    #[test]
    fn map_finds_what_a_linear_search_finds(
        networks in prop::collection::vec(network(), 0..30),
        parts in prop::collection::vec(network(), 1..10),
    ) {
        let given = networks.iter().enumerate().map(|(at, network)| (*network, vec![at])).collect();
        let map = NetworkMap::new(given, |into: &mut Vec<usize>, from| into.append(from));
        for part in parts.iter().chain(&networks) {
            let mut wanted: Vec<IpNet> =
                networks.iter().filter(|own| own.contains(part)).copied().collect();
            wanted.sort_by_key(|own| std::cmp::Reverse(own.prefix_len()));
            wanted.dedup();
            let found: Vec<IpNet> = map.holding(part).map(|(network, _)| *network).collect();
            prop_assert_eq!(&found, &wanted);
            prop_assert_eq!(map.longest(part).map(|(network, _)| *network), wanted.first().copied());
            for (network, places) in map.holding(part) {
                let is_same = |at: &usize| networks[*at] == *network;
                let same: Vec<usize> = (0..networks.len()).filter(is_same).collect();
                prop_assert_eq!(places, &same);
            }
        }
    }
}
