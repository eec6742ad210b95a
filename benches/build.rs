//! Passes the compiler version, the target and the compiler flags to the `instructions` benchmark.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| env::var(name).unwrap_or_default();
    let rustc = Command::new(variable("RUSTC"))
        .arg("--version")
        .output()
        .expect("cargo sets RUSTC to a rustc");
    let rustc = String::from_utf8_lossy(&rustc.stdout);
    let flags = variable("CARGO_ENCODED_RUSTFLAGS").replace('\x1f', " ");
    let compiler = format!("{}, {} {flags}", rustc.trim(), variable("TARGET"));
    println!("cargo::rustc-env=COMPILER={}", compiler.trim());
}
