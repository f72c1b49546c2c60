//! Measures checks of a rule that compares addresses with few networks and with many.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::Result;
use tollgate::Limiter;
use tollgate::rules::{Config, Rules};
use tollgate_bench::random::Random;
use tollgate_bench::statistics::median;

use crate::{CHECKS, RulesCase, ratios};

/// The numbers of networks in a set.
const NETWORKS: [usize; 3] = [10, 1_000, 100_000];

/// A rule that uses a set of networks, and whether the requests come from those networks.
struct NetworkRule {
    name: &'static str,
    rule: &'static str,
    is_inside: bool,
}

const NETWORK_RULES: [NetworkRule; 4] = [
    NetworkRule { name: "no networks", rule: "key: []", is_inside: true },
    NetworkRule {
        name: "`when`, inside",
        rule: "when: { ip: { networks: set } }, key: []",
        is_inside: true,
    },
    NetworkRule {
        name: "`when`, outside",
        rule: "when: { ip: { none_of: [{ networks: set }] } }, key: []",
        is_inside: false,
    },
    NetworkRule {
        name: "an override",
        rule: "key: [ip], overrides: [{ key: { ip: { networks: set } }, limit: other }]",
        is_inside: true,
    },
];

/// Returns the lines of the table.
pub(crate) fn lines() -> Result<Vec<Vec<String>>> {
    let titles = NETWORKS.map(|count| format!("{count} networks"));
    let mut lines = vec![[vec!["networks used by".to_owned()], titles.to_vec()].concat()];
    for rule in &NETWORK_RULES {
        let cases = NETWORKS.iter().map(|&count| rule.case(count));
        let cases = cases.collect::<Result<Vec<_>>>()?;
        lines.push([vec![rule.name.to_owned()], ratios(&cases)?].concat());
    }
    lines.push(load_times()?);
    Ok(lines)
}

/// Measures how long files of networks take to load.
fn load_times() -> Result<Vec<String>> {
    let mut cells = vec!["load".to_owned()];
    for count in NETWORKS {
        let took = (0..5).map(|_| -> Result<f64> {
            let began = Instant::now();
            black_box(NETWORK_RULES[1].rules(count)?);
            Ok(began.elapsed().as_secs_f64() * 1e3)
        });
        cells.push(format!("{:.1} ms", median(took.collect::<Result<Vec<_>>>()?)));
    }
    Ok(cells)
}

impl NetworkRule {
    /// Returns the rules with a set of `count` networks, and their requests.
    fn case(&self, count: usize) -> Result<RulesCase> {
        let rules = self.rules(count)?;
        let mut random = Random::new(7);
        let request = |_| {
            let offset = random.below(256) + if self.is_inside { 0 } else { 256 };
            let address = first_address(random.below(count), count) + offset as u32;
            vec![("ip".to_owned(), Ipv4Addr::from_bits(address).to_string())]
        };
        Ok(RulesCase { rules, requests: (0..CHECKS).map(request).collect() })
    }

    fn rules(&self, count: usize) -> Result<Rules> {
        let text = format!(
            "limits:\n  it: token-bucket capacity=1000000000 refill=1000000/s\n  \
             other: token-bucket capacity=2000000000 refill=1000000/s\n\
             networks: {{ set: {{ file: set.txt }} }}\n\
             rules: [{{ name: it, domain: api, limit: it, {} }}]\n",
            self.rule
        );
        let first = |nth| Ipv4Addr::from_bits(first_address(nth, count));
        let file = (0..count).map(|nth| format!("{}/24\n", first(nth))).collect::<String>();
        let config = Config::parse_with("rules.yaml", text, |_| Ok(file.clone().into_bytes()))
            .map_err(|problems| anyhow::anyhow!("{problems}"))?;
        Ok(Rules::new(&Limiter::memory(), &config)?)
    }
}

/// Returns the first address of the nth of `count` networks. The networks have equal distances in the address space. Each
/// has 256 addresses, and the next 256 addresses are in no network.
fn first_address(nth: usize, count: usize) -> u32 {
    // OK because the address is below 2^32 for every network.
    (nth * ((1 << 23) / count) * 512) as u32
}
