//! Tests of `tests/mutants`: the places of mutants, and the code that replaces them.

use mutants::{Mutant, always, apply, mutant};

const TEXT: &str = "
fn wait(count: &Count) -> bool {
    // Not is_over(count), which counts.
    while !is_over(count) {
        park();
    }
    count
        .load(Acquire) == 0
}

fn start() {
    notify();
}

fn stop() {
    notify();
    start();
}
";

/// Returns the lines that the mutants change. All other lines stay the same.
fn changed(mutants: &[Mutant]) -> Vec<String> {
    let changes = mutants.iter().map(|mutant| mutant.change(TEXT).unwrap());
    let text = apply(TEXT, &changes.collect::<Vec<_>>());
    assert_eq!(text.lines().count(), TEXT.lines().count());
    let lines = text
        .lines()
        .zip(TEXT.lines())
        .filter(|(new, old)| new != old);
    lines.map(|(new, _)| new.trim().to_owned()).collect()
}

fn stale(file: &'static str, place: &'static str) -> String {
    mutant("Name", file, place, "").change(TEXT).unwrap_err()
}

#[test]
fn expression_gets_an_alternative() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "while «!is_over(count)» {", "false")]),
        ["while (if mutants::is_on(\"Name\") { false } else { !is_over(count) }) {"]
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
        ["if mutants::is_on(\"Name\") { spin(); spin(); } else { park(); }"]
    );
}

#[test]
fn code_for_an_empty_part_is_inserted_there() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "«»park();", "return true;")]),
        ["if mutants::is_on(\"Name\") { return true; }; park();"]
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
        ["if mutants::is_on(\"Name\") { break; }; park();"]
    );
    assert_eq!(
        changed(&[mutant("Name", "a.rs", "count.load(Acquire) == 0", "true")]),
        [
            "(if mutants::is_on(\"Name\") { true } else { count",
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
    let is = |name: &str| format!("if mutants::is_on(\"{name}\") {{");
    let (before, all, same, part) = (is("Before"), is("All"), is("Same"), is("Part"));
    let first = format!(
        "{before} yield_now(); }}; {all}  }} else {{ {same} spin(); }} else {{ while ({part} false }} else {{ \
         !is_over(count) }}) {{"
    );
    assert_eq!(changed(&rows), [first.as_str(), "} } }"]);
}

#[test]
fn place_is_looked_for_in_one_function() {
    assert_eq!(
        changed(&[mutant("Name", "a.rs stop", "notify();", "")]),
        ["if mutants::is_on(\"Name\") {  } else { notify(); }"]
    );
}

#[test]
fn arguments_may_be_left_out() {
    for place in [
        "is_over(…)",
        "while !«is_over(…)» {",
        "!«is_over(…)» { park(…); }",
    ] {
        assert_eq!(
            changed(&[mutant("Name", "a.rs", place, "true")]),
            ["while !(if mutants::is_on(\"Name\") { true } else { is_over(count) }) {"],
            "{place}"
        );
    }
}

#[test]
fn error_names_the_mutant() {
    assert_eq!(
        stale("a.rs", "unpark();"),
        "mutant Name in a.rs: it is not there: unpark();"
    );
    assert_eq!(
        stale("a.rs wait", "notify();"),
        "mutant Name in a.rs wait: it is not there: notify();"
    );
    assert_eq!(
        stale("a.rs", "notify();"),
        "mutant Name in a.rs: it is there more than once: notify();"
    );
    assert_eq!(
        stale("a.rs", "«park();"),
        "mutant Name in a.rs: « or » is missing: «park();"
    );
    assert_eq!(
        stale("a.rs park", "park();"),
        "mutant Name in a.rs park: the file has no such function: park();"
    );
}
