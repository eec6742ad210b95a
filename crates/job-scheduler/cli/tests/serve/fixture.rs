//! A schema of its own for each test, the program that serves it, and an HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel_job_scheduler::{Context, Jobs, NewJob, RunError, Scheduler};
use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::testing::server_or_skip;
use job_scheduler_trial::Database;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls};

/// Far more than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Long enough, and of no value.
pub(crate) const TOKEN: &str = "token-of-this-test";

/// A schema with a node and a connection.
pub(crate) struct Fixture {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) jobs: Jobs,
    pub(crate) client: Client,
    runtime: Runtime,
    node: Option<Scheduler>,
}

impl Fixture {
    /// `None`: there is no server. Then it prints how to install it.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let schema = format!("page_{}", COUNT.fetch_add(1, Relaxed));
        Some(Self::at(url()?, schema))
    }

    /// Starts a node with the handler `work`. Its payload says what it does.
    pub(crate) fn at(url: String, schema: String) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let config: Config = url.parse().unwrap();
        let node = Scheduler::builder()
            .schema(&schema)
            .name("first <node>")
            .lease(TIMEOUT);
        let node = node.heartbeat(Duration::from_millis(300));
        let node = node
            .handler_named("work", work)
            .start(config.clone(), NoTls);
        let node = runtime.block_on(node).unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self {
            url,
            jobs: Jobs::new(&schema).unwrap(),
            schema,
            client,
            runtime,
            node: Some(node),
        }
    }

    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn enqueue(&self, job: NewJob) -> i64 {
        self.wait(self.jobs.enqueue(&self.client, job)).unwrap().job
    }

    /// Executes statements in which `@` stands for the schema.
    pub(crate) fn execute(&self, statements: &str) {
        let statements = statements.replace('@', &format!("{}.", self.schema));
        self.wait(self.client.batch_execute(&statements)).unwrap();
    }

    /// Serves this schema.
    pub(crate) fn serve(&self, options: &[&str]) -> Page {
        Page::start(
            &self.url,
            &[&["--schema", &self.schema, "serve"], options].concat(),
        )
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            let _ = self.runtime.block_on(node.shutdown(Duration::ZERO));
        }
    }
}

/// Returns a job that does this: fails with an error, sleeps for seconds, or returns the payload.
pub(crate) fn job(payload: Value) -> NewJob {
    NewJob::named("work", payload)
}

async fn work(_: Context, payload: Value) -> Result<Value, RunError> {
    if let Some(error) = payload.get("error").and_then(Value::as_str) {
        return Err(RunError::permanent(error.to_owned()));
    }
    let seconds = payload.get("sleep").and_then(Value::as_u64).unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    Ok(json!({ "echo": payload }))
}

/// The program that serves a page.
pub(crate) struct Page {
    pub(crate) address: String,
    /// Whether changes are allowed, as it has printed it.
    pub(crate) mode: String,
    process: Process,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The lines of the header, in lower case up to the colon.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn start(url: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        command
            .args(["--url", url])
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"]);
        let mut process = Process::start(command.stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let printed = line
            .trim()
            .strip_prefix("listening at http://")
            .and_then(|line| line.split_once(' '));
        let (address, mode) = printed.unwrap_or_else(|| panic!("{line}"));
        Self {
            address: address.into(),
            mode: mode.into(),
            process,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], "")
    }

    /// Sends a form, as a browser does from a page of this program.
    pub(crate) fn post(&self, path: &str, form: &str) -> Reply {
        self.request("POST", path, &[("Sec-Fetch-Site", "same-origin")], form)
    }

    /// Sends a request with `Host`, unless the headers have another one.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.address);
        }
        headers
            .iter()
            .for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        if method == "POST" {
            let length = body.len();
            text += &format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n"
            );
        }
        exchange(&self.address, &format!("{text}\r\n{body}"))
    }

    /// Returns the hidden value of the forms of a page.
    pub(crate) fn form(&self, path: &str) -> String {
        let Reply { body, .. } = self.get(path);
        let (_, rest) = body
            .split_once("name=\"form\" value=\"")
            .unwrap_or_else(|| panic!("{body}"));
        format!("form={}", rest.split_once('"').unwrap().0)
    }

    /// Returns the most memory that the program has used, in MiB. `None`: the system does not tell.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? >> 10)
    }

    /// Returns the form of the question on a page, as a browser sends it.
    pub(crate) fn question(&self, path: &str) -> String {
        let Reply { body, .. } = self.get(path);
        let (_, form) = body
            .split_once("<form class=\"question\"")
            .unwrap_or_else(|| panic!("{body}"));
        let (form, _) = form.split_once("</form>").unwrap();
        let fields = form.split("<input type=\"hidden\" name=\"").skip(1);
        let fields = fields.map(|field| {
            let (name, value) = field.split_once("\" value=\"").unwrap();
            let (value, _) = value.split_once('"').unwrap();
            format!("{name}={}", value.replace(' ', "+"))
        });
        fields.collect::<Vec<_>>().join("&")
    }

    /// Waits until a page contains these texts.
    pub(crate) fn until(&self, path: &str, texts: &[&str]) -> String {
        let mut shown = String::new();
        eventually(
            || {
                shown = self.get(path).body;
                texts.iter().all(|text| shown.contains(text))
            },
            &format!("{path} shows {texts:?}"),
        );
        shown
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value)
    }
}

/// Sends a request and reads the response. (`chromedriver` does not close the connection.)
pub(crate) fn exchange(address: &str, request: &str) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "{lines:?}");
        if line.trim().is_empty() {
            break;
        }
        lines.push(line);
    }
    let status = lines[0]
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap();
    let headers = lines[1..]
        .iter()
        .filter_map(|line| line.trim().split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    let mut reply = Reply {
        status,
        headers: headers.collect(),
        body: String::new(),
    };
    let mut body = vec![0; reply.header("content-length").parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    reply.body = String::from_utf8(body).unwrap();
    reply
}

/// Waits until this holds.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool, what: &str) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT, "this takes too long: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The server is not dropped. It ends with this process.
fn url() -> Option<String> {
    static SERVER: OnceLock<Option<Mutex<Database>>> = OnceLock::new();
    let server = SERVER.get_or_init(|| server_or_skip(Database::start()).map(Mutex::new));
    let server = server
        .as_ref()?
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Some(server.url.clone())
}
