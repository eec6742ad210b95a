//! The process of a scheduler: its main function, and its start by the trial.

use std::io::{self, Read};
use std::panic;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use std::{env, process, thread};

use fastrand::Rng;
use hashed_wheel_examples::process::Process;
use hashed_wheel_examples::top::Top;
use postgres::{Client, Config, NoTls, Statement};

use crate::scheduler::{self, Error, Settings};
use crate::store::Run;

/// The number of tasks that a scheduler runs at a time.
pub(crate) const THREADS: usize = 4;

/// The maximum duration of a slow task in milliseconds.
const SLOW: u64 = 300;

/// Set when the standard input has ended, because the parent has closed it or has ended.
static STOP: AtomicBool = AtomicBool::new(false);

/// The main function of the process. It starts a new scheduler after a loss of the lease or an
/// error.
pub(crate) fn main(config: &Config, settings: &Settings, top: &Top) -> ExitCode {
    let timeout = settings.lead + settings.lease * 10;
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Relaxed);
        thread::sleep(timeout);
        eprintln!("a scheduler cannot finish its runs and ends");
        process::exit(1);
    });
    while !STOP.load(Relaxed) {
        let tasks = (0..THREADS).map(|_| Task::new(config)).collect::<Result<Vec<_>, _>>();
        let tasks: Vec<_> = match tasks {
            Ok(tasks) => tasks.into_iter().map(|mut task| move |run: &Run| task.run(run)).collect(),
            Err(error) => {
                give_time(&error.into());
                continue;
            }
        };
        let timer = scheduler::timer();
        top.watch_one_of_several("runs", &timer);
        let ended = scheduler::run(config, settings, &timer, tasks, &STOP);
        // Stops the timer if `run` failed before it stopped it.
        timer.stop();
        match ended {
            Ok(()) => return ExitCode::SUCCESS,
            // The trial has stopped this process for longer than its lease.
            Err(Error::LeaseLost) => {}
            Err(error) => give_time(&error),
        }
    }
    ExitCode::SUCCESS
}

fn give_time(error: &Error) {
    if !STOP.load(Relaxed) {
        eprintln!("a scheduler is restarted: {error}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// The task of all jobs. Each run inserts a row into a table that the schedulers do not use, in its
/// own transaction.
struct Task {
    client: Client,
    insert: Statement,
    random: Rng,
}

impl Task {
    fn new(config: &Config) -> Result<Self, postgres::Error> {
        let mut client = config.connect(NoTls)?;
        let insert = client.prepare("INSERT INTO effect (job, due, attempt) VALUES ($1, $2, $3)")?;
        Ok(Self { client, insert, random: Rng::new() })
    }

    fn run(&mut self, run: &Run) -> Result<String, String> {
        if run.task == "slow" {
            thread::sleep(Duration::from_millis(self.random.u64(..SLOW)));
        }
        let inserted = self.client.execute(&self.insert, &[&run.job, &run.due, &run.attempt]);
        inserted.map_err(|error| error.to_string())?;
        match run.task.as_str() {
            // Contains a character that PostgreSQL's text type does not support.
            "fail" => Err("intentional\0".into()),
            // A panic without a message on the terminal.
            "panic" => panic::resume_unwind(Box::new(())),
            _ => Ok("did it".into()),
        }
    }
}

/// Starts this program again as a scheduler, with the same options and some more. The process ends
/// by itself when the trial ends.
pub(crate) fn start(more: &[String]) -> io::Result<Process> {
    let mut command = Command::new(env::current_exe()?);
    Process::start(
        command.args(env::args_os().skip(1)).args(more).stdin(Stdio::piped()).stdout(Stdio::null()),
    )
}
