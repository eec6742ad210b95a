//! What the build script makes of a row.

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

/// The lines that a row changes; all others stay where they are.
fn changed(rows: &[Row]) -> Vec<String> {
    let text = apply(TEXT, rows).unwrap();
    assert_eq!(text.lines().count(), TEXT.lines().count());
    let lines = text.lines().zip(TEXT.lines()).filter(|(new, old)| new != old);
    lines.map(|(new, _)| new.trim().to_owned()).collect()
}

fn stale(original: &'static str) -> String {
    apply(TEXT, &[mutant("Name", "a.rs", original, "")]).unwrap_err().join("; ")
}

#[test]
fn an_expression_gets_an_alternative() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "while «!is_over(count)» {", "false")]),
        ["while (if crate::inside::mutant(\"Name\") { false } else { !is_over(count) }) {"]
    );
}

#[test]
fn a_statement_gets_an_alternative() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "park();", "spin();\n            spin();")]),
        ["if crate::inside::mutant(\"Name\") { spin(); spin(); } else { park(); }"]
    );
}

#[test]
fn an_empty_part_is_where_something_comes() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "«»park();", "return true;")]),
        ["if crate::inside::mutant(\"Name\") { return true; }; park();"]
    );
}

#[test]
fn a_row_for_all_takes_the_place() {
    assert_eq!(changed(&[always("a.rs", "«park»();", "spin")]), ["spin();"]);
}

#[test]
fn line_breaks_and_comments_do_not_matter() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "bool { while !is_over(count) { «»", "break;")]),
        ["if crate::inside::mutant(\"Name\") { break; }; park();"]
    );
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "count.load(Acquire) == 0", "true")]),
        ["(if crate::inside::mutant(\"Name\") { true } else { count", ".load(Acquire) == 0 })"]
    );
}

#[test]
fn rows_may_change_the_same_or_a_part_of_it() {
    let rows = [
        mutant("Part", "a.rs", "while «!is_over(count)» {", "false"),
        mutant("All", "a.rs", "while !is_over(count) { park(); }", ""),
        mutant("Same", "a.rs", "while !is_over(count) { park(); }", "spin();"),
        mutant("Before", "a.rs", "«»while !is_over(count) {", "yield_now();"),
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
fn a_stale_row_is_named() {
    assert_eq!(
        stale("unpark();"),
        "loom-tests/mutants.rs, Name in a.rs: the text is not in the file: unpark();"
    );
    assert_eq!(
        stale("count"),
        "loom-tests/mutants.rs, Name in a.rs: the text is in the file more than once: count"
    );
    assert_eq!(stale("«park();"), "loom-tests/mutants.rs, Name in a.rs: there is no »: «park();");
}

/// What the build script sees to as well; here it is said of the whole table.
#[test]
fn each_row_is_of_a_file_and_of_one_place() {
    assert!(mutants::ROWS.len() > 40);
    for row in mutants::ROWS {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/").to_owned() + row.file;
        let text = std::fs::read_to_string(path).unwrap();
        let copy = apply(&text, [row]).unwrap();
        assert_ne!(copy, text);
        assert_eq!(copy.lines().count(), text.lines().count(), "the lines stay where they are");
    }
}
