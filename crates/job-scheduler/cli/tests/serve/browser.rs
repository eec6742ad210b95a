//! The page in a headless browser: refreshes, buttons, the login, light and dark.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use hashed_wheel_job_scheduler::NewJob;
use serde_json::{Value, json};

use crate::fixture::{Fixture, TOKEN, eventually, job};
use crate::web_driver::Browser;

const LATER: Duration = Duration::from_secs(7_200);

/// Returns the texts whose colour has a contrast of less than 4.5 to their background, as WCAG 2
/// defines it for level AA.
const UNREADABLE: &str = "
    const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
    const channel = (value) => value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const luminance = ([red, green, blue]) =>
        0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    const background = (element) => {
        const color = rgb(getComputedStyle(element).backgroundColor);
        return color[3] === 0 && element.parentElement ? background(element.parentElement) : color;
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    let count = 0;
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        const [low, high] = [rgb(getComputedStyle(element).color), background(element)]
            .map(luminance).sort((left, right) => left - right);
        const contrast = (high + 0.05) / (low + 0.05);
        count += 1;
        if (contrast < 4.5) found.push(`${texts.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
    }
    return [count, found];";

/// Adds jobs in all states. Returns one that is running, and one that is scheduled.
fn fill(fixture: &Fixture) -> [i64; 2] {
    let running = fixture.enqueue(job(json!({ "sleep": 600 })));
    fixture.enqueue(job(
        json!({ "error": "</td><script>window.hacked = 1</script>" }),
    ));
    fixture.enqueue(job(Value::Null).every(Duration::from_millis(500)));
    let paused = fixture.enqueue(NewJob::named("<b>report", Value::Null).after(LATER));
    let disabled = fixture.enqueue(NewJob::named("<b>report", Value::Null).after(LATER));
    fixture.execute(&format!(
        "UPDATE @job SET enabled = false WHERE id IN ({paused}, {disabled});
        UPDATE @job SET disabled_reason = 'why' WHERE id = {disabled}"
    ));
    [
        running,
        fixture.enqueue(
            job(json!({ "number": 7 }))
                .cron("0 30 3 * * *")
                .key("nightly"),
        ),
    ]
}

/// Answers requests as a proxy does that cannot reach the program. Returns how many it has answered.
fn answer_as_proxy(address: &str) -> Arc<AtomicU32> {
    let listener = TcpListener::bind(address).unwrap();
    let answers = Arc::<AtomicU32>::default();
    let counter = answers.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut request = BufReader::new(&stream).lines().map_while(Result::ok);
            // Up to the empty line.
            if request.any(|line| line.is_empty()) {
                let answer = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<h1>502";
                let _ = (&stream).write_all(answer.as_bytes());
                counter.fetch_add(1, Relaxed);
            }
        }
    });
    answers
}

#[test]
fn page_works_in_a_browser() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let [_, id] = fill(&fixture);
    page.until("/", &["window.hacked"]);
    let url = |path: &str| format!("http://{}{path}", page.address);
    browser.open(&url("/"));
    assert_eq!(
        browser.script("return document.title"),
        "Overview · job-scheduler"
    );
    assert!(
        browser
            .text()
            .contains("<script>window.hacked = 1</script>"),
        "{}",
        browser.text()
    );

    // It shows what is new, in the same document.
    browser.script("window.marker = 1; return 0");
    fixture.enqueue(NewJob::named("new-job", Value::Null).after(LATER));
    eventually(
        || browser.text().contains("new-job"),
        "the page is refreshed",
    );
    assert_eq!(browser.script("return window.marker"), 1);

    // Users go to the job by its key, pause it, and delete it.
    browser.follow("//nav/a[.='Jobs']");
    browser.type_into("//input[@name='job']", "nightly");
    browser.follow("//button[.='Go']");
    assert_eq!(
        browser.script("return location.pathname"),
        format!("/jobs/{id}")
    );
    // The reason why a change has failed remains.
    fixture.execute(&format!(
        "BEGIN; SELECT FROM @job WHERE id = {id} FOR UPDATE"
    ));
    let text = browser.follow("//button[.='Pause']");
    assert!(text.contains("Nothing was changed here."), "{text}");
    thread::sleep(Duration::from_secs(5));
    assert_eq!(browser.text(), text);
    fixture.execute("COMMIT");
    let messages = browser.messages();
    assert!(
        messages.len() == 1 && messages[0]["message"].to_string().contains("503"),
        "{messages:?}"
    );
    browser.open(&url(&format!("/jobs/{id}")));
    let text = browser.follow("//button[.='Pause']");
    assert!(text.contains("The job is paused."), "{text}");
    let found = || fixture.wait(fixture.jobs.get(&fixture.client, id)).unwrap();
    assert!(!found().unwrap().enabled);
    browser.follow("//button[.='Resume']");
    browser.follow("//button[.='Run now']");
    eventually(|| browser.text().contains("done"), "the run is shown");
    browser.click("//summary");
    let text = browser.follow("//details//button[.='Delete']");
    assert!(
        text.contains("The job is deleted.") && found().is_none(),
        "{text}"
    );

    // No script of a payload ran, and nothing of the page was blocked.
    assert_eq!(browser.script("return window.hacked === undefined"), true);
    assert_eq!(browser.messages(), Vec::<Value>::new());
    // Without the program, the page says so, and asks again. So it does if a proxy answers.
    browser.open(&url("/"));
    let address = page.address.clone();
    drop(page);
    let answers = answer_as_proxy(&address);
    eventually(|| answers.load(Relaxed) >= 2, "the page asks again");
    eventually(
        || browser.text().contains("Not up to date since"),
        "the page says that it is old",
    );
}

#[test]
fn page_is_readable_in_light_and_dark_and_on_a_telephone() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let [running, id] = fill(&fixture);
    page.until("/", &["window.hacked"]);
    page.until(
        &format!("/jobs/{running}"),
        &["<b class=\"badge active\">running</b>"],
    );
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let [running, id] = [format!("/jobs/{running}"), format!("/jobs/{id}?done=pause")];
        for path in [
            "/", "/jobs", &running, &id, "/runs", "/limits", "/runs/1", "/nothing",
        ] {
            browser.open(&format!("http://{}{path}", page.address));
            browser
                .script("document.querySelectorAll('details').forEach((part) => part.open = true); return 0");
            let result = browser.script(UNREADABLE);
            assert!(result[0].as_u64() > Some(5), "{path}: {result}");
            assert_eq!(result[1], json!([]), "{scheme} {path}");
            let color = browser.script("return getComputedStyle(document.body).backgroundColor");
            backgrounds.push(color.as_str().unwrap().to_owned());
        }
    }
    backgrounds.dedup();
    assert_eq!(
        backgrounds.len(),
        2,
        "light and dark are the same: {backgrounds:?}"
    );
    browser.resize(500, 900);
    for path in ["/", "/jobs", "/runs", "/limits"] {
        browser.open(&format!("http://{}{path}", page.address));
        let overflow =
            browser.script("return document.documentElement.scrollWidth - window.innerWidth");
        assert!(
            overflow.as_i64() <= Some(0),
            "{path}: {overflow} pixels are outside"
        );
    }
}

/// Finds the failed runs of a tenant since midnight, sees why, repeats them, raises a limit, and sees
/// which node is slow.
#[test]
fn operator_repeats_the_failed_runs_of_a_tenant() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    for key in ["tenant-7/a", "tenant-7/b", "tenant-8/a"] {
        fixture.enqueue(job(json!({ "error": "no <b>paper" })).key(key));
    }
    page.until("/runs", &["tenant-7/a", "tenant-7/b", "tenant-8/a"]);
    browser.open(&format!("http://{}/", page.address));
    browser.follow("//nav/a[.='Runs']");
    browser.type_into("//input[@name='key']", "tenant-7/");
    browser.type_into("//input[@name='since']", "24h");
    let text = browser.follow("//button[.='Filter']");
    let rows = |text: &str| {
        (
            text.matches("tenant-7/").count(),
            text.matches("tenant-8/").count(),
        )
    };
    assert_eq!(rows(&text), (2, 0), "{text}");
    let text = browser.follow("//td/a[starts-with(@href, '/runs/')]");
    assert!(
        text.contains("Failed attempts") && text.contains("no <b>paper"),
        "{text}"
    );
    browser.script("history.back(); return 0");
    eventually(
        || browser.text().contains("retry all"),
        "the list is shown again",
    );

    // Another user repeats one of them meanwhile, so nothing is done.
    let text = browser.follow("//a[starts-with(., 'retry all')]");
    assert!(text.contains("retry 2 runs?"), "{text}");
    fixture.execute("UPDATE @run SET finished = finished + interval '1 h' WHERE job = 1");
    let text = browser.follow("//button[.='retry 2 runs']");
    assert!(
        text.contains("These are not the runs that were confirmed"),
        "{text}"
    );
    let attempts = || {
        let run = |job| {
            fixture
                .wait(fixture.jobs.history(&fixture.client, job, 1))
                .unwrap()[0]
                .attempt
        };
        [run(1), run(2), run(3)]
    };
    assert_eq!(attempts(), [1, 1, 1]);
    // The browser reports the status of this refusal, and nothing else.
    let messages = browser.messages();
    assert!(
        messages.len() == 1 && messages[0]["message"].to_string().contains("409"),
        "{messages:?}"
    );
    browser.open(&format!(
        "http://{}/runs?key=tenant-7%2F&since=24h",
        page.address
    ));
    browser.follow("//a[starts-with(., 'retry all')]");
    let text = browser.follow("//button[.='retry 2 runs']");
    assert!(text.contains("Done: 2 runs."), "{text}");
    assert!(
        page.get("/runs?done=retry&count=1")
            .body
            .contains("Done: 1 run.")
    );
    eventually(
        || attempts() == [2, 2, 1],
        "both are repeated, and the other one is not",
    );

    browser.follow("//nav/a[.='Limits']");
    browser.type_into("//tr[td/input[@name='burst']]//input[@name='kind']", "work");
    browser.type_into("//tr[td/input[@name='burst']]//input[@name='running']", "3");
    let text = browser.follow("//tr[td/input[@name='burst']]//button");
    assert!(text.contains("The limit is set."), "{text}");
    let kinds = fixture.wait(fixture.jobs.kinds(&fixture.client, "", 9));
    let (kind, limits) = kinds.unwrap().remove(0);
    assert_eq!((&*kind, limits.running), ("work", Some(3)));
    // What is typed is not discarded when the page is shown again.
    browser.type_into("//tr[td/input[@name='burst']]//input[@name='running']", "7");
    browser.script("document.activeElement.blur(); return 0");
    thread::sleep(Duration::from_secs(7));
    let typed =
        "return [...document.querySelectorAll('input')].some((input) => input.value === '37')";
    assert_eq!(browser.script(typed), true);
    let text = browser.text();
    assert!(
        text.contains("a form has values that are not sent"),
        "{text}"
    );
    browser.follow("//nav/a[.='Limits']");
    fixture.execute(
        "INSERT INTO @run (job, handler, due, start_at, state, blocked_on)
        SELECT 1, 'work', now(), now(), 'blocked', 'key bank'",
    );
    eventually(|| browser.text().contains("bank"), "what waits is shown");
    let text = browser.follow("//nav/a[.='Overview']");
    assert!(
        text.contains("Median") && text.contains("first <node>"),
        "{text}"
    );
    assert_eq!(browser.messages(), Vec::<Value>::new());
}

#[test]
fn users_log_in_with_the_token() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--token", TOKEN, "--allow-changes"]);
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    browser.open(&format!("http://{}/jobs/{id}", page.address));
    browser.type_into("//input[@type='password']", "wrong");
    let text = browser.follow("//button");
    assert!(text.contains("This is not the token."), "{text}");
    browser.type_into("//input[@type='password']", TOKEN);
    browser.follow("//button");
    assert_eq!(
        browser.script("return location.pathname"),
        format!("/jobs/{id}")
    );
    assert_eq!(browser.script("return document.cookie"), "");
    let text = browser.follow("//button[.='Pause']");
    assert!(text.contains("The job is paused."), "{text}");
    let text = browser.follow("//button[.='Log out']");
    assert!(text.contains("Token of this page"), "{text}");
}
