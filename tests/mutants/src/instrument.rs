//! Puts the mutants of a file behind switches.
//!
//! A mutant that replaces an expression, such as `a < b`:
//!
//!     (if crate::mutants::is_on(7) { a <= b } else { a < b })
//!
//! A mutant that replaces the body of a function:
//!
//!     if crate::mutants::is_on(8) { return None; }
//!
//! A mutant without a match arm has `if !crate::mutants::is_on(9)` as the arm's guard. Each
//! replacement is on a line of its own that begins with its mark, so that an error of the compiler
//! can be assigned to it.

use crate::list::Mutant;
use mutants::{Change, apply};
use std::collections::HashSet;
use syn::{spanned::Spanned, visit::Visit};

/// Bytes of the file.
type Range = (usize, usize);

/// Begins the line of a replacement.
fn mark(id: u32) -> String {
    format!("\n/*mutant {id}*/")
}

/// Returns the text of a file with its mutants, except those in `unviable`; and the mutants that
/// have no place in it, because a constant cannot read a switch.
pub fn instrument(text: &str, mutants: &[&Mutant], unviable: &HashSet<u32>) -> (String, Vec<u32>) {
    let file = syn::parse_file(text).expect("a Rust file");
    let lines = [0]
        .into_iter()
        .chain(text.match_indices('\n').map(|(end, _)| end + 1))
        .collect();
    let mut places = Places {
        text,
        lines,
        mutants,
        changes: Vec::new(),
        constants: Vec::new(),
    };
    places.visit_file(&file);
    let Places {
        mut changes,
        constants,
        ..
    } = places;
    changes.retain(|(_, change)| {
        // A body that begins with a constant is not in it.
        let range = &change.range;
        let is_in = |constant: &Range| {
            constant.0 <= range.start && constant.0 < range.end && range.end <= constant.1
        };
        !constants.iter().any(is_in)
    });
    let placed: HashSet<u32> = changes.iter().map(|(id, _)| *id).collect();
    let missing = mutants
        .iter()
        .map(|mutant| mutant.id)
        .filter(|id| !placed.contains(id))
        .collect();
    let viable = changes.into_iter().filter(|(id, _)| !unviable.contains(id));
    let changes: Vec<_> = viable.map(|(_, change)| change).collect();
    (apply(text, &changes), missing)
}

/// Finds the places of mutants.
struct Places<'a> {
    text: &'a str,
    /// The offset of each line.
    lines: Vec<usize>,
    mutants: &'a [&'a Mutant],
    /// Each with its mutant.
    changes: Vec<(u32, Change)>,
    /// Code that the compiler may execute.
    constants: Vec<Range>,
}

impl<'a> Places<'a> {
    /// Returns the offset of a column (from 0) of a line (from 1).
    fn offset(&self, line: usize, column: usize) -> usize {
        let start = self.lines[line - 1];
        start
            + self.text[start..]
                .chars()
                .take(column)
                .map(char::len_utf8)
                .sum::<usize>()
    }

    fn range(&self, item: &impl Spanned) -> Range {
        let span = item.span();
        let offset =
            |position: proc_macro2::LineColumn| self.offset(position.line, position.column);
        (offset(span.start()), offset(span.end()))
    }

    fn start_of(&self, mutant: &Mutant) -> usize {
        self.offset(mutant.start.0, mutant.start.1 - 1)
    }

    /// Returns the mutants of this genre whose replaced text begins there.
    fn at(&self, genre: &str, start: usize) -> Vec<&'a Mutant> {
        let is_there = |mutant: &&&Mutant| mutant.genre == genre && self.start_of(mutant) == start;
        self.mutants.iter().filter(is_there).copied().collect()
    }

    /// Puts a replacement of an expression behind a switch, or a statement.
    fn switch(&mut self, id: u32, range: Range, replacement: &str) {
        let without_comment = |line: &str| {
            let code = line.split("//").next().unwrap_or_default();
            code.trim().to_owned()
        };
        let lines: Vec<_> = replacement.lines().map(without_comment).collect();
        let replacement = format!("{} {}\n", mark(id), lines.join(" "));
        let condition = format!("crate::mutants::is_on({id})");
        let change = Change::switched(range.0..range.1, &condition, &replacement);
        self.changes.push((id, change));
    }

    /// Adds replacements of an expression. `replaced` is the text that the mutants replace by
    /// theirs.
    fn replace(&mut self, expression: Range, genre: &str, replaced: Range) {
        let before = &self.text[expression.0..replaced.0];
        let after = &self.text[replaced.1..expression.1];
        for mutant in self.at(genre, replaced.0) {
            let replacement = format!("{before}{}{after}", mutant.replacement);
            self.switch(mutant.id, expression, &replacement);
        }
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let start = self.range(first).0;
        for mutant in self.at("FnValue", start) {
            // `impl Trait` stands for the type of the original body.
            if !mutant.return_type.contains("impl ") {
                let statement = format!("return {};", mutant.replacement);
                self.switch(mutant.id, (start, start), &statement);
            }
        }
    }

    /// Without its guard, or without itself if the match has a default.
    fn arm(&mut self, arm: &syn::Arm, has_default: bool) {
        let mut deleted = self.at("MatchArm", self.range(arm).0);
        deleted.retain(|_| has_default);
        let Some((_, guard)) = &arm.guard else {
            let end = self.range(&arm.pat).1;
            for mutant in deleted {
                let before = format!(
                    "{} if !crate::mutants::is_on({})\n",
                    mark(mutant.id),
                    mutant.id
                );
                let change = Change {
                    range: end..end,
                    before,
                    after: "",
                    is_removed: false,
                };
                self.changes.push((mutant.id, change));
            }
            return;
        };
        let guard = self.range(&**guard);
        for mutant in self.at("MatchArmGuard", guard.0) {
            self.switch(mutant.id, guard, &mutant.replacement);
        }
        for mutant in deleted {
            self.switch(mutant.id, guard, "false");
        }
    }
}

impl<'ast> Visit<'ast> for Places<'_> {
    fn visit_expr_binary(&mut self, expression: &'ast syn::ExprBinary) {
        self.replace(
            self.range(expression),
            "BinaryOperator",
            self.range(&expression.op),
        );
        syn::visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast syn::ExprUnary) {
        self.replace(
            self.range(expression),
            "UnaryOperator",
            self.range(&expression.op),
        );
        syn::visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_struct(&mut self, expression: &'ast syn::ExprStruct) {
        for field in expression.fields.pairs() {
            let start = self.range(field.value()).0;
            let end = field
                .punct()
                .map_or(self.range(field.value()).1, |comma| self.range(comma).1);
            self.replace(self.range(expression), "StructField", (start, end));
        }
        syn::visit::visit_expr_struct(self, expression);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        let catches_all =
            |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        let has_default = expression.arms.iter().any(catches_all);
        for arm in &expression.arms {
            self.arm(arm, has_default);
        }
        syn::visit::visit_expr_match(self, expression);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_some() {
            self.constants.push(self.range(item));
        }
        self.body(&item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_some() {
            self.constants.push(self.range(item));
        }
        self.body(&item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constants.push(self.range(item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constants.push(self.range(item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constants.push(self.range(item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constants.push(self.range(item));
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.constants.push(self.range(array));
    }
}
