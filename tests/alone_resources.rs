//! The resources that a timer takes, and those that are left after `stop`: threads, descriptors,
//! mappings. Each test runs in a process of its own that did nothing else.
#![cfg(all(target_os = "linux", not(miri)))]

#[path = "it/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_link, read_to_string};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{io, ptr};

use common::{TEST_TIMEOUT, eventually, ms};
use hashed_wheel::HashedWheelTimer;

/// This many timeouts need several blocks of memory of two megabytes.
const TIMEOUTS: usize = 100_000;

/// Returns whether this process is the one in which the test `name` runs. Otherwise starts that
/// process, and checks that the test passes there. All threads of the harness there block
/// `SIGUSR1`.
#[track_caller]
#[allow(unsafe_code, reason = "`pre_exec` is unsafe")]
fn is_alone(name: &str) -> bool {
    const CHILD: &str = "HASHED_WHEEL_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    // glibc then returns all stacks and all large blocks immediately, and has one heap.
    let tunables = "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=65536";
    child
        .args([name, "--exact"])
        .env(CHILD, "1")
        .env("GLIBC_TUNABLES", tunables);
    // SAFETY: the closure calls `pthread_sigmask` alone, which a child process may call.
    let output = unsafe { child.pre_exec(|| mask_signal(libc::SIG_BLOCK)) }
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}, {text}",
        output.status
    );
    false
}

/// The numbers of the threads of this process.
fn threads() -> BTreeSet<String> {
    let tasks = read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| task.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The number of the calling thread.
fn this_thread() -> String {
    let link = read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().to_owned()
}

/// The descriptors of this process, and what they are open for.
fn descriptors() -> BTreeMap<String, String> {
    let open = read_dir("/proc/self/fd")
        .unwrap()
        .map(|open| open.unwrap().path());
    // The descriptor by which they are read is closed by now.
    let open = open.filter_map(|open| Some((open.clone(), read_link(open).ok()?)));
    open.map(|(open, file)| (open.display().to_string(), file.display().to_string()))
        .collect()
}

/// The bytes that are mapped, by their permissions and their file. Without the heap and the stack
/// of the main thread, which the C library and the kernel do not return.
fn mappings() -> BTreeMap<String, u64> {
    let mut mapped = BTreeMap::new();
    for line in read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let name = fields.get(5).copied().unwrap_or("anonymous");
        if !["[heap]", "[stack]"].contains(&name) {
            *mapped.entry(format!("{} {name}", fields[1])).or_default() += end - start;
        }
    }
    mapped
}

#[test]
fn a_timer_has_one_thread_and_leaves_nothing_after_stop() {
    if !is_alone("a_timer_has_one_thread_and_leaves_nothing_after_stop") {
        return;
    }
    // The first use of the clock, of a channel and of these functions takes memory too.
    let (sender, receiver) = channel();
    _ = (threads(), this_thread(), descriptors(), mappings());
    let before = (threads(), descriptors(), mappings());

    let [started, stopped] = [(); 2].map(|()| {
        let sender = sender.clone();
        move || sender.send((this_thread(), threads())).unwrap()
    });
    let builder = HashedWheelTimer::builder().tick(ms(1));
    let timer = builder
        .on_thread_start(started)
        .on_thread_stop(stopped)
        .build()
        .unwrap();
    assert_eq!(
        (threads(), descriptors()),
        (before.0.clone(), before.1.clone()),
        "the thread is lazy"
    );
    timer.start().unwrap();
    let (worker, at_start) = receiver.recv_timeout(TEST_TIMEOUT).unwrap();
    let with_worker = &before.0 | &BTreeSet::from([worker.clone()]);
    assert_eq!(at_start, with_worker, "before any hook runs");
    assert_eq!(threads(), with_worker);

    let mut timeouts: Vec<_> = (0..TIMEOUTS)
        .map(|_| {
            timer
                .new_timeout(|_| (), Duration::from_secs(3_600))
                .unwrap()
        })
        .collect();
    let fired = sender.clone();
    timer
        .new_timeout(
            move |_| fired.send((this_thread(), threads())).unwrap(),
            ms(1),
        )
        .unwrap();
    assert_eq!(
        receiver.recv_timeout(TEST_TIMEOUT).unwrap(),
        (worker.clone(), with_worker.clone())
    );
    assert!(
        timeouts
            .drain(TIMEOUTS / 2..)
            .all(|timeout| timeout.cancel())
    );
    assert!(timeouts[0].reset(Duration::from_secs(60)));
    assert_eq!(
        (threads(), descriptors()),
        (with_worker.clone(), before.1.clone())
    );
    assert_eq!(timer.stop().len(), TIMEOUTS / 2);

    assert_eq!(
        receiver.try_recv().unwrap(),
        (worker, with_worker.clone()),
        "after all else"
    );
    // The kernel may list a thread for a moment after it was joined.
    assert!(threads().is_subset(&with_worker));
    eventually("the worker has ended", || threads() == before.0);
    assert_eq!(descriptors(), before.1);
    drop((timeouts, timer));
    // (Of other C libraries it is not known which mappings they keep.)
    if cfg!(target_env = "gnu") {
        assert_eq!(mappings(), before.2);
    }
}

// --- signals -------------------------------------------------------------------------------------

/// Returns the set of `SIGUSR1`.
#[allow(unsafe_code, reason = "signals are unsafe")]
fn signal() -> libc::sigset_t {
    // SAFETY: a set of zeros is valid, and the pointer to it too.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGUSR1);
        signals
    }
}

/// Blocks `SIGUSR1` on the calling thread, or ends that: `how` says which.
#[allow(unsafe_code, reason = "signals are unsafe")]
fn mask_signal(how: libc::c_int) -> io::Result<()> {
    let signal = signal();
    // SAFETY: the pointer to the set is valid, and the old set is not asked for.
    match unsafe { libc::pthread_sigmask(how, &raw const signal, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A signal to the process goes to any thread that does not block it.
#[test]
#[allow(unsafe_code, reason = "signals are unsafe")]
fn a_signal_that_the_worker_and_all_others_block_ends_nothing() {
    if !is_alone("a_signal_that_the_worker_and_all_others_block_ends_nothing") {
        return;
    }
    // The worker begins with the mask of this thread.
    mask_signal(libc::SIG_UNBLOCK).unwrap();
    let (sender, receiver) = channel();
    let hook = move || {
        mask_signal(libc::SIG_BLOCK).unwrap();
        sender.send(()).unwrap();
    };
    let timer = HashedWheelTimer::builder()
        .on_thread_start(hook)
        .build()
        .unwrap();
    timer.start().unwrap();
    mask_signal(libc::SIG_BLOCK).unwrap();
    receiver.recv_timeout(TEST_TIMEOUT).unwrap();
    let (signals, mut received) = (signal(), 0);
    // SAFETY: `getpid` and `kill` take numbers. Both pointers are valid.
    unsafe {
        assert_eq!(libc::kill(libc::getpid(), libc::SIGUSR1), 0);
        assert_eq!(libc::sigwait(&raw const signals, &raw mut received), 0);
    }
    assert_eq!(received, libc::SIGUSR1);
    assert!(timer.stop().is_empty());
}
