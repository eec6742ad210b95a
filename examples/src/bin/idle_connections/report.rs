//! The report that is printed at the end.

use std::fmt;
use std::time::Duration;

use hashed_wheel_trial::rounded;
use hdrhistogram::Histogram;
use indicatif::HumanCount;

use crate::clients::Seen;
use crate::options::Options;
use crate::trial::Outcome;

pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) outcome: &'a Outcome,
}

impl Report<'_> {
    /// Returns the reasons for a FAIL. If there are none, it is a PASS.
    pub(crate) fn failures(&self) -> Vec<String> {
        let Self { options, outcome } = self;
        if let Some(error) = &outcome.error {
            // All other failures would be consequences of this one.
            return vec![error.clone()];
        }
        let (server, timer) = (&outcome.server, &outcome.timer);
        let clients = outcome.clients.unwrap_or_default();
        let mut failures = Vec::new();
        let mut count = |what: u64, why: &str| {
            if what > 0 {
                failures.push(format!("{} {why}", HumanCount(what)));
            }
        };
        count(clients.not_closed, "silent clients were not closed");
        count(clients.wrongly_closed, "clients were closed without being silent");
        count(
            server.early,
            "connections were closed before the idle time had passed, according to the server",
        );
        count(
            clients.early,
            "connections were closed before the idle time had passed, according to the clients",
        );
        count(timer.pending, "timeouts are still pending");
        count(timer.panics, "tasks of the timer panicked");

        let gap = Duration::from_millis(clients.longest_gap);
        if gap >= options.idle && clients.wrongly_closed + clients.early > 0 {
            failures.push(format!(
                "(A client paused for {gap:.1?} between packets: the machine is too slow for these options.)"
            ));
        }
        if server.closed != clients.closed + clients.wrongly_closed + clients.early
            || server.left != clients.kept + clients.not_closed
            || server.accepted != u64::from(options.connections)
        {
            failures.push(format!(
                "the server closed {} and kept {} connections, but the clients counted {clients:?}",
                server.closed, server.left
            ));
        }
        let late = Duration::from_nanos(server.closed_late.value_at_quantile(0.99));
        if late > options.allowed() {
            failures.push(format!(
                "the 99th percentile of the lateness is {late:.1?}; the limit is {:?}",
                options.allowed()
            ));
        }
        failures
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, outcome } = self;
        let Outcome { server, timer, connecting, running, rearms, life, .. } = outcome;
        let count = HumanCount;
        let all = u64::from(options.connections);
        let silent = u64::from(options.silent());

        writeln!(f, "connected    {} of {} in {connecting:.1?}", count(server.accepted), count(all))?;
        writeln!(f, "closed       {} because of silence (expected {})", count(server.closed), count(silent))?;
        writeln!(
            f,
            "kept         {} until they disconnected (expected {})",
            count(server.left),
            count(all - silent)
        )?;
        if let Some(Seen { closed, kept, longest_gap, .. }) = outcome.clients {
            let (closed, kept) = (count(closed), count(kept));
            writeln!(f, "clients      observed {closed} correctly closed and {kept} correctly kept;")?;
            let gap = rounded(Duration::from_millis(longest_gap), 1);
            writeln!(f, "             longest pause between packets of active clients: {gap}")?;
        }
        if server.closed > 0 {
            writeln!(f, "lateness              p50        p99      p99.9        max")?;
            writeln!(f, "  timer fired {}", Lateness(&server.fired_late))?;
            writeln!(f, "  closed      {}", Lateness(&server.closed_late))?;
        }
        let rate = per_second(*rearms, *running);
        writeln!(f, "resets       {} in {running:.1?}: {rate} per second", count(*rearms))?;
        if server.rescued > 0 {
            writeln!(
                f,
                "rescued      {} by a packet that arrived while the timeout fired",
                count(server.rescued)
            )?;
        }
        match outcome.worker_cpu {
            Some(cpu) => {
                let share = 100.0 * cpu.as_secs_f64() / life.as_secs_f64();
                let cpu = rounded(cpu, 1);
                writeln!(f, "worker       {cpu} of CPU time in {life:.1?}: {share:.2} % of one core")?;
            }
            None => writeln!(f, "worker       CPU time: not available on this system")?,
        }
        let rate = per_second(timer.wake_ups, *life);
        writeln!(f, "             {} wake-ups: {rate} per second", count(timer.wake_ups))?;
        writeln!(f, "pending      {} timeouts at the end", count(timer.pending))?;

        let failures = self.failures();
        if failures.is_empty() {
            return write!(f, "\nPASS");
        }
        write!(f, "\nFAIL")?;
        failures.iter().try_for_each(|why| write!(f, "\n  {why}"))
    }
}

/// Formats p50, p99, p99.9 and the maximum.
struct Lateness<'a>(&'a Histogram<u64>);

impl fmt::Display for Lateness<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantiles = [0.5, 0.99, 0.999].map(|quantile| self.0.value_at_quantile(quantile));
        quantiles
            .iter()
            .chain([&self.0.max()])
            .try_for_each(|&nanos| write!(f, "{:>11}", rounded(Duration::from_nanos(nanos), 2)))
    }
}

fn per_second(count: u64, time: Duration) -> HumanCount {
    // `as` converts NaN to 0.
    HumanCount((count as f64 / time.as_secs_f64()).round() as u64)
}
