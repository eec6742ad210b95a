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
use std::collections::HashSet;
use syn::{spanned::Spanned, visit::Visit};

/// Bytes of the file.
type Range = (usize, usize);

/// A replacement: the mutant's identifier, and the complete new text.
type Replacement = (u32, String);

enum Edit {
    /// At the beginning of a body: returns early.
    Return(Vec<Replacement>),
    /// In place of an expression or a guard.
    Expression(Vec<Replacement>),
    /// After the pattern of an arm.
    Guard(u32),
}

impl Edit {
    fn ids(&self) -> Vec<u32> {
        match self {
            Self::Return(replacements) | Self::Expression(replacements) => {
                replacements.iter().map(|(id, _)| *id).collect()
            }
            Self::Guard(id) => vec![*id],
        }
    }
}

/// Begins the line of a replacement.
pub fn mark(id: u32) -> String {
    format!("/*mutant {id}*/")
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
        edits: Vec::new(),
        constants: Vec::new(),
    };
    places.visit_file(&file);
    let Places {
        mut edits,
        constants,
        ..
    } = places;
    edits.retain(|(range, _)| {
        // A body that begins with a constant is not in it.
        let is_in = |constant: &Range| {
            constant.0 <= range.0 && constant.0 < range.1 && range.1 <= constant.1
        };
        !constants.iter().any(is_in)
    });
    // An edit comes before those that it contains.
    edits.sort_by_key(|(range, edit)| {
        (
            range.0,
            matches!(edit, Edit::Expression(_)),
            usize::MAX - range.1,
        )
    });
    let placed: HashSet<u32> = edits.iter().flat_map(|(_, edit)| edit.ids()).collect();
    let missing = mutants
        .iter()
        .map(|mutant| mutant.id)
        .filter(|id| !placed.contains(id))
        .collect();
    (emit(text, &edits, (0, text.len()), unviable), missing)
}

/// Returns a part of the text with its edits.
fn emit(text: &str, edits: &[(Range, Edit)], part: Range, unviable: &HashSet<u32>) -> String {
    let switch = |id: u32, replacement: &str| {
        format!(
            "if crate::mutants::is_on({id}) {{\n{} {replacement}\n}} else ",
            mark(id)
        )
    };
    let mut result = String::new();
    let mut position = part.0;
    let mut rest = edits;
    while let Some(((range, edit), after)) = rest.split_first() {
        result.push_str(&text[position..range.0]);
        position = range.1;
        match edit {
            Edit::Return(replacements) => {
                for (id, replacement) in
                    replacements.iter().filter(|(id, _)| !unviable.contains(id))
                {
                    result.push_str(&switch(*id, &format!("return {replacement};")));
                    result.push_str("{}\n");
                }
                rest = after;
            }
            Edit::Guard(id) => {
                if !unviable.contains(id) {
                    result.push_str(&format!(
                        "\n{} if !crate::mutants::is_on({id})\n",
                        mark(*id)
                    ));
                }
                rest = after;
            }
            Edit::Expression(replacements) => {
                let (inner, outer) =
                    after.split_at(after.partition_point(|(other, _)| other.0 < range.1));
                result.push('(');
                for (id, replacement) in
                    replacements.iter().filter(|(id, _)| !unviable.contains(id))
                {
                    result.push_str(&switch(*id, replacement));
                }
                result.push_str(&format!("{{ {} }})", emit(text, inner, *range, unviable)));
                rest = outer;
            }
        }
    }
    result + &text[position..part.1]
}

/// Finds the places of mutants.
struct Places<'a> {
    text: &'a str,
    /// The offset of each line.
    lines: Vec<usize>,
    mutants: &'a [&'a Mutant],
    edits: Vec<(Range, Edit)>,
    /// Code that the compiler may execute.
    constants: Vec<Range>,
}

impl Places<'_> {
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
    fn at(&self, genre: &str, start: usize) -> Vec<&Mutant> {
        let is_there = |mutant: &&&Mutant| mutant.genre == genre && self.start_of(mutant) == start;
        self.mutants.iter().filter(is_there).copied().collect()
    }

    /// Adds replacements of an expression. `replaced` is the text that the mutants replace by
    /// theirs.
    fn replace(&mut self, expression: Range, genre: &str, replaced: Range) {
        let replacement = |mutant: &Mutant| {
            let (before, after) = (
                &self.text[expression.0..replaced.0],
                &self.text[replaced.1..expression.1],
            );
            (mutant.id, format!("{before}{}{after}", mutant.replacement))
        };
        let replacements: Vec<_> = self
            .at(genre, replaced.0)
            .into_iter()
            .map(replacement)
            .collect();
        if !replacements.is_empty() {
            self.edits
                .push((expression, Edit::Expression(on_one_line(replacements))));
        }
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let start = self.range(first).0;
        // `impl Trait` stands for the type of the original body.
        let is_replaceable = |mutant: &&Mutant| !mutant.return_type.contains("impl ");
        let mutants = self.at("FnValue", start).into_iter().filter(is_replaceable);
        let replacements: Vec<_> = mutants
            .map(|mutant| (mutant.id, mutant.replacement.clone()))
            .collect();
        if !replacements.is_empty() {
            self.edits
                .push(((start, start), Edit::Return(on_one_line(replacements))));
        }
    }

    /// Without its guard, or without itself if the match has a default.
    fn arm(&mut self, arm: &syn::Arm, has_default: bool) {
        let deleted = self
            .at("MatchArm", self.range(arm).0)
            .into_iter()
            .map(|mutant| mutant.id);
        let deleted: Vec<u32> = deleted.filter(|_| has_default).collect();
        let Some((_, guard)) = &arm.guard else {
            let end = self.range(&arm.pat).1;
            self.edits
                .extend(deleted.into_iter().map(|id| ((end, end), Edit::Guard(id))));
            return;
        };
        let guard = self.range(&**guard);
        let replaced = self.at("MatchArmGuard", guard.0).into_iter();
        let mut replacements: Vec<_> = replaced
            .map(|mutant| (mutant.id, mutant.replacement.clone()))
            .collect();
        replacements.extend(deleted.into_iter().map(|id| (id, "false".to_owned())));
        if !replacements.is_empty() {
            self.edits.push((guard, Edit::Expression(replacements)));
        }
    }
}

/// Joins the lines of each replacement.
fn on_one_line(replacements: Vec<Replacement>) -> Vec<Replacement> {
    let without_comment = |line: &str| {
        line.split("//")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let join = |text: String| {
        text.lines()
            .map(without_comment)
            .collect::<Vec<_>>()
            .join(" ")
    };
    replacements
        .into_iter()
        .map(|(id, text)| (id, join(text)))
        .collect()
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
