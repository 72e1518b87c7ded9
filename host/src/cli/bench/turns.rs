//! Compares two sides that do the same work in turns.
//!
//! The sides alternate in who begins, and a row's ratio is the median of the ratios of the rounds,
//! so that other load of the machine affects both.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::cli::output::Output;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::units::show_ns;
use crate::device::DeviceError;

/// Warm-up rounds, in which kernels are compiled and memory is allocated.
const N_WARMUP: u32 = 2;

/// One side: does the work once and returns the time.
pub(super) type Side<'a> = Box<dyn FnMut() -> Result<Duration> + 'a>;

/// The side of a backend's reference measurement.
pub(super) fn raw<'a>(
    mut rounds: Box<dyn FnMut() -> Result<Duration, DeviceError> + 'a>,
) -> Side<'a> {
    Box::new(move || Ok(rounds()?))
}

/// The side that the device is compared with.
pub(super) struct Other<'a> {
    /// What it is, as text.
    pub(super) name: &'static str,
    pub(super) side: Side<'a>,
}

impl<'a> Other<'a> {
    pub(super) fn new(name: &'static str, side: Side<'a>) -> Self {
        Self { name, side }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    case: String,
    /// What the device is compared with; `null` if nothing here does the same work.
    against: Option<&'static str>,
    /// Median times of a turn.
    ns: f64,
    against_ns: Option<f64>,
    unit: Unit,
    /// The median time in `speed_unit`.
    speed: f64,
    against_speed: Option<f64>,
    speed_unit: &'static str,
    /// How many times as fast as the other side, above 1 if faster: the median of the rounds.
    speed_ratio: Option<f64>,
}

/// The work of a turn.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// Floating-point operations of a turn.
    Flops(f64),
    /// Bytes that a turn moves, on this side and on the other: speeds are compared, not times.
    Bytes(f64, f64),
    /// Kernels of a turn.
    Kernels(f64),
    /// The turn is the unit.
    Turns,
}

impl Unit {
    /// The ratio of the speeds in one round: this side's by the other's.
    fn speed_ratio(self, ours: f64, other: f64) -> f64 {
        match self {
            Self::Bytes(own_bytes, other_bytes) => (own_bytes / ours) / (other_bytes / other),
            _ => other / ours,
        }
    }

    /// A turn's time in the unit [`Self::name`].
    fn speed(self, ns: f64, is_own: bool) -> f64 {
        match self {
            Self::Flops(flops) => flops / ns,
            Self::Bytes(own, other) => (if is_own { own } else { other }) / ns,
            Self::Kernels(n) => ns / n,
            Self::Turns => ns,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Flops(_) => "GFLOP/s",
            Self::Bytes(..) => "GB/s",
            Self::Kernels(_) => "ns each",
            Self::Turns => "ns",
        }
    }

    fn show(self, ns: f64, is_own: bool) -> String {
        let speed = self.speed(ns, is_own);
        match self {
            Self::Flops(_) | Self::Bytes(..) => format!("{speed:.1} {}", self.name()),
            Self::Kernels(_) => format!("{} each", show_ns(speed)),
            Self::Turns => show_ns(speed),
        }
    }
}

/// The number of rounds that count; each side has a turn in each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    pub(super) n_rounds: u32,
}

impl Turns {
    /// Measures both sides in turns; the side that begins alternates from round to round.
    pub(super) fn against(
        self,
        case: String,
        mut own: Side<'_>,
        mut other: Other<'_>,
        unit: Unit,
    ) -> Result<Row> {
        let (mut owns, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..N_WARMUP + self.n_rounds {
            let (own, other) = if round % 2 == 0 {
                let own = own()?;
                (own, (other.side)()?)
            } else {
                let other = (other.side)()?;
                (own()?, other)
            };
            if round >= N_WARMUP {
                owns.push(own);
                others.push(other);
                ratios.push(unit.speed_ratio(nanoseconds_f64(own), nanoseconds_f64(other)));
            }
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let other_ns = nanoseconds_f64(median(&mut others));
        Ok(Row {
            against: Some(other.name),
            against_ns: Some(other_ns),
            against_speed: Some(unit.speed(other_ns, false)),
            speed_ratio: Some(ratios[ratios.len() / 2]),
            ..row(case, owns, unit)
        })
    }

    /// Measures this side alone, if nothing here does the same work.
    #[cfg(feature = "cuda")]
    pub(super) fn alone(self, case: String, mut own: Side<'_>, unit: Unit) -> Result<Row> {
        for _ in 0..N_WARMUP {
            own()?;
        }
        let times: Result<Vec<_>> = (0..self.n_rounds).map(|_| own()).collect();
        Ok(row(case, times?, unit))
    }
}

fn row(case: String, mut times: Vec<Duration>, unit: Unit) -> Row {
    let ns = nanoseconds_f64(median(&mut times));
    Row {
        case,
        against: None,
        ns,
        against_ns: None,
        unit,
        speed: unit.speed(ns, true),
        against_speed: None,
        speed_unit: unit.name(),
        speed_ratio: None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(super) fn count(n: usize) -> f64 {
    n as f64
}

/// Prints a table of the rows.
pub(super) fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = Table::new([
        "case",
        "time",
        "speed",
        "against",
        "its time",
        "its speed",
        "ratio",
    ])
    .with_numbers(&[1, 2, 4, 5, 6]);
    for row in rows {
        let of_other = |show: &dyn Fn(f64) -> String| row.against_ns.map(show).unwrap_or_default();
        table.add_row([
            row.case.clone(),
            show_ns(row.ns),
            row.unit.show(row.ns, true),
            row.against.unwrap_or_default().to_owned(),
            of_other(&show_ns),
            of_other(&|ns| row.unit.show(ns, false)),
            row.speed_ratio
                .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        ]);
    }
    output.table(&table)?;
    output.line("ratio: speed of the device by that of the other side, median of the rounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(times_ns: &'static [u64]) -> Side<'static> {
        let mut times = times_ns.iter();
        Box::new(move || Ok(Duration::from_nanos(*times.next().expect("a turn"))))
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_that_count() {
        let own = side(&[900, 900, 10, 20, 40]);
        let other = Other::new("other", side(&[1, 1, 20, 80, 40]));
        let unit = Unit::Bytes(400.0, 200.0);
        let turns = Turns { n_rounds: 3 };
        let row = turns.against("case".to_owned(), own, other, unit).unwrap();
        assert_eq!((row.ns, row.against_ns), (20.0, Some(40.0)));
        assert_eq!((row.speed, row.against_speed), (20.0, Some(5.0)));
        assert_eq!((row.speed_unit, row.speed_ratio), ("GB/s", Some(4.0)));
    }

    #[test]
    fn speeds_are_of_the_unit() {
        for (unit, expected) in [
            (Unit::Flops(100.0), "10.0 GFLOP/s"),
            (Unit::Kernels(2.0), "5.00 ns each"),
            (Unit::Turns, "10.0 ns"),
        ] {
            assert_eq!(unit.show(10.0, true), expected);
        }
    }
}
