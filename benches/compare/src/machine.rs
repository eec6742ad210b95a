//! The machine, its software, and how much of the machine other processes use during a measurement.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Instant;

use rustix::param::clock_ticks_per_second;
use serde_json::{Value, json};

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

pub(crate) fn model() -> String {
    let models = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = models.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or(std::env::consts::ARCH, |(_, model)| model).to_owned()
}

pub(crate) fn kernel() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", kernel.trim())
}

/// Returns the version of rustc without the commit in parentheses.
pub(crate) fn rustc() -> String {
    let version = first_line(Command::new("rustc").arg("--version"));
    version.map_or("rustc".into(), |version| version.split(" (").next().unwrap_or_default().to_owned())
}

pub(crate) fn java() -> String {
    first_line(Command::new("java").arg("-version")).unwrap_or_else(|| "no Java".into())
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
}

/// Measures how much of the machine other processes and the hypervisor use.
pub(crate) struct LoadMonitor {
    start: Instant,
    child: u32,
    busy: f64,
    own: f64,
}

impl LoadMonitor {
    pub(crate) fn start(child: u32) -> Self {
        Self { start: Instant::now(), child, busy: busy(), own: own(child) }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns the share of all cores that others have used since the start. The kernel counts in
    /// clock ticks, so the share is inaccurate for measurements of less than half a second.
    pub(crate) fn others(&self) -> f64 {
        let own = own(self.child) - self.own;
        // A child that has died is not in /proc, so its own time reads as 0. The result is then too
        // high rather than too low, so it hides no disturbance.
        let others = busy() - self.busy - own.max(0.0);
        (others / (self.seconds() * cores() as f64)).clamp(0.0, 1.0)
    }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// Returns the seconds in which the cores were not idle, including the time that the hypervisor has
/// stolen.
fn busy() -> f64 {
    const IDLE: [usize; 2] = [3, 4];
    // The guest times after this column are included in the other columns.
    const STEAL: usize = 7;

    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks = all.map(|ticks| ticks.parse().unwrap_or(0)).enumerate().take(STEAL + 1);
    seconds(ticks.filter(|(index, _)| !IDLE.contains(index)).map(|(_, ticks)| ticks).sum())
}

/// Returns the CPU seconds of this process and the child.
fn own(child: u32) -> f64 {
    used("self") + used(&child.to_string())
}

fn used(process: &str) -> f64 {
    // The user and system times. The index starts after the process name, which may contain spaces
    // and parentheses.
    const TIMES: std::ops::Range<usize> = 11..13;

    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let times: Vec<u64> = fields.split(' ').map(|number| number.parse().unwrap_or(0)).collect();
    seconds(times.get(TIMES).map_or(0, |times| times.iter().sum()))
}

/// The conditions of the measurement: the machine, its software and the command.
pub(crate) struct Environment {
    pub(crate) command: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
}

impl Environment {
    pub(crate) fn new(command: String) -> Self {
        Self { command, load_before: load(), load_after: String::new() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "command": self.command,
            "cores": cores(),
            "cpu": model(),
            "kernel": kernel(),
            "rustc": rustc(),
            "java": java(),
            "load_before": self.load_before,
            "load_after": self.load_after,
        })
    }

    /// Returns the processor, the compiler and the command as one line.
    pub(crate) fn text(&self) -> String {
        let (cores, model, rustc, command) = (cores(), model(), rustc(), &self.command);
        format!("{cores} cores of an {model}, {rustc}; `{command}`")
    }
}
