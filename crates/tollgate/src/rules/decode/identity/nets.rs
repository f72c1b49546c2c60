//! The addresses and nets of proxies that are trusted.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tollgate_core::Excerpt;

use crate::rules::config::mostly_covered;
use crate::rules::problem::{Position, Report};
use crate::rules::yaml::Node;

/// The most nets: they are looked through for every request.
const MAX_NETS: usize = 4_096;

/// The bits before an IPv4 address that is written as IPv6: `::ffff:192.0.2.7`.
const MAPPED_BITS: u8 = 96;

const REMEDY: &str = "list addresses and nets, like `[10.0.0.0/8, 192.0.2.7]`";

pub(super) fn read(node: &Node<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
    let items = report.list(node, "`trusted_proxies`", REMEDY)?;
    if items.is_empty() {
        let remedy = "list the proxies' nets, or leave it out to trust nobody";
        report.error(node.at, "`trusted_proxies` is an empty list", remedy);
        return None;
    }
    if items.len() > MAX_NETS {
        let message = format!("{} nets, above the most of {MAX_NETS}", items.len());
        report.error(node.at, message, "use larger nets for them");
        return None;
    }
    let nets: Vec<IpNet> = items.iter().filter_map(|item| net(item, report)).collect();
    refuse_too_many(&nets, node.at, report);
    Some(nets)
}

fn net(node: &Node<'_>, report: &mut Report) -> Option<IpNet> {
    let text = report.text(node, "a trusted proxy", REMEDY)?;
    let Ok(net) = text.parse().map(IpAddr::into).or_else(|_| text.parse::<IpNet>()) else {
        let message = match text {
            "" => "a trusted proxy is an empty text".into(),
            _ => format!("`{}` is neither an address nor a net", Excerpt::of(text)),
        };
        let remedy = "write it like `192.0.2.7` or `10.0.0.0/8`; names are not looked up";
        report.error(node.at, message, remedy);
        return None;
    };
    if net != net.trunc() {
        let message = format!("`{net}` has bits set after its first {}", net.prefix_len());
        let (whole, alone) = (net.trunc(), net.addr());
        let remedy = format!("write `{whole}` for the net, or `{alone}` for the address");
        report.error(node.at, message, remedy);
        return None;
    }
    Some(unmapped(net))
}

/// IPv4 as such, also if it is written as IPv6: so are the addresses that it is compared to.
fn unmapped(net: IpNet) -> IpNet {
    let IpNet::V6(written) = net else { return net };
    let address = written.addr().to_ipv4_mapped();
    let parts = address.zip(written.prefix_len().checked_sub(MAPPED_BITS));
    parts.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(net, IpNet::V4)
}

fn refuse_too_many(nets: &[IpNet], at: Position, report: &mut Report) {
    let nets: Vec<Ipv6Net> = nets.iter().filter_map(|net| mapped(*net)).collect();
    for version in mostly_covered(&Ipv6Net::aggregate(&nets)) {
        let message = format!(
            "`trusted_proxies` holds more than a quarter of all {version} addresses: clients there could choose their own"
        );
        report.error(at, message, "list the nets that your proxies are in, and no others");
    }
}

/// As IPv6 has it.
fn mapped(net: IpNet) -> Option<Ipv6Net> {
    match net {
        // OK because an IPv4 net has at most 32 bits.
        IpNet::V4(net) => {
            Ipv6Net::new(net.addr().to_ipv6_mapped(), MAPPED_BITS + net.prefix_len()).ok()
        }
        IpNet::V6(net) => Some(net),
    }
}
