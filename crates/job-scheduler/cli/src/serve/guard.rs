//! Access control. Each request is admitted here first.
//!
//! | danger | safeguard |
//! |---|---|
//! | the network sees the page | only loopback addresses without a token |
//! | a name of another site that resolves to this address (DNS rebinding) | without a token, only `Host: localhost` and loopback addresses |
//! | another site sends a form with the user's cookie (CSRF) | `SameSite=Strict`, `Sec-Fetch-Site` or `Origin`, and a random value in each form |
//! | another site frames the page | `X-Frame-Options` and `frame-ancestors` |
//! | a payload that contains markup | a type whose markup is in this program, and a policy without inline scripts and foreign content |
//! | the token is guessed | at least [`MIN_TOKEN`] characters, compared in constant time; [`MAX_WRONG`] wrong ones per minute and address |
//! | a change by mistake | read-only without `--allow-changes`; transactions that only read are read-only |

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::header;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode};
use subtle::ConstantTimeEq;

use super::problem::Problem;

/// The least number of characters of a token.
pub(crate) const MIN_TOKEN: usize = 16;

/// How many wrong tokens an address may send per minute. Behind a proxy, all users have its address.
const MAX_WRONG: u32 = 20;

/// The number of addresses that are remembered.
const MAX_ADDRESSES: usize = 10_000;

/// The paths that a browser needs to show the login form.
const PUBLIC: [&str; 4] = ["/login", "/style.css", "/script.js", "/icon.svg"];

/// The secrets of this process.
pub(crate) struct Guard {
    token: Option<String>,
    allows_changes: bool,
    /// In each form that changes something.
    form: String,
    /// The cookie after a login. The token itself stays out of the browser's storage.
    session: String,
    /// Cookies of a host are the same for all ports, so the name contains the port.
    cookie: String,
    /// The wrong tokens of each address since this time.
    wrong: Mutex<(Instant, HashMap<IpAddr, u32>)>,
}

/// How a request is authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// By a cookie, or not at all. Another site may have caused the request.
    Browser,
    /// By the token itself. No other site knows it.
    Program,
}

/// Why a request is not admitted.
pub(crate) enum Denied {
    NeedsLogin,
    Refused(Problem),
}

impl Guard {
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub(crate) fn new(
        token: Option<String>,
        allows_changes: bool,
        port: u16,
    ) -> Result<Self, getrandom::Error> {
        let [form, session] = [random()?, random()?];
        Ok(Self {
            token,
            allows_changes,
            form,
            session,
            cookie: format!("job_scheduler_{port}"),
            wrong: Mutex::new((Instant::now(), HashMap::new())),
        })
    }

    pub(crate) fn allows_changes(&self) -> bool {
        self.allows_changes
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The hidden value of forms.
    pub(crate) fn form(&self) -> &str {
        &self.form
    }

    /// Whether this is the token. An address that has sent too many wrong ones in this minute is
    /// refused. Comparing and counting are one step, so requests at the same time have no more
    /// attempts.
    pub(crate) fn is_token(&self, address: IpAddr, text: &str) -> Result<bool, Problem> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.0.elapsed() >= Duration::from_secs(60) || wrong.1.len() >= MAX_ADDRESSES {
            *wrong = (Instant::now(), HashMap::new());
        }
        let count = wrong.1.entry(network(address)).or_default();
        if *count >= MAX_WRONG {
            return Err(Problem {
                status: StatusCode::TOO_MANY_REQUESTS,
                ..Problem::refused(
                    "There were too many wrong tokens.",
                    "Try again in a minute.",
                )
            });
        }
        let is_token = self
            .token
            .as_deref()
            .is_some_and(|token| is_same(token, text));
        *count += u32::from(!is_token);
        Ok(is_token)
    }

    /// Returns the `Set-Cookie` of a login, or of its end. `Secure` if a proxy says that the
    /// browser uses TLS.
    pub(crate) fn set_cookie(&self, is_login: bool, headers: &HeaderMap) -> String {
        let (value, age) = if is_login {
            (self.session.as_str(), "")
        } else {
            ("", "; Max-Age=0")
        };
        let is_tls = headers
            .get("x-forwarded-proto")
            .is_some_and(|scheme| scheme == "https");
        let secure = if is_tls { "; Secure" } else { "" };
        format!(
            "{}={value}; Path=/; HttpOnly; SameSite=Strict{age}{secure}",
            self.cookie
        )
    }

    /// Refuses a form that is not one of this process.
    pub(crate) fn check_form(&self, caller: Caller, value: Option<&str>) -> Result<(), Problem> {
        if caller == Caller::Program || value.is_some_and(|value| is_same(value, &self.form)) {
            return Ok(());
        }
        Err(Problem::refused(
            "The form is not one of this page, or this program was restarted meanwhile.",
            "Go back, load the page again, and repeat the action.",
        ))
    }

    /// Says how a request is authenticated, or why it is not admitted.
    pub(crate) fn admit(
        &self,
        address: IpAddr,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Caller, Denied> {
        if self.token.is_none() && !has_loopback_host(headers) {
            return Err(Denied::Refused(Problem::refused(
                "Without a token, this page is only shown as http://localhost or a loopback address.",
                "Start it with --token to use it under another name, for example behind a proxy.",
            )));
        }
        let caller = self.authenticate(address, path, headers)?;
        if [Method::GET, Method::HEAD].contains(method) {
            return Ok(caller);
        }
        if caller == Caller::Browser && !is_same_origin(headers) {
            return Err(Denied::Refused(Problem::refused(
                "The request comes from another site.",
                "If there is a proxy, it must pass the header Host on.",
            )));
        }
        if !self.allows_changes && !["/login", "/logout"].contains(&path) {
            return Err(Denied::Refused(Problem::refused(
                "This page is read-only.",
                "Start job-scheduler serve with --allow-changes to change jobs here.",
            )));
        }
        Ok(caller)
    }

    fn authenticate(
        &self,
        address: IpAddr,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Caller, Denied> {
        if self.token.is_none() || PUBLIC.contains(&path) {
            return Ok(Caller::Browser);
        }
        // A proxy passes on what it has asked for itself, such as `Basic`.
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let bearer = values.find_map(|value| {
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        if let Some(token) = bearer {
            if self.is_token(address, token).map_err(Denied::Refused)? {
                return Ok(Caller::Program);
            }
            return Err(Denied::Refused(Problem {
                status: StatusCode::UNAUTHORIZED,
                ..Problem::refused(
                    "The header Authorization must be: Bearer and the token.",
                    "",
                )
            }));
        }
        let cookies = headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let is_session =
            |(name, value): (&str, &str)| name == self.cookie && is_same(value, &self.session);
        let mut pairs = cookies
            .flat_map(|line| line.split("; "))
            .filter_map(|pair| pair.split_once('='));
        if pairs.any(is_session) {
            Ok(Caller::Browser)
        } else {
            Err(Denied::NeedsLogin)
        }
    }
}

fn random() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The time that this takes does not depend on the characters.
fn is_same(left: &str, right: &str) -> bool {
    left.as_bytes().ct_eq(right.as_bytes()).into()
}

fn host(headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?.parse().ok()?;
    hosts.next().is_none().then_some(host)
}

fn has_loopback_host(headers: &HeaderMap) -> bool {
    host(headers).is_some_and(|host| {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || name
                .parse()
                .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    })
}

/// Whether a page of this program has sent the form, as far as the browser tells. Browsers that
/// send neither header are so old that only the other safeguards protect their users.
fn is_same_origin(headers: &HeaderMap) -> bool {
    // Not sent to a server without TLS, unless it is on the same machine.
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, origin)| host(headers).is_some_and(|host| host == *origin))
}

/// With IPv6, a user has a network of 2^64 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |&(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        // Not collected: that would keep only the last value of a name.
        let mut headers = HeaderMap::new();
        lines.iter().map(line).for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    #[test]
    fn only_names_of_this_machine_are_loopback_hosts() {
        for host in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
        ] {
            assert!(has_loopback_host(&headers(&[("host", host)])), "{host}");
        }
        for host in [
            "example.com",
            "127.0.0.1.example.com:8080",
            "localhost.example.com",
            "10.0.0.1",
            "",
        ] {
            assert!(!has_loopback_host(&headers(&[("host", host)])), "{host}");
        }
        assert!(!has_loopback_host(&headers(&[])));
        assert!(!has_loopback_host(&headers(&[
            ("host", "localhost"),
            ("host", "example.com")
        ])));
    }

    #[test]
    fn requests_of_other_sites_are_recognised() {
        let host = ("host", "jobs.example.com:8080");
        for (name, value, is_same) in [
            ("sec-fetch-site", "same-origin", true),
            ("sec-fetch-site", "same-site", false),
            ("sec-fetch-site", "cross-site", false),
            ("sec-fetch-site", "none", false),
            ("origin", "http://jobs.example.com:8080", true),
            ("origin", "https://jobs.example.com", false),
            ("origin", "https://example.com", false),
            ("origin", "null", false),
            ("accept", "*/*", true),
        ] {
            assert_eq!(
                is_same_origin(&headers(&[host, (name, value)])),
                is_same,
                "{name}: {value}"
            );
        }
    }
}
