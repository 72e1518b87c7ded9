//! A progress bar on standard error for work that takes longer than a second. Nothing is drawn if
//! standard error is not a terminal.

use std::borrow::Cow;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::ProgressBar;
use indicatif::ProgressDrawTarget;
use indicatif::ProgressStyle;

use super::terminal::stderr_is_terminal;

/// A progress bar; dropping it removes the bar.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    /// Dropping the sender ends the thread.
    ended: Option<mpsc::Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts a bar for work of unknown length.
    pub(super) fn spinner(message: impl Into<Cow<'static, str>>) -> Self {
        let style = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]");
        Self::start(ProgressBar::hidden(), style.ok(), message)
    }

    /// Starts a bar for work of `n_steps` steps; call [`Self::advance`] after each.
    pub(super) fn steps(n_steps: u64, message: impl Into<Cow<'static, str>>) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} [{elapsed}]");
        let bar = ProgressBar::with_draw_target(Some(n_steps), ProgressDrawTarget::hidden());
        Self::start(bar, style.ok(), message)
    }

    /// Counts a finished step.
    pub(super) fn advance(&self) {
        self.bar.inc(1);
    }

    /// Prints something while the bar is hidden.
    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Shows another message.
    pub(super) fn set_message(&self, message: impl Into<Cow<'static, str>>) {
        self.bar.set_message(message);
    }

    fn start(
        bar: ProgressBar,
        style: Option<ProgressStyle>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        bar.set_message(message);
        if let Some(style) = style {
            bar.set_style(style);
        }
        if !stderr_is_terminal() {
            return Self {
                bar,
                ended: None,
                watcher: None,
            };
        }
        let (ended, has_ended) = mpsc::channel();
        let shown = bar.clone();
        let watcher = std::thread::spawn(move || {
            if has_ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Self {
            bar,
            ended: Some(ended),
            watcher: Some(watcher),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.ended.take());
        if let Some(watcher) = self.watcher.take() {
            // The watcher only draws: if it failed, there is no bar to remove.
            let _ = watcher.join();
        }
        self.bar.finish_and_clear();
    }
}
