//! Rendezvous hashing: finds which of several standalone servers has a key. For each key, every server has a weight,
//! and the server with the largest weight has the key.
//!
//! All processes that know the same names find the same server, on any machine and in any release. If the hash
//! changed, most keys would lose their states. Removing a server moves only its own keys; a new server takes an equal
//! share from all others.

use siphasher::sip::SipHasher13;

use super::slots::tag_of;

/// Must never change, because it decides which server has a key.
const HASH_KEY: &[u8; 16] = b"tollgate servers";

/// The servers to choose from.
#[derive(Clone, Debug)]
pub(super) struct Rendezvous {
    /// The hash of each server's name.
    servers: Box<[u64]>,
}

impl Rendezvous {
    /// Chooses among servers with these names. Their order does not matter.
    pub(super) fn new(names: impl IntoIterator<Item: AsRef<str>>) -> Rendezvous {
        let hash_of_name = |name: &str| hash(name.as_bytes());
        Rendezvous { servers: names.into_iter().map(|name| hash_of_name(name.as_ref())).collect() }
    }

    /// Returns the index of the server that has the key, in the order in which they were listed. The key's tag decides,
    /// so everything about one id is on one server.
    pub(super) fn place(&self, key: &[u8]) -> usize {
        let tag = hash(tag_of(key));
        let heaviest =
            self.servers.iter().enumerate().max_by_key(|&(_, &name)| (mixed(tag ^ name), name));
        heaviest.map_or(0, |(index, _)| index)
    }
}

fn hash(text: &[u8]) -> u64 {
    SipHasher13::new_with_key(HASH_KEY).hash(text)
}

/// The finalizer of SplitMix64: every bit of the input changes half of the output's.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["redis-a:6379", "redis-b:6379", "redis-c:6379", "10.0.0.4", "[::1]"];

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..100_000).map(|id| format!("tollgate:{{user:{id}}}:api").into_bytes())
    }

    #[test]
    fn keys_have_the_same_server_in_every_release() {
        let servers = Rendezvous::new(NAMES);
        let places = [
            ("user:1", 2),
            ("user:2", 4),
            ("user:5", 0),
            ("user:7", 3),
            ("user:42", 4),
            ("203.0.113.9", 4),
            ("jo@example.org", 3),
            ("%", 2),
        ];
        for (id, place) in places {
            let key = format!("tollgate:{{{id}}}:api");
            assert_eq!(servers.place(key.as_bytes()), place, "{id}");
        }
        // As another implementation of SipHash-1-3 and SplitMix64 computes them.
        assert_eq!(hash(b""), 0x8FD5_B389_532B_2580);
        assert_eq!(hash(b"user:42"), 0x288D_AFEE_E138_7AC6);
        assert_eq!(mixed(1), 0x5692_161D_100B_05E5);
    }

    #[test]
    fn every_server_has_its_share() {
        for count in [3, 5] {
            let servers = Rendezvous::new(&NAMES[..count]);
            let mut shares = vec![0; count];
            keys().for_each(|key| shares[servers.place(&key)] += 1);
            let fair = 100_000 / count;
            assert!(shares.iter().all(|share| fair.abs_diff(*share) < fair / 20), "{shares:?}");
        }
    }

    #[test]
    fn removed_server_moves_only_its_own_keys() {
        let before = Rendezvous::new(NAMES);
        for gone in NAMES {
            let names = || NAMES.into_iter().filter(|name| *name != gone);
            let (after, left) = (Rendezvous::new(names()), Vec::from_iter(names()));
            for key in keys().take(10_000) {
                let (old, new) = (before.place(&key), after.place(&key));
                assert!(NAMES[old] == gone || NAMES[old] == left[new]);
            }
        }
    }

    #[test]
    fn sixth_server_takes_a_sixth_of_the_keys() {
        let before = Rendezvous::new(NAMES);
        let after = Rendezvous::new(NAMES.into_iter().chain(["redis-new:6379"]));
        let mut moved = 0_u32;
        for key in keys() {
            let (old, new) = (before.place(&key), after.place(&key));
            assert!(new == old || new == 5);
            moved += u32::from(new == 5);
        }
        assert!(moved.abs_diff(100_000 / 6) < 1_000, "{moved}");
    }

    #[test]
    fn the_order_of_the_names_does_not_matter() {
        let servers = Rendezvous::new(NAMES);
        for turn in 1..5 {
            let mut names = NAMES;
            names.rotate_left(turn);
            names.swap(0, 1);
            let others = Rendezvous::new(names);
            for key in keys().take(10_000) {
                assert_eq!(NAMES[servers.place(&key)], names[others.place(&key)]);
            }
        }
    }

    #[test]
    fn all_keys_of_one_id_are_on_one_server() {
        let servers = Rendezvous::new(NAMES);
        for id in 0..1_000 {
            let [api, login] = ["api", "login"]
                .map(|rest| servers.place(format!("tollgate:{{{id}}}:{rest}").as_bytes()));
            assert_eq!(api, login);
        }
    }

    #[test]
    fn one_server_has_everything() {
        let servers = Rendezvous::new([String::from("only")]);
        assert!(keys().take(100).all(|key| servers.place(&key) == 0));
    }
}
