//! A wall clock of some processes that the trial sets forward and back.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that the processes preload. It is compiled when it is needed, by the compiler that
/// Rust uses as its linker.
const LIBRARY: &str = include_str!("clock.c");

/// An offset between the system's clock and what processes read, in whole seconds.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: PathBuf,
    file: File,
}

impl WallClock {
    /// Returns why it is not possible on this machine.
    ///
    /// # Errors
    ///
    /// If the platform is not Linux with the GNU C library, or there is no C compiler.
    pub fn is_possible() -> Result<(), String> {
        if !cfg!(all(target_os = "linux", target_env = "gnu")) {
            return Err("this is not Linux with the GNU C library".into());
        }
        let output = Command::new("cc").arg("--version").output();
        output
            .map(drop)
            .map_err(|error| format!("the compiler cc cannot be started: {error}"))
    }

    /// Compiles the library into this folder, which must be readable for the processes.
    ///
    /// # Errors
    ///
    /// If it cannot be compiled.
    pub fn new(folder: &Path, name: &str) -> Result<Self, Box<dyn Error>> {
        let [source, library, offset] =
            ["c", "so", "offset"].map(|end| folder.join(name).with_extension(end));
        fs::write(&source, LIBRARY)?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source);
        let output = compiler.output()?;
        if !output.status.success() {
            return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        fs::write(&offset, 0_i64.to_ne_bytes())?;
        let file = OpenOptions::new().write(true).open(&offset)?;
        Ok(Self {
            library,
            offset,
            file,
        })
    }

    /// The environment of a process that has this clock.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [
            ("LD_PRELOAD", &self.library),
            ("CLOCK_OFFSET", &self.offset),
        ]
    }

    /// Sets the clock. Processes that are running notice it at their next reading.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn set(&mut self, seconds: i64) -> io::Result<()> {
        use io::{Seek, SeekFrom};

        // In place: the processes have mapped the file.
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&seconds.to_ne_bytes())
    }
}
