//! The files that a measurement changes: the page and the figures in docs/, and the README.

use std::error::Error;
use std::fs;

use crate::figure;
use crate::machine::Environment;
use crate::measure::Measurements;
use crate::summary::Summary;
use crate::{ROOT, report};

/// Returns the path of each file, without [`ROOT`], and its new text.
pub(crate) fn render(
    measurements: &Measurements,
    environment: &Environment,
) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let file = |path: &str, part: &str| -> Result<_, Box<dyn Error>> {
        let old = fs::read_to_string(format!("{ROOT}/{path}"))?;
        let new = splice(&old, part).ok_or_else(|| format!("{path}: no markers for the table"))?;
        Ok((path.to_owned(), new))
    };
    let mut files = vec![
        file(
            "docs/benchmarks.md",
            &report::page(measurements, environment),
        )?,
        file("README.md", &report::readme(measurements, environment))?,
        (
            "docs/benchmarks-threads.txt".into(),
            format!(
                "{}.\n{}",
                environment.text(),
                report::threads(&Summary { measurements })
            ),
        ),
    ];
    files.extend(figure::all(measurements).map(|(name, svg)| (format!("docs/{name}"), svg)));
    Ok(files)
}

pub(crate) fn write(
    measurements: &Measurements,
    environment: &Environment,
) -> Result<(), Box<dyn Error>> {
    for (path, text) in render(measurements, environment)? {
        fs::write(format!("{ROOT}/{path}"), text)?;
    }
    Ok(())
}

/// Replaces the text between the markers.
fn splice(old: &str, part: &str) -> Option<String> {
    const BEGIN: &str = "<!-- compare: begin -->\n";
    const END: &str = "<!-- compare: end -->\n";

    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{part}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OPERATIONS, ROWS};
    use crate::record;

    fn read(path: &str) -> String {
        fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
    }

    #[test]
    fn files_are_those_of_the_measurement() {
        let (measurements, environment) = record::read(&read("docs/benchmarks.json")).unwrap();
        for (path, text) in render(&measurements, &environment).unwrap() {
            assert!(
                read(&path) == text,
                "{path} is not up to date: {} -- --render",
                crate::COMMAND
            );
        }
    }

    #[test]
    fn page_and_readme_say_what_was_measured_and_when() {
        let (_, environment) = record::read(&read("docs/benchmarks.json")).unwrap();
        for key in ["command", "commit", "date", "cpu"] {
            let value = environment.get(key);
            assert!(!value.is_empty(), "docs/benchmarks.json: no {key}");
            for page in ["docs/benchmarks.md", "README.md"] {
                // The README's lines end at column 100.
                let text = read(page).replace('\n', " ");
                assert!(text.contains(value), "{page}: no {key}");
            }
        }
    }

    #[test]
    fn page_is_short_and_explains_each_row() {
        let page = read("docs/benchmarks.md");
        let (lines, words) = (page.lines().count(), page.split_whitespace().count());
        let is_short = lines <= 90 && words <= 1_000;
        assert!(is_short, "{lines} lines and {words} words");
        let operations = OPERATIONS.iter().map(|operation| operation.name);
        for name in ROWS.iter().map(|row| &*row.workload).chain(operations) {
            let is_there = page.contains(&format!("`{name}`"));
            assert!(is_there, "the page does not say what {name} measures");
        }
    }
}
