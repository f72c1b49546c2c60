//! The search for an order of requests that explains their answers.
//!
//! The algorithm is that of Wing and Gong, with the memory of Lowe: it places one request after the other, and never
//! visits the same set of placed requests with the same state twice. Five things keep it small:
//!
//! - A request that got the answer that the limit gives now, and that changes nothing, is placed at once. That never
//!   hides an order, because such a request can stand as early as possible in every order.
//! - A request with an unknown outcome is placed only if the limit admits it, because it changes nothing otherwise.
//! - The most promising nodes come first: nodes with many answered requests placed, and with few guesses (unknown
//!   outcomes and losses of state) since the last answered request.
//! - A guess is dropped if no further unknown outcomes can give any of the next answered requests the units that its
//!   answer had.
//! - It gives up after a number of decisions.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};

use tollgate_core::{Limit, LimitDecision, State};

use super::RecordedRequest;
use super::trails::Trails;

/// How many answered requests one guess weighs in the choice of the next node.
const GUESS_WEIGHT: i64 = 4;

/// How many guesses a loss of state counts as.
const LOSS_GUESSES: i64 = 2;

/// One step in an order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// The request with this index in the history was decided.
    Request(usize),
    /// The store went back to an earlier state of the key.
    Loss,
}

/// The outcome of a search.
pub(super) enum Found {
    /// An order explains the history.
    Order(Vec<OrderStep>),
    /// No order does.
    Nothing(DeadEnd),
    /// The search was given up.
    GivenUp(DeadEnd),
}

/// The node with the most answered requests placed.
pub(super) struct DeadEnd {
    /// The requests that are placed, and the losses.
    pub(super) steps: Vec<OrderStep>,
    /// The requests that could come next, by their index in the history.
    pub(super) next: Vec<usize>,
    /// The key's state.
    pub(super) state: State,
}

/// A search in the history of one key.
pub(super) struct Search<'h> {
    limit: &'h Limit,
    history: &'h [RecordedRequest],
    /// The answered requests in order of their beginning.
    answered: Vec<AnsweredRequest<'h>>,
    /// The indices of the requests with an unknown outcome, in order of their beginning.
    unknown: Vec<usize>,
    nodes: Vec<SearchNode>,
    visited: HashSet<NodeKey>,
    states: Trails,
    queue: BinaryHeap<SearchEntry>,
    decisions_left: u64,
}

struct AnsweredRequest<'h> {
    index: usize,
    request: &'h RecordedRequest,
    ended_us: u64,
}

/// The identity of a node: what is placed, and the state that results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodeKey {
    /// All answered requests before this one are placed.
    first: usize,
    /// Answered requests after `first` that are placed too, sorted.
    beyond: Vec<usize>,
    /// Requests with an unknown outcome that are placed, sorted.
    happened: Vec<usize>,
    trail: usize,
    losses_left: usize,
}

#[derive(Clone, Debug)]
struct SearchNode {
    key: NodeKey,
    parent: Option<usize>,
    /// The steps since the parent.
    steps: Vec<OrderStep>,
    /// The guesses since the last answered request.
    guesses: i64,
}

impl SearchNode {
    fn placed(&self) -> usize {
        self.key.first + self.key.beyond.len()
    }
}

/// The next steps to try from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchStage {
    Answered,
    Unknown,
    Loss,
}

#[derive(Debug, PartialEq, Eq)]
struct SearchEntry {
    score: i64,
    node: usize,
    stage: SearchStage,
}

impl Ord for SearchEntry {
    fn cmp(&self, other: &SearchEntry) -> Ordering {
        (self.score, self.node).cmp(&(other.score, other.node))
    }
}

impl PartialOrd for SearchEntry {
    fn partial_cmp(&self, other: &SearchEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'h> Search<'h> {
    pub(super) fn new(limit: &'h Limit, history: &'h [RecordedRequest]) -> Search<'h> {
        let (mut answered, mut unknown) = (Vec::new(), Vec::new());
        for (index, request) in history.iter().enumerate() {
            match request.answer {
                Some(answer) => {
                    answered.push(AnsweredRequest { index, request, ended_us: answer.ended_us })
                }
                None => unknown.push(index),
            }
        }
        answered.sort_by_key(|own| own.request.began_us);
        unknown.sort_by_key(|&index| history[index].began_us);
        Search {
            limit,
            history,
            answered,
            unknown,
            nodes: Vec::new(),
            visited: HashSet::new(),
            states: Trails::default(),
            queue: BinaryHeap::new(),
            decisions_left: 0,
        }
    }

    /// Searches until an order is found, or `decisions` decisions were made.
    pub(super) fn run(mut self, most_losses: usize, decisions: u64) -> Found {
        self.decisions_left = decisions;
        let trail = self.states.add(None, self.limit.fresh());
        let key = NodeKey {
            first: 0,
            beyond: Vec::new(),
            happened: Vec::new(),
            trail,
            losses_left: most_losses,
        };
        self.add(SearchNode { key, parent: None, steps: Vec::new(), guesses: 0 });
        let mut furthest = 0;
        while let Some(SearchEntry { node, stage, .. }) = self.queue.pop() {
            if self.nodes[node].placed() > self.nodes[furthest].placed() {
                furthest = node;
            }
            if self.nodes[node].placed() == self.answered.len() {
                return Found::Order(self.steps_to(node));
            }
            if self.decisions_left == 0 {
                return Found::GivenUp(self.dead_end(furthest));
            }
            match stage {
                SearchStage::Answered => self.place_answered(node),
                SearchStage::Unknown => self.place_unknown(node),
                SearchStage::Loss => self.lose(node),
            }
        }
        Found::Nothing(self.dead_end(furthest))
    }

    /// Adds a node to the queue, after placing every request that changes nothing; unless it was visited before, or is a
    /// guess that leads nowhere.
    fn add(&mut self, mut node: SearchNode) {
        self.place_unchanging(&mut node);
        if node.guesses > 0 && !self.has_next(&node.key) {
            return;
        }
        if !self.visited.insert(node.key.clone()) {
            return;
        }
        self.nodes.push(node);
        self.queue(self.nodes.len() - 1, SearchStage::Answered, 0);
    }

    fn queue(&mut self, node: usize, stage: SearchStage, guesses: i64) {
        let own = &self.nodes[node];
        let score = own.placed() as i64 - GUESS_WEIGHT * (own.guesses + guesses);
        self.queue.push(SearchEntry { score, node, stage });
    }

    /// Places the answered requests whose answer is the limit's, and that do not change the state.
    fn place_unchanging(&mut self, node: &mut SearchNode) {
        loop {
            let (next, _) = self.next_answered(&node.key);
            let found = next.into_iter().find(|&at| {
                let (decision, state) = self.decide(self.answered[at].request, node.key.trail);
                self.answered[at].request.is_answered_with(&decision)
                    && state == *self.states.state(node.key.trail)
            });
            let Some(at) = found else { return };
            node.steps.push(OrderStep::Request(self.answered[at].index));
            node.guesses = 0;
            node.key.place(at);
        }
    }

    /// Whether one of the next answered requests may get its answer, perhaps after some of the unknown outcomes.
    ///
    /// These outcomes only lower the units that a request finds, by their costs at most. The exception is one with a later
    /// time than the request, because units may have come back at that time.
    fn has_next(&mut self, key: &NodeKey) -> bool {
        let (next, until_us) = self.next_answered(key);
        let began = self.unknown.iter().map(|index| (index, &self.history[*index]));
        let began = began.take_while(|(_, request)| request.began_us <= until_us);
        let open = began.filter(|(index, _)| key.happened.binary_search(index).is_err());
        let (open_units, latest_us) = open.fold((0, None), |(units, latest_us), (_, request)| {
            (units + request.cost.units(), latest_us.max(request.at_us))
        });
        let state = self.states.state(key.trail);
        let mut may_follow = |at: usize| {
            self.decisions_left = self.decisions_left.saturating_sub(1);
            let AnsweredRequest { request, .. } = &self.answered[at];
            let found = request.units_found(self.limit, state);
            let needed = request.units_before_answer();
            found <= needed.saturating_add(open_units)
                && (found >= needed || latest_us > request.at_us)
        };
        next.is_empty() || next.into_iter().any(&mut may_follow)
    }

    fn place_answered(&mut self, parent: usize) {
        let key = self.nodes[parent].key.clone();
        let (next, _) = self.next_answered(&key);
        for at in next {
            let (decision, state) = self.decide(self.answered[at].request, key.trail);
            if self.answered[at].request.is_answered_with(&decision) {
                let mut key = self.changed(&key, state);
                key.place(at);
                let steps = vec![OrderStep::Request(self.answered[at].index)];
                self.add(SearchNode { key, parent: Some(parent), steps, guesses: 0 });
            }
        }
        if !self.unknown.is_empty() {
            self.queue(parent, SearchStage::Unknown, 1);
        }
        // After a guess a loss is of no use: without the guess it leads to the same state.
        if key.losses_left > 0 && self.nodes[parent].guesses == 0 {
            self.queue(parent, SearchStage::Loss, LOSS_GUESSES);
        }
    }

    fn place_unknown(&mut self, parent: usize) {
        let SearchNode { key, guesses, .. } = self.nodes[parent].clone();
        let (_, until_us) = self.next_answered(&key);
        for at in 0..self.unknown.len() {
            let index = self.unknown[at];
            let request = &self.history[index];
            if request.began_us > until_us {
                break;
            }
            let Err(place) = key.happened.binary_search(&index) else { continue };
            let (decision, state) = self.decide(request, key.trail);
            if decision.is_allowed() && state != *self.states.state(key.trail) {
                let mut key = self.changed(&key, state);
                key.happened.insert(place, index);
                let steps = vec![OrderStep::Request(index)];
                self.add(SearchNode { key, parent: Some(parent), steps, guesses: guesses + 1 });
            }
        }
    }

    /// Goes back to every earlier state of the key.
    fn lose(&mut self, parent: usize) {
        let SearchNode { key, guesses, .. } = self.nodes[parent].clone();
        for trail in self.states.before(key.trail) {
            let mut key = NodeKey { trail, losses_left: key.losses_left - 1, ..key.clone() };
            if key.losses_left == 0 {
                key.trail = self.states.add(None, self.states.state(trail).clone());
            }
            let guesses = guesses + LOSS_GUESSES;
            self.add(SearchNode {
                key,
                parent: Some(parent),
                steps: vec![OrderStep::Loss],
                guesses,
            });
        }
    }

    /// Returns the key of a node after its state has changed.
    fn changed(&mut self, key: &NodeKey, state: State) -> NodeKey {
        // Earlier states matter only while one of them can come back.
        let before = (key.losses_left > 0).then_some(key.trail);
        NodeKey { trail: self.states.add(before, state), ..key.clone() }
    }

    /// Returns the answered requests that may come next: a request that is not placed may come next
    /// if it began before every other one was answered. Also returns the time of the earliest answer among them.
    fn next_answered(&self, key: &NodeKey) -> (Vec<usize>, u64) {
        let (mut next, mut until_us) = (Vec::new(), u64::MAX);
        for at in key.first..self.answered.len() {
            let AnsweredRequest { request, ended_us, .. } = &self.answered[at];
            if request.began_us > until_us {
                break;
            }
            if key.beyond.binary_search(&at).is_err() {
                next.push(at);
                until_us = until_us.min(*ended_us);
            }
        }
        (next, until_us)
    }

    /// Returns the limit's decision on a request, and the state after it.
    fn decide(&mut self, request: &RecordedRequest, trail: usize) -> (LimitDecision, State) {
        self.decisions_left = self.decisions_left.saturating_sub(1);
        let mut state = self.states.state(trail).clone();
        (request.decide(self.limit, &mut state), state)
    }

    fn steps_to(&self, node: usize) -> Vec<OrderStep> {
        let path = std::iter::successors(Some(node), |&at| self.nodes[at].parent);
        let mut steps: Vec<OrderStep> =
            path.flat_map(|at| self.nodes[at].steps.iter().rev()).copied().collect();
        steps.reverse();
        steps
    }

    fn dead_end(&self, node: usize) -> DeadEnd {
        let key = &self.nodes[node].key;
        let (next, _) = self.next_answered(key);
        DeadEnd {
            steps: self.steps_to(node),
            next: next.into_iter().map(|at| self.answered[at].index).collect(),
            state: self.states.state(key.trail).clone(),
        }
    }
}

impl NodeKey {
    /// Marks an answered request as placed.
    fn place(&mut self, at: usize) {
        if let Err(place) = self.beyond.binary_search(&at) {
            self.beyond.insert(place, at);
        }
        let ahead = self.beyond.iter().zip(self.first..).take_while(|&(&at, next)| at == next);
        let count = ahead.count();
        self.beyond.drain(..count);
        self.first += count;
    }
}
