//! Ids in a certain slot or on a certain node.

use redis::Value::{Array, Int};
use redis::cmd;
use tollgate_launcher::{Cluster, ClusterNode};

/// The slot of an id without braces: CRC16 (XMODEM) mod 16384, one bit after the other.
pub(crate) fn slot_of(id: &str) -> u16 {
    let crc = id.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

/// Finds `count` ids in one slot.
pub(crate) fn ids_in(slot: u16, count: usize) -> Vec<String> {
    let all = (0..).map(|number| format!("id-{number}"));
    all.filter(|id| slot_of(id) == slot).take(count).collect()
}

/// Finds `count` ids on a node, each in another slot.
pub(crate) fn ids_of(cluster: &Cluster, node: ClusterNode, count: usize) -> Vec<String> {
    let port = redis::Value::Int(cluster[node].addr().port().into());
    let ranges: Vec<Vec<redis::Value>> = cluster[node].ask(cmd("CLUSTER").arg("SLOTS")).unwrap();
    let own: Vec<_> = ranges
        .iter()
        .filter_map(|range| match &range[..] {
            [Int(first), Int(last), Array(primary), ..] if primary[1] == port => {
                Some(*first..=*last)
            }
            _ => None,
        })
        .collect();
    let mut slots = Vec::new();
    let mut is_new = |slot: u16| {
        let is_new = own.iter().any(|range| range.contains(&slot.into())) && !slots.contains(&slot);
        slots.extend(is_new.then_some(slot));
        is_new
    };
    let all = (0..).map(|number| format!("id-{number}"));
    all.filter(|id| is_new(slot_of(id))).take(count).collect()
}

/// A node's counts of the errors that it answered with, such as `MOVED` and `ASK`, since they were reset.
pub(crate) fn errors(cluster: &Cluster, node: ClusterNode) -> Vec<String> {
    let info: String = cluster[node].ask(cmd("INFO").arg("errorstats")).unwrap();
    info.lines().filter(|line| line.starts_with("errorstat_")).map(str::to_owned).collect()
}

/// A number in a section of a node's `INFO`.
pub(crate) fn count(cluster: &Cluster, node: ClusterNode, section: &str, name: &str) -> u64 {
    let info: String = cluster[node].ask(cmd("INFO").arg(section)).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    let digits = |line: &str| line.chars().take_while(char::is_ascii_digit).collect::<String>();
    line.map_or(0, |line| digits(line).parse().unwrap())
}
