//! Aligned Markdown tables.

/// Returns a table of a header and rows. The first column is aligned to the left, the others to the right.
pub fn markdown(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| lines.iter().filter_map(|line| line.get(column)).map(String::len).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        text.push_str(&row(line, &widths));
        if index == 0 {
            text.push_str(&rule(&widths));
        }
    }
    text
}

fn row(line: &[String], widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (column, (cell, &width)) in line.iter().zip(widths).enumerate() {
        text.push_str(&match column {
            0 => format!(" {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
    }
    text + "\n"
}

fn rule(widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (column, &width) in widths.iter().enumerate() {
        let dashes = "-".repeat(width + 1);
        text.push_str(&if column == 0 { format!("{dashes}-|") } else { format!("{dashes}:|") });
    }
    text + "\n"
}

/// Returns a number rounded to a whole one, with commas: 45,678.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_aligns_names_left_and_numbers_right() {
        let lines = [["algorithm", "allowed"], ["log", "7"], ["token-bucket", "-"]]
            .map(|line| line.map(str::to_owned).to_vec());
        let want = "\
| algorithm    | allowed |
|--------------|--------:|
| log          |       7 |
| token-bucket |       - |
";
        assert_eq!(markdown(&lines), want);
    }

    #[test]
    fn thousands_have_commas() {
        let texts = [0.4, 999.0, 1_000.0, 1_234_567.0].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
