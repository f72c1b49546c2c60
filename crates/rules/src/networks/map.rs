//! Longest prefix match among many networks.

use std::iter::successors;
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;

/// A value for each of many networks, found by longest prefix match.
///
/// A lookup is one binary search, however many networks there are: the addresses of each family are divided into
/// ranges, and each range has the longest network that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkMap<T> {
    /// Sorted by their first addresses, IPv4 first; a network comes before the networks inside it.
    entries: Vec<NetworkEntry<T>>,
    v4: AddressRanges<u32>,
    v6: AddressRanges<u128>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NetworkEntry<T> {
    network: IpNet,
    value: T,
    /// The index of the longest other network that contains this one.
    parent: Option<u32>,
}

impl<T> Default for NetworkMap<T> {
    fn default() -> NetworkMap<T> {
        NetworkMap::new(Vec::new(), |_, _| {})
    }
}

impl<T> NetworkMap<T> {
    /// Makes a map of networks that have no host bits set. If a network occurs twice, its values are merged into the
    /// first.
    pub(crate) fn new(
        mut networks: Vec<(IpNet, T)>,
        mut merge: impl FnMut(&mut T, &mut T),
    ) -> NetworkMap<T> {
        // A stable sort, so that the first of equal networks stays the first.
        networks.sort_by_key(|(network, _)| *network);
        networks.dedup_by(|(later, from), (earlier, into)| {
            let is_same = later == earlier;
            if is_same {
                merge(into, from);
            }
            is_same
        });
        let entry = |(network, value)| NetworkEntry { network, value, parent: None };
        let mut entries: Vec<NetworkEntry<T>> = networks.into_iter().map(entry).collect();
        let first_v6 = entries.partition_point(|entry| matches!(entry.network, IpNet::V4(_)));
        let v4 = AddressRanges::new(ranges(&mut entries, 0..first_v6));
        let all = entries.len();
        let v6 = AddressRanges::new(ranges(&mut entries, first_v6..all));
        NetworkMap { entries, v4, v6 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of every network.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// Returns the longest network that contains all of `part`, which is an address or a smaller network.
    pub(crate) fn longest(&self, part: &IpNet) -> Option<(&IpNet, &T)> {
        self.holding(part).next()
    }

    /// Returns every network that contains all of `part`, the longest first.
    pub(crate) fn holding(&self, part: &IpNet) -> impl Iterator<Item = (&IpNet, &T)> {
        let found = match part {
            IpNet::V4(part) => self.v4.owner(part.network().to_bits()),
            IpNet::V6(part) => self.v6.owner(part.network().to_bits()),
        };
        // OK because owners and parents are indices of entries.
        let entry = |at: u32| &self.entries[at as usize];
        let bits = part.prefix_len();
        successors(found, move |&at| entry(at).parent)
            .map(entry)
            // Longer networks contain the first address of `part`, but not all of it.
            .filter(move |entry| entry.network.prefix_len() <= bits)
            .map(|entry| (&entry.network, &entry.value))
    }
}

/// All addresses of a family in ranges, each with the longest network that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AddressRanges<A> {
    /// The first address of each range, in order.
    starts: Vec<A>,
    /// The index of the range's network, if a network contains the range.
    owners: Vec<Option<u32>>,
}

impl<A: Copy + Ord> AddressRanges<A> {
    /// Makes ranges; a range that would begin after the last address is left out.
    fn new(ranges: Vec<(u128, Option<u32>)>) -> AddressRanges<A>
    where
        A: TryFrom<u128>,
    {
        let ranges = ranges.into_iter();
        let ranges = ranges.filter_map(|(start, owner)| Some((A::try_from(start).ok()?, owner)));
        let (starts, owners) = ranges.unzip();
        AddressRanges { starts, owners }
    }

    fn owner(&self, address: A) -> Option<u32> {
        let after = self.starts.partition_point(|start| *start <= address);
        // Before the first range there is no network.
        after.checked_sub(1).and_then(|at| self.owners[at])
    }
}

/// Divides the addresses of one family into ranges, and sets the parent of each network.
///
/// The networks are sorted, so the open ones are nested and form a stack.
fn ranges<T>(entries: &mut [NetworkEntry<T>], places: Range<usize>) -> Vec<(u128, Option<u32>)> {
    let mut ranges = RangeBuilder::default();
    for at in places {
        let network = entries[at].network;
        ranges.close(|open| !open.contains(&network));
        entries[at].parent = ranges.open.last().map(|(place, _)| *place);
        // OK because no file has 2^32 networks.
        ranges.open(at as u32, network);
    }
    ranges.close(|_| true);
    ranges.each
}

/// The ranges before the current network.
#[derive(Default)]
struct RangeBuilder {
    each: Vec<(u128, Option<u32>)>,
    /// The networks that have not ended, each inside the one before it.
    open: Vec<(u32, IpNet)>,
}

impl RangeBuilder {
    fn open(&mut self, at: u32, network: IpNet) {
        self.begin(bits(network.network()), Some(at));
        self.open.push((at, network));
    }

    /// Ends networks, the innermost first, while `over` returns true for them.
    fn close(&mut self, over: impl Fn(&IpNet) -> bool) {
        while let Some((_, ended)) = self.open.pop_if(|(_, network)| over(network)) {
            // No range begins after the last address of IPv6.
            if let Some(after) = bits(ended.broadcast()).checked_add(1) {
                self.begin(after, self.open.last().map(|(at, _)| *at));
            }
        }
    }

    /// Begins a range. A range that began at the same address is empty, and is replaced.
    fn begin(&mut self, start: u128, owner: Option<u32>) {
        match self.each.last_mut().filter(|(last, _)| *last == start) {
            Some(last) => last.1 = owner,
            None => self.each.push((start, owner)),
        }
    }
}

/// Returns an address as a number of its family.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
