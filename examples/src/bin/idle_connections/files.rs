//! The limit on open files.

/// The number of other open files of a process: standard streams, listener, epoll, a pipe, and some
/// spare ones.
const OTHERS: u64 = 40;

/// Raises the limit of open files of this process and its future child processes to what the
/// connections need. Otherwise returns an error that says what to do.
pub(crate) fn allow(connections: u64) -> Result<(), String> {
    let needed = connections + OTHERS;
    let limit = rlimit::increase_nofile_limit(needed)
        .map_err(|error| format!("cannot raise the limit on open files to {needed}: {error}"))?;
    if limit >= needed {
        return Ok(());
    }
    let fewer = match limit.saturating_sub(OTHERS) {
        0 => String::new(),
        fewer => format!(", or use at most --connections {fewer}"),
    };
    Err(format!(
        "the limit on open files is too low: {connections} connections need {needed} in each of two processes, \
         but only {limit} are allowed. Raise the hard limit (as root, `ulimit -n {needed}` in the shell that starts \
         this; for good, `nofile` in /etc/security/limits.conf){fewer}"
    ))
}
