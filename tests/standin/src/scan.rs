//! Reads CUDA C only as far as needed: where the kernels are, what they are called, and dynamic shared memory.

/// A kernel found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name with namespaces, as C++ wants it.
    pub path: String,
    /// Its own name.
    pub name: String,
    /// True when its name stays what it is in the binary.
    pub extern_c: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    Text,
    Mark,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    at: usize,
}

/// Words, literals and marks; comments and preprocessor lines are left out.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut found = Vec::new();
    let (mut i, mut line_start) = (0, true);
    let find = |from: usize, what: &str| source[from..].find(what).map_or(source.len(), |n| from + n);
    while i < bytes.len() {
        let start = i;
        match bytes[i] {
            b'\n' => {
                line_start = true;
                i += 1;
                continue;
            }
            b if b.is_ascii_whitespace() => {
                i += 1;
                continue;
            }
            b'/' if bytes.get(i + 1) == Some(&b'/') => i = find(i, "\n"),
            b'/' if bytes.get(i + 1) == Some(&b'*') => i = (find(i + 2, "*/") + 2).min(bytes.len()),
            b'#' if line_start => loop {
                let end = find(i, "\n");
                let more = source[..end].ends_with('\\');
                i = end;
                if !more || end >= bytes.len() {
                    break;
                }
                i += 1;
            },
            quote @ (b'"' | b'\'') => {
                i += 1;
                while i < bytes.len() && bytes[i] != quote {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i = (i + 1).min(bytes.len());
                found.push(Token { kind: Kind::Text, text: source.get(start..i).unwrap_or(""), at: start });
            }
            b if word(b) => {
                while i < bytes.len() && word(bytes[i]) {
                    i += 1;
                }
                found.push(Token { kind: Kind::Word, text: &source[start..i], at: start });
            }
            _ => {
                i += source[i..].chars().next().map_or(1, char::len_utf8);
                found.push(Token { kind: Kind::Mark, text: &source[start..i], at: start });
            }
        }
        line_start = false;
    }
    found
}

/// True when a macro's text makes kernels or shared memory, so that the text must be expanded before it is read.
pub fn in_macros(source: &str) -> bool {
    let mut continued = false;
    source.lines().any(|line| {
        let directive = continued || line.trim_start().starts_with('#');
        continued = directive && line.ends_with('\\');
        directive && (line.contains("__global__") || line.contains("__shared__"))
    })
}

/// The token after the bracket that closes the one at `open`.
fn after(tokens: &[Token<'_>], open: usize) -> usize {
    let (up, down) = if tokens[open].text == "(" { ("(", ")") } else { ("{", "}") };
    let mut depth = 0;
    for (i, t) in tokens.iter().enumerate().skip(open).filter(|(_, t)| t.kind == Kind::Mark) {
        depth += i32::from(t.text == up) - i32::from(t.text == down);
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The kernels that a text defines, templates left out.
pub fn kernels(source: &str) -> Vec<Found> {
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
    let mut found: Vec<Found> = Vec::new();
    // For each open brace: the namespace that it opens, and whether it is an extern "C" block.
    let mut scopes: Vec<(Option<String>, bool)> = Vec::new();
    let mut statement = 0;
    let mut i = 0;
    while i < tokens.len() {
        match text(i) {
            "{" if tokens[i].kind == Kind::Mark => {
                let head: Vec<&str> = tokens[statement..i].iter().map(|t| t.text).collect();
                let spaces = head.iter().position(|t| *t == "namespace").map(|p| head[p + 1..].concat());
                let block = head.len() >= 2 && head[head.len() - 2..] == ["extern", "\"C\""];
                scopes.push((spaces, block));
                statement = i + 1;
            }
            "}" if tokens[i].kind == Kind::Mark => {
                scopes.pop();
                statement = i + 1;
            }
            ";" => statement = i + 1,
            "__global__" => {
                let mut j = i + 1;
                while j < tokens.len() && !(tokens[j].kind == Kind::Word && text(j + 1) == "(") {
                    j += 1;
                }
                while matches!(text(j), "__launch_bounds__" | "__attribute__" | "__cluster_dims__" | "__align__") {
                    j = after(&tokens, j + 1);
                    while j < tokens.len() && !(tokens[j].kind == Kind::Word && text(j + 1) == "(") {
                        j += 1;
                    }
                }
                if j >= tokens.len() {
                    break;
                }
                let end = after(&tokens, j + 1);
                let head: Vec<&str> = tokens[statement..j].iter().map(|t| t.text).collect();
                let direct = head.windows(2).any(|w| w == ["extern", "\"C\""]);
                if text(end) == "{" && !head.contains(&"template") {
                    let path: String = scopes
                        .iter()
                        .filter_map(|s| s.0.as_ref())
                        .filter(|s| !s.is_empty())
                        .fold(String::new(), |p, s| p + s + "::");
                    let extern_c = direct || scopes.iter().any(|s| s.1);
                    let kernel = Found { path: path + text(j), name: text(j).to_owned(), extern_c };
                    if !found.contains(&kernel) {
                        found.push(kernel);
                    }
                }
                i = end;
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// The text with `extern __shared__ T name[];` made a pointer to the block's dynamic memory. Lines stay where they are.
pub fn dynamic_shared(source: &str) -> String {
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
    let (mut written, mut rest) = (String::new(), 0);
    for i in 0..tokens.len() {
        if text(i) != "extern" || text(i + 1) != "__shared__" || tokens[i].at < rest {
            continue;
        }
        let Some(end) = (i..tokens.len()).find(|j| text(*j) == ";") else { continue };
        let Some(open) = (i..end).find(|j| text(*j) == "[") else { continue };
        let mut kind = String::new();
        let mut j = i + 2;
        while j + 1 < open {
            if matches!(text(j), "__align__" | "__attribute__" | "alignas") && text(j + 1) == "(" {
                j = after(&tokens, j + 1);
            } else {
                kind += text(j);
                kind.push(' ');
                j += 1;
            }
        }
        let stretch = &source[tokens[i].at..tokens[end].at + 1];
        written += &source[rest..tokens[i].at];
        written += &format!("STANDIN_DYNAMIC({}, {});", kind.trim_end(), text(open - 1));
        written.extend(stretch.matches('\n'));
        rest = tokens[end].at + 1;
    }
    written + &source[rest..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_wherever_they_stand() {
        let text = r#"
            // __global__ void not_this(
            #define KERNEL __global__ \
                void
            namespace a { namespace b {
            extern "C" __global__ void __launch_bounds__(256, 2) one(const float* x, int n) { if (n) { x[0]; } }
            } template <class T> __global__ void generic(T* x) {} }
            extern "C" { __global__ void two() { const char* s = "}{"; } }
            __global__ void declared(int);
            __global__ void mangled(int x) {}
        "#;
        let found = kernels(text);
        let names: Vec<(&str, bool)> = found.iter().map(|k| (k.path.as_str(), k.extern_c)).collect();
        assert_eq!(names, [("a::b::one", true), ("two", true), ("mangled", false)]);
    }

    #[test]
    fn kernels_of_macros_are_seen() {
        assert!(in_macros("int x;\n#define K(T) \\\n extern \"C\" __global__ void k_##T(T* x) {}\nK(int)"));
        assert!(!in_macros("#define N 3\n__global__ void f() {}"));
    }

    #[test]
    fn dynamic_shared_memory_becomes_a_pointer() {
        let text = "void f() { extern __shared__ __align__(16) unsigned char\n buffer[]; buffer[0] = 1; }";
        assert_eq!(dynamic_shared(text), "void f() { STANDIN_DYNAMIC(unsigned char, buffer);\n buffer[0] = 1; }");
    }
}
