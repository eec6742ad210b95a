//! A page in a browser: nodes, jobs, runs, lateness and failures.

mod actions;
mod app;
mod database;
mod gate;
mod guard;
mod html;
mod jobs;
mod layout;
mod limits;
mod login;
mod overview;
mod problem;
mod runs;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Router, serve};
use clap::Args;
use hashed_wheel_job_scheduler::Jobs;
use tokio::net::TcpListener;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use self::app::{App, Fields, Shared, number};
use self::database::Database;
use self::guard::{Guard, MIN_TOKEN};
use self::problem::Problem;
use crate::Failure;

/// How long requests may continue after a signal to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);

/// The forms here have some hundred bytes, and a filter in them some thousand.
const MAX_BODY: usize = 16 << 10;

/// The form of a bulk change also has the numbers of the runs: 10 000, each with at most 19 digits.
const MAX_BULK_BODY: usize = MAX_BODY + (200 << 10);

/// The options of the page.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The address and the port. Others than loopback need a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Allow to pause, resume, run and delete jobs, to cancel, retry and delete runs, and to set
    /// limits. Without this option the page is read-only
    #[arg(long)]
    allow_changes: bool,

    /// A token of at least 16 characters that users must enter. Better set by the environment,
    /// because other users of the machine see the options of programs
    #[arg(
        long,
        value_name = "TOKEN",
        env = "JOB_SCHEDULER_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
}

/// Serves the page until a signal ends the program.
pub(crate) async fn run(
    jobs: Jobs,
    schema: &str,
    config: Config,
    options: Options,
) -> Result<(), Failure> {
    let Options {
        listen,
        allow_changes,
        token,
    } = options;
    check(listen, token.as_deref())?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen at {listen}: {error}"))?;
    let address = listener.local_addr()?;
    let guard = Guard::new(token, allow_changes, address.port())?;
    let mode = if allow_changes {
        "changes are allowed"
    } else {
        "read-only"
    };
    let place = place(&config, schema);
    let app = Arc::new(App {
        jobs,
        database: Database::new(config)?,
        guard,
        place,
    });
    // Not `println`: who has started the program need not read what it prints.
    let _ = writeln!(io::stdout(), "listening at http://{address} ({mode})");

    let (ended, end) = tokio::sync::oneshot::channel();
    let server = serve(
        listener,
        router(app).into_make_service_with_connect_info::<SocketAddr>(),
    )
    .with_graceful_shutdown(async {
        signal().await;
        let _ = ended.send(());
    });
    tokio::select! {
        result = server.into_future() => Ok(result?),
        // A browser may keep a connection open.
        () = async { let _ = end.await; tokio::time::sleep(SHUTDOWN_LIMIT).await } => Ok(()),
    }
}

fn check(listen: SocketAddr, token: Option<&str>) -> Result<(), String> {
    match token {
        Some(token) if token.chars().count() < MIN_TOKEN => Err(format!(
            "the token has {} characters: must be at least {MIN_TOKEN}",
            token.chars().count()
        )),
        Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("the token must have only visible ASCII characters, without spaces".into())
        }
        None if !listen.ip().is_loopback() => Err(format!(
            "{listen} is not a loopback address: everybody in the network could see the jobs. \
             Set --token or JOB_SCHEDULER_TOKEN, or listen at 127.0.0.1"
        )),
        _ => Ok(()),
    }
}

/// Returns the schema, the database and all hosts of which one is used, without user and password.
fn place(config: &Config, schema: &str) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(host) => host.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let mut hosts: Vec<_> = hosts.collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    let database = config
        .get_dbname()
        .or(config.get_user())
        .unwrap_or_default();
    format!("{schema} · {database} · {}", hosts.join(", "))
}

fn router(app: Shared) -> Router {
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", get(|State(app): State<Shared>| async move { app.show(overview::page(&app)).await }))
        .route(
            "/jobs",
            get(|State(app): State<Shared>, Query(query): Fields| async move {
                app.show(jobs::all(&app, &query)).await
            }),
        )
        .route(
            "/jobs/{job}",
            get(|State(app): State<Shared>, Path(job): Path<String>, Query(query): Fields| async move {
                app.show(async { jobs::one(&app, number(&job)?, &query).await }).await
            }),
        )
        .route("/{kind}/{id}/{action}", post(actions::act))
        .route("/find", get(find))
        .route(
            "/runs/{run}",
            get(|State(app): State<Shared>, Path(run): Path<String>, Query(query): Fields| async move {
                app.show(async { runs::one(&app, number(&run)?, &query).await }).await
            }),
        )
        .route(
            "/runs",
            get(|State(app): State<Shared>, Query(query): Fields| async move {
                app.show(runs::all(&app, &query)).await
            })
            .post(actions::act_on_all)
            .layer(DefaultBodyLimit::max(MAX_BULK_BODY)),
        )
        .route(
            "/limits",
            get(|State(app): State<Shared>, Query(query): Fields| async move {
                app.show(limits::page(&app, &query)).await
            })
            .post(limits::set),
        )
        .route("/login", post(login::log_in).get(|| async { Redirect::to("/") }))
        .route("/logout", post(login::log_out))
        .route("/style.css", asset("text/css; charset=utf-8", include_str!("style.css")))
        .route("/script.js", asset("text/javascript; charset=utf-8", include_str!("script.js")))
        .route("/icon.svg", asset("image/svg+xml", include_str!("icon.svg")))
        .fallback(|State(app): State<Shared>| async move {
            app.problem(&Problem::not_found("There is no such page."))
        })
        .method_not_allowed_fallback(|State(app): State<Shared>| async move {
            app.problem(&Problem::wrong_method())
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), gate::check))
        .with_state(app)
}

async fn find(State(app): State<Shared>, Query(query): Fields) -> Response {
    match app.limited(jobs::find(&app, &query)).await {
        Ok(job) => Redirect::to(&format!("/jobs/{job}")).into_response(),
        Err(problem) => app.no_page(&problem),
    }
}

/// Waits for a signal to end. As the first process of a container, the program would ignore signals
/// that it does not handle.
async fn signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        };
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_addresses_than_loopback_need_a_token() {
        let check = |listen: &str, token| check(listen.parse().unwrap(), token);
        let token = Some("0123456789abcdef");
        for (listen, token) in [
            ("127.0.0.1:1", None),
            ("[::1]:1", None),
            ("0.0.0.0:1", token),
            ("[::]:1", token),
        ] {
            assert_eq!(check(listen, token), Ok(()));
        }
        for listen in ["0.0.0.0:1", "[::]:1", "10.1.2.3:1"] {
            assert!(
                check(listen, None)
                    .unwrap_err()
                    .contains("is not a loopback address")
            );
        }
        assert!(
            check("127.0.0.1:1", Some("short"))
                .unwrap_err()
                .contains("has 5 characters")
        );
        assert!(
            check("127.0.0.1:1", Some("0123456789 abcdef"))
                .unwrap_err()
                .contains("visible")
        );
    }

    #[test]
    fn place_has_no_password() {
        let config: Config = "postgresql://user:secret@db.example/shop".parse().unwrap();
        assert_eq!(place(&config, "jobs"), "jobs · shop · db.example");
    }

    #[test]
    fn place_has_all_hosts() {
        for (config, expected) in [
            ("host=one,/two dbname=shop", "one, /two"),
            (
                "hostaddr=10.0.0.1,10.0.0.2 dbname=shop",
                "10.0.0.1, 10.0.0.2",
            ),
            ("host=one hostaddr=10.0.0.1 dbname=shop", "one"),
        ] {
            let place = place(&config.parse().unwrap(), "jobs");
            assert_eq!(place, format!("jobs · shop · {expected}"));
        }
    }
}
