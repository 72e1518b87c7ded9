//! The devices that nodes with stated costs may use: few distinct sets, whatever the number of
//! nodes.

use hashbrown::HashMap;

use crate::candidates::index::to_u32;
use crate::graph::Csr;
use crate::names::DeviceId;

/// Distinct sets of devices, each most preferred first.
#[derive(Debug)]
pub(super) struct LegalSets {
    /// All devices, most preferred first.
    preferred: Vec<u32>,
    /// Per device its position in `preferred`.
    rank: Vec<u32>,
    cost_class: Vec<u32>,
    sets: Vec<Vec<u32>>,
    ids: HashMap<Vec<u32>, u32>,
    /// Per restriction the set of each mask of cost classes.
    of_mask: Vec<HashMap<Vec<u64>, u32>>,
    common: HashMap<(u32, u32), u32>,
    /// The mask of the node that is asked about.
    mask: Vec<u64>,
}

impl LegalSets {
    pub(super) fn new(preferred: Vec<u32>, cost_class: &[u32], n_restrictions: usize) -> Self {
        let mut rank = vec![0; preferred.len()];
        for (position, &device) in preferred.iter().enumerate() {
            rank[device as usize] = to_u32(position);
        }
        Self {
            preferred,
            rank,
            cost_class: cost_class.to_vec(),
            sets: Vec::new(),
            ids: HashMap::new(),
            of_mask: vec![HashMap::new(); n_restrictions],
            common: HashMap::new(),
            mask: Vec::new(),
        }
    }

    /// Returns the devices with a finite cost, among those of a restriction. `costs_ns`: per cost
    /// class.
    pub(super) fn of_node(
        &mut self,
        costs_ns: &[f64],
        restriction: usize,
        allowed: Option<&[DeviceId]>,
    ) -> u32 {
        self.mask.clear();
        self.mask.resize(costs_ns.len().div_ceil(64), 0);
        for (class, cost_ns) in costs_ns.iter().enumerate() {
            self.mask[class / 64] |= u64::from(cost_ns.is_finite()) << (class % 64);
        }
        if let Some(&known) = self.of_mask[restriction].get(self.mask.as_slice()) {
            return known;
        }
        let is_finite = |device: &u32| {
            let class = self.cost_class[*device as usize] as usize;
            self.mask[class / 64] >> (class % 64) & 1 != 0
        };
        let set = match allowed {
            None => self.preferred.iter().copied().filter(is_finite).collect(),
            Some(allowed) => {
                let ids = allowed.iter().map(|device| device.0);
                let mut set: Vec<u32> = ids.filter(is_finite).collect();
                set.sort_unstable_by_key(|&device| self.rank[device as usize]);
                set.dedup();
                set
            }
        };
        let id = self.id(set);
        self.of_mask[restriction].insert(self.mask.clone(), id);
        id
    }

    /// Returns the devices that two sets have in common.
    pub(super) fn both(&mut self, first: u32, second: u32) -> u32 {
        if first == second {
            return first;
        }
        let key = (first.min(second), first.max(second));
        if let Some(&known) = self.common.get(&key) {
            return known;
        }
        let rank = |device: u32| self.rank[device as usize];
        let mut others = self.sets[second as usize].iter().copied().peekable();
        let common = self.sets[first as usize].iter().copied().filter(|&device| {
            while others
                .next_if(|&other| rank(other) < rank(device))
                .is_some()
            {}
            others.peek() == Some(&device)
        });
        let common = common.collect();
        let id = self.id(common);
        self.common.insert(key, id);
        id
    }

    /// Returns the set of one device.
    pub(super) fn only(&mut self, device: u32) -> u32 {
        self.id(vec![device])
    }

    pub(super) fn get(&self, set: u32) -> &[u32] {
        &self.sets[set as usize]
    }

    /// Returns the sets of these groups, numbered by first use, and the number of each group.
    pub(super) fn into_columns(self, of_groups: &[u32]) -> (Csr, Vec<u32>) {
        let mut columns = Csr::default();
        let mut numbers: Vec<Option<u32>> = vec![None; self.sets.len()];
        let of_groups = of_groups.iter().map(|&set| {
            *numbers[set as usize].get_or_insert_with(|| {
                columns.items.extend_from_slice(&self.sets[set as usize]);
                columns.offsets.push(to_u32(columns.items.len()));
                to_u32(columns.n_rows() - 1)
            })
        });
        let of_groups = of_groups.collect();
        (columns, of_groups)
    }

    fn id(&mut self, set: Vec<u32>) -> u32 {
        if let Some(&known) = self.ids.get(&set) {
            return known;
        }
        let id = to_u32(self.sets.len());
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_shared_and_ordered_by_preference() {
        let mut sets = LegalSets::new(vec![2, 0, 1], &[0, 0, 1], 2);
        let all = sets.of_node(&[1.0, 2.0], 0, None);
        assert_eq!(sets.get(all), [2, 0, 1]);
        assert_eq!(sets.of_node(&[5.0, 0.0], 0, None), all);
        let first = sets.of_node(&[1.0, f64::INFINITY], 0, None);
        assert_eq!(sets.get(first), [0, 1]);
        let allowed = [DeviceId(1), DeviceId(2), DeviceId(1)];
        let restricted = sets.of_node(&[1.0, 2.0], 1, Some(&allowed));
        assert_eq!(sets.get(restricted), [2, 1]);
        let both = sets.both(restricted, first);
        assert_eq!(sets.get(both), [1]);
        assert_eq!(sets.only(1), both);
        let none = sets.of_node(&[f64::INFINITY; 2], 0, None);
        let both = sets.both(none, all);
        assert!(sets.get(both).is_empty());
        let (columns, of_groups) = sets.into_columns(&[first, restricted, first]);
        assert_eq!(of_groups, [0, 1, 0]);
        assert_eq!((columns.row(0), columns.row(1)), (&[0, 1][..], &[2, 1][..]));
    }
}
