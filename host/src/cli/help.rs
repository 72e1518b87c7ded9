//! What `--help` and the man pages say besides the flags: exit statuses and environment variables.

/// Exit statuses of the program.
pub(super) const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "done"),
    (
        "1",
        "failed, a run of the placed graph would fail, or results differ from the expected ones",
    ),
    ("2", "the command line is wrong"),
    (
        "3",
        "done, but the requested policy failed and another policy of the ladder placed the graph",
    ),
];

/// Environment variables that the program reads, and what each means.
pub(super) const ENVIRONMENT: [(&str, &str); 13] = [
    (
        "PLACEWRIGHT_CACHE_DIR",
        "the cache folder, an absolute path; empty: no cache",
    ),
    (
        "XDG_CACHE_HOME, HOME",
        "otherwise the cache folder is $XDG_CACHE_HOME/placewright or $HOME/.cache/placewright",
    ),
    (
        "TF_ENABLED_DEVICE_TYPES",
        "device types to use, separated by commas; unset or empty: all",
    ),
    (
        "TF_NUM_INTRAOP_THREADS",
        "threads for loops inside kernels, if no flag sets them",
    ),
    (
        "TF_OVERRIDE_GLOBAL_THREADPOOL",
        "true: each CPU device has its own pool of such threads",
    ),
    (
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "true or false: overrides --gpu-allow-growth",
    ),
    (
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT",
        "GPUs with fewer multiprocessors are not used",
    ),
    (
        "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
        "memory of each GPU that its device leaves to other programs, in MiB",
    ),
    ("NO_COLOR", "not empty: no colour"),
    ("CLICOLOR", "0: no colour"),
    (
        "CLICOLOR_FORCE",
        "not empty: colour also where standard output is not a terminal",
    ),
    ("COLUMNS", "width of tables, instead of the terminal's"),
    ("TERM", "dumb or unset: no colour"),
];

/// The section about exit statuses.
pub(super) fn exit_status() -> String {
    section("Exit status", &EXIT_STATUS)
}

/// Both sections.
pub(super) fn exit_status_and_environment() -> String {
    format!(
        "{}\n\n{}",
        exit_status(),
        section("Environment variables", &ENVIRONMENT)
    )
}

fn section(title: &str, rows: &[(&str, &str)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let rows = rows
        .iter()
        .map(|(name, meaning)| format!("\n  {name:width$}  {meaning}"));
    format!("{title}:{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_table() {
        assert_eq!(
            section("Colours", &[("red", "alarm"), ("blue", "calm")]),
            "Colours:\n  red   alarm\n  blue  calm"
        );
    }
}
