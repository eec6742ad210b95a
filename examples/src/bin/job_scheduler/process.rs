//! A scheduler's process, from inside and from outside.

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

/// How many tasks a scheduler does at a time.
pub(crate) const THREADS: usize = 4;

/// How long a slow task takes at most, in milliseconds.
const SLOW: u64 = 300;

/// Set once nobody holds the other end of the standard input any more.
static STOP: AtomicBool = AtomicBool::new(false);

/// The whole life of such a process. One scheduler after the other, if need be.
pub(crate) fn main(config: &Config, settings: &Settings, top: &Top) -> ExitCode {
    let patience = settings.lead + settings.lease * 10;
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Relaxed);
        thread::sleep(patience);
        eprintln!("a scheduler cannot leave, and ends");
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
        // Where it did not come so far.
        timer.stop();
        match ended {
            Ok(()) => return ExitCode::SUCCESS,
            // That it was stopped for so long is the trial's doing.
            Err(Error::LeaseLost) => {}
            Err(error) => give_time(&error),
        }
    }
    ExitCode::SUCCESS
}

fn give_time(error: &Error) {
    if !STOP.load(Relaxed) {
        eprintln!("a scheduler begins anew: {error}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// What jobs do here: each run leaves a row in a table that the schedulers know nothing of, by a transaction of its own.
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
            // With what PostgreSQL's text does not take.
            "fail" => Err("as it should\0".into()),
            // A panic that says nothing on the terminal.
            "panic" => panic::resume_unwind(Box::new(())),
            _ => Ok("did it".into()),
        }
    }
}

/// Such a process, seen from the trial's: this program again, with the same options and some more. It ends by itself when the
/// trial does.
pub(crate) fn start(more: &[String]) -> io::Result<Process> {
    let mut command = Command::new(env::current_exe()?);
    Process::start(
        command.args(env::args_os().skip(1)).args(more).stdin(Stdio::piped()).stdout(Stdio::null()),
    )
}
