//! The signals that ask a program to terminate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{io, thread};

use signal_hook::consts::{SIGHUP, TERM_SIGNALS};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::PICTURE_TIMEOUT;

/// Sets `is_terminated` at the first signal. If the program is still running a little later, the
/// signal has its default effect: the terminal may be gone or blocked.
pub(crate) fn listen(is_terminated: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = Signals::new(TERM_SIGNALS.iter().chain(&[SIGHUP]))?;
    thread::spawn(move || {
        for signal in signals.forever() {
            is_terminated.store(true, Relaxed);
            thread::sleep(PICTURE_TIMEOUT);
            let _ = low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}
