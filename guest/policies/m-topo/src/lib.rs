//! `m-topo`: memory-constrained topological order (Jeon et al. 2020, "Baechi: Fast device placement
//! of machine learning graphs").
//!
//! The nodes, producers first, fill one device after the other. Each gets its share of all state
//! and constants, so that graphs which fit nowhere alone are divided evenly, with few transfers.
//! Costs and links are ignored: it is a baseline for memory.
//!
//! Beyond the paper: shares are in proportion to the memory of the devices. If the host refuses the
//! plan, because the tensors of a run also need memory, the devices are filled one after the other,
//! each with what its memory holds.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Reasons;
use placewright_guest::algorithm::most_preferred_first;
use placewright_guest::export_policy;
use placewright_guest::memory::divide;
use placewright_guest::memory::fill;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct MTopo;

impl Policy for MTopo {
    const NAME: &'static str = "m-topo";
    const DESCRIPTION: &'static str = "memory-constrained topological order (Baechi, Jeon et al. 2020): consecutive nodes, divided \
        by the memory of the devices";

    #[expect(clippy::cast_precision_loss, reason = "shares need not be exact")]
    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let order = most_preferred_first(graph, devices);
        if order.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let capacity = |&device: &u32| devices.memory_capacity()[device as usize] as f64;
        let shares: Vec<f64> = order.iter().map(capacity).collect();
        match plan.offer_devices(&divide(graph, &order, &shares)) {
            Err(violation) if violation.rule == "memory" => {
                plan.offer_devices(&fill(graph, devices, plan, &order))?;
            }
            offered => offered?,
        }
        Reasons::by_rule(graph, plan, |_| "consecutive nodes, by memory");
        Ok(())
    }
}

export_policy!(MTopo, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn nodes_are_divided_by_memory() {
        let devices = cluster("3xA")
            .with_memory(0, 400)
            .with_memory(1, 400)
            .with_memory(2, 800);
        let mut graph = GraphBuilder::new(&devices);
        for index in 0..12 {
            let node = graph.node(&format!("n{index}"), &[10.0]);
            graph.resident_bytes(node, 100);
        }
        let offer = place(&mut MTopo, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn what_does_not_fit_its_share_fills_the_devices() {
        let devices = cluster("2xA").with_memory(0, 150).with_memory(1, 250);
        let mut graph = GraphBuilder::new(&devices);
        for (index, bytes) in [90, 60, 120, 100].into_iter().enumerate() {
            let node = graph.node(&format!("n{index}"), &[10.0]);
            graph.resident_bytes(node, bytes);
        }
        let offer = place(&mut MTopo, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 0, 1, 1]);
    }
}
