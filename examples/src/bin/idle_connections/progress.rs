//! A progress bar. Without a terminal, it prints a line every second instead.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Progress {
    bar: ProgressBar,
    label: &'static str,
    next: Instant,
}

impl Progress {
    pub(crate) fn new(label: &'static str, length: u64) -> Self {
        let style =
            ProgressStyle::with_template("{prefix} [{bar:16}] {wide_msg}").expect("the template is valid");
        // The bar is hidden if standard error is not a terminal.
        let bar = ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_prefix(label);
        let mut progress = Self { bar, label, next: Instant::now() };
        progress.wait();
        progress
    }

    /// Shows the progress. May be called at any rate: it limits the output itself.
    pub(crate) fn show(&mut self, position: u64, message: impl FnOnce() -> String) {
        if Instant::now() < self.next {
            return;
        }
        if self.bar.is_hidden() {
            eprintln!("{}: {}", self.label, message());
        } else {
            self.bar.set_position(position);
            self.bar.set_message(message());
        }
        self.wait();
    }

    fn wait(&mut self) {
        let millis = if self.bar.is_hidden() { 1_000 } else { 100 };
        self.next = Instant::now() + Duration::from_millis(millis);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
