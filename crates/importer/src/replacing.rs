//! The rules that replace others.

use tollgate::rules::reading::Report;

use super::source::SourcePosition;

/// The rules of a domain by number, each with the rules that it replaces.
pub(super) struct ImportedReplacements {
    of: Vec<Vec<(usize, SourcePosition)>>,
}

/// The state of a rule in the search for circles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    Not,
    OnPath,
    Done,
}

impl ImportedReplacements {
    pub(super) fn new(rules: usize) -> ImportedReplacements {
        ImportedReplacements { of: vec![Vec::new(); rules] }
    }

    pub(super) fn add(&mut self, rule: usize, targets: &[usize], place: SourcePosition) {
        if let Some(replaced) = self.of.get_mut(rule) {
            replaced.extend(targets.iter().map(|target| (*target, place)));
        }
    }

    /// Returns the rules that each rule replaces, without the step that closes a circle. In
    /// envoyproxy/ratelimit, where all limits of a circle match, none of them applies; rules cannot express
    /// that.
    pub(super) fn without_circles(mut self, reports: &mut [Report]) -> Vec<Vec<usize>> {
        for replaced in &mut self.of {
            replaced.sort_by_key(|(target, _)| *target);
            replaced.dedup_by_key(|(target, _)| *target);
        }
        let mut followed = vec![VisitState::Not; self.of.len()];
        let mut kept: Vec<Vec<usize>> = vec![Vec::new(); self.of.len()];
        for start in 0..self.of.len() {
            // Each rule on the path, with the index of the next one to follow. Not recursive, because a chain
            // may be long.
            let mut path = vec![(start, 0)];
            // OK because every number on the path, and every replaced number, is the number of a rule.
            while let Some((rule, next)) = path.last_mut() {
                let rule = *rule;
                if *next == 0 && followed[rule] == VisitState::Done {
                    path.pop();
                    continue;
                }
                followed[rule] = VisitState::OnPath;
                let Some(&(target, place)) = self.of[rule].get(*next) else {
                    followed[rule] = VisitState::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                match followed[target] {
                    VisitState::OnPath => {
                        let message = "limits that replace each other in a circle: there none of them applies";
                        let remedy = "remove one of these `replaces`; in the rules this limit is not replaced";
                        place.warn(reports, message.into(), remedy);
                        continue;
                    }
                    VisitState::Not => path.push((target, 0)),
                    VisitState::Done => {}
                }
                kept[rule].push(target);
            }
        }
        kept
    }
}
