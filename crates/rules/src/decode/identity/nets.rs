//! The addresses and networks of trusted proxies.

use ipnet::{IpNet, Ipv6Net};

use crate::decode::networks;
use crate::networks::MAPPED_BITS;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::YamlNode;
use tollgate_identity::config::mostly_covered;

/// The most networks: all are compared for every request.
const MAX_NETS: usize = 4_096;

const REMEDY: &str = "list addresses and networks, like `[10.0.0.0/8, 192.0.2.7]`";

pub(super) fn read(node: &YamlNode<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
    let items = report.list(node, "`trusted_proxies`", REMEDY)?;
    if items.is_empty() {
        let remedy = "list the proxies' networks, or remove it to trust no proxy";
        report.error(node.at, "`trusted_proxies` is an empty list", remedy);
        return None;
    }
    if items.len() > MAX_NETS {
        let message = format!("{} networks, above the maximum of {MAX_NETS}", items.len());
        report.error(node.at, message, "use larger networks that contain them");
        return None;
    }
    let nets: Vec<IpNet> =
        items.iter().filter_map(|item| networks::listed(item, "a trusted proxy", report)).collect();
    refuse_too_many(&nets, node.at, report);
    Some(nets)
}

fn refuse_too_many(nets: &[IpNet], at: Position, report: &mut Report) {
    let nets: Vec<Ipv6Net> = nets.iter().filter_map(|net| mapped(*net)).collect();
    for version in mostly_covered(&Ipv6Net::aggregate(&nets)) {
        let message = format!(
            "`trusted_proxies` holds more than a quarter of all {version} addresses: clients there could choose their own address"
        );
        report.error(at, message, "list only the networks that your proxies are in");
    }
}

/// Returns the network as an IPv6 network.
fn mapped(net: IpNet) -> Option<Ipv6Net> {
    match net {
        // OK because an IPv4 net has at most 32 bits.
        IpNet::V4(net) => {
            Ipv6Net::new(net.addr().to_ipv6_mapped(), MAPPED_BITS + net.prefix_len()).ok()
        }
        IpNet::V6(net) => Some(net),
    }
}
