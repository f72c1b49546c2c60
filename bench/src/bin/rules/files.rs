//! Makes rules files. Their rules are in groups that differ in one condition.

use std::fmt::Write;

/// The kind of condition in which the groups of rules differ.
pub(crate) struct ConditionKind {
    pub(crate) name: &'static str,
    /// The condition of the rules of a group, with `{}` in place of the group's number.
    when: &'static str,
    /// The attributes of a request to which the rules of the group apply.
    attributes: &'static [(&'static str, &'static str)],
}

pub(crate) const CONDITION_KINDS: [ConditionKind; 6] = [
    ConditionKind {
        name: "method and path",
        when: "{ method: POST, path: /v1/things/{} }",
        attributes: &[("method", "POST"), ("path", "/v1/things/{}")],
    },
    ConditionKind {
        name: "path, by glob",
        when: "{ path: /v1/tenants/{}/** }",
        attributes: &[("method", "GET"), ("path", "/v1/tenants/{}/items/7")],
    },
    ConditionKind {
        name: "a segment in the middle",
        when: "{ path: /tenants/*/thing-{}/** }",
        attributes: &[("method", "GET"), ("path", "/tenants/42/thing-{}/items/7")],
    },
    ConditionKind {
        name: "path, by prefix",
        when: "{ path: { prefix: /{}/ } }",
        attributes: &[("method", "GET"), ("path", "/{}/items")],
    },
    ConditionKind {
        name: "a list of tenants",
        when: "{ tenant: [t{}, u{}, v{}] }",
        attributes: &[("path", "/"), ("tenant", "u{}")],
    },
    ConditionKind {
        name: "presence of a header",
        when: "{ header.x-{}: { present: true } }",
        attributes: &[("path", "/"), ("header.x-{}", "yes")],
    },
];

impl ConditionKind {
    /// Returns a file of `rules` rules, in groups of `group_size` rules with the same condition.
    pub(crate) fn file(&self, rules: usize, group_size: usize) -> String {
        let mut text =
            "limits:\n  it: token-bucket capacity=1000000 refill=1000/s\nrules:\n".to_owned();
        for rule in 0..rules {
            let when = self.when.replace("{}", &(rule / group_size).to_string());
            // OK because writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  - {{ name: rule-{rule}, domain: api, when: {when}, key: [ip], limit: it }}"
            );
        }
        text
    }

    /// Returns the attributes of a client's request to which the rules of a group apply.
    pub(crate) fn request(&self, group: usize, client: usize) -> Vec<(String, String)> {
        let for_group = |text: &str| text.replace("{}", &group.to_string());
        let own = self.attributes.iter().map(|(name, value)| (for_group(name), for_group(value)));
        own.chain([("ip".to_owned(), format!("203.0.113.{}", client % 256))]).collect()
    }
}
