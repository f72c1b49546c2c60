//! Files of rules whose groups differ in one condition.

use std::fmt::Write;

/// The condition in which the groups of rules differ.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The condition of the rules of a group; `{}` stands for the group.
    when: &'static str,
    /// The attributes of a request of the group.
    is: &'static [(&'static str, &'static str)],
}

pub(crate) const KINDS: [Kind; 6] = [
    Kind {
        name: "method and path",
        when: "{ method: POST, path: /v1/things/{} }",
        is: &[("method", "POST"), ("path", "/v1/things/{}")],
    },
    Kind {
        name: "path, by glob",
        when: "{ path: /v1/tenants/{}/** }",
        is: &[("method", "GET"), ("path", "/v1/tenants/{}/items/7")],
    },
    Kind {
        name: "a segment in the middle",
        when: "{ path: /tenants/*/thing-{}/** }",
        is: &[("method", "GET"), ("path", "/tenants/42/thing-{}/items/7")],
    },
    Kind {
        name: "path, by prefix",
        when: "{ path: { prefix: /{}/ } }",
        is: &[("method", "GET"), ("path", "/{}/items")],
    },
    Kind {
        name: "a list of tenants",
        when: "{ tenant: [t{}, u{}, v{}] }",
        is: &[("path", "/"), ("tenant", "u{}")],
    },
    Kind {
        name: "a header that is there",
        when: "{ header.x-{}: { present: true } }",
        is: &[("path", "/"), ("header.x-{}", "yes")],
    },
];

impl Kind {
    /// Returns a file of `rules` rules, in groups of `of_group` rules with the same condition.
    pub(crate) fn file(&self, rules: usize, of_group: usize) -> String {
        let mut text =
            "limits:\n  it: token-bucket capacity=1000000 refill=1000/s\nrules:\n".to_owned();
        for rule in 0..rules {
            let when = self.when.replace("{}", &(rule / of_group).to_string());
            // Cannot fail.
            let _ = writeln!(
                text,
                "  - {{ name: rule-{rule}, domain: api, when: {when}, key: [ip], limit: it }}"
            );
        }
        text
    }

    /// Returns a client's request of a group.
    pub(crate) fn request(&self, group: usize, client: usize) -> Vec<(String, String)> {
        let of_group = |text: &str| text.replace("{}", &group.to_string());
        let own = self.is.iter().map(|(name, value)| (of_group(name), of_group(value)));
        own.chain([("ip".to_owned(), format!("203.0.113.{}", client % 256))]).collect()
    }
}
