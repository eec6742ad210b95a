//! What an error that Redis answers says about the next call.

use redis::{RedisError, Value};

/// The errors of a server that does not execute calls now, but may do so soon. Other errors, such
/// as OOM, MISCONF and NOPERM, last until an administrator changes the server.
const TRANSIENT: [&str; 7] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "READONLY",
    "TRYAGAIN",
];

/// What the text of an error starts with that a command in a script has caused, in Redis 6.2 and
/// older. A script that returns the error of `pcall` answers without the first part.
const SCRIPT: &str = "Error running script ";
const LINE: &str = "@user_script:";

/// Returns the error of the command that Redis has refused: the first one of a pipeline, and the
/// one in a script. All functions of this file expect that.
pub(crate) fn cause(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    let error = errors
        .and_then(|errors| errors.first().map(|(_, first)| first.clone().into()))
        .unwrap_or(error);
    let in_script = text_in_script(&error)
        .and_then(|text| redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).ok());
    match in_script {
        Some(Value::ServerError(cause)) => cause.into(),
        _ => error,
    }
}

/// Returns the text of an error that Redis 6.2 or older has packed into another one:
/// `ERR Error running script (call to f_HASH): @user_script:1: @user_script: 1: -OOM command ...`.
fn text_in_script(error: &RedisError) -> Option<String> {
    let detail = error.detail()?;
    let mut text = match error.code()? {
        "ERR" => detail.strip_prefix(SCRIPT)?.split_once(LINE)?.1,
        LINE => detail,
        _ => return None,
    };
    loop {
        let line = text
            .trim_start()
            .trim_start_matches(|c: char| c.is_ascii_digit());
        text = line.strip_prefix(": ")?;
        match text.strip_prefix(LINE) {
            Some(next) => text = next,
            None => break,
        }
    }
    let text = text.strip_prefix('-').unwrap_or(text);
    let code = text.split(' ').next()?;
    let has_code = code.bytes().all(|byte| byte.is_ascii_uppercase());
    Some(if has_code {
        text.into()
    } else {
        format!("ERR {text}")
    })
}

/// Returns whether the same call may succeed soon.
pub(crate) fn is_transient(error: &RedisError) -> bool {
    error.code().is_some_and(|code| TRANSIENT.contains(&code))
}

/// Returns whether another connection may succeed: this one failed, or its server has become a
/// replica.
pub(crate) fn is_of_connection(error: &RedisError) -> bool {
    error
        .code()
        .is_none_or(|code| ["READONLY", "MASTERDOWN"].contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is made of an answer.
    fn cause_of(answer: &str) -> RedisError {
        let parsed = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = parsed else {
            panic!("{answer}: {parsed:?}")
        };
        cause(error.into())
    }

    /// The texts are those of Redis 6.2.5 and 7.0.15 and of Valkey 9.1.2: each server was brought
    /// into the state, and was sent an `EVAL`.
    #[test]
    fn the_error_of_a_command_in_a_script_is_recognised() {
        const IN_SCRIPT: &str = "ERR Error running script (call to f_2b58b113dac432e64a65f3ae35a5bac7217348a6): @user_script:1:";
        for (code, is_transient, is_of_connection, texts) in [
            (
                "READONLY",
                true,
                true,
                &[
                    "READONLY You can't write against a read only replica.",
                    "READONLY You can't write against a read only replica. script: 2b58b113dac432e64a65f3ae35a5bac7217348a6, on @user_script:1.",
                    "READONLY You can't write against a read only replica. script: on @user_script:1.",
                    "IN_SCRIPT @user_script: 1: -READONLY You can't write against a read only replica.",
                    "@user_script: 1: -READONLY You can't write against a read only replica.",
                ][..],
            ),
            (
                "OOM",
                false,
                false,
                &[
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "OOM command not allowed when used memory > 'maxmemory'. script: 2b58b113dac432e64a65f3ae35a5bac7217348a6, on @user_script:1.",
                    "IN_SCRIPT @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
                ],
            ),
            (
                "MASTERDOWN",
                true,
                true,
                &[
                    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                ],
            ),
            (
                "NOREPLICAS",
                true,
                false,
                &["NOREPLICAS Not enough good replicas to write. script: on @user_script:1."],
            ),
            (
                "BUSY",
                true,
                false,
                &[
                    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                    "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                ],
            ),
            (
                "MISCONF",
                false,
                false,
                &[
                    "IN_SCRIPT @user_script: 1: -MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
                ],
            ),
            (
                "WRONGTYPE",
                false,
                false,
                &[
                    "WRONGTYPE Operation against a key holding the wrong kind of value script: df94f6e2145c0f1402ca5a21d71ebb02f5ae2169, on @user_script:1.",
                    "IN_SCRIPT WRONGTYPE Operation against a key holding the wrong kind of value",
                ],
            ),
            (
                "NOSCRIPT",
                false,
                false,
                &["NOSCRIPT No matching script. Please use EVAL."],
            ),
            (
                "ERR",
                false,
                false,
                &[
                    "ERR the last token of the lock has no successor",
                    "IN_SCRIPT ERR value is not an integer or out of range",
                    "IN_SCRIPT @user_script: 1: The user executing the script can't run this command or subcommand",
                    "@user_script: 1: The user executing the script can't run this command or subcommand",
                    "IN_SCRIPT user_script:1: x: -READONLY of another text",
                    "ERR Error running script (call to f_2b58): READONLY",
                    "ERR READONLY",
                ],
            ),
        ] {
            for text in texts {
                let error = cause_of(&text.replace("IN_SCRIPT", IN_SCRIPT));
                assert_eq!(
                    (
                        error.code(),
                        super::is_transient(&error),
                        super::is_of_connection(&error)
                    ),
                    (Some(code), is_transient, is_of_connection),
                    "{text}"
                );
            }
        }
        let error = cause_of(&format!(
            "{IN_SCRIPT} @user_script: 1: -OOM command not allowed"
        ));
        assert_eq!(error.detail(), Some("command not allowed"));
        assert!(is_of_connection(&std::io::Error::other("closed").into()));
    }
}
