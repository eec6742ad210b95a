//! Each relative link in the Markdown files of the repository leads to a file, and to a heading if
//! it names one.

use std::collections::HashMap;
use std::fs;

use crate::files::{pages, root};

/// Returns the text without code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Returns the targets of links and pictures.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// Returns the names by which links refer to the headings of a page, as GitHub forms them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text);
    let mut seen: HashMap<String, usize> = HashMap::new();
    headings
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let name = title
                .chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-");
            let count = seen.entry(name.clone()).or_default();
            *count += 1;
            if *count == 1 {
                name
            } else {
                format!("{name}-{}", *count - 1)
            }
        })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (root, all) = (root(), pages());
    assert!(all.len() > 10, "{all:?}");
    let (mut checked, mut broken) = (0, Vec::new());
    for page in &all {
        let text = fs::read_to_string(page).expect("the page can be read");
        for link in links(&prose(&text)) {
            let is_external = ["http://", "https://", "mailto:"]
                .iter()
                .any(|scheme| link.starts_with(scheme));
            if is_external {
                continue;
            }
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.parent().expect("a page is in a folder");
            let target = if path.is_empty() {
                page.clone()
            } else {
                folder.join(path)
            };
            let leads = target.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).iter().any(|name| name == anchor)));
            if !leads {
                broken.push(format!(
                    "{}: {link}",
                    page.strip_prefix(root).unwrap_or(page).display()
                ));
            }
        }
    }
    assert!(checked > 50, "only {checked} links were found");
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}
