//! Measures the peak of resident memory of work, memories of policies included.

use std::fs;

/// Resident memory of this process now, and a peak counted from now on. Linux only.
pub(super) struct PeakMemory {
    before_bytes: u64,
}

impl PeakMemory {
    /// Starts counting; `None` if the system cannot.
    pub(super) fn start() -> Option<Self> {
        // Documented in proc(5): 5 resets the high water mark.
        fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Self {
            before_bytes: status_bytes("VmRSS:")?,
        })
    }

    /// Growth of the peak since the start, in bytes.
    pub(super) fn growth_bytes(&self) -> Option<u64> {
        Some(status_bytes("VmHWM:")?.saturating_sub(self.before_bytes))
    }
}

fn status_bytes(key: &str) -> Option<u64> {
    parse_status(&fs::read_to_string("/proc/self/status").ok()?, key)
}

/// The value of a line such as `VmRSS:   1234 kB`, in bytes.
fn parse_status(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_parsed() {
        let status = "Name:\tx\nVmHWM:\t   12 kB\nVmRSS:\t    8 kB\n";
        assert_eq!(parse_status(status, "VmHWM:"), Some(12 << 10));
        assert_eq!(parse_status(status, "VmSwap:"), None);
        assert_eq!(parse_status("VmRSS: many\n", "VmRSS:"), None);
    }
}
