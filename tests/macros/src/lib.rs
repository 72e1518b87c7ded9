//! Attributes for the functions of `tests/all`, which register them with the harness of these tests
//! (`tests/all/harness.rs`).
//!
//! `#[test]` replaces Rust's attribute of the same name, whose harness cannot ignore a test while
//! it runs. `#[needs(Sycl, Nvrtc)]` below it lists variants of `Need` (`tests/support/needs.rs`):
//! if one is absent, the test is ignored. `#[helper]` marks a function that a test runs in a
//! separate process; it is not a test.

use proc_macro::Delimiter;
use proc_macro::TokenStream;
use proc_macro::TokenTree;

/// A test: a function without arguments that returns nothing, or a `Result` with a printable error.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(&arguments, item, true).unwrap_or_else(|problem| error(&problem))
}

/// A function that `harness::helper` runs in its own process, with the signature of a test.
#[proc_macro_attribute]
pub fn helper(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(&arguments, item, false).unwrap_or_else(|problem| error(&problem))
}

/// Attributes that Rust's own harness supports; ours would ignore them.
const UNKNOWN: [&str; 3] = ["bench", "ignore", "should_panic"];

fn expand(
    arguments: &TokenStream,
    item: TokenStream,
    is_test: bool,
) -> Result<TokenStream, String> {
    if !arguments.is_empty() {
        return Err(
            "takes no arguments; declare the needs of a test with `#[needs(..)]`".to_owned(),
        );
    }
    let mut conditions = String::new();
    let mut needs = String::new();
    let mut function = Vec::new();
    let mut tokens = item.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if !is_punct(&token, '#') {
            function.push(token);
            function.extend(tokens);
            break;
        }
        let Some(TokenTree::Group(attribute)) = tokens.next() else {
            return Err("expected an attribute after `#`".to_owned());
        };
        let mut parts = attribute.stream().into_iter();
        let name = parts.next().map(|name| name.to_string());
        match name.as_deref() {
            Some("needs") => match (parts.next(), parts.next()) {
                (Some(TokenTree::Group(group)), None)
                    if is_test && group.delimiter() == Delimiter::Parenthesis =>
                {
                    needs.push_str(&paths(group.stream())?);
                }
                _ => return Err("expected `#[needs(Need, ..)]`, of a test".to_owned()),
            },
            Some(name) if UNKNOWN.contains(&name) => {
                return Err(format!("the harness of these tests has no `#[{name}]`"));
            }
            name => {
                if name == Some("cfg") {
                    conditions.push_str(&format!("#{attribute}"));
                }
                function.extend([token, TokenTree::Group(attribute)]);
            }
        }
    }
    let mut from_fn = function
        .iter()
        .skip_while(|token| token.to_string() != "fn")
        .skip(1);
    let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(inputs))) =
        (from_fn.next(), from_fn.next())
    else {
        return Err("expected a function without type parameters".to_owned());
    };
    if !inputs.stream().is_empty() {
        return Err(format!(
            "`{name}` takes arguments, but is called without any"
        ));
    }
    let entry = if is_test { "Test" } else { "Helper" };
    let needs = if is_test {
        format!("&[{needs}],")
    } else {
        String::new()
    };
    let registered = format!(
        "{conditions} ::inventory::submit! {{ crate::harness::{entry}::new(::core::module_path!(), \"{name}\", {needs} \
         || crate::harness::Outcome::result({name}())) }}"
    );
    let registered: TokenStream = registered.parse().map_err(|error| format!("{error}"))?;
    let mut all = TokenStream::from_iter(function);
    all.extend(registered);
    Ok(all)
}

fn is_punct(token: &TokenTree, expected: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == expected)
}

/// Returns `A, B` as paths, each followed by a comma.
fn paths(tokens: TokenStream) -> Result<String, String> {
    let mut paths = String::new();
    for token in tokens {
        match token {
            TokenTree::Ident(name) => paths.push_str(&format!("crate::needs::Need::{name},")),
            comma if is_punct(&comma, ',') => {}
            other => return Err(format!("`{other}` is not the name of a need")),
        }
    }
    Ok(paths)
}

fn error(problem: &str) -> TokenStream {
    let error = format!("::core::compile_error!({problem:?});");
    error.parse().unwrap_or_default()
}
