//! A note while programs are compiled for devices: some drivers take 20 s at the first run, and the
//! program would seem to hang.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use clap::ColorChoice;
use tracing::Event;
use tracing::Level;
use tracing::Metadata;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing::span;

use super::output::Format;
use super::output::Output;
use crate::trace::targets;

/// Programs that compile faster need no note.
const PATIENCE: Duration = Duration::from_secs(1);

/// Listens to the events of [`targets::PROGRAM`] only.
#[derive(Debug, Default)]
struct CompileNote(Mutex<State>);

#[derive(Debug, Clone, Copy, Default)]
enum State {
    /// Nothing was compiled.
    #[default]
    Idle,
    /// Since then, programs have been compiled.
    Since(Instant),
    /// The note was printed.
    Noted,
}

/// Prints the note when it is due. Does nothing if the app has a subscriber of its own.
pub(super) fn install() {
    let _ = tracing::subscriber::set_global_default(CompileNote::default());
}

impl State {
    /// Takes the start of another compilation. Returns whether the note is due.
    fn advance(&mut self, now: Instant) -> bool {
        match *self {
            Self::Idle => *self = Self::Since(now),
            Self::Since(start) if now.duration_since(start) >= PATIENCE => {
                *self = Self::Noted;
                return true;
            }
            Self::Since(_) | Self::Noted => {}
        }
        false
    }
}

impl Subscriber for CompileNote {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == targets::PROGRAM
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() != Level::INFO {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.advance(Instant::now()) {
            Output::new(Format::Human, ColorChoice::Auto).note(
                "compiling kernels for this machine's devices, which takes a while; later runs find them in a cache folder",
            );
        }
    }

    // Spans are never enabled.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use tracing::info;

    use super::*;

    #[test]
    fn the_note_is_due_once_and_not_at_once() {
        let start = Instant::now();
        let mut state = State::default();
        assert!(!state.advance(start));
        assert!(!state.advance(start + PATIENCE / 2));
        assert!(state.advance(start + PATIENCE));
        assert!(!state.advance(start + 2 * PATIENCE));
    }

    #[test]
    fn only_events_about_programs_count() {
        let note = CompileNote::default();
        let dispatch = tracing::Dispatch::new(note);
        let is_idle = || {
            let note = dispatch.downcast_ref::<CompileNote>().expect("its type");
            matches!(*note.0.lock().expect("no panic"), State::Idle)
        };
        tracing::dispatcher::with_default(&dispatch, || {
            info!(target: targets::DEVICE, "another event");
            assert!(is_idle());
            info!(target: targets::PROGRAM, "compiling");
            assert!(!is_idle());
        });
    }
}
