//! Payloads and outputs as text. PostgreSQL stores documents that `serde_json` does not read: with
//! thousands of nested arrays, and with numbers of any size. [`RawValue`] reads all of them.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The maximum length of a payload or an output, in bytes of JSON without spaces. The payloads that
/// a statement reads, and the outputs that a statement writes, have at most this length together,
/// because a statement must end well within a lease.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// The length from which a payload or an output is large, in bytes.
pub(crate) const LARGE: usize = 64 << 10;

/// Converts a document to text. The error says why it must not be stored.
pub(crate) fn encode(value: &Value) -> Result<Box<RawValue>, String> {
    let text =
        to_raw_value(value).map_err(|error| format!("cannot be converted to JSON: {error}"))?;
    let bytes = text.get().len();
    if bytes > MAX_BYTES {
        return Err(format!(
            "has {bytes} bytes of JSON: must be at most {MAX_BYTES}"
        ));
    }
    // Too many levels.
    decode(&text).map_err(|error| format!("could not be read again: {error}"))?;
    Ok(text)
}

fn decode(text: &RawValue) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text.get())
}

/// Returns a document, or a string with its text if `serde_json` does not read it.
pub(crate) fn decode_or_text(text: &RawValue) -> Value {
    decode(text).unwrap_or_else(|_| text.get().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: String) -> Box<RawValue> {
        RawValue::from_string(text).unwrap()
    }

    fn nested(levels: usize) -> String {
        "[".repeat(levels) + &"]".repeat(levels)
    }

    #[test]
    fn text_of_a_document_that_cannot_be_read_is_kept() {
        for text in [
            nested(128),
            nested(5_000),
            "{\"n\": 1e400}".into(),
            format!("1{}", "0".repeat(400)),
        ] {
            assert_eq!(decode_or_text(&raw(text.clone())), Value::String(text));
        }
        let text = nested(127);
        assert_eq!(decode_or_text(&raw(text.clone())).to_string(), text);
    }

    #[test]
    fn document_that_could_not_be_read_again_or_is_too_long_is_rejected() {
        let deepest = decode(&raw(nested(127))).unwrap();
        assert!(encode(&deepest).is_ok());
        let error = encode(&Value::Array(vec![deepest])).unwrap_err();
        assert!(
            error.starts_with("could not be read again: recursion limit exceeded"),
            "{error}"
        );
        // With its quotes.
        assert!(encode(&"a".repeat(MAX_BYTES - 2).into()).is_ok());
        let error = encode(&"a".repeat(MAX_BYTES - 1).into()).unwrap_err();
        assert_eq!(error, "has 4194305 bytes of JSON: must be at most 4194304");
    }

    #[test]
    fn largest_numbers_can_be_read_again() {
        for number in [f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0] {
            assert!(encode(&number.into()).is_ok());
            // As PostgreSQL prints it: without an exponent.
            assert_eq!(decode(&raw(format!("{number:?}"))).unwrap(), number);
            assert_eq!(
                decode(&raw(format!("{number}"))).unwrap().as_f64(),
                Some(number)
            );
        }
        assert!(encode(&u64::MAX.into()).is_ok() && encode(&i64::MIN.into()).is_ok());
    }
}
