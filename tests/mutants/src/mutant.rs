//! A mutant, and what it does to the text of its file.

use crate::change::Change;
use crate::place::find;

/// A change of one place of a file.
pub struct Mutant {
    /// Several changes may be one mutant. `None`: the change is always made.
    pub name: Option<&'static str>,
    /// The path of the file. If the place is to be looked for in one function only, its name
    /// follows after a space: `"engine/end.rs stop"`. (In all functions of that name, if the file
    /// has several.)
    pub file: &'static str,
    /// What is there, as described at [`find`].
    pub place: &'static str,
    /// The code that replaces it. If the place is empty, the code is inserted there.
    pub replacement: &'static str,
}

/// Makes a mutant: `if mutants::is_on("Name") { replacement } else { original }`.
pub const fn mutant(
    name: &'static str,
    file: &'static str,
    place: &'static str,
    replacement: &'static str,
) -> Mutant {
    Mutant {
        name: Some(name),
        file,
        place,
        replacement,
    }
}

/// Makes a change that all programs of the build have.
pub const fn always(file: &'static str, place: &'static str, replacement: &'static str) -> Mutant {
    Mutant {
        name: None,
        file,
        place,
        replacement,
    }
}

impl Mutant {
    /// The path of the file, without the function.
    pub fn path(&self) -> &'static str {
        self.file.split(' ').next().unwrap_or_default()
    }

    /// Returns what the mutant does to the text of its file.
    ///
    /// # Errors
    ///
    /// If the file does not have the place exactly once: the file was edited, and the mutant has to
    /// be adapted.
    pub fn change(&self, text: &str) -> Result<Change, String> {
        let function = self.file.split_once(' ').map(|(_, function)| function);
        let range = find(self.place, text, function).map_err(|why| {
            let name = self.name.unwrap_or("(always)");
            format!("mutant {name} in {}: {why}: {}", self.file, self.place)
        })?;
        // On one line, so that the copy has the same lines as the original.
        let words: Vec<_> = self.replacement.split_whitespace().collect();
        let replacement = words.join(" ");
        let Some(name) = self.name else {
            return Ok(Change {
                range,
                before: replacement,
                after: "",
                is_removed: true,
            });
        };
        let condition = format!("mutants::is_on(\"{name}\")");
        Ok(match text[range.clone()].chars().last() {
            // Statements.
            Some(';' | '}') => Change {
                range,
                before: format!("if {condition} {{ {replacement} }} else {{ "),
                after: " }",
                is_removed: false,
            },
            _ => Change::switched(range, &condition, &replacement),
        })
    }
}
