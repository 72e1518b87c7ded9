//! Regular expressions with the meaning that RE2 gives them, which TensorFlow uses.
//!
//! The syntax of crate `regex` comes from RE2. What differs is rewritten: the classes `\d`, `\s`
//! and `\w` and the boundary `\b` are those of ASCII, `\Q..\E` quotes, and brackets and doubled
//! signs in a class mean themselves.

use regex::bytes::Regex;

/// Compiles a pattern of RE2. `is_whole`: matches are whole strings.
///
/// # Errors
/// TensorFlow's message, with the reason that crate `regex` states.
pub fn compile(pattern: &str, is_whole: bool) -> Result<Regex, String> {
    let invalid = |error: &str| {
        let error = error.trim().lines().last().unwrap_or_default();
        format!("Invalid pattern: {pattern}, error: {error}")
    };
    let translated = translated(pattern).map_err(|error| invalid(&error))?;
    // The pattern alone must be correct: `)(` is not.
    let regex = Regex::new(&translated).map_err(|error| invalid(&error.to_string()))?;
    if !is_whole {
        return Ok(regex);
    }
    let whole = format!(r"\A(?:{translated})\z");
    Regex::new(&whole).map_err(|error| invalid(&error.to_string()))
}

/// Returns the pattern in the syntax of crate `regex`.
fn translated(pattern: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = pattern;
    let mut is_repeated = false;
    while let Some(next) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix(r"\Q") {
            let (quoted, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            out.push_str(&regex::escape(quoted));
            rest = after;
            is_repeated = false;
            continue;
        }
        if let Some(n_bytes) = repetition(rest) {
            let (operator, after) = rest.split_at(n_bytes);
            if std::mem::replace(&mut is_repeated, true) {
                return Err(format!("bad repetition operator: {operator}"));
            }
            out.push_str(operator);
            rest = after;
            continue;
        }
        is_repeated = false;
        match next {
            // Alone it means itself.
            '{' => {
                out.push_str(r"\{");
                rest = &rest[1..];
            }
            '\\' => rest = translate_escape(rest, false, &mut out)?,
            '[' => rest = translate_class(rest, &mut out)?,
            // Comments and blanks have no meaning in RE2, and the flag is unknown there.
            '(' if rest.starts_with("(?")
                && rest[2..]
                    .chars()
                    .take_while(|c| c.is_ascii_alphabetic() || *c == '-')
                    .any(|c| matches!(c, 'x' | 'u' | 'R'))
                && !rest.starts_with("(?P") =>
            {
                return Err("invalid perl operator".to_owned());
            }
            _ => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    Ok(out)
}

/// Returns the length of the repetition operator at the start of `text`, if there is one.
fn repetition(text: &str) -> Option<usize> {
    let n = match text.as_bytes().first()? {
        b'*' | b'+' | b'?' => 1,
        b'{' => {
            let (counts, _) = text[1..].split_once('}')?;
            let (least, most) = counts.split_once(',').unwrap_or((counts, ""));
            let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if least.is_empty() || !are_digits(least) || !are_digits(most) {
                return None;
            }
            counts.len() + 2
        }
        _ => return None,
    };
    Some(n + usize::from(text[n..].starts_with('?')))
}

/// Translates the escape at the start of `text`, and returns what follows it.
fn translate_escape<'a>(
    text: &'a str,
    is_in_class: bool,
    out: &mut String,
) -> Result<&'a str, String> {
    let mut characters = text.chars();
    characters.next();
    let Some(letter) = characters.next() else {
        return Err(r"trailing \".to_owned());
    };
    let ascii = match (letter, is_in_class) {
        ('d', false) => "[0-9]",
        ('d', true) => "0-9",
        ('D', _) => "[^0-9]",
        ('s', false) => r"[\t\n\f\r ]",
        ('s', true) => r"\t\n\f\r ",
        ('S', _) => r"[^\t\n\f\r ]",
        ('w', false) => "[0-9A-Za-z_]",
        ('w', true) => "0-9A-Za-z_",
        ('W', _) => "[^0-9A-Za-z_]",
        ('b', false) => r"(?-u:\b)",
        ('B', false) => r"(?-u:\B)",
        ('C', false) => r"(?s-u:.)",
        ('<' | '>' | 'u' | 'U' | 'E', _) => {
            return Err(format!(r"invalid escape sequence: \{letter}"));
        }
        _ => {
            out.push('\\');
            out.push(letter);
            return Ok(characters.as_str());
        }
    };
    out.push_str(ascii);
    Ok(characters.as_str())
}

/// Translates the class at the start of `text`, and returns what follows it.
fn translate_class<'a>(text: &'a str, out: &mut String) -> Result<&'a str, String> {
    let mut rest = &text[1..];
    out.push('[');
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut is_first = true;
    loop {
        let Some(next) = rest.chars().next() else {
            return Err(format!("missing ]: {text}"));
        };
        match next {
            ']' if !is_first => {
                out.push(']');
                return Ok(&rest[1..]);
            }
            '[' if rest.starts_with("[:") && rest.contains(":]") => {
                let end = rest.find(":]").map_or(rest.len(), |end| end + 2);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            '\\' => rest = translate_escape(rest, true, out)?,
            '[' | ']' | '&' | '~' => {
                out.push('\\');
                out.push(next);
                rest = &rest[1..];
            }
            // `--` is a difference in crate `regex`.
            '-' if rest.starts_with("--") || rest.starts_with("-]") || is_first => {
                out.push_str(r"\-");
                rest = &rest[1..];
            }
            _ => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
        is_first = false;
    }
}

/// What replaces a match: bytes, and groups of the match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    parts: smallvec::SmallVec<[Part; 4]>,
    last_group: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Byte(u8),
    Group(usize),
}

impl Rewrite {
    /// Parses a text in which `\0` to `\9` are groups, and `\\` is a backslash.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut parts = smallvec::SmallVec::new();
        let mut last_group = 0;
        let mut bytes = text.iter();
        while let Some(&byte) = bytes.next() {
            parts.push(match (byte, byte == b'\\') {
                (byte, false) => Part::Byte(byte),
                (_, true) => match bytes.next() {
                    Some(b'\\') => Part::Byte(b'\\'),
                    Some(digit) if digit.is_ascii_digit() => {
                        let group = usize::from(digit - b'0');
                        last_group = last_group.max(group);
                        Part::Group(group)
                    }
                    _ => {
                        return Err(format!(
                            "invalid rewrite `{}`: a backslash is followed by neither a digit nor \
                             another backslash",
                            String::from_utf8_lossy(text)
                        ));
                    }
                },
            });
        }
        Ok(Self { parts, last_group })
    }

    /// Appends the string with its first match, or all matches, replaced. As in RE2, nothing is
    /// replaced if the pattern has fewer groups.
    pub fn replace(
        &self,
        regex: &Regex,
        string: &[u8],
        is_global: bool,
        out: &mut impl Extend<u8>,
    ) {
        let mut end = 0;
        let n_matches = if is_global { usize::MAX } else { 1 };
        let n_matches = if self.last_group < regex.captures_len() {
            n_matches
        } else {
            0
        };
        for captures in regex.captures_iter(string).take(n_matches) {
            let Some(whole) = captures.get(0) else {
                continue;
            };
            if whole.is_empty() && splits_character(string, whole.start()) {
                continue;
            }
            out.extend(string[end..whole.start()].iter().copied());
            for part in &self.parts {
                match part {
                    Part::Byte(byte) => out.extend([*byte]),
                    Part::Group(group) => {
                        let group = captures
                            .get(*group)
                            .map_or(&[][..], |group| group.as_bytes());
                        out.extend(group.iter().copied());
                    }
                }
            }
            end = whole.end();
        }
        out.extend(string[end..].iter().copied());
    }
}

/// Returns whether a place is inside a character of UTF-8. As in RE2, surrogates are characters,
/// and each byte of a wrong sequence is one of its own.
fn splits_character(string: &[u8], place: usize) -> bool {
    (1..=3).any(|n_before| {
        let Some(start) = place.checked_sub(n_before) else {
            return false;
        };
        let len = match string[start] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return false,
        };
        let Some(character) = string.get(start..start + len) else {
            return false;
        };
        let is_surrogate = matches!(character, [0xed, 0xa0..=0xbf, 0x80..=0xbf]);
        n_before < len && (is_surrogate || std::str::from_utf8(character).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(pattern: &str, rewrite: &str, text: &str) -> String {
        let regex = compile(pattern, false).unwrap();
        let rewrite = Rewrite::parse(rewrite.as_bytes()).unwrap();
        let mut out = Vec::new();
        rewrite.replace(&regex, text.as_bytes(), true, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn classes_are_those_of_ascii() {
        assert_eq!(replaced(r"\w", "x", "a\u{e4}1"), "x\u{e4}x");
        assert_eq!(replaced(r"[^\d]", "x", "a1\u{e4}"), "x1x");
        assert_eq!(replaced(r"[\W]", "x", "a \u{e4}"), "axx");
        assert_eq!(replaced(r"\s", "", "a\u{a0}b c"), "a\u{a0}bc");
        assert_eq!(replaced(r"(?i)[[:alpha:]_]+", "x", "aB_1"), "x1");
    }

    #[test]
    fn signs_of_classes_mean_themselves() {
        // The pattern of Keras' TextVectorization.
        let punctuation = r##"[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']"##;
        assert_eq!(replaced(punctuation, "", "a[b]&c-d~e^"), "abcde");
        assert_eq!(replaced("[]a]", "x", "a]b"), "xxb");
        assert_eq!(replaced("[a&&b]", "x", "a&b"), "xxx");
        assert_eq!(replaced("[a[]", "x", "a[b"), "xxb");
        assert_eq!(replaced("[a-]", "x", "a-b"), "xxb");
        assert_eq!(replaced(r"\Qa.b\E.", "x", "a.bc aXbc"), "x aXbc");
        assert_eq!(replaced("a{b|a{2}?c", "x", "a{baac"), "xx");
    }

    #[test]
    fn wrong_sequences_are_bytes() {
        let inside = |bytes: &[u8]| -> Vec<usize> {
            let places = 0..=bytes.len();
            places.filter(|&at| splits_character(bytes, at)).collect()
        };
        let nowhere: [usize; 0] = [];
        assert_eq!(inside("a\u{e4}\u{20ac}".as_bytes()), [2, 4, 5]);
        assert_eq!(inside("\u{1f600}".as_bytes()), [1, 2, 3]);
        assert_eq!(inside(b"\xed\xa0\x80"), [1, 2]);
        assert_eq!(inside(b"\xff\xc3"), nowhere);
        assert_eq!(inside(b"\xe2\x82a"), nowhere);
        assert_eq!(inside(b"\xc3\xa4\x80"), [1]);
        assert_eq!(inside(b"\xf4\x90\x80\x80"), nowhere);
        assert_eq!(inside(b"\xc0\x80"), nowhere);
    }

    #[test]
    fn groups_are_written_and_matches_are_leftmost() {
        assert_eq!(
            replaced(r"(a)(b)?", r"<\1\2\\\0>", "abac"),
            r"<ab\ab><a\a>c"
        );
        assert_eq!(replaced("a*", "x", "baac"), "xbxcx");
        assert_eq!(replaced("a*", "x", "\u{e4}a\u{20ac}"), "x\u{e4}x\u{20ac}x");
        assert_eq!(replaced("a|ab", "x", "ab"), "xb");
        assert_eq!(replaced("a", r"\1", "a"), "a", "there is no such group");
        assert!(Rewrite::parse(br"\a").is_err());
        assert!(Rewrite::parse(br"a\").is_err());
    }

    #[test]
    fn whole_matches_and_wrong_patterns() {
        assert!(compile("a|ab", true).unwrap().is_match(b"ab"));
        assert!(!compile("a", true).unwrap().is_match(b"a\n"));
        for pattern in [")(", "(", "[a", "a**?+", r"\1", r"a\", "(?x) a", "(?=a)"] {
            let error = compile(pattern, true).expect_err(pattern);
            assert!(error.starts_with("Invalid pattern: "), "{error}");
        }
    }
}
