//! Worked examples of papers on list scheduling, whose results are known.

use super::GraphBuilder;
use super::TestDevices;
use super::TestGraph;
use super::cluster;

/// Times on three processors, per task.
type Costs = [[f64; 3]; 10];

/// Edges between tasks, counted from 1, with the time of a transfer.
type Edges = [(u32, u32, u64); 15];

/// Returns the example of Topcuoglu, Hariri and Wu 2002, figure 2. `heft` takes 80, `cpop` 86.
pub fn topcuoglu() -> (TestDevices, TestGraph) {
    let costs: Costs = [
        [14.0, 16.0, 9.0],
        [13.0, 19.0, 18.0],
        [11.0, 13.0, 19.0],
        [13.0, 8.0, 17.0],
        [12.0, 13.0, 10.0],
        [13.0, 16.0, 9.0],
        [7.0, 15.0, 11.0],
        [5.0, 11.0, 14.0],
        [18.0, 12.0, 20.0],
        [21.0, 7.0, 16.0],
    ];
    let edges: Edges = [
        (1, 2, 18),
        (1, 3, 12),
        (1, 4, 9),
        (1, 5, 11),
        (1, 6, 14),
        (2, 8, 19),
        (2, 9, 16),
        (3, 7, 23),
        (4, 8, 27),
        (4, 9, 23),
        (5, 9, 13),
        (6, 8, 15),
        (7, 10, 17),
        (8, 10, 11),
        (9, 10, 13),
    ];
    example(&costs, &edges)
}

/// Returns the example of Arabnejad and Barbosa 2014, figure 1. `peft` takes 122, `heft` 133.
pub fn arabnejad() -> (TestDevices, TestGraph) {
    let costs: Costs = [
        [22.0, 21.0, 36.0],
        [22.0, 18.0, 18.0],
        [32.0, 27.0, 43.0],
        [7.0, 10.0, 4.0],
        [29.0, 27.0, 35.0],
        [26.0, 17.0, 24.0],
        [14.0, 25.0, 30.0],
        [29.0, 23.0, 36.0],
        [15.0, 21.0, 8.0],
        [13.0, 16.0, 33.0],
    ];
    let edges: Edges = [
        (1, 2, 17),
        (1, 3, 31),
        (1, 4, 29),
        (1, 5, 13),
        (1, 6, 7),
        (2, 8, 3),
        (2, 9, 30),
        (3, 7, 16),
        (4, 8, 11),
        (4, 9, 7),
        (5, 9, 57),
        (6, 8, 5),
        (7, 10, 9),
        (8, 10, 42),
        (9, 10, 7),
    ];
    example(&costs, &edges)
}

/// A time unit is a nanosecond; a byte takes one.
fn example(costs: &Costs, edges: &Edges) -> (TestDevices, TestGraph) {
    let devices = cluster("1xP1,1xP2,1xP3").with_links(0.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    for (i, row) in costs.iter().enumerate() {
        graph.node(&format!("n{}", i + 1), row);
    }
    for &(from, to, bytes) in edges {
        graph.edge(from - 1, to - 1, bytes);
    }
    (devices, graph.build())
}
