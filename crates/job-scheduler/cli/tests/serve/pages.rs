//! The contents of the pages, and the effects of their buttons.

use std::collections::BTreeSet;
use std::time::Duration;

use hashed_wheel_job_scheduler::jiff::Timestamp;
use hashed_wheel_job_scheduler::{BlockedOn, Job, NewJob, Overlap, RunInfo, RunState};
use serde_json::{Value, json};

use crate::fixture::{Fixture, job};

const LATER: Duration = Duration::from_secs(7_200);

#[test]
fn overview_shows_nodes_runs_lateness_and_failures() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    assert_eq!(page.mode, "(read-only)");
    let running = fixture.enqueue(job(json!({ "sleep": 600 })));
    let failed = fixture.enqueue(job(json!({ "error": "no paper" })));
    let later = fixture.enqueue(job(Value::Null).after(LATER));
    // For the lateness of the last ten seconds.
    fixture.enqueue(job(Value::Null).every(Duration::from_millis(500)));
    let [running, failed, later] =
        [running, failed, later].map(|id| format!("<a href=\"/jobs/{id}\">"));
    let shown = page.until(
        "/",
        &[
            "no paper",
            "<b>4</b>",
            &running,
            &failed,
            &later,
            "in 120min",
            "read-only",
        ],
    );
    assert!(
        shown.contains("first &lt;node&gt;") && shown.contains(" left"),
        "{shown}"
    );
    assert!(shown.contains("data-refresh"), "{shown}");
    // The chart, the kinds of the node, and its share of the failures.
    let shown = page.until(
        "/",
        &[
            "0 minutes ago: ",
            " done, 1 failed, lateness p99 ",
            ">1</a><td>",
        ],
    );
    assert!(
        shown.contains("title=\"work\">work") && shown.contains("<polyline"),
        "{shown}"
    );
    let has_lateness = |shown: &str| !shown.contains("lateness (p99), at most 0s");
    crate::fixture::eventually(|| has_lateness(&page.get("/").body), "lateness is shown");
}

#[test]
fn jobs_are_filtered_found_and_shown_page_by_page() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let job = |kind: &str, number: usize| {
        fixture.enqueue(
            NewJob::named(kind, json!(number))
                .after(LATER)
                .key(format!("{kind} {number}")),
        )
    };
    let ids: Vec<_> = (0..60).map(|number| job("mail & post", number)).collect();
    let other = job("report", 7);
    fixture.execute(&format!(
        "UPDATE @job SET enabled = false WHERE id = {other}"
    ));

    let first = page.get("/jobs").body;
    assert!(
        first.contains("mail &amp; post 49") && !first.contains("mail &amp; post 50"),
        "{first}"
    );
    let next = format!("/jobs?kind=&amp;state=&amp;after={}", ids[49]);
    assert!(first.contains(&next), "{first}");
    let second = page.get(&next.replace("&amp;", "&")).body;
    assert!(
        second.contains("mail &amp; post 50") && !second.contains("mail &amp; post 49"),
        "{second}"
    );
    assert!(
        second.contains("report 7") && !second.contains(">Next<"),
        "{second}"
    );

    let paused = page.get("/jobs?state=paused").body;
    assert!(
        paused.contains("report 7") && !paused.contains("mail &amp; post 1"),
        "{paused}"
    );
    assert!(!paused.contains("data-refresh"), "{paused}");
    let kind = page.get("/jobs?kind=mail%20%26%20post").body;
    assert!(
        kind.contains("mail &amp; post 1<") && !kind.contains("report 7"),
        "{kind}"
    );
    assert!(
        kind.contains(&format!(
            "/jobs?kind=mail%20%26%20post&amp;state=&amp;after={}",
            ids[49]
        )),
        "{kind}"
    );

    // A space may be a part of a key.
    let spaced = fixture.enqueue(NewJob::named("report", json!(8)).after(LATER).key(" 8 "));
    for (query, found) in [
        ("report%207", other),
        (&other.to_string(), other),
        (&format!("+{other}+"), other),
        ("report+7", other),
        ("+8+", spaced),
    ] {
        let reply = page.get(&format!("/find?job={query}"));
        assert_eq!(
            (reply.status, reply.header("location")),
            (303, &*format!("/jobs/{found}"))
        );
    }
    // Without scripts, a reload would discard what a user is typing.
    for (path, reloads) in [("/", true), ("/jobs", false), ("/runs", false)] {
        let shown = page.get(path).body;
        assert_eq!(shown.contains("<noscript>"), reloads, "{path}: {shown}");
        assert!(shown.contains("data-refresh"), "{path}: {shown}");
    }
    let shown = page.get(&format!("/jobs/{other}")).body;
    assert!(
        shown.contains("paused") && shown.contains("There are no runs."),
        "{shown}"
    );
    for path in [
        "/find?job=nothing",
        "/jobs/999999",
        "/jobs/many",
        "/runs/999999",
        "/nothing",
    ] {
        let reply = page.get(path);
        assert!(
            reply.status == 404 && reply.body.contains("<h1>Not found</h1>"),
            "{path}: {reply:?}"
        );
    }
    for path in ["/find?job=a%00", "/jobs?kind=%00"] {
        let reply = page.get(path);
        assert!(
            reply.status == 400 && reply.body.contains("the character NUL"),
            "{path}: {reply:?}"
        );
    }
    for path in [
        "/jobs?state=x",
        "/jobs?after=x",
        "/runs?before=x",
        "/runs?before=-009000-01-01T00:00:00Z_1",
        "/runs?since=-009000-01-01T00:00:00Z",
        &format!("/jobs/{other}?before=x"),
        &format!("/jobs/{other}?before=-009000-01-01T00:00:00Z"),
    ] {
        let reply = page.get(path);
        assert!(
            reply.status == 400 && reply.body.contains("must be"),
            "{path}: {reply:?}"
        );
    }
}

#[test]
fn histories_and_failures_are_shown_page_by_page() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let id = fixture.enqueue(job(json!({ "error": "no paper" })).after(LATER));
    fixture.execute(&format!(
        "INSERT INTO @run (job, due, start_at, handler, state, started, finished, error)
        SELECT {id}, time, time, 'work', 'failed', time, time, 'error ' || n || '.' FROM generate_series(1, 120) AS n,
            LATERAL (SELECT '2026-01-01'::timestamptz + n * interval '1 second' AS time) AS x"
    ));
    for path in ["/runs".to_owned(), format!("/jobs/{id}")] {
        let (mut path, mut errors) = (path, 0);
        for length in [50, 50, 20] {
            let shown = page.get(&path).body;
            let count = shown.matches(">error ").count();
            assert_eq!(count, length, "{path}: {shown}");
            let last = format!(">error {}.", 120 - errors);
            assert!(shown.contains(&last), "{path}: {last}: {shown}");
            errors += count;
            let older = shown
                .split("<a href=\"")
                .find(|link| link.contains("\">Older"));
            path = older.map_or_else(String::new, |link| {
                link.split_once('"').unwrap().0.to_owned()
            });
        }
        assert_eq!(path, "", "there is a page after the last one");
    }
}

#[test]
fn hostile_text_is_shown_as_text() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let hostile = "\"'><script>window.hacked = 1</script><img src=x onerror=alert(1)>";
    let id = fixture.enqueue(job(json!({ "error": hostile, "more": hostile })).key(hostile));
    let other = fixture.enqueue(NewJob::named(hostile, json!(hostile)).after(LATER));
    fixture.execute(&format!(
        "UPDATE @job SET enabled = false, disabled_reason = handler WHERE id = {other}"
    ));
    page.until("/runs", &["&lt;script&gt;window.hacked"]);
    let run = fixture
        .wait(fixture.jobs.history(&fixture.client, id, 1))
        .unwrap()
        .remove(0)
        .id;
    let query: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in [
        "/".to_owned(),
        "/jobs".into(),
        "/runs".into(),
        format!("/jobs/{id}"),
        format!("/jobs/{other}"),
        format!("/runs/{run}"),
        format!("/jobs?kind={query}"),
        format!("/find?job={query}x"),
    ] {
        let shown = page.get(&path).body;
        assert!(
            shown.contains("&lt;script&gt;window.hacked = 1&lt;/script&gt;&lt;img"),
            "{path}: {shown}"
        );
        assert!(
            !shown.contains("<script>") && !shown.contains("<img") && !shown.contains("\"'>"),
            "{path}: {shown}"
        );
    }
    let reply = page.request(
        "POST",
        &format!("/jobs/{other}/{query}"),
        &[],
        &page.form(&format!("/jobs/{id}")),
    );
    assert!(
        reply.status == 404 && !reply.body.contains("<img"),
        "{reply:?}"
    );
}

#[test]
fn documents_that_are_large_or_cannot_be_read_are_shown_in_part() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let id = fixture.enqueue(job(json!("ä".repeat(1 << 16))));
    page.until(&format!("/jobs/{id}"), &["done"]);
    let run = fixture
        .wait(fixture.jobs.history(&fixture.client, id, 1))
        .unwrap()
        .remove(0)
        .id;
    for path in [format!("/jobs/{id}"), format!("/runs/{run}")] {
        let shown = page.get(&path).body;
        assert!(
            shown.contains("ääää") && shown.contains("…</pre>") && shown.len() < 60_000,
            "{}",
            shown.len()
        );
    }
    fixture.execute("UPDATE @job SET payload = '{\"n\": 1e400}'");
    assert!(page.get(&format!("/jobs/{id}")).body.contains("1000000"));
}

#[test]
fn options_and_what_a_run_waits_for_are_shown() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let holder = fixture.enqueue(job(json!({ "sleep": 600 })).limit("bank", 1));
    page.until(
        &format!("/jobs/{holder}"),
        &[
            "<b class=\"badge active\">running</b>",
            "<dt>Limit<dd>bank: 1<",
        ],
    );
    let second = Duration::from_secs(1);
    let blocked = job(Value::Null)
        .limit("bank", 1)
        .priority(-2)
        .overlap(Overlap::Skip);
    let id = fixture.enqueue(blocked.retries(3, second, second).timeout(second * 5));
    let path = format!("/jobs/{id}");
    let options = [
        "Priority<dd>-2",
        "Overlap<dd>Skip",
        "Misfire<dd>RunOnce",
        "Retries<dd>3",
        "Timeout<dd>5s",
    ];
    page.until(
        &path,
        &[&options[..], &["<b class=\"badge warn\">blocked</b>"]].concat(),
    );
    let run = fixture
        .wait(fixture.jobs.history(&fixture.client, id, 1))
        .unwrap()
        .remove(0);
    assert_eq!(run.blocked_on, Some(BlockedOn::Limit("bank".into())));
    page.until(
        &format!("/runs/{}", run.id),
        &["<dt>Waits for<dd>the limit &#39;bank&#39;"],
    );
    fixture
        .wait(fixture.jobs.set_limit(&fixture.client, "bank", Some(2)))
        .unwrap();
    page.until(
        &path,
        &["<b class=\"badge good\">done</b>", "<dt>Limit<dd>bank: 2<"],
    );
}

#[test]
fn buttons_change_jobs() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    assert_eq!(page.mode, "(changes are allowed)");
    let id = fixture.enqueue(job(json!("here")).after(LATER));
    let found = || -> Option<Job> { fixture.wait(fixture.jobs.get(&fixture.client, id)).unwrap() };
    let path = format!("/jobs/{id}");
    let form = page.form(&path);
    let act = |action: &str, target: &str, notice: &str| {
        let reply = page.post(&format!("{path}/{action}"), &form);
        assert_eq!(
            (reply.status, reply.header("location")),
            (303, target),
            "{reply:?}"
        );
        let shown = page.get(target).body;
        assert!(shown.contains(notice), "{shown}");
    };
    act("pause", &format!("{path}?done=pause"), "The job is paused.");
    assert!(!found().unwrap().enabled);
    act(
        "resume",
        &format!("{path}?done=resume"),
        "The job is resumed.",
    );
    assert!(found().unwrap().enabled);
    act(
        "run",
        &format!("{path}?done=run"),
        "A run of the job is requested.",
    );
    page.until(&path, &["<b class=\"badge good\">done</b>"]);
    let run = fixture
        .wait(fixture.jobs.history(&fixture.client, id, 1))
        .unwrap()
        .remove(0);
    assert_eq!(run.state, RunState::Done);
    page.until(
        &format!("/runs/{}", run.id),
        &["&quot;echo&quot;: &quot;here&quot;"],
    );
    act("delete", "/jobs?done=delete", "The job is deleted.");
    assert!(found().is_none());
    let reply = page.post(&format!("{path}/delete"), &form);
    assert!(
        reply.status == 404 && reply.body.contains("There is no job"),
        "{reply:?}"
    );
}

#[test]
fn limits_are_set_as_they_are_written() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let form = page.form("/limits");
    let set = |fields: &str| page.post("/limits", &format!("{form}&{fields}"));
    for fields in [
        "kind=+mail+&running=+3+&rate=&burst=",
        "name=+bank&running=4",
    ] {
        assert_eq!(set(fields).status, 303, "{fields}");
    }
    let kinds = || {
        let kinds = fixture.jobs.kinds(&fixture.client, "", 9);
        fixture.wait(kinds).unwrap()
    };
    let (kind, stored) = kinds().remove(0);
    assert_eq!((&*kind, stored.running), (" mail ", Some(3)));
    let limits = || {
        let limits = fixture.jobs.limits(&fixture.client, "", 9);
        fixture.wait(limits).unwrap()
    };
    assert_eq!(limits(), [(" bank".into(), 4)]);
    // No field of a browser has a line break, so the name is in the address.
    let lines = fixture.jobs.set_limit(&fixture.client, "a\r\nb", Some(1));
    fixture.wait(lines).unwrap();
    let action = "/limits?name=a%0D%0Ab";
    assert!(
        page.get("/limits")
            .body
            .contains(&format!("action=\"{action}\""))
    );
    let reply = page.post(action, &format!("{form}&name=ab&running=5"));
    assert_eq!(reply.status, 303);
    let names: BTreeSet<_> = limits().into_iter().collect();
    let expected = [(" bank".into(), 4), ("a\r\nb".into(), 5)];
    assert_eq!(names, BTreeSet::from(expected));
    let reply = page.post("/limits", &format!("{form}&name={}", "a".repeat(16 << 10)));
    assert_eq!(reply.status, 413, "{reply:?}");
    for (fields, why) in [
        ("name=a%00&running=1", "the character NUL"),
        ("name=a&running=%00", "the character NUL"),
        ("name=&running=1", "The name is missing."),
        ("name=a&running=x", "must be a whole number"),
        ("kind=a&rate=x", "must be like"),
        ("kind=+mail+&burst=5", "a burst of 5 without a rate"),
        (
            "kind=+mail+&running=3&burst=1",
            "a burst of 1 without a rate",
        ),
    ] {
        let reply = set(fields);
        assert!(
            reply.status == 400 && reply.body.contains(why),
            "{fields}: {reply:?}"
        );
    }
    assert_eq!(kinds().len(), 1);
    // Without any limit, it is removed. A field with spaces is empty.
    assert_eq!(set("kind=+mail+&burst=+").status, 303);
    assert!(kinds().is_empty());
    let reply = page.post("/runs", &format!("{form}&change=retry&key=%00"));
    assert!(
        reply.status == 400 && reply.body.contains("the character NUL"),
        "{reply:?}"
    );
}

#[test]
fn buttons_cancel_and_repeat_runs() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let [failed, running] = [json!({ "error": "no paper" }), json!({ "sleep": 600 })].map(job);
    let [failed, running] = [failed, running].map(|job| fixture.enqueue(job));
    let form = page.form(&format!("/jobs/{failed}"));
    let last = |job| -> RunInfo {
        fixture
            .wait(fixture.jobs.history(&fixture.client, job, 1))
            .unwrap()
            .remove(0)
    };
    page.until("/runs", &["no paper", "/retry\""]);
    let run = format!("/runs/{}", last(failed).id);
    assert!(
        page.get("/runs")
            .body
            .contains(&format!("action=\"{run}/retry\""))
    );
    let reply = page.post(&format!("{run}/retry"), &form);
    assert_eq!(
        (reply.status, reply.header("location")),
        (303, &*format!("{run}?done=retry"))
    );
    page.until(
        &format!("{run}?done=retry"),
        &[
            "The run is repeated.",
            "<dt>Attempt<dd>2",
            "failed",
            ">Retry<",
        ],
    );

    page.until(
        &format!("/jobs/{running}"),
        &["<b class=\"badge active\">running</b>"],
    );
    let run = format!("/runs/{}", last(running).id);
    assert_eq!(page.post(&format!("{run}/cancel"), &form).status, 303);
    page.until(
        &run,
        &[
            "<b class=\"badge\">cancelled</b>",
            "while it was running",
            ">Retry<",
        ],
    );
    let late = page.post(&format!("{run}/cancel"), &form);
    assert!(
        late.status == 409 && late.body.contains("has ended before"),
        "{late:?}"
    );

    let done = fixture.enqueue(job(Value::Null));
    page.until(
        &format!("/jobs/{done}"),
        &["<b class=\"badge good\">done</b>"],
    );
    let reply = page.post(&format!("/runs/{}/retry", last(done).id), &form);
    assert!(
        reply.status == 409 && reply.body.contains("was done or skipped"),
        "{reply:?}"
    );
    for action in ["retry", "cancel"] {
        let reply = page.post(&format!("/runs/999999/{action}"), &form);
        assert!(
            reply.status == 404 && reply.body.contains("There is no run 999999."),
            "{reply:?}"
        );
    }
}

#[test]
fn all_runs_of_a_filter_are_cancelled_or_deleted() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    // No node has this handler, so its runs wait.
    let jobs: Vec<_> = (0..3)
        .map(|_| fixture.enqueue(NewJob::named("other", Value::Null).after(LATER)))
        .collect();
    let run_now = |job| {
        let run = fixture.wait(fixture.jobs.run_now(&fixture.client, job));
        run.unwrap().unwrap()
    };
    let runs: Vec<_> = jobs.iter().map(|job| run_now(*job)).collect();
    let state = |run| {
        let run = fixture.wait(fixture.jobs.get_run(&fixture.client, run));
        run.unwrap().map(|run| run.state)
    };
    let path = "/runs?state=waiting&kind=other&change=cancel";
    let shown = page.get(path).body;
    assert!(
        shown.contains("cancel 3 runs?") && shown.contains("meanwhile are left out."),
        "{shown}"
    );
    let form = page.question(path);
    // Before the user confirms it, one has ended, and there is another one.
    let ended = runs[0];
    let added = run_now(jobs[0]);
    fixture.execute(&format!(
        "UPDATE @run SET state = 'done', finished = now() WHERE id = {ended};
        UPDATE @run SET start_at = now() - interval '1 hour' WHERE id = {added}"
    ));
    let reply = page.post("/runs", &form);
    let target = "/runs?state=waiting&kind=other&done=cancel&count=2&of=3";
    assert_eq!((reply.status, reply.header("location")), (303, target));
    let shown = page.get(target).body;
    assert!(shown.contains("Done: 2 runs of 3. The others"), "{shown}");
    let states = [runs[0], runs[1], runs[2], added].map(state);
    let [done, cancelled] = [RunState::Done, RunState::Cancelled].map(Some);
    let waiting = Some(RunState::Waiting);
    assert_eq!(states, [done, cancelled, cancelled, waiting]);
    let reply = page.post("/runs", &form);
    assert!(
        reply.status == 409 && reply.body.contains("Nothing was done."),
        "{reply:?}"
    );

    let path = "/runs?state=cancelled&change=delete";
    let shown = page.get(path).body;
    assert!(
        shown.contains("delete 2 runs?") && shown.contains("and no other run."),
        "{shown}"
    );
    // Another user repeats one of them.
    let form = page.question(path);
    let retry = format!("/runs/{}/retry", runs[2]);
    assert_eq!(page.post(&retry, &form).status, 303);
    assert_eq!(page.post("/runs", &form).status, 409);
    assert_eq!([runs[1], runs[2]].map(state), [cancelled, waiting]);
    let (finished, other) = (jobs[1], jobs[2]);
    fixture.execute(&format!(
        "UPDATE @job SET next_run = NULL WHERE id = {finished}"
    ));
    let reply = page.post("/runs", &page.question(path));
    let target = "/runs?state=cancelled&done=delete&count=1&of=1";
    assert_eq!((reply.status, reply.header("location")), (303, target));
    assert!(page.get(target).body.contains("Done: 1 run."));
    assert_eq!([runs[1], runs[2]].map(state), [None, waiting]);
    let exists = |job| fixture.wait(fixture.jobs.get(&fixture.client, job));
    assert!(exists(finished).unwrap().is_none() && exists(other).unwrap().is_some());

    let many: Vec<_> = (0..10_001).map(|run: u32| run.to_string()).collect();
    let reply = page.post("/runs", &format!("{form}&runs={}", many.join("+")));
    assert!(
        reply.status == 400 && reply.body.contains("more than 10000 numbers"),
        "{reply:?}"
    );
    let reply = page.post("/runs", &format!("{form}&runs=1+x"));
    assert!(
        reply.status == 400
            && reply
                .body
                .contains("must be the numbers of the confirmed runs"),
        "{reply:?}"
    );
}

#[test]
fn bulk_changes_say_which_runs_they_have() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let id = fixture.enqueue(NewJob::named("other", Value::Null).after(LATER));
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    fixture.execute(&format!(
        "INSERT INTO @run (job, handler, due, start_at, state, finished)
        SELECT {id}, 'other', time, time, CASE WHEN n > 10060 THEN 'waiting' ELSE 'failed' END,
            CASE WHEN n <= 10060 THEN time END
        FROM generate_series(1, 20060) AS n, LATERAL (SELECT '{now}'::timestamptz - n * interval '1 second' AS time) AS x"
    ));
    let shown = page.get("/runs").body;
    assert!(shown.contains("delete all…</a>"), "{shown}");
    let older = shown
        .split("<a href=\"")
        .find_map(|link| link.split_once("\">Older"));
    let older = older.unwrap().0;
    let shown = page.get(older).body;
    assert!(shown.contains("delete all from here on…</a>"), "{shown}");
    let cut = "More may match: at most 10 000 runs are examined.";
    let page_two = "Those of the pages before this one are not changed.";
    let [some, most] = [119, 10_040].map(|seconds| now - Duration::from_secs(seconds));
    let rest = format!("{older}&since={most}&change=retry");
    for (path, count, is_cut, is_page_two) in [
        ("/runs?change=retry", 10_000, true, false),
        (
            &format!("/runs?since={some}&change=retry"),
            119,
            false,
            false,
        ),
        (&*rest, 9_990, false, true),
    ] {
        let shown = page.get(path).body;
        let has_count = shown.contains(&format!("retry {count} runs?"));
        let found = (has_count, shown.contains(cut), shown.contains(page_two));
        assert_eq!(found, (true, is_cut, is_page_two), "{path}");
    }

    // The form of so many runs is not too large.
    let path = "/runs?change=delete";
    let reply = page.post("/runs", &page.question(path));
    let target = "/runs?done=delete&count=10000&of=10000";
    assert_eq!((reply.status, reply.header("location")), (303, target));
    let shown = page.get(path).body;
    assert!(shown.contains("delete 60 runs?"), "{shown}");

    // Of runs that have not ended, no page has more than those that were examined.
    let examined = "Only 10 000 runs were examined. Others may match";
    for (path, is_cut, is_empty) in [
        ("/runs?state=waiting&key=other", true, false),
        ("/runs?state=waiting&kind=work", false, true),
        ("/runs?state=waiting", true, false),
    ] {
        let shown = page.get(path).body;
        let found = (shown.contains(examined), shown.contains("No run matches."));
        assert_eq!(found, (is_cut, is_empty), "{path}: {shown}");
    }
}

/// After the question, runs are added that come first in the index, so that a search would not find
/// those that were confirmed.
#[test]
fn confirmed_runs_are_cancelled_although_others_come_first() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    let other = fixture.enqueue(NewJob::named("first", Value::Null).after(LATER));
    let confirmed = fixture.enqueue(NewJob::named("later", Value::Null).after(LATER).key("mine"));
    let add = |job: i64, handler: &str, from: u32, to: u32| {
        fixture.execute(&format!(
            "INSERT INTO @run (job, handler, due, start_at, state)
            SELECT {job}, '{handler}', time, time, 'waiting' FROM generate_series({from}, {to}) AS n,
                LATERAL (SELECT now() - n * interval '1 second' AS time) AS x"
        ));
    };
    add(other, "first", 1, 9_997);
    add(confirmed, "later", 1, 3);
    let path = "/runs?state=waiting&key=mine&change=cancel";
    let shown = page.get(path).body;
    assert!(shown.contains("cancel 3 runs?"), "{shown}");
    let form = page.question(path);
    add(other, "first", 20_001, 20_002);
    let reply = page.post("/runs", &form);
    let target = "/runs?state=waiting&key=mine&done=cancel&count=3&of=3";
    assert_eq!((reply.status, reply.header("location")), (303, target));
    let runs = fixture.wait(fixture.jobs.runs(&fixture.client, confirmed, None, 9));
    let states: Vec<_> = runs.unwrap().iter().map(|run| run.state).collect();
    assert_eq!(states, [RunState::Cancelled; 3]);
    // A run that has started after the question is not cancelled.
    add(confirmed, "later", 30_001, 30_002);
    fixture.execute(&format!(
        "UPDATE @run SET state = 'done', finished = now() WHERE job = {other}"
    ));
    let form = page.question(path);
    fixture.execute(&format!(
        "UPDATE @run SET state = 'running', owner = 0 WHERE id = (SELECT max(id) FROM @run WHERE job = {confirmed})"
    ));
    let reply = page.post("/runs", &form);
    let target = "/runs?state=waiting&key=mine&done=cancel&count=1&of=2";
    assert_eq!((reply.status, reply.header("location")), (303, target));
    fixture.execute("DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM @run WHERE is_cancelled); END $$");
}
