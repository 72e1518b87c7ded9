//! `layers`: consecutive nodes on each device, as users of llama.cpp (`--tensor-split`) and of
//! Accelerate (`device_map`) divide models.
//!
//! The graph, producers first, is cut into as many parts as there are devices, so that few tensors
//! cross. `split` sets the part of the parameters that each device gets, such as `3,1` or `1,1,0`,
//! most preferred device first; devices without a number get none. Unless it is set, the most
//! preferred devices are filled first: each takes what its memory holds, and the rest goes to the
//! next. So one device gets all if that fits.

use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Reasons;
use placewright_guest::Setting;
use placewright_guest::algorithm::most_preferred_first;
use placewright_guest::export_policy;
use placewright_guest::memory::divide;
use placewright_guest::memory::fill;

/// The policy.
#[derive(Debug, Default)]
pub struct Layers {
    /// The part of each device, most preferred first; empty to fill them one after the other.
    split: Vec<f64>,
}

impl Policy for Layers {
    const NAME: &'static str = "layers";
    const DESCRIPTION: &'static str = "consecutive nodes on each device: divided by `split`, or the most preferred devices filled first";
    const SETTINGS: &'static [Setting] = &[Setting {
        key: "split",
        kind: "f64,f64,..",
        default: "",
        description: "the part of the parameters on each device, most preferred first, such as 3,1; if unset, devices are \
            filled one after the other",
    }];

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.split = match config.get("split") {
            Some(text) => parts(text)?,
            None => Vec::new(),
        };
        Ok(())
    }

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
        if self.split.len() > order.len() {
            return Err(PlaceError::Declined(format!(
                "`split` has {} parts, there are {} devices",
                self.split.len(),
                order.len()
            )));
        }
        let placed = if self.split.is_empty() {
            fill(graph, devices, plan, &order)
        } else {
            divide(graph, &order[..self.split.len()], &self.split)
        };
        plan.offer_devices(&placed)?;
        Reasons::by_rule(graph, plan, |_| "part of consecutive nodes");
        Ok(())
    }
}

/// Parses numbers that are not negative and not all 0.
fn parts(text: &str) -> Result<Vec<f64>, ConfigError> {
    let parts: Vec<f64> = text
        .split(',')
        .map_while(|part| part.trim().parse().ok())
        .collect();
    let is_complete = parts.len() == text.split(',').count();
    let are_shares = parts
        .iter()
        .all(|part: &f64| part.is_finite() && *part >= 0.0);
    if is_complete && are_shares && parts.iter().sum::<f64>() > 0.0 {
        return Ok(parts);
    }
    Err(ConfigError::BadValue {
        key: "split".to_owned(),
        value: format!("{text} (expected numbers such as 3,1 that are not negative and not all 0)"),
    })
}

export_policy!(Layers, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::Offer;
    use placewright_guest::testing::PlaceOptions;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::TestGraph;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place_with;

    use super::*;

    fn layers(split: &str, graph: &TestGraph, devices: &TestDevices) -> Result<Offer, PlaceError> {
        let mut options = PlaceOptions::default();
        if !split.is_empty() {
            options = options.with_setting("split", split);
        }
        place_with(&mut Layers::default(), &options, graph, devices)
    }

    /// Eight layers of 100 bytes; the last two devices are GPUs, and preferred.
    fn chain(devices: &TestDevices) -> TestGraph {
        let mut graph = GraphBuilder::new(devices);
        for layer in 0..8 {
            let weights = graph.constant(&format!("weights{layer}"), 100);
            let node = graph.node(&format!("layer{layer}"), &[10.0, 10.0]);
            graph.edge(weights, node, 100);
            if layer > 0 {
                graph.edge(node - 2, node, 8);
            }
        }
        graph.build()
    }

    #[test]
    fn a_split_divides_the_parameters() {
        let devices = cluster("1xCPU,2xGPU");
        let graph = chain(&devices);
        let of_layers = |split: &str| -> Vec<u32> {
            let offer = layers(split, &graph, &devices).unwrap();
            offer.devices.into_iter().skip(1).step_by(2).collect()
        };
        assert_eq!(of_layers("3,1"), [1, 1, 1, 1, 1, 1, 2, 2]);
        assert_eq!(of_layers("1,1,2"), [1, 1, 2, 2, 0, 0, 0, 0]);
        assert_eq!(of_layers("0,1"), [2; 8]);
        let too_many = layers("1,1,1,1", &graph, &devices).unwrap_err();
        assert_eq!(
            too_many.to_string(),
            "declined: `split` has 4 parts, there are 3 devices"
        );
        for wrong in ["a", "1,", "-1,2", "0,0", "1,inf"] {
            let error = layers(wrong, &graph, &devices).unwrap_err();
            assert!(error.to_string().contains("split"), "{wrong}: {error}");
        }
    }

    #[test]
    fn without_a_split_preferred_devices_are_filled_first() {
        let devices = cluster("1xCPU,2xGPU")
            .with_memory(1, 350)
            .with_memory(2, 350);
        let graph = chain(&devices);
        let offer = layers("", &graph, &devices).unwrap();
        let of_layers: Vec<u32> = offer.devices.into_iter().skip(1).step_by(2).collect();
        assert_eq!(of_layers, [1, 1, 1, 2, 2, 2, 0, 0]);
        let large = cluster("1xCPU,2xGPU");
        let offer = layers("", &chain(&large), &large).unwrap();
        assert_eq!(offer.devices, [1; 16]);
    }
}
