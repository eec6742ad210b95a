//! Requests that are refused.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use hashed_wheel_trial::testing::run_command;
use serde_json::Value;

use crate::fixture::{Fixture, Page, Reply, TOKEN, job};

const LATER: Duration = Duration::from_secs(7_200);

impl Fixture {
    fn is_enabled(&self, id: i64) -> bool {
        self.wait(self.jobs.get(&self.client, id))
            .unwrap()
            .is_some_and(|job| job.enabled)
    }
}

fn pause(page: &Page, id: i64, headers: &[(&str, &str)], form: &str) -> Reply {
    page.request("POST", &format!("/jobs/{id}/pause"), headers, form)
}

#[test]
fn page_is_read_only_by_default() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    let page = fixture.serve(&[]);
    let shown = page.get(&format!("/jobs/{id}")).body;
    assert!(
        !shown.contains("<button>Pause") && !shown.contains("name=\"form\""),
        "{shown}"
    );
    for action in ["pause", "resume", "run", "delete"] {
        let reply = page.post(&format!("/jobs/{id}/{action}"), "");
        assert!(
            reply.status == 403 && reply.body.contains("read-only"),
            "{reply:?}"
        );
    }
    for action in ["cancel", "retry"] {
        let reply = page.post(&format!("/runs/1/{action}"), "");
        assert!(
            reply.status == 403 && reply.body.contains("read-only"),
            "{reply:?}"
        );
    }
    for path in ["/runs", "/limits"] {
        let reply = page.post(path, "kind=work&running=1&change=retry");
        assert!(
            reply.status == 403 && reply.body.contains("read-only"),
            "{reply:?}"
        );
    }
    assert!(fixture.is_enabled(id));
}

#[test]
fn forms_of_other_sites_are_refused() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    let page = fixture.serve(&["--allow-changes"]);
    let form = page.form(&format!("/jobs/{id}"));
    let other = fixture
        .serve(&["--allow-changes"])
        .form(&format!("/jobs/{id}"));
    let origin = format!("http://{}", page.address);
    for (headers, form) in [
        (vec![("Sec-Fetch-Site", "cross-site")], &*form),
        (
            vec![("Sec-Fetch-Site", "same-site"), ("Origin", &origin)],
            &form,
        ),
        (vec![("Origin", "https://example.com")], &form),
        (vec![("Origin", "null")], &form),
        // Without the value of this process, even if the browser sends no such header.
        (vec![], ""),
        (vec![], "form="),
        (vec![], "form=%01"),
        (vec![("Sec-Fetch-Site", "same-origin")], &other),
    ] {
        let reply = pause(&page, id, &headers, form);
        assert_eq!(reply.status, 403, "{headers:?} {form}: {reply:?}");
        assert!(fixture.is_enabled(id));
    }
    assert_eq!(pause(&page, id, &[("Origin", &origin)], &form).status, 303);
    assert!(!fixture.is_enabled(id));
    for path in ["/runs", "/limits"] {
        assert_eq!(
            page.post(path, "kind=work&running=1&change=retry").status,
            403
        );
    }
    // Links change nothing.
    let reply = page.get(&format!("/jobs/{id}/resume?{form}"));
    assert!(
        reply.status == 405 && reply.body.contains("Method not allowed"),
        "{reply:?}"
    );
}

#[test]
fn names_that_another_site_has_given_this_address_are_refused() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--allow-changes"]);
    for host in ["example.com", "127.0.0.1.example.com", ""] {
        let reply = page.request("GET", "/", &[("Host", host)], "");
        assert!(
            reply.status == 403 && !reply.body.contains("first"),
            "{host}: {reply:?}"
        );
    }
    assert_eq!(
        page.request("GET", "/", &[("Host", "localhost:1")], "")
            .status,
        200
    );
    // With a token, another site has no cookie for this name.
    let page = fixture.serve(&["--token", TOKEN]);
    assert_eq!(
        page.request("GET", "/", &[("Host", "example.com")], "")
            .status,
        401
    );
}

#[test]
fn token_is_needed_for_everything() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    let page = fixture.serve(&["--token", TOKEN, "--allow-changes"]);
    for path in [
        "/",
        "/jobs",
        "/jobs/1",
        "/runs/1",
        "/runs",
        "/find?job=1",
        "/nothing",
    ] {
        let reply = page.get(path);
        assert!(
            reply.status == 401 && reply.body.contains("type=\"password\""),
            "{path}: {reply:?}"
        );
        // Not even the names of the database.
        assert!(!reply.body.contains(&fixture.schema), "{path}: {reply:?}");
    }
    // After the login, the browser does not ask for a page at the address of the action.
    let reply = page.post(&format!("/jobs/{id}/pause"), "");
    assert!(
        reply.status == 401
            && reply
                .body
                .contains("name=\"to\" type=\"hidden\" value=\"/\""),
        "{reply:?}"
    );
    for credentials in [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic dG9rZW4=",
        &format!("Bearer {TOKEN}x"),
        TOKEN,
    ] {
        assert_eq!(
            page.request("GET", "/jobs", &[("Authorization", credentials)], "")
                .status,
            401,
            "{credentials}"
        );
    }
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(
        page.request("GET", "/jobs", &[("Authorization", &bearer)], "")
            .status,
        200
    );
    // No other site knows the token, so no form is needed.
    assert_eq!(
        pause(&page, id, &[("Authorization", &bearer)], "").status,
        303
    );
    assert!(!fixture.is_enabled(id));
}

#[test]
fn wrong_tokens_are_limited() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--token", TOKEN]);
    let status = |token: &str| {
        let bearer = format!("Bearer {token}");
        page.request("GET", "/jobs", &[("Authorization", &bearer)], "")
            .status
    };
    let log_in = |token: &str| {
        page.request("POST", "/login", &[], &format!("token={token}"))
            .status
    };
    for count in 0..10 {
        assert_eq!((status("x"), log_in("x")), (401, 401), "{count}");
    }
    // In this minute, even the token is not looked at.
    assert_eq!((status(TOKEN), log_in(TOKEN)), (429, 429));
    assert_eq!(page.get("/jobs").status, 401);
}

/// A proxy passes on what it has asked for itself.
#[test]
fn credentials_of_other_schemes_are_no_wrong_tokens() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--token", TOKEN]);
    let log_in = || page.request("POST", "/login", &[], &format!("token={TOKEN}"));
    let reply = log_in();
    let (cookie, _) = reply.header("set-cookie").split_once("; ").unwrap();
    let basic = ("Authorization", "Basic dXNlcjpwYXNzd29yZA==");
    for _ in 0..30 {
        let reply = page.request("GET", "/jobs", &[basic, ("Cookie", cookie)], "");
        assert_eq!(reply.status, 200);
        let reply = page.request("GET", "/jobs", &[basic], "");
        assert!(
            reply.status == 401 && reply.body.contains("type=\"password\""),
            "{reply:?}"
        );
    }
    assert_eq!(log_in().status, 303);
    let bearer = format!("Bearer {TOKEN}");
    let both = [basic, ("Authorization", &bearer)];
    assert_eq!(page.request("GET", "/jobs", &both, "").status, 200);
}

/// All of them are admitted before the first one has sent its form.
#[test]
fn logins_at_the_same_time_have_no_more_attempts() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let page = fixture.serve(&["--token", TOKEN]);
    let head = format!(
        "POST /login HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: 7\r\nConnection: close\r\n\r\ntoken=",
        page.address
    );
    let open = |_| {
        let mut stream = TcpStream::connect(&page.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..40).map(open).collect();
    // The server has read the heads of the others before it answers this one.
    assert_eq!(page.get("/jobs").status, 401);
    let status = |stream: &mut TcpStream| {
        stream.write_all(b"x").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    let statuses: Vec<_> = streams.iter_mut().map(status).collect();
    let count = |wanted| statuses.iter().filter(|status| *status == wanted).count();
    assert_eq!((count("401"), count("429")), (20, 20), "{statuses:?}");
}

#[test]
fn login_sets_a_cookie_that_scripts_and_other_sites_do_not_get() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let id = fixture.enqueue(job(Value::Null).after(LATER));
    let page = fixture.serve(&["--token", TOKEN, "--allow-changes"]);
    let log_in = |headers: &[(&str, &str)], token: &str, to: &str| {
        page.request("POST", "/login", headers, &format!("token={token}&to={to}"))
    };
    let refused = log_in(&[], "wrong", "/jobs");
    assert!(
        refused.status == 401 && refused.header("set-cookie").is_empty(),
        "{refused:?}"
    );
    assert!(
        refused.body.contains("This is not the token.") && refused.body.contains("value=\"/jobs\"")
    );
    assert_eq!(
        log_in(&[("Sec-Fetch-Site", "cross-site")], TOKEN, "/").status,
        403
    );
    assert_eq!(log_in(&[], TOKEN, "//example.com").header("location"), "/");

    let reply = log_in(&[], TOKEN, "/jobs?state=paused");
    assert_eq!(
        (reply.status, reply.header("location")),
        (303, "/jobs?state=paused")
    );
    let (cookie, attributes) = reply.header("set-cookie").split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    assert!(!cookie.contains(TOKEN), "{cookie}");
    let by_tls = log_in(&[("X-Forwarded-Proto", "https")], TOKEN, "/");
    assert!(
        by_tls
            .header("set-cookie")
            .ends_with("; SameSite=Strict; Secure"),
        "{by_tls:?}"
    );

    let get = |cookie: &str| page.request("GET", &format!("/jobs/{id}"), &[("Cookie", cookie)], "");
    assert_eq!(get(&format!("a=b; {cookie}")).status, 200);
    for wrong in [
        format!("{cookie}0"),
        cookie.split_once('=').unwrap().0.to_owned() + "=",
        "a=b".into(),
    ] {
        assert_eq!(get(&wrong).status, 401, "{wrong}");
    }
    // A cookie needs a form of this process, because browsers send it by themselves.
    assert_eq!(pause(&page, id, &[("Cookie", cookie)], "").status, 403);
    let shown = get(cookie).body;
    let (_, form) = shown.split_once("name=\"form\" value=\"").unwrap();
    let form = format!("form={}", form.split_once('"').unwrap().0);
    assert_eq!(pause(&page, id, &[("Cookie", cookie)], &form).status, 303);
    let reply = page.request("POST", "/logout", &[("Cookie", cookie)], "");
    assert!(
        reply.header("set-cookie").contains("Max-Age=0"),
        "{reply:?}"
    );
}

#[test]
fn each_response_forbids_scripts_frames_and_foreign_content() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (open, closed) = (fixture.serve(&[]), fixture.serve(&["--token", TOKEN]));
    for page in [&open, &closed] {
        for path in [
            "/",
            "/jobs",
            "/nothing",
            "/style.css",
            "/script.js",
            "/icon.svg",
            "/jobs/1/pause",
        ] {
            let reply = page.get(path);
            let policy = reply.header("content-security-policy");
            for part in [
                "default-src 'none'",
                "script-src 'self'",
                "form-action 'self'",
                "frame-ancestors 'none'",
            ] {
                assert!(
                    policy.contains(part) && !policy.contains("unsafe"),
                    "{path}: {reply:?}"
                );
            }
            assert_eq!(reply.header("x-frame-options"), "DENY", "{path}");
            assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
            assert_eq!(reply.header("referrer-policy"), "same-origin", "{path}");
            assert_eq!(reply.header("cache-control"), "no-store", "{path}");
            // Such a script or style would not be executed.
            assert!(
                !reply.body.contains("style=") && !reply.body.contains("onclick"),
                "{path}"
            );
        }
    }
}

#[test]
fn unsafe_options_are_refused() {
    for (arguments, text) in [
        (
            "--listen 0.0.0.0:0",
            "0.0.0.0:0 is not a loopback address: everybody in the network could see the jobs",
        ),
        (
            "--listen [::]:0 --allow-changes",
            "is not a loopback address",
        ),
        (
            "--listen 0.0.0.0:0 --token short",
            "the token has 5 characters: must be at least 16",
        ),
        ("--listen localhost", "invalid value 'localhost'"),
        (
            "--listen 203.0.113.1:1 --token 0123456789abcdef",
            "cannot listen at 203.0.113.1:1",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_job-scheduler"));
        command
            .args(["--url", "postgresql://nobody@localhost/none", "serve"])
            .args(arguments.split(' '));
        let result = run_command(&mut command);
        assert!(
            result.status != Some(0) && result.text.contains(text),
            "{arguments}: {result:?}"
        );
    }
}
