//! The machine and its software.

use std::fs;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

/// The conditions of a measurement.
pub(crate) struct Environment {
    pub(crate) command: String,
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    kernel: String,
    rustc: String,
    java: String,
    load_before: String,
    pub(crate) load_after: String,
}

impl Environment {
    pub(crate) fn of_this_machine(command: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let rustc = first_line(Command::new("rustc").arg("--version"));
        Self {
            command: command.into(),
            cores: cores(),
            cpu: cpu.map_or(std::env::consts::ARCH, |(_, cpu)| cpu).into(),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            // Without the commit in parentheses.
            rustc: rustc.as_deref().and_then(|rustc| rustc.split(" (").next()).unwrap_or("rustc").into(),
            java: first_line(Command::new("java").arg("-version")).unwrap_or_else(|| "no Java".into()),
            load_before: load(),
            load_after: String::new(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { command, cores, cpu, kernel, rustc, java, load_before, load_after } = self;
        json!({
            "command": command, "cores": cores, "cpu": cpu, "kernel": kernel, "rustc": rustc, "java": java,
            "load_before": load_before, "load_after": load_after,
        })
    }

    pub(crate) fn from_json(json: &Value) -> Self {
        let text = |key| json[key].as_str().unwrap_or_default().to_owned();
        Self {
            command: text("command"),
            cores: json["cores"].as_u64().unwrap_or_default() as usize,
            cpu: text("cpu"),
            kernel: text("kernel"),
            rustc: text("rustc"),
            java: text("java"),
            load_before: text("load_before"),
            load_after: text("load_after"),
        }
    }

    /// Returns the processor and the compiler.
    pub(crate) fn text(&self) -> String {
        format!("{} cores of an {}, {}", self.cores, self.cpu, self.rustc)
    }

    /// Returns the rest.
    pub(crate) fn details(&self) -> String {
        let Self { kernel, java, load_before, load_after, .. } = self;
        format!("{kernel}, {java}. Load average {load_before} at the beginning and {load_after} at the end.")
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
}
