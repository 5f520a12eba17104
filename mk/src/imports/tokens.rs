//! Finds paths in the tokens of macros, which have no syntax tree. Best effort: a word may be a field or a variable.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, Spacing, TokenStream, TokenTree};

/// The paths in `tokens` and in their groups.
///
/// A single word counts if it is written like a type or a constant, or is called. Field accesses and macros' variables do not.
pub fn paths(tokens: TokenStream) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        match &trees[at] {
            TokenTree::Group(group) => found.extend(paths(group.stream())),
            TokenTree::Ident(first) => {
                let (path, next) = path_at(&trees, at, first);
                if !is_field(&trees[..at]) && !is_variable(&trees[..at], first) && counts(&path, trees.get(next)) {
                    found.push(path);
                }
                at = next;
                continue;
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
    found
}

/// Every word in `tokens` and in their groups.
pub fn words(tokens: TokenStream, into: &mut HashSet<String>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => words(group.stream(), into),
            TokenTree::Ident(word) => {
                into.insert(word.to_string());
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The path that begins at `at` with `first`, and the index behind it.
fn path_at(trees: &[TokenTree], at: usize, first: &Ident) -> (Vec<String>, usize) {
    let (mut path, mut next) = (vec![first.to_string()], at + 1);
    while let [TokenTree::Punct(a), TokenTree::Punct(b), TokenTree::Ident(word), ..] = &trees[next..]
        && (a.as_char(), a.spacing(), b.as_char()) == (':', Spacing::Joint, ':')
    {
        path.push(word.to_string());
        next += 3;
    }
    (path, next)
}

/// Behind a single dot; two dots are a range.
fn is_field(before: &[TokenTree]) -> bool {
    let dot = |tree: Option<&TokenTree>| matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == '.');
    dot(before.last()) && !dot(before.iter().nth_back(1))
}

/// `$name`, but not `$crate`.
fn is_variable(before: &[TokenTree], first: &Ident) -> bool {
    matches!(before.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '$') && first != "crate"
}

fn counts(path: &[String], next: Option<&TokenTree>) -> bool {
    let called = match next {
        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
        Some(TokenTree::Punct(punct)) => punct.as_char() == '!',
        _ => false,
    };
    path.len() > 1 || called || path[0].starts_with(char::is_uppercase)
}
