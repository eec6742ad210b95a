//! A small disk, which the trial fills.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, thread};

/// The size of the disk. An empty cluster has about 40 MB, and a short trial adds as much.
const SIZE: &str = "160m";

/// A file system in memory, mounted on a folder. It is unmounted when this value is dropped.
///
/// Only this process and its children see it, because they have a mount namespace of their own, see
/// [`in_own_namespace`]. It ends with the last one of them. If this process is killed, an empty
/// folder remains.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

/// Starts this program again, with the same arguments, in a mount namespace of its own. Does
/// nothing if it is already there.
///
/// # Errors
///
/// Returns why that is not possible, for example because it needs root.
pub fn in_own_namespace() -> Result<(), String> {
    const MARK: &str = "JOB_SCHEDULER_TRIAL_NAMESPACE";
    if env::var_os(MARK).is_some() {
        return Ok(());
    }
    let enter = || {
        let mut unshare = Command::new("unshare");
        unshare.arg("--mount");
        unshare
    };
    // First without this program, which could not continue if that failed.
    let folder = env::temp_dir();
    let mut attempt = enter();
    attempt
        .args(["mount", "-t", "tmpfs", "tmpfs"])
        .arg(folder)
        .stdout(Stdio::null());
    let output = attempt
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let mut again = enter();
    Err(replace(
        again
            .arg(program)
            .args(env::args_os().skip(1))
            .env(MARK, ""),
    ))
}

/// Replaces this process. Returns why that failed.
#[cfg(unix)]
fn replace(command: &mut Command) -> String {
    use std::os::unix::process::CommandExt;

    command.exec().to_string()
}

#[cfg(not(unix))]
fn replace(_: &mut Command) -> String {
    "not on this platform".into()
}

/// Returns the options of a mount that give it the owner of a folder.
#[cfg(unix)]
fn owner(folder: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;

    let folder = fs::metadata(folder)?;
    Ok(format!("uid={},gid={}", folder.uid(), folder.gid()))
}

#[cfg(not(unix))]
fn owner(_: &Path) -> io::Result<String> {
    Err(io::Error::other("not on this platform"))
}

impl Disk {
    /// Mounts it on a new folder, with the owner of the parent folder.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created, or the disk cannot be mounted.
    pub fn mount(folder: &Path) -> io::Result<Self> {
        fs::create_dir(folder)?;
        let options = format!(
            "size={SIZE},mode=700,{}",
            owner(folder.parent().unwrap_or(folder))?
        );
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder);
        let status = mount.status()?;
        if !status.success() {
            return Err(io::Error::other(format!("mount: {status}")));
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Uses all space that is left, and again what others release, until `free` is dropped.
    ///
    /// # Errors
    ///
    /// If a write fails for another reason than a full disk.
    pub fn fill(&self) -> io::Result<Ballast> {
        let path = self.folder.join("ballast");
        let mut ballast = Ballast {
            file: File::create(&path)?,
            path,
        };
        ballast.fill()?;
        Ok(ballast)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: processes of the server may be about to end.
        let status = Command::new("umount")
            .arg("--lazy")
            .arg(&self.folder)
            .status();
        if !status.as_ref().is_ok_and(|status| status.success()) && !thread::panicking() {
            eprintln!("{} may still be mounted: {status:?}", self.folder.display());
        }
    }
}

/// A file that fills a disk. It is removed when this value is dropped.
#[derive(Debug)]
pub struct Ballast {
    file: File,
    path: PathBuf,
}

impl Ballast {
    /// Fills what others have released meanwhile.
    ///
    /// # Errors
    ///
    /// If a write fails for another reason than a full disk.
    pub fn fill(&mut self) -> io::Result<()> {
        for size in [1 << 20, 1 << 12] {
            let zeros = vec![0; size];
            loop {
                match self.file.write_all(&zeros) {
                    Ok(()) => {}
                    Err(error) if is_full(&error) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::WriteZero)
}

impl Drop for Ballast {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} may still exist: {error}", self.path.display());
        }
    }
}
