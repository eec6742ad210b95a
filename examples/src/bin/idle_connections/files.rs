//! The limit on open files.

/// What a process has open beside its connections: standard streams, listener, epoll, a pipe, and some to spare.
const OTHERS: u64 = 40;

/// Raises this process's limit, and that of those it will start, to what so many connections need. Otherwise says what
/// is to be done.
pub(crate) fn allow(connections: u64) -> Result<(), String> {
    let needed = connections + OTHERS;
    let limit = rlimit::increase_nofile_limit(needed)
        .map_err(|error| format!("the limit on open files cannot be raised to {needed}: {error}"))?;
    if limit >= needed {
        return Ok(());
    }
    let fewer = match limit.saturating_sub(OTHERS) {
        0 => String::new(),
        fewer => format!(", or ask for at most --connections {fewer}"),
    };
    Err(format!(
        "the limit on open files is too low: {connections} connections need {needed} in each of two processes, \
         but only {limit} are allowed. Raise the hard limit (as root, `ulimit -n {needed}` in the shell that starts \
         this; for good, `nofile` in /etc/security/limits.conf){fewer}"
    ))
}
