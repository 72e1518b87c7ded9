//! Assigns addresses in a device's memory to tensors: best fit with coalescing, as in TensorFlow's
//! `BFCAllocator`.
//!
//! The allocator takes regions from a driver and lengths from callers, and returns chunks of the
//! regions. Nothing in this module calls a driver: driver calls are slow, and some wait for the
//! whole device, so the owner makes few of them.
//!
//! Freed memory can be allocated again at once, although the device may still use it. The uses that
//! must end before the memory is written stay with the free range, and pass to its next owner.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::tensor::AllocatorStats;

/// Regions are divided at multiples of this many bytes from their start, so chunks have this
/// alignment if their region has it. TensorFlow's `kMinAllocationSize`.
const UNIT_BYTES: usize = 256;

/// A chunk exceeds the rounded-up request by less than this many bytes; TensorFlow's default.
const MAX_INTERNAL_FRAGMENTATION_BYTES: usize = 128 << 20;

/// The size of the first region in bytes, if memory grows on demand.
const FIRST_REGION_BYTES: usize = 2 << 20;

/// The uses that must have ended before memory is written again.
pub(super) trait Uses: Clone + Default + std::fmt::Debug {
    /// Adds the uses of `other`.
    fn merge(&mut self, other: &Self);

    /// Removes the uses that are known to have ended.
    fn forget_ended(&mut self);
}

/// The amount of memory, and how it grows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// The limit of all regions together, in bytes.
    pub(super) limit_bytes: u64,
    /// Whether to start with a small region and add larger ones as needed. Otherwise the first
    /// region has the size of the limit.
    pub(super) allow_growth: bool,
    /// The maximum size in bytes to which regions grow. A region that a single allocation needs
    /// may be larger, but only as large as necessary.
    pub(super) region_bytes_max: usize,
}

/// Memory that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk<U> {
    /// Its start, by which [`Bfc::free`] identifies it.
    pub(super) address: u64,
    /// Its length in bytes: at least the requested length.
    pub(super) len_bytes: usize,
    /// The requested length in bytes.
    pub(super) requested_bytes: usize,
    /// The uses to wait for before it is written: those of all earlier owners of a part of it, or
    /// of a range with which it was merged.
    pub(super) uses: U,
}

/// A request to the driver for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegionRequest {
    /// The length to ask for, in bytes.
    pub(super) wanted_bytes: usize,
    /// The smallest useful length in bytes.
    pub(super) least_bytes: usize,
}

impl RegionRequest {
    /// Returns the next request after the driver has refused this one: nine tenths of it, and
    /// finally the smallest useful length. `None` after that.
    pub(super) fn smaller(&self) -> Option<Self> {
        let mut next = *self;
        // Rounded down: rounded up, as in TensorFlow, nine units or fewer would never shrink.
        next.wanted_bytes = round_down(self.wanted_bytes - self.wanted_bytes.div_ceil(10));
        next.wanted_bytes = next.wanted_bytes.max(self.least_bytes);
        (next != *self).then_some(next)
    }
}

/// The memory use of a GPU device (TensorFlow `AllocatorStats`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuMemoryStats {
    /// The limit of all regions together, in bytes.
    pub limit_bytes: usize,
    /// The bytes of all regions. Exceeds the limit if the driver has allocated more than
    /// requested.
    pub reserved_bytes: usize,
    /// The peak of the bytes of all regions.
    pub peak_reserved_bytes: usize,
    /// The bytes of the chunks in use: whole chunks, because their unused ends are not available
    /// to others.
    pub in_use_bytes: usize,
    /// The peak of the bytes of chunks in use.
    pub peak_in_use_bytes: usize,
    /// The requested bytes of the chunks in use; the rest is lost inside of chunks.
    pub requested_bytes: usize,
    /// The longest chunk ever allocated, in bytes.
    pub largest_allocation_bytes: usize,
    /// Number of chunks ever allocated.
    pub n_allocations: u64,
    /// Number of free ranges.
    pub n_free_ranges: usize,
    /// The longest free range, in bytes.
    pub largest_free_bytes: usize,
}

impl From<GpuMemoryStats> for AllocatorStats {
    fn from(stats: GpuMemoryStats) -> Self {
        Self {
            in_use_bytes: stats.in_use_bytes as u64,
            peak_bytes: stats.peak_in_use_bytes as u64,
            n_allocations: stats.n_allocations,
        }
    }
}

/// A bug of the memory's owner. The state is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BfcError {
    /// The address to be freed was freed before, or never allocated.
    #[error("no chunk in use begins at address {0:#x}")]
    NotInUse(u64),
    /// Address and length in bytes of an invalid region.
    #[error("region at address {0:#x}, {1} bytes: empty, overlaps another or runs past the last")]
    BadRegion(u64, usize),
}

/// A part of a region. The ranges together tile all regions.
#[derive(Debug)]
struct Range<U> {
    len_bytes: usize,
    /// The address of the region.
    region: u64,
    /// The requested length in bytes; `None` if the range is free.
    requested_bytes: Option<usize>,
    /// For a free range, its uses that may not have ended. For a chunk, the uses with which it was
    /// allocated.
    uses: U,
}

/// The memory of one device. [`Bfc::allocate`] and [`Bfc::free`] take time logarithmic in the
/// number of ranges.
#[derive(Debug)]
pub(super) struct Bfc<U> {
    /// The length in bytes that the next region should have for growth alone.
    next_region_bytes: usize,
    region_bytes_max: usize,
    /// Lengths in bytes, by address.
    regions: BTreeMap<u64, usize>,
    /// All ranges, by address.
    ranges: BTreeMap<u64, Range<U>>,
    /// Lengths in bytes and addresses of the free ranges: the first one that is long enough is the
    /// best fit.
    free: BTreeSet<(usize, u64)>,
    /// All statistics except those of the free ranges, which are computed on demand.
    stats: GpuMemoryStats,
}

impl<U: Uses> Bfc<U> {
    /// Creates an allocator without memory.
    pub(super) fn new(options: Options) -> Self {
        // Memory beyond the address space cannot exist.
        let limit_bytes = usize::try_from(options.limit_bytes).unwrap_or(usize::MAX);
        let mut first_bytes = limit_bytes;
        if options.allow_growth {
            first_bytes = first_bytes.min(FIRST_REGION_BYTES);
        }
        Self {
            // Not 0, which could never grow.
            next_region_bytes: round_down(first_bytes).max(UNIT_BYTES),
            region_bytes_max: options.region_bytes_max,
            regions: BTreeMap::new(),
            ranges: BTreeMap::new(),
            free: BTreeSet::new(),
            stats: GpuMemoryStats {
                limit_bytes,
                ..GpuMemoryStats::default()
            },
        }
    }

    /// Allocates the shortest free range of at least `len_bytes` bytes; of equally long ones, that
    /// at the lowest address. If it is much too long, only its first part is used. Returns `None`
    /// if there is no such range; [`Bfc::next_region`] then returns the region to add. Zero bytes
    /// take one unit, so that each chunk has its own address.
    pub(super) fn allocate(&mut self, len_bytes: usize) -> Option<Chunk<U>> {
        let needed = round_up(len_bytes)?;
        let &(found, address) = self.free.range((needed, 0)..).next()?;
        let range = self.ranges.get_mut(&address)?;
        let left = found - needed;
        let splits = left >= needed || left >= MAX_INTERNAL_FRAGMENTATION_BYTES;
        let rest_address = end_of(address, needed)?;

        self.free.remove(&(found, address));
        range.uses.forget_ended();
        range.requested_bytes = Some(len_bytes);
        range.len_bytes = if splits { needed } else { found };
        let chunk = Chunk {
            address,
            len_bytes: range.len_bytes,
            requested_bytes: len_bytes,
            uses: range.uses.clone(),
        };
        if splits {
            let region = range.region;
            self.insert_free(rest_address, left, region, chunk.uses.clone());
        }

        let stats = &mut self.stats;
        stats.n_allocations += 1;
        stats.requested_bytes += len_bytes;
        stats.in_use_bytes += chunk.len_bytes;
        stats.peak_in_use_bytes = stats.peak_in_use_bytes.max(stats.in_use_bytes);
        stats.largest_allocation_bytes = stats.largest_allocation_bytes.max(chunk.len_bytes);
        Some(chunk)
    }

    /// Returns the region to add for an allocation of `len_bytes` bytes that found no free range.
    /// `None` if the limit leaves too little memory: either there are free regions to give back
    /// ([`Bfc::take_free_regions`]), or memory is exhausted.
    pub(super) fn next_region(&self, len_bytes: usize) -> Option<RegionRequest> {
        let stats = &self.stats;
        let left = round_down(stats.limit_bytes.saturating_sub(stats.reserved_bytes));
        let least_bytes = round_up(len_bytes).filter(|&least_bytes| least_bytes <= left)?;
        Some(RegionRequest {
            wanted_bytes: grown(self.next_region_bytes, least_bytes)
                .min(self.region_bytes_max)
                .clamp(least_bytes, left),
            least_bytes,
        })
    }

    /// Adds `len_bytes` bytes of memory at `address`, all of them free. The length need not be the
    /// requested one: all memory from the driver is used, even beyond the limit. Regions are never
    /// merged, even if they touch: the driver takes back only whole regions.
    ///
    /// # Errors
    /// [`BfcError::BadRegion`] if it is empty, overlaps another region or runs past the last
    /// address.
    pub(super) fn add_region(&mut self, address: u64, len_bytes: usize) -> Result<(), BfcError> {
        let bad = BfcError::BadRegion(address, len_bytes);
        let end = end_of(address, len_bytes).ok_or(bad)?;
        // Regions are disjoint, so of those that begin before the end, the last one also ends last.
        let before = self.regions.range(..end).next_back();
        let before_end = before.and_then(|(&address, &len)| end_of(address, len));
        if len_bytes == 0 || before_end.is_some_and(|before_end| before_end > address) {
            return Err(bad);
        }

        self.regions.insert(address, len_bytes);
        self.insert_free(address, len_bytes, address, U::default());
        let stats = &mut self.stats;
        stats.reserved_bytes += len_bytes;
        stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
        // As in TensorFlow: doubled, unless this region has already grown for an allocation.
        self.next_region_bytes = grown(self.next_region_bytes.saturating_mul(2), len_bytes);
        Ok(())
    }

    /// Frees the chunk at `address`. `uses` are its uses that may not have ended. The uses with
    /// which it was allocated are kept, too: its owner may never have waited for them.
    ///
    /// # Errors
    /// [`BfcError::NotInUse`] if no chunk in use starts there: it was freed before, or never
    /// allocated.
    pub(super) fn free(&mut self, address: u64, uses: &U) -> Result<(), BfcError> {
        let error = BfcError::NotInUse(address);
        let range = self.ranges.get(&address).ok_or(error)?;
        let requested_bytes = range.requested_bytes.ok_or(error)?;
        let mut range = self.ranges.remove(&address).ok_or(error)?;
        self.stats.requested_bytes -= requested_bytes;
        self.stats.in_use_bytes -= range.len_bytes;

        range.uses.merge(uses);
        let mut first = address;
        let before = self.ranges.range(..address).next_back();
        let after = self.ranges.range(address..).next(); // `address` itself is out
        // Ranges tile their region, so adjacent ranges of one region touch.
        let neighbours = [before, after].map(|neighbour| {
            let (&address, other) = neighbour?;
            let merges = other.requested_bytes.is_none() && other.region == range.region;
            merges.then_some(address)
        });
        for neighbour in neighbours.into_iter().flatten() {
            if let Some(other) = self.ranges.remove(&neighbour) {
                self.free.remove(&(other.len_bytes, neighbour));
                first = first.min(neighbour);
                range.len_bytes += other.len_bytes;
                range.uses.merge(&other.uses);
            }
        }
        range.uses.forget_ended();
        self.insert_free(first, range.len_bytes, range.region, range.uses);
        Ok(())
    }

    /// Inserts a free range whose neighbours are in use.
    fn insert_free(&mut self, address: u64, len_bytes: usize, region: u64, uses: U) {
        self.free.insert((len_bytes, address));
        let range = Range {
            len_bytes,
            region,
            requested_bytes: None,
            uses,
        };
        self.ranges.insert(address, range);
    }

    /// Removes all free regions, to give them back to the driver. Returns their addresses, their
    /// lengths in bytes, and the uses to wait for first. Ranges of different regions are never
    /// merged, so the driver's next region may be longer.
    pub(super) fn take_free_regions(&mut self) -> Vec<(u64, usize, U)> {
        // Only a range that is the whole region has the region's address and length.
        let taken = self.regions.extract_if(.., |&address, &mut len_bytes| {
            self.free.remove(&(len_bytes, address))
        });
        let taken = taken.map(|(address, len_bytes)| {
            self.stats.reserved_bytes -= len_bytes;
            let range = self.ranges.remove(&address);
            let uses = range.map(|range| range.uses).unwrap_or_default();
            (address, len_bytes, uses)
        });
        taken.collect()
    }

    /// Removes free regions, the longest first, until at most `kept_bytes` of all regions are free.
    pub(super) fn take_surplus_regions(&mut self, kept_bytes: usize) -> Vec<(u64, usize, U)> {
        let mut taken = Vec::new();
        while self.stats.reserved_bytes - self.stats.in_use_bytes > kept_bytes {
            let regions = self.regions.iter();
            let free = regions.filter(|&(&address, &len)| self.free.contains(&(len, address)));
            let Some((&address, &len_bytes)) = free.max_by_key(|&(_, len_bytes)| len_bytes) else {
                break;
            };
            self.free.remove(&(len_bytes, address));
            self.regions.remove(&address);
            self.stats.reserved_bytes -= len_bytes;
            let range = self.ranges.remove(&address);
            let uses = range.map(|range| range.uses).unwrap_or_default();
            taken.push((address, len_bytes, uses));
        }
        taken
    }

    /// Returns the current counts and their peaks.
    pub(super) fn stats(&self) -> GpuMemoryStats {
        GpuMemoryStats {
            n_free_ranges: self.free.len(),
            largest_free_bytes: self.free.last().map_or(0, |&(len_bytes, _)| len_bytes),
            ..self.stats
        }
    }
}

/// Rounds up to a whole number of units, at least one. `None` if it would overflow.
fn round_up(len_bytes: usize) -> Option<usize> {
    len_bytes.max(1).checked_next_multiple_of(UNIT_BYTES)
}

/// Rounds down to a whole number of units.
fn round_down(len_bytes: usize) -> usize {
    len_bytes - len_bytes % UNIT_BYTES
}

/// Doubles `len_bytes`, which is not 0, until it is at least `least_bytes`.
fn grown(mut len_bytes: usize, least_bytes: usize) -> usize {
    while len_bytes < least_bytes {
        len_bytes = len_bytes.saturating_mul(2);
    }
    len_bytes
}

/// Returns the address after `len_bytes` bytes at `address`; `None` if it would overflow.
fn end_of(address: u64, len_bytes: usize) -> Option<u64> {
    address.checked_add(u64::try_from(len_bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    /// The last ticket on each of three streams.
    type Clock = [u64; 3];

    impl Uses for Clock {
        fn merge(&mut self, other: &Self) {
            *self = std::array::from_fn(|stream| self[stream].max(other[stream]));
        }

        fn forget_ended(&mut self) {}
    }

    fn new(limit_bytes: usize, allow_growth: bool) -> Bfc<Clock> {
        Bfc::new(Options {
            limit_bytes: limit_bytes as u64,
            allow_growth,
            region_bytes_max: usize::MAX,
        })
    }

    fn with_regions(regions: &[(u64, usize)]) -> Bfc<Clock> {
        let mut bfc = new(GIB, true);
        for &(address, len_bytes) in regions {
            bfc.add_region(address, len_bytes).unwrap();
        }
        bfc
    }

    /// Returns address and length of a new chunk.
    fn allocate(bfc: &mut Bfc<Clock>, len_bytes: usize) -> (u64, usize) {
        let chunk = bfc.allocate(len_bytes).unwrap();
        (chunk.address, chunk.len_bytes)
    }

    fn wanted(bfc: &Bfc<Clock>, len_bytes: usize) -> Option<usize> {
        bfc.next_region(len_bytes).map(|next| next.wanted_bytes)
    }

    #[test]
    fn lengths_are_rounded_up_to_units() {
        let mut bfc = with_regions(&[(0, MIB)]);
        let chunks = [0, 1, 256, 257].map(|len| allocate(&mut bfc, len));
        assert_eq!(chunks, [(0, 256), (256, 256), (512, 256), (768, 512)]);
        assert_eq!(bfc.allocate(usize::MAX), None);
        assert_eq!(bfc.next_region(usize::MAX), None);
    }

    #[test]
    fn the_shortest_range_wins_ties_by_lowest_address() {
        let mut bfc = with_regions(&[(0, 4096), (9000, 1024), (5000, 1024), (7000, 768)]);
        let chunks = [1024; 3].map(|len| allocate(&mut bfc, len));
        assert_eq!(chunks, [(5000, 1024), (9000, 1024), (0, 1024)]);
    }

    #[test]
    fn a_range_is_split_if_a_half_or_128_mib_would_be_wasted() {
        let most = 128 * MIB;
        let short = [(1024, 0, 0), (1024, 768, 768), (1024, 1024, 0)];
        let long = [(2 * most, most - 256, most - 256), (2 * most, most, 0)];
        for (needed, left, wasted) in short.into_iter().chain(long) {
            let mut bfc = with_regions(&[(0, needed + left)]);
            assert_eq!(allocate(&mut bfc, needed - 1), (0, needed + wasted));
        }
    }

    #[test]
    fn adjacent_free_ranges_are_merged_with_their_uses() {
        // Whatever the order, freeing the last one merges all.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0]] {
            let mut bfc = with_regions(&[(0, 4 * 256)]);
            let chunks = [0; 4].map(|len| allocate(&mut bfc, len).0);
            for stream in order {
                let uses = std::array::from_fn(|other| if other == stream { 7 } else { 0 });
                bfc.free(chunks[stream], &uses).unwrap();
            }
            assert_eq!(bfc.free, BTreeSet::from([(768, 0)]));
            assert_eq!(bfc.allocate(256).unwrap().uses, [7; 3]);
            assert_eq!(bfc.allocate(512).unwrap().uses, [7; 3]);
        }
    }

    #[test]
    fn uses_outlive_a_user_that_has_none() {
        let mut bfc = with_regions(&[(0, 256)]);
        for uses in [[0, 7, 1], [0; 3], [0, 0, 2]] {
            bfc.allocate(1).unwrap();
            bfc.free(0, &uses).unwrap();
        }
        assert_eq!(bfc.allocate(1).unwrap().uses, [0, 7, 2]);
    }

    #[test]
    fn touching_regions_are_not_merged() {
        let mut bfc = with_regions(&[(0, 256), (256, 256)]);
        assert_eq!(bfc.allocate(512), None);
        assert_eq!(allocate(&mut bfc, 1), (0, 256));
        bfc.free(0, &[1; 3]).unwrap();
        let regions = [(0, 256, [1; 3]), (256, 256, [0; 3])];
        assert_eq!(bfc.take_free_regions(), regions);
    }

    #[test]
    fn growth_doubles_up_to_the_limit() {
        let mut bfc = new(33 * MIB + 300, true);
        assert_eq!(wanted(&bfc, 100), Some(2 * MIB));
        bfc.add_region(0, 2 * MIB).unwrap();
        assert_eq!(wanted(&bfc, 100), Some(4 * MIB));
        assert_eq!(wanted(&bfc, 5 * MIB), Some(8 * MIB));
        bfc.add_region(1 << 40, 8 * MIB).unwrap();
        // A region that had to grow does not grow again.
        assert_eq!(wanted(&bfc, 100), Some(8 * MIB));
        assert_eq!(wanted(&bfc, 17 * MIB), Some(23 * MIB + 256));
        assert_eq!(wanted(&bfc, 23 * MIB + 257), None);
        // More than the driver was asked for, and more than the limit.
        bfc.add_region(1 << 50, 24 * MIB).unwrap();
        assert_eq!(wanted(&bfc, 1), None);
        assert_eq!(bfc.take_free_regions().len(), 3);
        assert_eq!(wanted(&bfc, 1), Some(32 * MIB));
    }

    #[test]
    fn growth_ends_at_its_maximum_but_an_allocation_gets_what_it_needs() {
        let mut bfc = Bfc::<Clock>::new(Options {
            limit_bytes: GIB as u64,
            allow_growth: true,
            region_bytes_max: 8 * MIB,
        });
        for (at, expected) in [2, 4, 8, 8, 8].into_iter().enumerate() {
            assert_eq!(wanted(&bfc, 1), Some(expected * MIB));
            let address = (at as u64) << 40;
            bfc.add_region(address, expected * MIB).unwrap();
        }
        assert_eq!(wanted(&bfc, 8 * MIB), Some(8 * MIB));
        assert_eq!(wanted(&bfc, 9 * MIB), Some(9 * MIB));
        assert_eq!(wanted(&bfc, GIB - 30 * MIB), Some(GIB - 30 * MIB));
        assert_eq!(wanted(&bfc, GIB - 29 * MIB), None);
    }

    #[test]
    fn surplus_is_removed_longest_region_first() {
        let regions = [(0, 4096), (10_000, 1024), (20_000, 2048), (30_000, 8192)];
        let mut bfc = with_regions(&regions);
        // In the longest region.
        let (chunk, _) = allocate(&mut bfc, 5000);
        assert_eq!(bfc.take_surplus_regions(usize::MAX), []);
        // 7168 bytes of whole regions are free, plus the rest of the longest region.
        let free = bfc.stats().reserved_bytes - bfc.stats().in_use_bytes;
        assert_eq!(bfc.take_surplus_regions(free), []);
        assert_eq!(bfc.take_surplus_regions(free - 1), [(0, 4096, [0; 3])]);
        assert_eq!(
            bfc.take_surplus_regions(free - 4097),
            [(20_000, 2048, [0; 3])]
        );
        assert_eq!(bfc.take_surplus_regions(0).len(), 1, "the one in use stays");
        assert_eq!(
            bfc.stats().n_free_ranges,
            usize::from(bfc.stats().in_use_bytes < 8192)
        );
        bfc.free(chunk, &[1; 3]).unwrap();
        assert_eq!(bfc.take_surplus_regions(0), [(30_000, 8192, [1; 3])]);
        assert_eq!(bfc.stats().reserved_bytes, 0);
    }

    #[test]
    fn without_growth_the_first_region_is_the_limit() {
        let mut bfc = new(GIB + 255, false);
        assert_eq!(wanted(&bfc, 100), Some(GIB));
        bfc.add_region(0, GIB / 4).unwrap();
        assert_eq!(wanted(&bfc, 100), Some(GIB / 4 * 3));
        assert_eq!(wanted(&new(255, true), 0), None);
        assert_eq!(wanted(&new(usize::MAX, false), 1), Some(usize::MAX - 255));
    }

    #[test]
    fn requests_shrink_to_the_least() {
        let first = new(12 * 256, false).next_region(6 * 256);
        let requests = std::iter::successors(first, RegionRequest::smaller);
        let units = requests.map(|next| next.wanted_bytes / 256);
        assert!(units.eq([12, 10, 9, 8, 7, 6]));
    }

    #[test]
    fn invalid_calls_are_errors() {
        let mut bfc = with_regions(&[(1024, 1024)]);
        bfc.allocate(1).unwrap();
        for address in [0, 1025, 1280, 4096] {
            assert!(bfc.free(address, &[9; 3]).is_err());
        }
        for (address, len) in [(0, 0), (0, 1025), (1024, 1), (2047, 9), (u64::MAX, 1)] {
            assert!(bfc.add_region(address, len).is_err());
        }
        bfc.free(1024, &[1; 3]).unwrap();
        assert!(bfc.free(1024, &[9; 3]).is_err());
        assert_eq!(bfc.take_free_regions(), [(1024, 1024, [1; 3])]);
    }

    /// The same allocator as plain lists that are searched.
    #[derive(Default)]
    struct Model {
        /// Lengths by address.
        regions: BTreeMap<u64, usize>,
        /// Lengths and requested lengths, by address.
        chunks: BTreeMap<u64, (usize, usize)>,
        /// Start, end and uses of everything that was freed. No address is used again by a later
        /// region.
        freed: Vec<(u64, u64, Clock)>,
        peak_bytes: usize,
    }

    impl Model {
        /// Returns lengths and addresses of the longest ranges without a chunk.
        fn gaps(&self) -> BTreeSet<(usize, u64)> {
            let mut gaps = BTreeSet::new();
            for (&region, &len) in &self.regions {
                let (mut at, end) = (region, region + len as u64);
                let inside = self.chunks.range(region..end);
                let inside = inside.map(|(&start, chunk)| (start, start + chunk.0 as u64));
                for (start, after) in inside.chain([(end, end)]) {
                    assert!(at <= start && after <= end, "overlap");
                    gaps.insert((usize::try_from(start - at).unwrap(), at));
                    at = after;
                }
            }
            gaps.retain(|gap| gap.0 > 0);
            gaps
        }

        /// Returns address and length of the chunk for `needed` bytes of whole units.
        fn best_fit(&self, needed: usize) -> Option<(u64, usize)> {
            let (len, address) = self.gaps().into_iter().find(|gap| gap.0 >= needed)?;
            let splits = len >= needed * 2 || len - needed >= 128 * MIB;
            Some((address, if splits { needed } else { len }))
        }

        /// Returns all uses of what was freed in this range.
        fn uses(&self, address: u64, len: usize) -> Clock {
            let mut uses = Clock::default();
            let end = address + len as u64;
            let inside = self.freed.iter().filter(|f| f.0 < end && address < f.1);
            inside.for_each(|freed| uses.merge(&freed.2));
            uses
        }

        fn take_free_regions(&mut self, bfc: &mut Bfc<Clock>) {
            for (address, len, uses) in bfc.take_free_regions() {
                assert_eq!(self.regions.remove(&address), Some(len));
                assert_eq!(uses, self.uses(address, len));
            }
        }

        fn check(&mut self, bfc: &Bfc<Clock>) {
            let gaps = self.gaps();
            assert_eq!(bfc.free, gaps);
            assert_eq!(bfc.ranges.len(), gaps.len() + self.chunks.len());
            let stats = bfc.stats();
            assert_eq!(stats.reserved_bytes, self.regions.values().sum::<usize>());
            let chunks = self.chunks.values();
            assert_eq!(
                stats.in_use_bytes,
                chunks.clone().map(|c| c.0).sum::<usize>()
            );
            assert_eq!(stats.requested_bytes, chunks.map(|c| c.1).sum::<usize>());
            self.peak_bytes = self.peak_bytes.max(stats.in_use_bytes);
            assert_eq!(stats.peak_in_use_bytes, self.peak_bytes);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_search(
            // The action, the chunk it applies to, a number of bytes, and the surplus length of a
            // region if one is needed.
            steps in prop::collection::vec((0..16_u8, any::<prop::sample::Index>(),
                prop_oneof![4 => 0..3000_usize, 2 => 0..MIB, 1 => 0..GIB / 2],
                prop_oneof![0..600_usize, 0..4 * MIB, 0..GIB]), 1..150),
        ) {
            let mut bfc = new(0, true);
            let mut model = Model::default();
            let (mut lowest, mut highest) = (1_u64 << 50, 1_u64 << 50);
            for ((action, which, len, surplus), ticket) in steps.into_iter().zip(1..) {
                if action < 9 {
                    let needed = len.max(1).div_ceil(256) * 256;
                    if model.best_fit(needed).is_none() {
                        prop_assert_eq!(bfc.allocate(len), None);
                        // Touches the other regions, below or above them.
                        let given = needed + surplus;
                        let address = if ticket % 2 == 0 { highest } else { lowest - given as u64 };
                        (lowest, highest) = (lowest.min(address), highest.max(address + given as u64));
                        prop_assert_eq!(bfc.add_region(address, given), Ok(()));
                        model.regions.insert(address, given);
                    }
                    let chunk = bfc.allocate(len).unwrap();
                    let (address, len_bytes) = (chunk.address, chunk.len_bytes);
                    prop_assert_eq!(Some((address, len_bytes)), model.best_fit(needed));
                    let (&region, &region_len) = model.regions.range(..=address).next_back().unwrap();
                    prop_assert_eq!((address - region) % 256, 0);
                    // Contains all uses of what was freed there, and none of other regions.
                    let (least, most) = (model.uses(address, len_bytes), model.uses(region, region_len));
                    prop_assert!((0..3).all(|s| (least[s]..=most[s]).contains(&chunk.uses[s])));
                    model.chunks.insert(address, (len_bytes, len));
                } else if action < 15 && !model.chunks.is_empty() {
                    let address = *model.chunks.keys().nth(which.index(model.chunks.len())).unwrap();
                    let (len_bytes, _) = model.chunks.remove(&address).unwrap();
                    let uses = std::array::from_fn(|s| if s == surplus % 3 { ticket } else { 0 });
                    prop_assert_eq!(bfc.free(address, &uses), Ok(()));
                    prop_assert_eq!(bfc.free(address, &[9999; 3]), Err(BfcError::NotInUse(address)));
                    model.freed.push((address, address + len_bytes as u64, uses));
                } else {
                    model.take_free_regions(&mut bfc);
                }
                model.check(&bfc);
            }
            for address in std::mem::take(&mut model.chunks).into_keys() {
                prop_assert_eq!(bfc.free(address, &Clock::default()), Ok(()));
            }
            model.take_free_regions(&mut bfc);
            prop_assert!(model.regions.is_empty());
            model.check(&bfc);
        }
    }
}
