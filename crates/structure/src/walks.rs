//! The rules for the walks through the code in ARCHITECTURE.md.

/// The largest number of steps, so that a walk is short enough to be read at once.
const MAX_STEPS: usize = 8;

/// The smallest number of walks.
const MIN_WALKS: usize = 4;

/// A section `### Walk: …` with its numbered steps.
struct WalkSection<'a> {
    title: &'a str,
    steps: Vec<String>,
}

/// Returns the problems with the walks in `text`, as messages for a person.
///
/// A walk is the numbered list under a heading `### Walk: …`. It has at most 8 steps, and each step names
/// an existing file in backticks. `exists` returns whether a file with a path exists.
pub fn walk_problems(text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let walks = read_walks(text);
    let mut problems = Vec::new();
    if walks.len() < MIN_WALKS {
        problems.push(format!(
            "{} sections `### Walk: …`; there must be at least {MIN_WALKS}",
            walks.len()
        ));
    }
    for WalkSection { title, steps } in walks {
        if steps.is_empty() {
            problems.push(format!("walk `{title}` has no steps; write them as a numbered list"));
        }
        if steps.len() > MAX_STEPS {
            problems.push(format!(
                "walk `{title}` has {} steps, more than {MAX_STEPS}; simplify the code, or join the steps that are in one file",
                steps.len()
            ));
        }
        for (index, step) in steps.iter().enumerate() {
            let number = index + 1;
            let code: Vec<&str> = step.split('`').skip(1).step_by(2).collect();
            if !code.iter().any(|path| exists(path)) {
                problems
                    .push(format!("walk `{title}`, step {number}: no existing file in backticks"));
            }
            for path in code.iter().filter(|path| is_source(path) && !exists(path)) {
                problems.push(format!("walk `{title}`, step {number}: there is no file `{path}`"));
            }
        }
    }
    problems
}

/// Whether text in backticks is the path of a source file.
fn is_source(code: &str) -> bool {
    code.contains('/') && (code.ends_with(".rs") || code.ends_with(".lua"))
}

fn read_walks(text: &str) -> Vec<WalkSection<'_>> {
    let mut walks: Vec<WalkSection<'_>> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        if line.starts_with('#') {
            let title = line.strip_prefix("### Walk:").map(str::trim);
            is_inside = title.is_some();
            walks.extend(title.map(|title| WalkSection { title, steps: Vec::new() }));
        } else if let (true, Some(walk)) = (is_inside, walks.last_mut()) {
            if is_step(line) {
                walk.steps.push(line.to_owned());
            } else if let (true, Some(step)) = (line.starts_with(' '), walk.steps.last_mut()) {
                step.push('\n');
                step.push_str(line);
            }
        }
    }
    walks
}

/// Whether a line starts a step: `1. …`.
fn is_step(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        walk_problems(text, &|path| path == "src/a.rs")
    }

    fn four_walks(steps: &str) -> String {
        ["one", "two", "three", "four"]
            .map(|title| format!("### Walk: {title}\n\n{steps}\n"))
            .concat()
    }

    #[test]
    fn walks_of_existing_files_have_no_problem() {
        let steps = "1. `src/a.rs`: starts\n2. continues\n   in `src/a.rs`, `f()`\n";
        assert_eq!(problems(&four_walks(steps)), [""; 0]);
    }

    #[test]
    fn missing_walks_are_found() {
        assert_eq!(
            problems("### Walk: one\n1. `src/a.rs`\n## Else\n1. nothing"),
            ["1 sections `### Walk: …`; there must be at least 4"]
        );
    }

    #[test]
    fn walk_without_steps_is_found() {
        assert!(problems(&four_walks("no list"))[0].contains("has no steps"));
    }

    #[test]
    fn walk_with_nine_steps_is_found() {
        let eight = "1. `src/a.rs`\n".repeat(8);
        assert_eq!(problems(&four_walks(&eight)), [""; 0]);
        let nine = "1. `src/a.rs`\n".repeat(9);
        assert!(problems(&four_walks(&nine))[0].contains("has 9 steps"));
    }

    #[test]
    fn step_without_an_existing_file_is_found() {
        assert!(problems(&four_walks("1. `src/b.md`"))[0].contains("no existing file"));
    }

    #[test]
    fn missing_file_beside_an_existing_one_is_found() {
        assert!(
            problems(&four_walks("1. `src/a.rs`, `src/b.rs`"))[0]
                .contains("there is no file `src/b.rs`")
        );
    }
}
