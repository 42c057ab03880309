//! Sorts chunks by order, then by text, each after its requisites.
//!
//! The traversal follows Salt step by step, because the result depends on it: the order of a chunk
//! is determined when it is visited, and a required chunk gets the lowest order that its dependents
//! have at that time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::chunks::{field, iterate};
use super::error::Refused;
use super::number::Number;
use super::order::{Ready, in_words, raise, settle};
use indexmap::IndexMap;

use crate::glob::Glob;
use crate::limits::REQUISITES_MAX;
use crate::python::{repr, str};
use crate::value::{Key, Map, Value};

/// The requisites by weight, lowest first, with the position of each in the search of a chunk; some
/// are only recognised.
const REQUISITES: [(&str, Option<u8>); 12] = [
    ("onfail", Some(5)),
    ("onfail_any", Some(6)),
    ("onfail_all", Some(7)),
    ("require", Some(0)),
    ("require_any", Some(1)),
    ("onchanges", Some(8)),
    ("onchanges_any", Some(9)),
    ("watch", Some(2)),
    ("watch_any", Some(3)),
    ("prereq", Some(4)),
    ("prerequired", None),
    ("listen", None),
];

pub(super) fn is_requisite(key: &str) -> bool {
    REQUISITES.iter().any(|(name, _)| *name == key)
}

/// A requisite's index in [`REQUISITES`], which is its weight.
type Weight = u8;

const REQUIRE: Weight = 3;
const PREREQ: Weight = 9;

fn name_of(weight: Weight) -> &'static str {
    REQUISITES
        .get(usize::from(weight))
        .map_or("", |(name, _)| name)
}

/// A chunk in the graph. The target of a `prereq` is two nodes.
#[derive(Default)]
struct Node {
    /// The last criterion of the order.
    tag: String,
    chunk: Option<usize>,
    /// Dependents and requirements, each with the requisite.
    before: IndexMap<usize, Vec<Weight>>,
    after: IndexMap<usize, Vec<Weight>>,
    /// The other node of a target of a `prereq`.
    test: Option<usize>,
}

/// The possible targets of requisites, by name.
type Targets = IndexMap<(Key, Key), Vec<usize>>;

struct Graph {
    chunks: Vec<Map>,
    nodes: Vec<Node>,
    edges: usize,
}

fn tag_of(chunk: &Map) -> String {
    let part = |key| str(field(chunk, key));
    format!(
        "{}_|-{}_|-{}_|-{}",
        part("state"),
        part("__id__"),
        part("name"),
        part("fun")
    )
}

fn insert_once(list: &mut Vec<usize>, node: usize) {
    if !list.contains(&node) {
        list.push(node);
    }
}

/// Sorts chunks. An error if a requisite has no target or the requisites form a cycle.
pub(super) fn order(mut chunks: Vec<Map>) -> Result<Vec<Map>, Refused> {
    let exception = |what: &str| Refused::Exception(what.to_owned());

    // Most reactions have none, and then need no table of targets.
    let has_requisites = chunks
        .iter()
        .flat_map(Map::keys)
        .filter_map(Key::as_str)
        .any(is_requisite);

    if let ([chunk], false) = (chunks.as_mut_slice(), has_requisites) {
        return alone(chunk).map(|()| chunks);
    }

    let mut nodes: Vec<Node> = Vec::with_capacity(chunks.len());
    let mut by_tag: HashMap<String, usize> = HashMap::new();
    let mut node_of = Vec::with_capacity(chunks.len());
    let mut targets = Targets::new();
    let mut by_sls: IndexMap<Key, Vec<usize>> = IndexMap::new();

    for (at, chunk) in chunks.iter().enumerate() {
        check_hashable(chunk)?;
        let parts = ["state", "name", "__id__"].map(|key| field(chunk, key));
        let sls = field(chunk, "__sls__");

        let tag = tag_of(chunk);
        let node = *by_tag.entry(tag.clone()).or_insert_with(|| {
            nodes.push(Node {
                tag,
                ..Node::default()
            });
            nodes.len() - 1
        });

        // As in Salt, the last of several chunks with one tag counts.
        if let Some(node) = nodes.get_mut(node) {
            node.chunk = Some(at);
        }
        node_of.push(node);

        if !has_requisites {
            continue;
        }
        let [state, name, id] = parts;
        // Under `id` a requisite finds chunks of any type.
        let any = Value::from("id");
        for (kind, what) in [(state, name), (state, id), (&any, id), (&any, name)] {
            insert_once(
                targets
                    .entry((Key(kind.clone()), Key(what.clone())))
                    .or_default(),
                node,
            );
        }

        if sls.truthy() {
            insert_once(by_sls.entry(Key(sls.clone())).or_default(), node);
        }

        if let Some(included) = chunk
            .get("__sls_included_from__")
            .filter(|list| list.truthy())
        {
            for sls in
                iterate(included).ok_or_else(|| exception("`__sls_included_from__` is no list"))?
            {
                if !sls.is_hashable() {
                    return Err(exception("`__sls_included_from__` has no hashable values"));
                }
                insert_once(by_sls.entry(Key(sls)).or_default(), node);
            }
        }
    }

    // After the targets are known, because Salt searches them for the name as it was.
    let mut was_bytes = vec![false; chunks.len()];
    for (chunk, was_bytes) in chunks.iter_mut().zip(&mut was_bytes) {
        *was_bytes = decode_name(chunk)?;
    }

    let mut graph = Graph {
        chunks,
        nodes,
        edges: 0,
    };

    let mut cap = Number::Int(1);
    let mut errors = Vec::new();
    for (at, (node, was_bytes)) in node_of.into_iter().zip(was_bytes).enumerate() {
        if has_requisites
            && let Some(error) = graph.add_requisites(at, node, was_bytes, &targets, &by_sls)?
        {
            errors.push(error);
            continue;
        }

        if let Some(chunk) = graph.chunks.get(at) {
            cap = raise(cap, chunk);
        }
    }

    // Even after errors, because Salt reports a cycle as well.
    let sorted = graph.walk(cap)?;
    if sorted.is_none() {
        errors.push(format!(
            "Recursive requisites were found: {}",
            graph.cycle()
        ));
    }

    if errors.is_empty() {
        Ok(graph.take(&sorted.unwrap_or_default()))
    } else {
        Err(Refused::Errors(errors))
    }
}

/// A single chunk needs no graph.
fn alone(chunk: &mut Map) -> Result<(), Refused> {
    check_hashable(chunk)?;
    decode_name(chunk)?;
    let cap = raise(Number::Int(1), chunk);
    settle(chunk, cap).map(drop)
}

fn check_hashable(chunk: &Map) -> Result<(), Refused> {
    let sls = field(chunk, "__sls__");
    let parts = ["state", "name", "__id__"].map(|key| field(chunk, key));
    if !parts.iter().all(|part| part.is_hashable()) || sls.truthy() && !sls.is_hashable() {
        let what = "a chunk's name, state, ID or file is no hashable value";
        return Err(Refused::Exception(what.to_owned()));
    }
    Ok(())
}

/// Converts a name of bytes to a string; whether it was bytes.
fn decode_name(chunk: &mut Map) -> Result<bool, Refused> {
    let Some(name) = chunk.get_mut("name") else {
        return Ok(false);
    };
    let Value::Bytes(bytes) = name else {
        return Ok(false);
    };
    let text = String::from_utf8(std::mem::take(bytes));
    let wrong = |_| Refused::Exception("a name is bytes that are no UTF-8".to_owned());
    *name = Value::Str(text.map_err(wrong)?);
    Ok(true)
}

impl Graph {
    fn chunk(&self, node: usize) -> Option<&Map> {
        self.nodes
            .get(node)
            .and_then(|node| node.chunk)
            .and_then(|at| self.chunks.get(at))
    }

    fn set(&mut self, node: usize, key: &str, value: Value) {
        let at = self.nodes.get(node).and_then(|node| node.chunk);
        if let Some(chunk) = at.and_then(|at| self.chunks.get_mut(at)) {
            chunk.insert(key.into(), value);
        }
    }

    /// Adds the requisites of one chunk as edges; the first invalid one is an error.
    fn add_requisites(
        &mut self,
        at: usize,
        node: usize,
        was_bytes: bool,
        targets: &Targets,
        by_sls: &IndexMap<Key, Vec<usize>>,
    ) -> Result<Option<String>, Refused> {
        let Some(chunk) = self.chunks.get(at) else {
            return Ok(None);
        };

        let mut wanted: Vec<(u8, Weight, Value)> = Vec::new();
        for (weight, (name, place)) in (0..).zip(REQUISITES) {
            if let (Some(place), Some(list)) = (place, chunk.get(name).filter(|list| list.truthy()))
            {
                wanted.push((place, weight, list.clone()));
            }
        }

        // The order in which Salt searches a chunk for them.
        wanted.sort_by_key(|(place, ..)| *place);
        let name = str(field(chunk, "name"));
        let sls = str(field(chunk, "__sls__"));

        for (_, weight, list) in wanted {
            let kind = name_of(weight);
            let odd = |what: &Value| {
                Refused::Exception(format!(
                    "requisite {kind} of state [{name}] in SLS [{sls}]: {}",
                    repr(what)
                ))
            };

            for reference in iterate(&list).ok_or_else(|| odd(&list))? {
                let (key, value) = match &reference {
                    Value::Str(id) => ("id", Value::Str(id.clone())),
                    Value::Map(map) => {
                        let (key, value) = map.first().ok_or_else(|| odd(&reference))?;
                        let key = key.as_str().ok_or_else(|| odd(&reference))?;
                        (
                            // As in Salt, a function behind the type is ignored.
                            key.split_once('.').map_or(key, |(kind, _)| kind),
                            value.clone(),
                        )
                    }
                    _ => return Err(odd(&reference)),
                };

                let value = match value {
                    // As in Salt, a requisite without a value is ignored.
                    Value::Null => continue,
                    Value::Str(value) => value,
                    _ => {
                        return Ok(Some(format!(
                            "Requisite [{kind}: {key}] in state [{name}] in SLS [{sls}] must have a string as the value"
                        )));
                    }
                };

                let (found, nodes) =
                    find(key, &value, targets, by_sls).ok_or_else(|| odd(&reference))?;
                if !found {
                    return Ok(Some(format!(
                        "Referenced state does not exist for requisite [{kind}: ({key}: {value})] in state [{name}] in \
                         SLS [{sls}]"
                    )));
                }

                // Salt looks for the chunk by its name as a string, and does not find it.
                if was_bytes && !nodes.is_empty() {
                    return Err(odd(&reference));
                }

                let tested = self
                    .chunks
                    .get(at)
                    .is_some_and(|chunk| field(chunk, "__prereq__").truthy());
                for target in nodes {
                    self.require(target, node, weight, tested);
                }

                // Patterns can match all chunks from each chunk.
                if self.edges > REQUISITES_MAX {
                    return Err(Refused::Exception(format!(
                        "more than {REQUISITES_MAX} requisites"
                    )));
                }
            }
        }

        Ok(None)
    }

    fn require(&mut self, target: usize, node: usize, weight: Weight, tested: bool) {
        if weight == PREREQ {
            self.add_prereq(node, target);
            return;
        }
        if tested {
            let test = self.test_node(node);
            self.add_edge(target, test, weight);
        }
        self.add_edge(target, node, weight);
    }

    /// `target` is run as a test first, then `node`, then `target` in earnest.
    fn add_prereq(&mut self, node: usize, target: usize) {
        self.set(node, "__prerequiring__", Value::Bool(true));
        self.set(target, "__prereq__", Value::Bool(true));
        let test = self.test_node(target);

        let chunk = self.nodes.get(target).and_then(|target| target.chunk);
        if let Some(new) = self.nodes.get_mut(test)
            && new.chunk.is_none()
        {
            new.chunk = chunk;

            // The test waits for all that its target waits for.
            let waits: Vec<(usize, Vec<Weight>)> = self
                .nodes
                .get(target)
                .into_iter()
                .flat_map(|target| target.after.clone())
                .collect();
            for (source, weights) in waits {
                for weight in weights.into_iter().filter(|weight| *weight != PREREQ) {
                    self.add_edge(source, test, weight);
                }
            }
        }

        self.add_edge(test, node, PREREQ);
        self.add_edge(node, target, REQUIRE);

        // A node that is tested itself is tested after its target.
        let own = self.nodes.get(node).and_then(|node| node.test);
        if let Some(own) = own.filter(|own| self.chunk(*own).is_some()) {
            self.add_edge(test, own, PREREQ);
        }
    }

    /// The other node of a node; added without a chunk if it is missing.
    fn test_node(&mut self, node: usize) -> usize {
        if let Some(test) = self.nodes.get(node).and_then(|node| node.test) {
            return test;
        }

        // The name that Salt gives to the node, which takes part in the order.
        let tag = self
            .nodes
            .get(node)
            .map(|node| format!("{}_|-__prereq_test__", node.tag))
            .unwrap_or_default();

        self.nodes.push(Node {
            tag,
            ..Node::default()
        });

        let test = self.nodes.len() - 1;
        if let Some(node) = self.nodes.get_mut(node) {
            node.test = Some(test);
        }
        test
    }

    fn add_edge(&mut self, from: usize, to: usize, weight: Weight) {
        let push = |weights: &mut Vec<Weight>| {
            let is_new = !weights.contains(&weight);
            if is_new {
                weights.push(weight);
            }
            is_new
        };

        // Each requisite is an edge once, however often it is written.
        if let Some(from) = self.nodes.get_mut(from)
            && push(from.before.entry(to).or_default())
        {
            self.edges += 1;
        }
        if let Some(to) = self.nodes.get_mut(to) {
            push(to.after.entry(from).or_default());
        }
    }

    /// The sorted nodes; `None` if they form a cycle.
    fn walk(&mut self, cap: Number) -> Result<Option<Vec<usize>>, Refused> {
        // Of all nodes without open requirements the lowest is next.
        let mut waits: Vec<usize> = self
            .nodes
            .iter()
            .map(|node| node.after.values().map(Vec::len).sum())
            .collect();

        let mut ready = BinaryHeap::with_capacity(self.nodes.len());
        let free: Vec<usize> = (0..)
            .zip(&waits)
            .filter(|(_, waits)| **waits == 0)
            .map(|(node, _)| node)
            .collect();
        for node in free {
            ready.push(Reverse(self.ready(node, cap)?));
        }

        let mut sorted = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse(Ready { node, .. })) = ready.pop() {
            sorted.push(node);

            let freed: Vec<(usize, usize)> = self
                .nodes
                .get(node)
                .into_iter()
                .flat_map(|node| node.before.iter().map(|(to, weights)| (*to, weights.len())))
                .collect();

            for (to, edges) in freed {
                let Some(left) = waits.get_mut(to) else {
                    continue;
                };
                *left = left.saturating_sub(edges);
                if *left == 0 {
                    ready.push(Reverse(self.ready(to, cap)?));
                }
            }
        }

        // The nodes of a cycle never become free.
        Ok((sorted.len() == self.nodes.len()).then_some(sorted))
    }

    /// Determines the order of a chunk without open requirements.
    fn ready(&mut self, node: usize, cap: Number) -> Result<Ready, Refused> {
        let at = self.nodes.get(node).and_then(|node| node.chunk);
        let Some(chunk) = at.and_then(|at| self.chunks.get_mut(at)) else {
            return Err(Refused::Exception(
                "`__prereq__` is set on a chunk that no other has as `prereq`".to_owned(),
            ));
        };

        let own = settle(chunk, cap)?;
        let mut heaviest = 0;
        let mut least = Number::Float(f64::INFINITY);
        let waiting: Vec<(usize, Vec<Weight>)> = self
            .nodes
            .get(node)
            .into_iter()
            .flat_map(|node| node.before.clone())
            .collect();

        for (child, weights) in waiting {
            for weight in weights {
                // As in Salt, only requisites of the highest weight so far count.
                if weight < heaviest {
                    continue;
                }
                heaviest = weight;

                let order = self
                    .chunk(child)
                    .and_then(|chunk| chunk.get("order"))
                    .cloned();
                let order = match order {
                    None => Number::Float(f64::INFINITY),
                    Some(order) => Number::of(&order).unwrap_or_else(|| {
                        // Later visits see the number in place of the word.
                        let number = in_words(&order, cap);
                        self.set(child, "order", number.value());
                        number
                    }),
                };

                if order.less(&least) {
                    least = order;
                }
            }
        }

        let order = if least.less(&own) { least } else { own };

        // The other criteria, for chunks of equal order.
        let (label, tag) = match (self.chunk(node), self.nodes.get(node)) {
            (Some(chunk), Some(node)) => {
                let part = |key| str(field(chunk, key));
                (
                    format!("{}{}{}", part("state"), part("name"), part("fun")),
                    node.tag.clone(),
                )
            }
            _ => (String::new(), String::new()),
        };

        Ok(Ready {
            order,
            own,
            label,
            tag,
            node,
        })
    }

    /// The edges of one cycle in the text of Salt's error.
    fn cycle(&self) -> String {
        let edges: Vec<String> = self
            .find_cycle()
            .into_iter()
            .map(|(dependency, dependent, weight)| {
                // Edges derived from a `prereq` have its name.
                let own = self
                    .chunk(dependent)
                    .is_some_and(|chunk| chunk.contains_key(name_of(weight)));

                let kind = name_of(if weight == REQUIRE && !own {
                    PREREQ
                } else {
                    weight
                });
                format!(
                    "({}, '{kind}', {})",
                    self.described(dependent),
                    self.described(dependency)
                )
            })
            .collect();

        edges.join(", ")
    }

    fn described(&self, node: usize) -> String {
        let Some(chunk) = self.chunk(node) else {
            return "{}".to_owned();
        };
        let mut shown: Map = [("SLS", "__sls__"), ("ID", "__id__")]
            .into_iter()
            .map(|(key, from)| (key.into(), field(chunk, from).clone()))
            .collect();
        if !field(chunk, "__id__").python_eq(field(chunk, "name")) {
            shown.insert("NAME".into(), field(chunk, "name").clone());
        }
        repr(&Value::Map(shown))
    }

    /// A depth-first search for an edge back to the current path.
    fn find_cycle(&self) -> Vec<(usize, usize, Weight)> {
        let mut left = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // The path: nodes with their next edge, and the weight of the edge to them.
            let mut path: Vec<(usize, usize, Weight)> = vec![(start, 0, 0)];
            while let Some((node, next, _)) = path.last_mut() {
                let node = *node;

                let edge = self
                    .nodes
                    .get(node)
                    .and_then(|node| node.before.get_index(*next));
                let done = left.get(node).copied().unwrap_or(true);

                // No edge is left, or the node was searched before: back on the path.
                let (Some((to, weights)), false) = (edge, done) else {
                    if let Some(left) = left.get_mut(node) {
                        *left = true;
                    }
                    path.pop();
                    continue;
                };

                *next += 1;
                let weight = weights.first().copied().unwrap_or(0);

                // An edge back to the path closes the cycle.
                if let Some(begin) = path.iter().position(|(on, ..)| on == to) {
                    let ring = path.get(begin..).unwrap_or_default();
                    let mut edges: Vec<_> = ring
                        .iter()
                        .zip(ring.iter().skip(1))
                        .map(|(from, to)| (from.0, to.0, to.2))
                        .collect();
                    edges.push((node, *to, weight));
                    return edges;
                }

                path.push((*to, 0, weight));
            }
        }

        Vec::new()
    }

    /// The chunks of these nodes; a chunk with two nodes is cloned.
    fn take(mut self, sorted: &[usize]) -> Vec<Map> {
        let mut uses = vec![0_usize; self.chunks.len()];
        let places: Vec<usize> = sorted
            .iter()
            .filter_map(|node| self.nodes.get(*node)?.chunk)
            .collect();

        for at in &places {
            if let Some(uses) = uses.get_mut(*at) {
                *uses += 1;
            }
        }

        let mut taken = Vec::with_capacity(places.len());
        for at in places {
            let (Some(chunk), Some(uses)) = (self.chunks.get_mut(at), uses.get_mut(at)) else {
                continue;
            };

            // The last use needs no copy.
            *uses -= 1;
            taken.push(if *uses == 0 {
                std::mem::take(chunk)
            } else {
                chunk.clone()
            });
        }

        taken
    }
}

/// The nodes that a requisite matches, and whether it has candidates. `None` if Salt fails, because
/// a candidate of a pattern has a name that is not a string.
fn find(
    key: &str,
    value: &str,
    targets: &Targets,
    by_sls: &IndexMap<Key, Vec<usize>>,
) -> Option<(bool, Vec<usize>)> {
    let is_pattern = value.contains(['*', '?', '[', ']']);
    let mut nodes = Vec::new();

    if key == "sls" {
        if !is_pattern {
            let found = by_sls.get(value).cloned().unwrap_or_default();
            return Some((!found.is_empty(), found));
        }

        let glob = Glob::new(value);
        for (sls, own) in by_sls {
            if glob.matches(sls.as_str()?) {
                nodes.extend(own);
            }
        }
        // As in Salt, a pattern of files need not match any.
        return Some((true, nodes));
    }

    if !is_pattern {
        let found = targets
            .get(&(Key::from(key), Key::from(value)))
            .cloned()
            .unwrap_or_default();
        return Some((!found.is_empty(), found));
    }

    let glob = Glob::new(value);
    let mut found = false;
    for ((kind, name), own) in targets {
        if kind.as_str() == Some(key) && glob.matches(name.as_str()?) {
            found = true;
            nodes.extend(own);
        }
    }

    Some((found, nodes))
}
