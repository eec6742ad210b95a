//! What is printed at the end.

use std::fmt;
use std::time::Duration;

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
    /// Why it is a FAIL. Empty: it is a PASS.
    pub(crate) fn failures(&self) -> Vec<String> {
        let Self { options, outcome } = self;
        if let Some(trouble) = &outcome.trouble {
            // All else would follow from it.
            return vec![trouble.clone()];
        }
        let (server, timer) = (&outcome.server, &outcome.timer);
        let clients = outcome.clients.unwrap_or_default();
        let mut failures = Vec::new();
        let mut count = |what: u64, why: &str| {
            if what > 0 {
                failures.push(format!("{} {why}", HumanCount(what)));
            }
        };
        count(clients.forgotten, "silent clients were not closed");
        count(clients.wronged, "clients were closed without being silent");
        count(server.early, "were closed before the idle time was over, says the server");
        count(clients.early, "were closed before the idle time was over, say the clients");
        count(timer.pending, "timeouts are still pending");
        count(timer.panics, "tasks of the timer panicked");

        let gap = Duration::from_millis(clients.longest_gap);
        if gap >= options.idle && clients.wronged + clients.early > 0 {
            failures
                .push(format!("(A client left {gap:?} between packets: the machine is too slow for this.)"));
        }
        if server.closed != clients.closed + clients.wronged + clients.early
            || server.left != clients.kept + clients.forgotten
            || server.accepted != u64::from(options.connections)
        {
            failures.push(format!(
                "the server closed {} and kept {}, but {clients:?}",
                server.closed, server.left
            ));
        }
        let late = Duration::from_nanos(server.closed_late.value_at_quantile(0.99));
        if late > options.allowed() {
            failures.push(format!(
                "1 in 100 was closed {late:.1?} late or more; {:?} are allowed",
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
        writeln!(f, "closed       {} for silence (should be {})", count(server.closed), count(silent))?;
        writeln!(
            f,
            "kept         {} until they left (should be {})",
            count(server.left),
            count(all - silent)
        )?;
        if let Some(Seen { closed, kept, longest_gap, .. }) = outcome.clients {
            let (closed, kept) = (count(closed), count(kept));
            writeln!(f, "clients      saw {closed} rightly closed and {kept} rightly kept;")?;
            writeln!(f, "             at most {longest_gap} ms between packets before they fell silent")?;
        }
        if server.closed > 0 {
            writeln!(f, "lateness             p50        p99      p99.9        max")?;
            writeln!(f, "  timer fired {}", Lateness(&server.fired_late))?;
            writeln!(f, "  closed      {}", Lateness(&server.closed_late))?;
        }
        let rate = per_second(*rearms, *running);
        writeln!(f, "re-armed     {} times in {running:.1?}: {rate} per second", count(*rearms))?;
        if server.rescued > 0 {
            writeln!(f, "rescued      {} by a packet that came as the timeout fired", count(server.rescued))?;
        }
        match outcome.worker_cpu {
            Some(cpu) => {
                let share = 100.0 * cpu.as_secs_f64() / life.as_secs_f64();
                writeln!(f, "worker       {cpu:.1?} of CPU time in {life:.1?}: {share:.2} % of one core")?;
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

/// p50, p99, p99.9 and the greatest, in milliseconds.
struct Lateness<'a>(&'a Histogram<u64>);

impl fmt::Display for Lateness<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantiles = [0.5, 0.99, 0.999].map(|quantile| self.0.value_at_quantile(quantile));
        quantiles
            .iter()
            .chain([&self.0.max()])
            .try_for_each(|&nanos| write!(f, "{:>8.2} ms", nanos as f64 / 1e6))
    }
}

fn per_second(count: u64, time: Duration) -> HumanCount {
    // Not a number becomes 0.
    HumanCount((count as f64 / time.as_secs_f64()).round() as u64)
}
