//! Pages of large tables and documents: each is bounded, and says what it leaves out.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Fixture, eventually, job};

const LATER: Duration = Duration::from_secs(7_200);

/// Five thousand within milliseconds, just before the end of a minute.
#[test]
fn chart_has_no_more_runs_than_have_ended() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    fixture.execute(&format!(
        "INSERT INTO @run (job, due, start_at, handler, state, started, finished)
        SELECT {id}, time, time, 'work', 'done', time, time
        FROM (VALUES ('61 seconds', 5000), ('1830 seconds', 500)) AS burst (age, runs), generate_series(1, runs) AS n,
            LATERAL (SELECT now() - age::interval - n * interval '1 microsecond' AS time) AS x"
    ));
    let shown = page.get("/").body;
    let minutes = shown.split(" minutes ago: ").skip(1);
    let minutes = minutes.map(|text| text.split_once(" done").unwrap().0);
    let counts: Vec<_> = minutes.filter(|count| *count != "0").collect();
    assert_eq!(counts, ["500", "at least 2000"]);
    for text in [
        "height=\"80.0\"",
        "height=\"20.0\"",
        "at most 2000. Only the last 2000 runs of each minute are counted.",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

#[test]
fn limits_are_shown_although_many_jobs_wait() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    fixture.execute(&format!(
        "INSERT INTO @run (job, due, start_at, handler, state, blocked_on)
        SELECT {id}, time, time, 'other', 'blocked', name
        FROM (
            SELECT name, row_number() OVER () AS n FROM unnest(ARRAY['key bank', 'kind mail', 'rate print']
                || ARRAY(SELECT 'job ' || job FROM generate_series(1, 99) AS job)) AS name
        ) AS blocked, LATERAL (SELECT now() + n * interval '1 second' AS time) AS x"
    ));
    let names = [
        "<td>the limit<td><a href=\"/runs?state=blocked&amp;limit=bank\">bank</a>",
        "<td>the limit of kind<td><a href=\"/runs?state=blocked&amp;kind=mail\">mail</a>",
        "<td>the rate of kind<td><a href=\"/runs?state=blocked&amp;kind=print\">print</a>",
        "<td>another run of job<td><a href=\"/jobs/99\">99</a>",
    ];
    let shown = page.get("/limits").body;
    let is_shown = |text: &&str| shown.contains(*text);
    assert!(names.iter().all(is_shown), "{shown}");
    assert!(!shown.contains("There may be more"), "{shown}");

    fixture.execute(
        "UPDATE @run SET blocked_on = 'job ' || 1000 + id WHERE blocked_on LIKE 'job %';
        INSERT INTO @run (job, due, start_at, handler, state, blocked_on)
        SELECT job, due + interval '1 hour', start_at, handler, state, 'job ' || id FROM @run",
    );
    let shown = page.get("/limits").body;
    let is_shown = |text: &&str| shown.contains(*text);
    assert!(names[..3].iter().all(is_shown), "{shown}");
    let jobs = shown.matches("another run of job").count();
    assert!(
        jobs == 100 && shown.contains("There may be more: at most 100 names of each sort"),
        "{jobs}: {shown}"
    );
}

#[test]
fn limits_are_shown_page_by_page() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    fixture.execute(
        "INSERT INTO @named_limit SELECT 'tenant ' || n, 5 FROM generate_series(101, 350) AS n;
        INSERT INTO @kind (handler, running) SELECT 'kind ' || n, 5 FROM generate_series(101, 201) AS n",
    );
    for options in [&[][..], &["--allow-changes"]] {
        let page = fixture.serve(options);
        let (mut path, mut names) = ("/limits".to_owned(), Vec::new());
        for length in [100, 100, 50] {
            let shown = page.get(&path).body;
            assert_eq!(shown.contains(">First</a>"), path != "/limits", "{shown}");
            let rows = shown
                .split(['>', '"'])
                .filter(|text| text.starts_with("tenant "));
            let rows: Vec<_> = rows.map(str::to_owned).collect();
            assert_eq!(rows.len(), length, "{path}: {shown}");
            names.extend(rows);
            let (_, names_only) = shown.split_once("<h2>Limits of names").unwrap();
            let next = names_only.split("<a href=\"").find_map(|link| {
                let (address, _) = link.split_once("\">Next</a>")?;
                Some(address.replace("&amp;", "&"))
            });
            path = next.unwrap_or_default();
        }
        assert_eq!(path, "", "there is a page after the last one");
        names.dedup();
        assert_eq!(names.len(), 250, "{names:?}");
        let shown = page.get("/limits").body;
        assert!(
            shown.contains("kind 200") && !shown.contains("kind 201"),
            "{shown}"
        );
        // The other list remains where it is.
        let second = "/limits?after_kind=kind%20200&after_name=tenant%20200&";
        let shown = page.get(second).body;
        let has = |text: &str| {
            shown.contains(&format!("{text}<")) || shown.contains(&format!("{text}\""))
        };
        for (text, expected) in [
            ("kind 200", false),
            ("kind 201", true),
            ("tenant 200", false),
            ("tenant 201", true),
            ("tenant 300", true),
            ("tenant 301", false),
        ] {
            assert_eq!(has(text), expected, "{text}: {shown}");
        }
        for link in [
            "/limits?after_name=tenant%20200&amp;\">First",
            "/limits?after_kind=kind%20200&amp;\">First",
            "/limits?after_kind=kind%20200&amp;after_name=tenant%20300&amp;\">Next",
        ] {
            assert!(shown.contains(link), "{link}: {shown}");
        }
        if options.is_empty() {
            continue;
        }
        let form = page.form(second);
        let action = format!("{second}name=tenant%20300");
        let shown_action = action.replace('&', "&amp;");
        assert!(
            shown.contains(&format!("action=\"{shown_action}\"")),
            "{shown}"
        );
        let reply = page.post(&action, &format!("{form}&running=7"));
        let target = format!("{second}done=limit");
        assert_eq!((reply.status, reply.header("location")), (303, &*target));
        let shown = page.get(&target).body;
        assert!(
            shown.contains("The limit is set.") && !shown.contains("kind 200"),
            "{shown}"
        );
    }
}

/// Even of tables for which a sequential scan costs less, because they are almost empty.
#[test]
fn pages_read_by_indexes() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let set = fixture.jobs.set_limit(&fixture.client, "bank", Some(5));
    fixture.wait(set).unwrap();
    let id = fixture.enqueue(job(json!("here")).after(LATER));
    fixture.execute("ANALYZE @job; ANALYZE @run; ANALYZE @kind; ANALYZE @named_limit");
    let scans = || -> (i64, i64) {
        let text = "SELECT sum(seq_scan)::bigint, min(idx_scan) FROM pg_stat_user_tables
            WHERE schemaname = $1 AND relname IN ('job', 'run', 'kind', 'named_limit')";
        let row = async { fixture.client.query_one(text, &[&fixture.schema]).await };
        let row = fixture.wait(row).unwrap();
        (row.try_get(0).unwrap(), row.try_get(1).unwrap())
    };
    // The connection of this test publishes its own ones first.
    std::thread::sleep(Duration::from_secs(2));
    fixture.execute("SELECT 1");
    let before = scans();
    let page = fixture.serve(&[]);
    for path in ["/", "/jobs", &format!("/jobs/{id}"), "/runs", "/limits"] {
        assert_eq!(page.get(path).status, 200, "{path}");
    }
    // A connection publishes its statistics when it ends.
    drop(page);
    eventually(|| scans().1 > before.1, "the statistics are published");
    assert_eq!(scans().0, before.0);
}

/// With the spaces of a hundred levels before each of its numbers, it has 200 MiB.
#[test]
fn indentation_of_a_document_takes_no_memory() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&[]);
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    let document = "(repeat('[', 100) || '1' || repeat(',1', 1000000) || repeat(']', 100))::jsonb";
    fixture.execute(&format!(
        "UPDATE @job SET payload = {document};
        INSERT INTO @run (job, due, start_at, handler, state, started, finished, output)
        SELECT id, now(), now(), 'work', 'done', now(), now(), {document} FROM @job"
    ));
    let runs = fixture.wait(fixture.jobs.runs(&fixture.client, id, None, 1));
    let run = runs.unwrap().remove(0).id;
    for path in [format!("/jobs/{id}"), format!("/runs/{run}")] {
        let shown = page.get(&path).body;
        assert!(
            shown.contains("…</pre>") && shown.len() < 40_000,
            "{path}: {}",
            shown.len()
        );
        let peak = page.peak_memory();
        assert!(peak.is_none_or(|peak| peak < 150), "{path}: {peak:?} MiB");
    }
}
