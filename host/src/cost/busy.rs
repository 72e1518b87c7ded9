//! Whether other programs compute while a device is measured.

use std::time::Instant;

use sysinfo::Pid;
use sysinfo::ProcessRefreshKind;
use sysinfo::ProcessesToUpdate;
use sysinfo::System;

/// Watches the load of the machine's processors.
pub(super) struct LoadWatch {
    system: System,
    process: Pid,
    started: Instant,
    own_ms: u64,
}

impl LoadWatch {
    /// Begins to watch; `None` if the system does not report its load.
    pub(super) fn start() -> Option<Self> {
        let mut system = System::new().ok()?;
        let process = sysinfo::get_current_pid().ok()?;
        system.refresh_cpu_usage();
        let own_ms = own_ms(&mut system, process)?;
        Some(Self {
            system,
            process,
            started: Instant::now(),
            own_ms,
        })
    }

    /// Returns how many processors other programs kept busy since then, on average; `None` if too
    /// little time has passed to tell.
    pub(super) fn others_busy(mut self) -> Option<f64> {
        let elapsed = self.started.elapsed();
        if elapsed < sysinfo::MINIMUM_CPU_UPDATE_INTERVAL {
            return None;
        }
        self.system.refresh_cpu_usage();
        let own_ms = own_ms(&mut self.system, self.process)?.saturating_sub(self.own_ms);
        let processors = self.system.cpus().iter();
        let busy: f64 = processors
            .map(|processor| f64::from(processor.usage()) / 100.0)
            .sum();
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a short time")]
        let own = own_ms as f64 / 1e3 / elapsed.as_secs_f64();
        Some((busy - own).max(0.0))
    }
}

/// Returns the processor time of this process, in ms.
fn own_ms(system: &mut System, process: Pid) -> Option<u64> {
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[process]),
        true,
        ProcessRefreshKind::nothing().with_cpu(),
    );
    Some(system.process(process)?.accumulated_cpu_time())
}
