//! A headless browser, by the protocol `WebDriver`: JSON over HTTP, to the program `chromedriver`.

use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

use hashed_wheel_trial::process::Process;
use hashed_wheel_trial::server::{Missing, find};
use hashed_wheel_trial::testing::server_or_skip;
use serde_json::{Value, json};

use crate::fixture::{eventually, exchange};

/// The member of an object that contains the number of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser. It ends when this value is dropped.
pub(crate) struct Browser {
    address: String,
    session: String,
    _driver: Process,
}

impl Browser {
    /// `None`: there is no browser, or no driver for it. Then it prints how to install them.
    pub(crate) fn start() -> Option<Self> {
        server_or_skip(Self::try_start())
    }

    fn try_start() -> Result<Self, Box<dyn Error>> {
        let missing = |program| Missing {
            program,
            package: "chromium-driver",
            instead: "put the driver of another Chrome into the search path",
        };
        let program = find("chromedriver", []).ok_or_else(|| missing("chromedriver"))?;
        let mut command = Command::new(program);
        command
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut driver = Process::start(&mut command)?;
        let mut output = BufReader::new(driver.stdout.take().expect("it was piped"));
        let port = loop {
            let mut line = String::new();
            if output.read_line(&mut line).unwrap_or(0) == 0 {
                return Err("chromedriver does not start".into());
            }
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim().trim_end_matches('.').to_owned();
            }
        };
        // It would end when it cannot write.
        std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        let mut browser = Self {
            address: format!("127.0.0.1:{port}"),
            session: String::new(),
            _driver: driver,
        };
        // Without a sandbox, because tests may run as root in a container.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,1000",
        ];
        let options = json!({ "args": arguments });
        let wanted =
            json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let reply = browser.send(
            "POST",
            "",
            &json!({ "capabilities": { "alwaysMatch": wanted } }),
        );
        match (reply["sessionId"].as_str(), reply["message"].as_str()) {
            (Some(session), _) => session.clone_into(&mut browser.session),
            (None, Some(why)) if why.contains("cannot find") => {
                return Err(missing("a browser for chromedriver").into());
            }
            _ => panic!("{reply}"),
        }
        Ok(browser)
    }

    fn send(&self, method: &str, command: &str, body: &Value) -> Value {
        let path = if self.session.is_empty() {
            String::new()
        } else {
            format!("/{}{command}", self.session)
        };
        let body = if method == "POST" {
            body.to_string()
        } else {
            String::new()
        };
        let head = format!(
            "{method} /session{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.address
        );
        let length = body.len();
        let reply = exchange(
            &self.address,
            &format!(
                "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            ),
        );
        serde_json::from_str::<Value>(&reply.body).unwrap_or_else(|_| panic!("{reply:?}"))["value"]
            .take()
    }

    /// Sends a command that must succeed.
    fn command(&self, command: &str, body: &Value) -> Value {
        let value = self.send("POST", command, body);
        assert!(value.get("error").is_none(), "{command} {body}: {value}");
        value
    }

    /// Loads a page.
    pub(crate) fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Returns the value of a script, which ends with `return`.
    pub(crate) fn script(&self, text: &str) -> Value {
        let value = self.execute(text);
        assert!(value.get("error").is_none(), "{text}: {value}");
        value
    }

    /// Returns the value of a script, or an error.
    fn execute(&self, text: &str) -> Value {
        self.send(
            "POST",
            "/execute/sync",
            &json!({ "script": text, "args": [] }),
        )
    }

    /// Returns the visible text of the page.
    pub(crate) fn text(&self) -> String {
        self.script("return document.body.innerText")
            .as_str()
            .expect("a text")
            .to_owned()
    }

    /// Clicks on an element that leads to another document. Returns its text as soon as it is
    /// loaded: the next refresh removes the notice of an action.
    pub(crate) fn follow(&self, path: &str) -> String {
        const NEXT_TEXT: &str = "return !window.isLeft && document.readyState === 'complete' && document.body.innerText";
        self.script("window.isLeft = true; return 0");
        self.click(path);
        let mut text = Value::Null;
        let has_text = || {
            // The script of a document that is being replaced may fail.
            text = self.execute(NEXT_TEXT);
            text.is_string()
        };
        eventually(has_text, &format!("{path} leads to a document"));
        text.as_str().expect("a text").to_owned()
    }

    /// Clicks, as a user does, on the first element that this `XPath` finds.
    pub(crate) fn click(&self, path: &str) {
        self.element(path, "click", &json!({}));
    }

    /// Types a text into the first element that this `XPath` finds.
    pub(crate) fn type_into(&self, path: &str, text: &str) {
        self.element(path, "value", &json!({ "text": text }));
    }

    /// A refresh may replace the element after it was found. Then it is looked for again.
    fn element(&self, path: &str, command: &str, body: &Value) {
        loop {
            let element = self.command("/element", &json!({ "using": "xpath", "value": path }));
            let element = element[ELEMENT].as_str().expect("the number of an element");
            let value = self.send("POST", &format!("/element/{element}/{command}"), body);
            match value["error"].as_str() {
                Some("stale element reference") => {}
                Some(_) => panic!("{command} {path}: {value}"),
                None => return,
            }
        }
    }

    /// Sets whether the user prefers a dark page.
    pub(crate) fn prefer(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        let parameters = json!({ "features": [feature] });
        self.command(
            "/goog/cdp/execute",
            &json!({ "cmd": "Emulation.setEmulatedMedia", "params": parameters }),
        );
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.command("/window/rect", &json!({ "width": width, "height": height }));
    }

    /// Returns the messages of the console since the last call: errors of scripts, and what the
    /// policy of the page has blocked.
    pub(crate) fn messages(&self) -> Vec<Value> {
        self.command("/se/log", &json!({ "type": "browser" }))
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}

impl Drop for Browser {
    /// The driver does not end the browser when it is killed.
    fn drop(&mut self) {
        if !self.session.is_empty() {
            self.send("DELETE", "", &Value::Null);
        }
    }
}
