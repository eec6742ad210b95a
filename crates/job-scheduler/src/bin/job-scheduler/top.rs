//! The live view: text for a terminal, or for anything else.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{ActiveRun, Jobs, NodeLoad, Overview, RunState};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Stylize};
use ratatui::text::{Line, Text};
use tokio_postgres::Client;

use crate::Failure;
use crate::text::escaped;
use crate::time::{Rounded, time_between};

/// The maximum time without a look at the keys.
const KEY_INTERVAL: Duration = Duration::from_millis(100);

/// The length of the lists without a terminal.
const ROWS: u16 = 50;

/// Shows the view until the user quits. Prints it once if standard output is no terminal.
pub(crate) async fn show(
    jobs: &Jobs,
    client: &Client,
    once: bool,
    interval: Duration,
) -> Result<(), Failure> {
    if once || !io::stdout().is_terminal() {
        let overview = jobs.overview(client, ROWS.into()).await?;
        return print(&view(&overview, ROWS.into()));
    }
    let is_terminated = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, is_terminated.clone())?;
    }
    // Also restores the terminal if this function panics.
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, jobs, client, interval, &is_terminated).await;
    ratatui::try_restore()?;
    result
}

async fn live(
    terminal: &mut DefaultTerminal,
    jobs: &Jobs,
    client: &Client,
    interval: Duration,
    is_terminated: &AtomicBool,
) -> Result<(), Failure> {
    loop {
        let overview = jobs
            .overview(client, terminal.size()?.height.into())
            .await?;
        terminal.draw(|frame| {
            let area = frame.area();
            frame.render_widget(view(&overview, area.height.into()), area);
        })?;
        if wants_to_quit(interval, is_terminated)? {
            return Ok(());
        }
    }
}

fn print(text: &Text<'_>) -> Result<(), Failure> {
    match io::stdout().write_all(format!("{text}\n").as_bytes()) {
        // The reader has closed it, for example `head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Waits for a key, at most for the interval.
fn wants_to_quit(interval: Duration, is_terminated: &AtomicBool) -> io::Result<bool> {
    let begin = Instant::now();
    loop {
        let left = interval.saturating_sub(begin.elapsed());
        if is_terminated.load(Relaxed) {
            return Ok(true);
        }
        if event::poll(left.min(KEY_INTERVAL))? {
            match event::read()? {
                Event::Key(key) if quits(key) => return Ok(true),
                Event::Resize(..) => return Ok(false),
                _ => {}
            }
        } else if left.is_zero() {
            return Ok(false);
        }
    }
}

fn quits(
    KeyEvent {
        code,
        modifiers,
        kind,
        ..
    }: KeyEvent,
) -> bool {
    let is_quit = match code {
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        code => matches!(code, KeyCode::Char('q') | KeyCode::Esc),
    };
    is_quit && kind == KeyEventKind::Press
}

/// Returns the view in at most this many rows.
fn view(overview: &Overview, rows: usize) -> Text<'static> {
    let mut lines = summary(overview);
    // The rest is shared by the two lists, each with a title and an empty line.
    let list = (rows.saturating_sub(lines.len() + 4) / 2).max(1);
    lines.push(Line::default());
    lines.push(
        "RUNNING   JOB     RUN       NODE   FOR          HANDLER"
            .bold()
            .into(),
    );
    lines.extend(
        overview
            .running
            .iter()
            .take(list)
            .map(|run| running(overview, run)),
    );
    lines.push(Line::default());
    lines.push(
        "NEXT      JOB     STATE     NODE   IN           HANDLER"
            .bold()
            .into(),
    );
    lines.extend(
        overview
            .next
            .iter()
            .take(list)
            .map(|run| next(overview, run)),
    );
    Text::from(lines)
}

fn summary(overview: &Overview) -> Vec<Line<'static>> {
    let Overview {
        waiting,
        blocked,
        done,
        failed,
        omitted,
        ..
    } = overview;
    let running: u64 = overview.nodes.iter().map(|load| load.running).sum();
    let claimed: u64 = overview.nodes.iter().map(|load| load.claimed).sum();
    let [p50, p99, max] = overview.lateness.map(Rounded);
    let jobs = overview.jobs;
    let or_more = if jobs >= 10_000 { " or more" } else { "" };
    let mut lines = vec![
        format!("job-scheduler top  {:.0}  q: quit", overview.now)
            .bold()
            .into(),
        format!("jobs      {jobs}{or_more}").into(),
        format!(
            "runs      {running} running, {claimed} claimed, {waiting} waiting, {blocked} blocked"
        )
        .into(),
        format!("last 10s  {done} done, {failed} failed, {omitted} skipped or cancelled").into(),
        format!("lateness  p50 {p50}, p99 {p99}, max {max}").into(),
        Line::default(),
        "NODE   LEASE              RUNNING  CLAIMED  NAME"
            .bold()
            .into(),
    ];
    lines.extend(overview.nodes.iter().map(|load| node(overview, load)));
    lines
}

fn node(
    overview: &Overview,
    NodeLoad {
        node,
        claimed,
        running,
        ..
    }: &NodeLoad,
) -> Line<'static> {
    let lease = if node.is_alive {
        format!(
            "{} left",
            Rounded(time_between(overview.now, node.alive_until))
        )
    } else {
        format!(
            "lost {} ago",
            Rounded(time_between(node.alive_until, overview.now))
        )
    };
    let line = format!(
        "{:<6} {lease:18} {running:7}  {claimed:7}  {}",
        node.id,
        escaped(&node.name)
    );
    if node.is_alive {
        line.into()
    } else {
        line.fg(Color::LightRed).into()
    }
}

fn running(overview: &Overview, run: &ActiveRun) -> Line<'static> {
    let took = Rounded(run.started.map_or(Duration::ZERO, |started| {
        time_between(started, overview.now)
    }));
    let mark = if run.interrupted > 0 {
        format!(" (interrupted {})", run.interrupted)
    } else {
        String::new()
    };
    let number = run.run.unwrap_or(0);
    let start = format!(
        "{:>13}   {number:<9} {:<6} ",
        run.job,
        run.node.unwrap_or(0)
    );
    format!("{start}{took:<12} {}{mark}", escaped(&run.handler)).into()
}

fn next(overview: &Overview, run: &ActiveRun) -> Line<'static> {
    let ahead = run.start_at.duration_since(overview.now);
    let sign = if ahead.is_negative() { "-" } else { "" };
    let time = format!("{sign}{}", Rounded(ahead.unsigned_abs()));
    let state = run.state.map_or("not read", |state| match state {
        RunState::Claimed => "claimed",
        _ => "waiting",
    });
    let node = run.node.map_or_else(|| "-".into(), |node| node.to_string());
    let line = format!(
        "{:>13}   {state:9} {node:<6} {time:<12} {}",
        run.job,
        escaped(&run.handler)
    );
    // Later than the prefetch would explain.
    if ahead.as_secs_f64() < -1.0 {
        line.fg(Color::Yellow).into()
    } else {
        line.into()
    }
}
