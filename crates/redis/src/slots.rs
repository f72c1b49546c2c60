//! Where the keys of a Redis Cluster are: 16,384 slots, each with an owner, as the servers report it.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

pub(super) const SLOTS: u16 = 16_384;

/// The most owners that a cluster's reply may name.
const MAX_OWNERS: usize = 1_024;

const MAX_HOST_BYTES: usize = 255;

/// Stands for the index of the owner in a slot that has no owner.
const NO_OWNER: u16 = u16::MAX;

/// The address at which a server listens. Shown as `host:port`, or `[::1]:6379`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl ServerAddress {
    /// Returns the address as a server names it. An empty host or `?` means the server that was `queried`.
    fn of(host: &str, port: u16, queried: &ServerAddress) -> Option<ServerAddress> {
        let is_nonsense = |c: char| c.is_whitespace() || c.is_control();
        if port == 0 || host.len() > MAX_HOST_BYTES || host.contains(is_nonsense) {
            return None;
        }
        let host = if matches!(host, "" | "?") { &queried.host } else { host };
        Some(ServerAddress { host: host.to_owned(), port })
    }

    /// Parses `host:port`, with any number of colons in the host.
    fn parse(text: &str, queried: &ServerAddress) -> Option<ServerAddress> {
        let (host, port) = text.rsplit_once(':')?;
        ServerAddress::of(host, port.parse().ok()?, queried)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Returns the hash tag of a key, which decides on its slot: the text in its first braces, or all of it.
///
/// The tag of `tollgate:{user:42}:api` is `user:42`; empty braces do not count.
pub(super) fn tag_of(key: &[u8]) -> &[u8] {
    let mut parts = key.splitn(2, |&byte| byte == b'{');
    let (_, Some(rest)) = (parts.next(), parts.next()) else { return key };
    match rest.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(end) => &rest[..end],
    }
}

/// The slot of a key: CRC16 (XMODEM) of its tag, mod 16384.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

fn crc16(text: &[u8]) -> u16 {
    text.iter().fold(0, |crc, byte| {
        let [high, _] = (crc ^ (u16::from(*byte) << 8)).to_be_bytes();
        (crc << 8) ^ CRC16[usize::from(high)]
    })
}

/// The CRC of every byte.
static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The owner of every slot.
#[derive(Clone)]
pub(super) struct SlotMap {
    /// For each slot the index of its owner, or [`NO_OWNER`].
    slots: Box<[u16]>,
    owners: Vec<Owner>,
}

#[derive(Clone)]
struct Owner {
    address: ServerAddress,
    /// How many slots it owns. An entry without slots may be reused for another owner.
    slots: usize,
}

impl SlotMap {
    /// Reads the reply to CLUSTER SLOTS; `None` if it is malformed. A server without a host is the one that was `queried`.
    pub(super) fn of(reply: &Value, queried: &ServerAddress) -> Option<SlotMap> {
        let mut map = SlotMap::default();
        for range in array(reply)? {
            let [first, last, master, ..] = array(range)? else { return None };
            let (first, last) = (slot(first)?, slot(last)?);
            let owner = map.index_of(node(master, queried)?)?;
            if first > last {
                return None;
            }
            for slot in first..=last {
                // Two owners of one slot are malformed as well.
                if map.owner(slot).is_some() {
                    return None;
                }
                map.give(slot, owner);
            }
        }
        Some(map)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&ServerAddress> {
        let owner = *self.slots.get(usize::from(slot))?;
        Some(&self.owners.get(usize::from(owner))?.address)
    }

    /// Sets the owner of a slot after MOVED. Ignored if there are too many owners, or no such slot.
    pub(super) fn set(&mut self, slot: u16, owner: ServerAddress) {
        if slot >= SLOTS || self.owner(slot) == Some(&owner) {
            return;
        }
        if let Some(owner) = self.index_of(owner) {
            self.give(slot, owner);
        }
    }

    /// Returns every address that owns a slot now.
    pub(super) fn owners(&self) -> impl Iterator<Item = &ServerAddress> {
        self.owners.iter().filter(|owner| owner.slots > 0).map(|owner| &owner.address)
    }

    /// Returns how many slots have an owner.
    pub(super) fn covered(&self) -> usize {
        self.owners.iter().map(|owner| owner.slots).sum()
    }

    /// Returns the index of an owner, which is added if it is unknown and there is room.
    fn index_of(&mut self, address: ServerAddress) -> Option<u16> {
        let known = self.owners.iter().position(|owner| owner.address == address);
        let index = match known.or_else(|| self.owners.iter().position(|owner| owner.slots == 0)) {
            Some(index) => {
                self.owners[index].address = address;
                index
            }
            None if self.owners.len() == MAX_OWNERS => return None,
            None => {
                self.owners.push(Owner { address, slots: 0 });
                self.owners.len() - 1
            }
        };
        u16::try_from(index).ok()
    }

    /// Takes a slot from its owner, and gives it to another. Both indexes must be valid.
    fn give(&mut self, slot: u16, owner: u16) {
        let before = std::mem::replace(&mut self.slots[usize::from(slot)], owner);
        if let Some(before) = self.owners.get_mut(usize::from(before)) {
            before.slots -= 1;
        }
        self.owners[usize::from(owner)].slots += 1;
    }
}

impl Default for SlotMap {
    /// Returns a map in which no slot has an owner.
    fn default() -> SlotMap {
        SlotMap { slots: vec![NO_OWNER; usize::from(SLOTS)].into(), owners: Vec::new() }
    }
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = |owner: &Owner| (owner.address.to_string(), owner.slots);
        f.debug_map().entries(self.owners.iter().map(slots)).finish()
    }
}

/// Where a server sends a request that it does not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// To this server, from now on.
    Moved { slot: u16, to: ServerAddress },
    /// To this server, this once and with ASKING before it: the slot is being moved there.
    Ask { to: ServerAddress },
    /// To the same server, but later: some of the keys are being moved.
    TryAgain,
}

impl Redirect {
    /// Reads an error; `None` if it is not a redirect. `MOVED 3999 :6381` names another port of
    /// the server that was `queried`.
    pub(super) fn of(error: &RedisError, queried: &ServerAddress) -> Option<Redirect> {
        if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) {
            return Some(Redirect::TryAgain);
        }
        let (to, slot) = error.redirect_node().filter(|&(_, slot)| slot < SLOTS)?;
        let to = ServerAddress::parse(to, queried)?;
        if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
            return Some(Redirect::Ask { to });
        }
        Some(Redirect::Moved { slot, to })
    }
}

/// Reads a server in the reply to CLUSTER SLOTS: host, port, and more that is not needed.
fn node(value: &Value, queried: &ServerAddress) -> Option<ServerAddress> {
    let [host, port, ..] = array(value)? else { return None };
    ServerAddress::of(text(host)?, u16::try_from(int(port)?).ok()?, queried)
}

fn slot(value: &Value) -> Option<u16> {
    u16::try_from(int(value)?).ok().filter(|&slot| slot < SLOTS)
}

fn array(value: &Value) -> Option<&[Value]> {
    match plain(value) {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn int(value: &Value) -> Option<i64> {
    match plain(value) {
        Value::Int(int) => Some(*int),
        _ => None,
    }
}

/// Reads a text. Null is the empty text.
fn text(value: &Value) -> Option<&str> {
    match plain(value) {
        Value::Nil => Some(""),
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Removes the attributes that RESP3 may put around any value.
fn plain(mut value: &Value) -> &Value {
    while let Value::Attribute { data, .. } = value {
        value = data;
    }
    value
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use redis::{VerbatimFormat, parse_redis_value};

    use super::*;

    fn address(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.to_owned(), port }
    }

    fn queried() -> ServerAddress {
        address("seed", 7_000)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn array_of<const N: usize>(values: [Value; N]) -> Value {
        Value::Array(values.into())
    }

    /// A range of slots of one server.
    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = bulk("09dbe9720cda62f7865eabc5fd8857c5d2678366");
        let master = array_of([host, Value::Int(port), id, array_of([])]);
        array_of([Value::Int(first), Value::Int(last), master])
    }

    fn map_of<const N: usize>(ranges: [Value; N]) -> Option<SlotMap> {
        SlotMap::of(&array_of(ranges), &queried())
    }

    fn owners(map: &SlotMap) -> Vec<String> {
        map.owners().map(ServerAddress::to_string).collect()
    }

    fn redirect(line: &str) -> Option<Redirect> {
        let line = format!("-{line}\r\n");
        let error = parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err();
        Redirect::of(&error, &queried())
    }

    #[test]
    fn the_crc_is_the_one_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn keys_are_in_the_slots_where_redis_has_them() {
        for (key, slot) in [("foo", 12_182), ("bar", 5_061), ("", 0), ("user1000", 3_443)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn text_in_the_first_braces_is_the_tag() {
        let cases = [
            ("{user1000}.following", "user1000"),
            ("{user1000}.followers", "user1000"),
            ("tollgate:{user:42}:api", "user:42"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("}foo{bar}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar", "foo}bar"),
            ("{", "{"),
            ("", ""),
        ];
        for (key, tag) in cases {
            assert_eq!(tag_of(key.as_bytes()), tag.as_bytes(), "{key}");
            assert_eq!(slot_of(key.as_bytes()), crc16(tag.as_bytes()) % SLOTS, "{key}");
        }
    }

    #[test]
    fn an_address_is_shown_as_it_is_typed() {
        assert_eq!(address("redis-1.example", 6379).to_string(), "redis-1.example:6379");
        assert_eq!(address("::1", 6379).to_string(), "[::1]:6379");
    }

    #[test]
    fn a_reply_of_redis_7_is_understood() {
        // As it is sent to a client of RESP2: metadata is a list, a replica follows its master.
        let reply = "*3\r\n\
            *4\r\n:0\r\n:5460\r\n\
            *4\r\n$9\r\n127.0.0.1\r\n:30001\r\n$2\r\nid\r\n*2\r\n$8\r\nhostname\r\n$6\r\nhost-1\r\n\
            *4\r\n$9\r\n127.0.0.1\r\n:30004\r\n$2\r\nid\r\n*0\r\n\
            *3\r\n:5461\r\n:10922\r\n*4\r\n$9\r\n127.0.0.1\r\n:30002\r\n$2\r\nid\r\n*0\r\n\
            *3\r\n:10923\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:30003\r\n$2\r\nid\r\n*0\r\n";
        let map = SlotMap::of(&parse_redis_value(reply.as_bytes()).unwrap(), &queried()).unwrap();
        assert_eq!(owners(&map), ["127.0.0.1:30001", "127.0.0.1:30002", "127.0.0.1:30003"]);
        assert_eq!(map.covered(), 16_384);
        for (slot, port) in [(0, 1), (5_460, 1), (5_461, 2), (10_922, 2), (10_923, 3), (16_383, 3)]
        {
            assert_eq!(map.owner(slot), Some(&address("127.0.0.1", 30_000 + port)), "{slot}");
        }
        assert_eq!(map.owner(16_384), None);
    }

    #[test]
    fn a_reply_of_valkey_9_is_understood() {
        // As it is sent to a client of RESP3: metadata is a map, and the host may be null.
        let reply = "*2\r\n\
            *3\r\n:0\r\n:0\r\n*4\r\n_\r\n:7001\r\n$2\r\nid\r\n%0\r\n\
            *3\r\n:2\r\n:9\r\n*4\r\n$6\r\nhost-2\r\n:7002\r\n$2\r\nid\r\n\
            %2\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$17\r\navailability-zone\r\n$4\r\neu-1\r\n";
        let map = SlotMap::of(&parse_redis_value(reply.as_bytes()).unwrap(), &queried()).unwrap();
        assert_eq!(owners(&map), ["seed:7001", "host-2:7002"]);
        assert_eq!((map.covered(), map.owner(1)), (9, None));
    }

    #[test]
    fn server_without_a_host_has_the_host_that_was_queried() {
        for host in [Value::Nil, bulk(""), bulk("?"), Value::SimpleString(String::new())] {
            let map = map_of([range(5, 5, host, 6_379)]).unwrap();
            assert_eq!(map.owner(5), Some(&address("seed", 6_379)));
        }
    }

    #[test]
    fn a_host_is_any_kind_of_text_and_may_have_attributes() {
        let verbatim =
            Value::VerbatimString { format: VerbatimFormat::Text, text: "::1".to_owned() };
        for host in [bulk("::1"), Value::SimpleString("::1".to_owned()), verbatim] {
            let host = Value::Attribute { data: Box::new(host), attributes: Vec::new() };
            let reply = array_of([range(5, 5, host, 6_379)]);
            let reply = Value::Attribute { data: Box::new(reply), attributes: Vec::new() };
            let map = SlotMap::of(&reply, &queried()).unwrap();
            assert_eq!(owners(&map), ["[::1]:6379"]);
        }
    }

    #[test]
    fn a_cluster_without_slots_is_empty() {
        let map = map_of([]).unwrap();
        assert_eq!((map.covered(), map.owners().count(), map.owner(0)), (0, 0, None));
    }

    #[test]
    fn malformed_reply_is_refused() {
        let good = || range(0, 1, bulk("a"), 1);
        assert!(map_of([good()]).is_some());
        let bad = [
            range(-1, 1, bulk("a"), 1),
            range(5, 4, bulk("a"), 1),
            range(5, 16_384, bulk("a"), 1),
            range(5, 5, bulk("a"), 0),
            range(5, 5, bulk("a"), 65_536),
            range(5, 5, bulk("a b"), 1),
            range(5, 5, bulk("a\n"), 1),
            range(5, 5, bulk(&"a".repeat(256)), 1),
            range(5, 5, Value::BulkString(vec![0xFF]), 1),
            range(5, 5, Value::Int(1), 1),
            range(1, 2, bulk("overlaps"), 1),
            array_of([Value::Int(5), Value::Int(5)]),
            array_of([Value::Int(5), Value::Int(5), array_of([bulk("a")])]),
            array_of([Value::Int(5), bulk("5"), array_of([bulk("a"), Value::Int(1)])]),
            Value::Nil,
        ];
        for range in bad {
            let text = format!("{range:?}");
            assert!(map_of([good(), range]).is_none(), "{text}");
        }
        for reply in [Value::Nil, Value::Okay, Value::Int(0), bulk("a"), Value::Map(Vec::new())] {
            assert!(SlotMap::of(&reply, &queried()).is_none(), "{reply:?}");
        }
    }

    #[test]
    fn map_has_1024_owners_at_most() {
        let reply = |count| {
            Value::Array((0..count).map(|slot| range(slot, slot, bulk("a"), slot + 1)).collect())
        };
        let mut map = SlotMap::of(&reply(1_024), &queried()).unwrap();
        assert!(SlotMap::of(&reply(1_025), &queried()).is_none());

        map.set(2_000, address("b", 1));
        assert_eq!((map.owner(2_000), map.covered()), (None, 1_024));
        map.set(0, address("a", 2));
        map.set(2_000, address("b", 1));
        assert_eq!(map.owner(2_000), Some(&address("b", 1)), "reuses the entry without slots");
        assert_eq!((map.owners().count(), map.covered()), (1_024, 1_025));
    }

    #[test]
    fn a_slot_that_moved_has_another_owner() {
        let mut map = map_of([range(0, 1, bulk("a"), 1)]).unwrap();
        map.set(0, address("b", 2));
        assert_eq!((map.owner(0), map.owner(1)), (Some(&address("b", 2)), Some(&address("a", 1))));
        map.set(1, address("b", 2));
        assert_eq!((owners(&map), map.covered()), (vec!["b:2".to_owned()], 2));
        map.set(SLOTS, address("c", 3));
        map.set(7, address("c", 3));
        assert_eq!(map.owner(0), Some(&address("b", 2)));
        assert_eq!((map.owners().count(), map.covered()), (2, 3));
    }

    #[test]
    fn redirects_are_understood() {
        let moved = |host, port| Some(Redirect::Moved { slot: 3_999, to: address(host, port) });
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), moved("127.0.0.1", 6_381));
        assert_eq!(redirect("MOVED 3999 host-1.example:6381"), moved("host-1.example", 6_381));
        assert_eq!(redirect("MOVED 3999 ::1:6381"), moved("::1", 6_381));
        assert_eq!(redirect("MOVED 3999 :6381"), moved("seed", 6_381));
        assert_eq!(redirect("MOVED 3999 ?:6381"), moved("seed", 6_381));
        let to = address("127.0.0.1", 6_381);
        assert_eq!(redirect("ASK 3999 127.0.0.1:6381"), Some(Redirect::Ask { to }));
        let to = address("seed", 6_381);
        assert_eq!(redirect("ASK 3999 :6381"), Some(Redirect::Ask { to }));
        let line = "TRYAGAIN Multiple keys request during rehashing of slot";
        assert_eq!(redirect(line), Some(Redirect::TryAgain));
    }

    #[test]
    fn other_errors_and_malformed_redirects_are_ignored() {
        let long = format!("MOVED 1 {}:1", "a".repeat(256));
        let lines = [
            "ERR MOVED 3999 127.0.0.1:6381",
            "CLUSTERDOWN Hash slot not served",
            "MOVED",
            "MOVED 3999",
            "MOVED x 127.0.0.1:6381",
            "MOVED 16384 127.0.0.1:6381",
            "MOVED -1 127.0.0.1:6381",
            "MOVED 3999 127.0.0.1",
            "MOVED 3999 127.0.0.1:",
            "MOVED 3999 127.0.0.1:0",
            "MOVED 3999 127.0.0.1:65536",
            "ASK 16384 127.0.0.1:6381",
            "ASK 3999 a\u{7f}b:6381",
            &long,
        ];
        for line in lines {
            assert_eq!(redirect(line), None, "{line}");
        }
        let error = RedisError::from((ErrorKind::Io, "broken pipe"));
        assert_eq!(Redirect::of(&error, &queried()), None);
    }

    /// Returns values that often have the right shape, so that they are not refused at once.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            (-1_i64..20_000).prop_map(Value::Int),
            vec(any::<u8>(), 0..8).prop_map(Value::BulkString),
            ".{0,8}".prop_map(Value::SimpleString),
            any::<bool>().prop_map(Value::Boolean),
            any::<f64>().prop_map(Value::Double),
        ];
        let near = (-1_i64..16_390, -1_i64..16_390, "[a-z?:]{0,3}", -1_i64..70_000)
            .prop_map(|(first, last, host, port)| range(first, last, bulk(&host), port));
        prop_oneof![leaf, near].prop_recursive(4, 32, 6, |inner| {
            let pairs = vec((inner.clone(), inner.clone()), 0..3);
            let around = (inner.clone(), pairs.clone());
            prop_oneof![
                3 => vec(inner, 0..6).prop_map(Value::Array),
                1 => pairs.prop_map(Value::Map),
                1 => around.prop_map(|(data, attributes)| {
                    Value::Attribute { data: Box::new(data), attributes }
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_reply_is_a_sound_map_or_none(reply in any_value()) {
            if let Some(map) = SlotMap::of(&reply, &queried()) {
                let covered = (0..SLOTS).filter(|&slot| map.owner(slot).is_some()).count();
                prop_assert_eq!(map.covered(), covered);
            }
        }

        #[test]
        fn any_redirect_has_a_sound_address_or_is_none(
            line in "(MOVED|ASK) [0-9]{0,5} ?[^\r\n]{0,40}",
        ) {
            if let Some(Redirect::Moved { to, .. } | Redirect::Ask { to }) = redirect(&line) {
                prop_assert!(to.port > 0 && !to.host.is_empty());
            }
        }

        #[test]
        fn map_after_any_moves_has_the_last_owners(
            moves in vec((0_u16..50, 1_u16..10), 0..200),
        ) {
            let (mut map, mut model) = (SlotMap::default(), HashMap::new());
            for (slot, port) in moves {
                map.set(slot, address("a", port));
                model.insert(slot, address("a", port));
            }
            for slot in 0..SLOTS {
                prop_assert_eq!(map.owner(slot), model.get(&slot));
            }
            let (mut have, mut want): (Vec<_>, Vec<_>) =
                (map.owners().collect(), model.values().collect());
            have.sort();
            want.sort();
            want.dedup();
            prop_assert_eq!((have, map.covered()), (want, model.len()));
        }
    }
}
