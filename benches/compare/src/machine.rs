//! The machine and its software.

use std::fs;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

/// The conditions of a measurement, as docs/benchmarks.json has them.
pub(crate) struct Environment(pub(crate) Value);

impl Environment {
    pub(crate) fn of_this_machine(command: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let rustc = option_env!("COMPARE_RUSTC").map(str::to_owned);
        let rustc = rustc.or_else(|| first_line(Command::new("rustc").arg("--version")));
        Self(json!({
            "command": command,
            // Commit and compiler of a bundle are those of its build.
            "commit": option_env!("COMPARE_COMMIT").map(str::to_owned).or_else(|| first_line(Command::new("git").args(["-C", crate::ROOT, "describe", "--always", "--dirty"]))),
            "date": first_line(Command::new("date").args(["--utc", "+%F"])),
            "cores": thread::available_parallelism().map_or(1, usize::from),
            "cpu": cpu.map_or(std::env::consts::ARCH, |(_, cpu)| cpu),
            "kernel": format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            "source": first_line(Command::new("git").args(["-C", crate::ROOT, "rev-parse", "HEAD:src"])),
            // Without the commit in parentheses.
            "rustc": rustc.as_deref().and_then(|rustc| rustc.split(" (").next()).unwrap_or("rustc"),
            "java": first_line(Command::new("java").arg("-version")).unwrap_or_else(|| "no Java".into()),
            "load_before": load(),
            "load_after": "",
        }))
    }

    /// The measurement is over.
    pub(crate) fn end(&mut self) {
        self.0["load_after"] = load().into();
    }

    pub(crate) fn get(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub(crate) fn cores(&self) -> String {
        self.0["cores"].to_string()
    }

    /// Returns the processor, the compiler, the commit and the date.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} cores of an {}, {}; commit {}, {}",
            self.cores(),
            self.get("cpu"),
            self.get("rustc"),
            self.get("commit"),
            self.get("date"),
        )
    }

    /// Returns the rest.
    pub(crate) fn details(&self) -> String {
        let [kernel, java, before, after] =
            ["kernel", "java", "load_before", "load_after"].map(|key| self.get(key));
        format!("{kernel}, {java}. Load average {before} at the beginning and {after} at the end")
    }
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    String::from_utf8_lossy(&text)
        .lines()
        .next()
        .map(str::to_owned)
}
