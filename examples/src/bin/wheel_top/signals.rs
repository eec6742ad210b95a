//! The signals that tell a program to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{io, thread};

use signal_hook::consts::{SIGHUP, TERM_SIGNALS};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::PATIENCE;

/// Sets `told_to_end` at the first. If we are still there a while later, it ends us as it would have: the terminal may be gone, or
/// take nothing more.
pub(crate) fn listen(told_to_end: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new(TERM_SIGNALS.iter().chain(&[SIGHUP]))?;
    thread::spawn(move || {
        for signal in signals.forever() {
            told_to_end.store(true, Relaxed);
            thread::sleep(PATIENCE);
            let _ = low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}
