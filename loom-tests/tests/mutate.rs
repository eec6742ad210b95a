//! Tests of `mutate.rs`: the code that the build script generates for a row.

#[path = "../mutants.rs"]
mod mutants;
#[path = "../mutate.rs"]
mod mutate;

use mutate::{Row, always, apply, mutant};

const TEXT: &str = "
fn wait(count: &Count) -> bool {
    // Not is_over(count), which counts.
    while !is_over(count) {
        park();
    }
    count
        .load(Acquire) == 0
}
";

/// Returns the lines that the rows change. All other lines stay the same.
fn changed(rows: &[Row]) -> Vec<String> {
    let text = apply(TEXT, rows).unwrap();
    assert_eq!(text.lines().count(), TEXT.lines().count());
    let lines = text
        .lines()
        .zip(TEXT.lines())
        .filter(|(new, old)| new != old);
    lines.map(|(new, _)| new.trim().to_owned()).collect()
}

fn stale(original: &'static str) -> String {
    apply(TEXT, &[mutant("Name", "a.rs", original, "")])
        .unwrap_err()
        .join("; ")
}

#[test]
fn expression_gets_an_alternative() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "while «!is_over(count)» {", "false")]),
        ["while (if crate::inside::mutant(\"Name\") { false } else { !is_over(count) }) {"]
    );
}

#[test]
fn statement_gets_an_alternative() {
    assert_eq!(
        changed(&[mutant(
            "Name",
            "a.rs",
            "park();",
            "spin();\n            spin();"
        )]),
        ["if crate::inside::mutant(\"Name\") { spin(); spin(); } else { park(); }"]
    );
}

#[test]
fn code_for_an_empty_part_is_inserted_there() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "«»park();", "return true;")]),
        ["if crate::inside::mutant(\"Name\") { return true; }; park();"]
    );
}

#[test]
fn row_without_mutant_replaces_the_part() {
    assert_eq!(changed(&[always("a.rs", "«park»();", "spin")]), ["spin();"]);
}

#[test]
fn line_breaks_and_comments_are_ignored() {
    assert_eq!(
        changed(&[mutant(
            "Name",
            "a.rs",
            "bool { while !is_over(count) { «»",
            "break;"
        )]),
        ["if crate::inside::mutant(\"Name\") { break; }; park();"]
    );
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "count.load(Acquire) == 0", "true")]),
        [
            "(if crate::inside::mutant(\"Name\") { true } else { count",
            ".load(Acquire) == 0 })"
        ]
    );
}

#[test]
fn rows_may_change_the_same_part_or_nested_parts() {
    let rows = [
        mutant("Part", "a.rs", "while «!is_over(count)» {", "false"),
        mutant("All", "a.rs", "while !is_over(count) { park(); }", ""),
        mutant(
            "Same",
            "a.rs",
            "while !is_over(count) { park(); }",
            "spin();",
        ),
        mutant(
            "Before",
            "a.rs",
            "«»while !is_over(count) {",
            "yield_now();",
        ),
    ];
    let is = |name: &str| format!("if crate::inside::mutant(\"{name}\") {{");
    let (before, all, same, part) = (is("Before"), is("All"), is("Same"), is("Part"));
    let first = format!(
        "{before} yield_now(); }}; {all}  }} else {{ {same} spin(); }} else {{ while ({part} false }} else {{ \
         !is_over(count) }}) {{"
    );
    assert_eq!(changed(&rows), [first.as_str(), "} } }"]);
}

#[test]
fn error_names_the_stale_row() {
    assert_eq!(
        stale("unpark();"),
        "loom-tests/mutants.rs, Name in a.rs: the text is not in the file: unpark();"
    );
    assert_eq!(
        stale("count"),
        "loom-tests/mutants.rs, Name in a.rs: the text is in the file more than once: count"
    );
    assert_eq!(
        stale("«park();"),
        "loom-tests/mutants.rs, Name in a.rs: there is no »: «park();"
    );
}

/// The build script checks this too. Here a failure is a failed test.
#[test]
fn each_row_changes_one_place_of_a_file() {
    assert!(mutants::ROWS.len() > 40);
    for row in mutants::ROWS {
        let file = match row.file.strip_prefix("util/") {
            Some(file) => format!("crates/util/src/{file}"),
            None => format!("src/{}", row.file),
        };
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../").to_owned() + &file;
        let text = std::fs::read_to_string(path).unwrap();
        let copy = apply(&text, [row]).unwrap();
        assert_ne!(copy, text);
        assert_eq!(
            copy.lines().count(),
            text.lines().count(),
            "each line keeps its number"
        );
    }
}
