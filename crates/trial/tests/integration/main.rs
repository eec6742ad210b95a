//! Tests of the harness. They are one program, because most of them wait.

#[cfg(target_os = "linux")]
mod process;
#[cfg(unix)]
mod server;
