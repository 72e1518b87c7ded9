//! The favourite child of each node: the consumer that should follow it on its device.

use microlp::ComparisonOp;
use microlp::OptimizationDirection;
use microlp::Problem;
use microlp::Variable;
use placewright_guest::NONE;
use placewright_guest::schedule::TaskGraph;

/// Up to this many edges, a linear program finds the favourite children. The time of the simplex
/// method grows with the square of the edges: 0.1 s to 0.2 s in the sandbox for 1,000.
pub(crate) const EDGES_MAX: usize = 1_000;

/// Below this, a variable of the linear program counts as 0: the edge leads to a favourite child.
/// The value of Baechi; with anything up to 0.5, no node has two.
const THRESHOLD: f64 = 0.1;

/// The favourite children, and how they were found.
#[derive(Debug)]
pub(crate) struct Favourites {
    /// Per node: its favourite child, or [`NONE`]. No node is that of two others.
    pub(crate) child: Vec<u32>,
    /// Whether the linear program was solved.
    pub(crate) is_solved: bool,
}

/// A pair of a producer and a consumer.
struct Edge {
    from: u32,
    to: u32,
    /// The time of its largest transfer over the mean link, in ns.
    transfer_ns: f64,
}

impl Favourites {
    pub(crate) fn new(tasks: &TaskGraph<'_, '_>, ranks: &[f64]) -> Self {
        let edges = edges(tasks);
        let relaxed = match edges.len() <= EDGES_MAX {
            true => relaxed(tasks, &edges),
            false => None,
        };
        match relaxed {
            Some(values) => {
                let mut child = vec![NONE; ranks.len()];
                for (edge, _) in edges.iter().zip(values).filter(|(_, x)| *x < THRESHOLD) {
                    child[edge.from as usize] = edge.to;
                }
                Self {
                    child,
                    is_solved: true,
                }
            }
            None => Self {
                child: by_longest_path(&edges, ranks),
                is_solved: false,
            },
        }
    }
}

/// Returns the edges, one for each pair of nodes, by consumer.
fn edges(tasks: &TaskGraph<'_, '_>) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for to in tasks.nodes() {
        let start = edges.len();
        for input in tasks.inputs(to) {
            edges.push(Edge {
                from: input.producer,
                to,
                transfer_ns: tasks.mean_transfer_ns(&input),
            });
        }
        edges[start..].sort_by(|a, b| {
            let by_transfer = b.transfer_ns.total_cmp(&a.transfer_ns);
            a.from.cmp(&b.from).then(by_transfer)
        });
        let mut last = NONE;
        let mut end = start;
        for at in start..edges.len() {
            if std::mem::replace(&mut last, edges[at].from) != edges[at].from {
                edges.swap(end, at);
                end += 1;
            }
        }
        edges.truncate(end);
    }
    edges
}

/// Returns the value of each edge in the relaxed linear program (Hanen, Munier 1995): 0 if the
/// consumer is the favourite child of the producer and waits for no transfer, 1 if it is not.
/// `None` if the program has no solution.
///
/// Minimizes the makespan. A consumer starts after each producer and its transfer, which takes its
/// time times the variable. Of the edges from a node, and of those to a node, at most one is 0.
#[expect(clippy::cast_precision_loss, reason = "edges are few")]
fn relaxed(tasks: &TaskGraph<'_, '_>, edges: &[Edge]) -> Option<Vec<f64>> {
    let work_ns = tasks.mean_work_ns();
    // The solver's tolerances are absolute: times are in units of the mean time of a node.
    let sum: f64 = tasks.nodes().map(|node| work_ns[node as usize]).sum();
    let unit_ns = sum / tasks.nodes().count().max(1) as f64;
    let is_usable = |edge: &Edge| (edge.transfer_ns / unit_ns).is_finite();
    if !(unit_ns.is_finite() && unit_ns > 0.0 && edges.iter().all(is_usable)) {
        return None;
    }
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let mut starts: Vec<Option<Variable>> = vec![None; work_ns.len()];
    let makespan = program.add_var(1.0, (0.0, f64::INFINITY));
    for node in tasks.nodes() {
        let start = program.add_var(0.0, (0.0, f64::INFINITY));
        starts[node as usize] = Some(start);
        if tasks.consumers(node).is_empty() {
            let work = work_ns[node as usize] / unit_ns;
            program.add_constraint([(makespan, 1.0), (start, -1.0)], ComparisonOp::Ge, work);
        }
    }
    let mut of_producer: Vec<Vec<Variable>> = vec![Vec::new(); work_ns.len()];
    let mut of_consumer: Vec<Vec<Variable>> = vec![Vec::new(); work_ns.len()];
    let mut variables = Vec::with_capacity(edges.len());
    for edge in edges {
        let (from, to) = (edge.from as usize, edge.to as usize);
        let variable = program.add_var(0.0, (0.0, 1.0));
        let way = [
            (starts[to]?, 1.0),
            (starts[from]?, -1.0),
            (variable, -edge.transfer_ns / unit_ns),
        ];
        program.add_constraint(way, ComparisonOp::Ge, work_ns[from] / unit_ns);
        of_producer[from].push(variable);
        of_consumer[to].push(variable);
        variables.push(variable);
    }
    for of_node in of_producer.iter().chain(&of_consumer) {
        if of_node.len() > 1 {
            let terms: Vec<_> = of_node.iter().map(|&variable| (variable, 1.0)).collect();
            let at_least = of_node.len() as f64 - 1.0;
            program.add_constraint(terms, ComparisonOp::Ge, at_least);
        }
    }
    let solution = program.solve().ok()?;
    let value = |&variable: &Variable| solution.var_value(variable);
    Some(variables.iter().map(value).collect())
}

/// Returns the favourite children of a large graph without a linear program.
///
/// The nodes with the longest paths to the end choose first, so that these keep no transfers. Of
/// the consumers that no other node has chosen, each takes that with the longest path after it, the
/// transfer to it included; of equal ones that with the larger transfer, then the smaller id.
fn by_longest_path(edges: &[Edge], ranks: &[f64]) -> Vec<u32> {
    let mut order: Vec<&Edge> = edges.iter().collect();
    let way = |edge: &Edge| ranks[edge.to as usize] + edge.transfer_ns;
    order.sort_by(|a, b| {
        let by_rank = ranks[b.from as usize].total_cmp(&ranks[a.from as usize]);
        let by_way = way(b).total_cmp(&way(a));
        let by_transfer = b.transfer_ns.total_cmp(&a.transfer_ns);
        let by_id = a.from.cmp(&b.from).then(by_way).then(by_transfer);
        by_rank.then(by_id).then(a.to.cmp(&b.to))
    });
    let mut child = vec![NONE; ranks.len()];
    let mut is_child = vec![false; ranks.len()];
    for edge in order {
        let (from, to) = (edge.from as usize, edge.to as usize);
        if child[from] == NONE && !is_child[to] {
            child[from] = edge.to;
            is_child[to] = true;
        }
    }
    child
}

#[cfg(test)]
mod tests {
    use placewright_guest::DeviceSet;
    use placewright_guest::Graph;
    use placewright_guest::log::Log;
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::TestGraph;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;

    use super::*;

    fn with<T>(graph: &TestGraph, devices: &TestDevices, f: impl Fn(&TaskGraph<'_, '_>) -> T) -> T {
        let log = Log::silent();
        let (graph, devices) = (Graph::new(graph, &log), DeviceSet::new(devices, &log));
        f(&TaskGraph::new(&graph, &devices))
    }

    fn substitute(tasks: &TaskGraph<'_, '_>) -> Vec<u32> {
        by_longest_path(&edges(tasks), &tasks.upward_ranks())
    }

    /// Two consumers, of which one is on the longer path, and a node that reads both.
    fn fork() -> (TestDevices, TestGraph) {
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let costs = [
            ("top", 10.0),
            ("short", 10.0),
            ("long", 30.0),
            ("end", 10.0),
        ];
        let [top, short, long, end] = costs.map(|(name, ns)| graph.node(name, &[ns]));
        for (from, to) in [(top, short), (top, long), (short, end), (long, end)] {
            graph.edge(from, to, 8);
        }
        graph.edge(top, long, 3); // a second tensor: the larger counts
        (devices, graph.build())
    }

    #[test]
    fn the_longest_path_has_no_transfers() {
        let (devices, graph) = fork();
        // Through `long`: 10 + 30 + 10 without transfers. Through `short`: 30 + 16 with both.
        with(&graph, &devices, |tasks| {
            let found = Favourites::new(tasks, &tasks.upward_ranks());
            assert!(found.is_solved);
            assert_eq!(found.child, [2, NONE, 3, NONE]);
            assert_eq!(substitute(tasks), found.child);
        });
    }

    #[test]
    fn each_node_has_one_favourite_and_is_that_of_one() {
        for (devices, graph) in [papers::topcuoglu(), papers::arabnejad(), fork()] {
            let both = with(&graph, &devices, |tasks| {
                let found = Favourites::new(tasks, &tasks.upward_ranks());
                [found.child, substitute(tasks)]
            });
            for child in both {
                let mut children: Vec<u32> = child.into_iter().filter(|it| *it != NONE).collect();
                let n_children = children.len();
                children.sort_unstable();
                children.dedup();
                assert_eq!(children.len(), n_children);
                assert!(n_children > 0);
            }
        }
    }

    #[test]
    fn large_graphs_and_graphs_without_work_need_no_program() {
        let devices = cluster("2xA").with_links(5.0, 1.0);
        for (n_nodes, ns) in [(EDGES_MAX + 2, 10.0), (3, 0.0)] {
            let mut graph = GraphBuilder::new(&devices);
            for node in (0..).take(n_nodes) {
                graph.node("", &[ns]);
                if node > 0 {
                    graph.edge(node - 1, node, 8);
                }
            }
            let found = with(&graph.build(), &devices, |tasks| {
                Favourites::new(tasks, &tasks.upward_ranks())
            });
            assert!(!found.is_solved);
            let next: Vec<u32> = (1..).take(n_nodes - 1).collect();
            assert_eq!(found.child[..n_nodes - 1], next);
        }
    }
}
