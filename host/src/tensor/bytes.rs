//! Human-readable sizes.

/// Formats a size as `1.5 MiB` or `640 B`; a saturated sum as `16 EiB or more`.
#[expect(clippy::cast_precision_loss, reason = "for display")]
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 6] = [
        ("EiB", 1 << 60),
        ("PiB", 1 << 50),
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    if bytes == u64::MAX {
        return "16 EiB or more".to_owned();
    }
    for (name, unit) in UNITS {
        if bytes >= unit {
            return format!("{:.1} {name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes} B")
}
