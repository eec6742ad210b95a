//! SQL texts for one schema, and the parameters of statements.

use std::error::Error as StdError;

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio_postgres::types::{FromSql, Json, ToSql, Type};

use crate::error::{Error, ensure};

/// A parameter of a statement. It knows its type, because a pooler may execute each statement on
/// another connection, and so none is prepared to learn the types.
pub(crate) trait Typed: Sync {
    /// The value and its type, as `query_typed` takes them.
    fn typed(&self) -> (&(dyn ToSql + Sync), Type);
}

pub(crate) type Parameter<'a> = &'a dyn Typed;

macro_rules! typed {
    ($($name:ident: $($rust:ty),+;)+) => {$($(
        impl Typed for $rust {
            fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
                (self, Type::$name)
            }
        }
    )+)+};
}

typed! {
    BOOL: bool;
    BOOL_ARRAY: Vec<bool>;
    INT2_ARRAY: Vec<i16>;
    INT4: i32, Option<i32>;
    INT8: i64, Option<i64>;
    INT8_ARRAY: &[i64], Vec<i64>, Option<Vec<i64>>, Vec<Option<i64>>;
    FLOAT8: f64;
    TEXT: &str, Option<&str>, String, Option<String>;
    TEXT_ARRAY: &[String], Vec<String>, Vec<&str>, Vec<Option<String>>;
    TIMESTAMPTZ: Timestamp, Option<Timestamp>;
    TIMESTAMPTZ_ARRAY: Vec<Timestamp>, Vec<Option<Timestamp>>;
    JSONB_ARRAY: Vec<Option<Json<&RawValue>>>;
}

/// A value that is a text in the tables.
pub(crate) trait Parse: Sized {
    /// The error says what the text is and must be. The constraints of the tables allow no other
    /// texts.
    fn parse(text: &str) -> Result<Self, String>;
}

/// A column with such a value.
pub(crate) struct Parsed<T>(pub(crate) T);

impl<'a, T: Parse> FromSql<'a> for Parsed<T> {
    fn from_sql(sql_type: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(T::parse(<&str>::from_sql(sql_type, raw)?)?))
    }

    tokio_postgres::types::accepts!(TEXT);
}

/// A value with a name in the tables.
pub(crate) trait Named {
    fn name(self) -> &'static str;
}

/// Names the values of a type.
macro_rules! named {
    ($type:ident, $what:literal: $($variant:ident = $name:literal),+) => {
        impl $crate::sql::Named for $type {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl $crate::sql::Parse for $type {
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(format!("{} '{text}': must be one of {}", $what, [$($name),+].join(", "))),
                }
            }
        }
    };
}

pub(crate) use named;

/// The longest name of a schema in bytes. PostgreSQL cuts names after 63 bytes, and the name of a
/// channel is longer than that of the schema.
const MAX_NAME: usize = 50;

/// The names that depend on the schema.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    schema: String,
}

impl Names {
    /// Only names that mean the same with and without quotes, so that they are the same in psql.
    pub(crate) fn new(schema: &str) -> Result<Self, Error> {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let is_valid = schema
            .bytes()
            .all(|byte| is_letter(byte) || byte.is_ascii_digit())
            && schema.bytes().next().is_some_and(is_letter)
            && schema.len() <= MAX_NAME
            && !schema.starts_with("pg_");
        ensure(is_valid, || {
            format!(
                "'{schema}' is no name for a schema: it must have 1 to {MAX_NAME} lower-case letters, digits \
                 and underscores, must not start with a digit and not with 'pg_'"
            )
        })?;
        Ok(Self {
            schema: schema.to_owned(),
        })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// The channel of notifications.
    pub(crate) fn channel(&self) -> String {
        format!("{}_jobs", self.schema)
    }

    /// The channel that tells a node, by its number, that runs which it executes were cancelled.
    pub(crate) fn cancel_channel(&self) -> String {
        format!("{}_cancel", self.channel())
    }

    /// Completes a text in which `@` stands for the schema, and `@channel` for the channel. (So
    /// `@channel_cancel` stands for the [`cancel_channel`](Self::cancel_channel).)
    pub(crate) fn complete(&self, text: &str) -> String {
        text.replace("@channel", &self.channel())
            .replace('@', &format!("\"{}\".", self.schema))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_qualified_by_the_schema() {
        let names = Names::new("my_jobs").unwrap();
        let text = names.complete("SELECT FROM @run; NOTIFY \"@channel\"");
        assert_eq!(text, "SELECT FROM \"my_jobs\".run; NOTIFY \"my_jobs_jobs\"");
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Side {
        Left,
        Right,
    }

    named!(Side, "side": Left = "left", Right = "on the right");

    #[test]
    fn names_of_values_are_read_and_others_are_an_error() {
        for side in [Side::Left, Side::Right] {
            assert_eq!(Side::parse(side.name()), Ok(side));
        }
        let error = Side::parse("Left").unwrap_err();
        assert_eq!(error, "side 'Left': must be one of left, on the right");
    }

    #[test]
    fn invalid_names_are_rejected() {
        for name in [
            "",
            "1a",
            "a-b",
            "Jobs",
            "a\"b",
            "pg_jobs",
            "jöbs",
            &"a".repeat(51),
        ] {
            assert!(Names::new(name).is_err(), "{name}");
        }
        assert!(Names::new(&"a".repeat(50)).is_ok());
    }
}
