//! Finds the known name that a misspelt name is nearest to.

/// The length of the longest name.
const MAX_CHARS: usize = 64;

/// Returns the name nearest to `text`, if at most one letter in three is wrong, and at most two.
///
/// `refil` is near to `refill`, `capcaity` to `capacity`; `burst` to neither.
pub(super) fn nearest<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let letters: Vec<char> = text.chars().take(MAX_CHARS + 1).collect();
    let most = (letters.len() / 3).min(2);
    if most == 0 || letters.len() > MAX_CHARS {
        return None;
    }
    let mut nearest = None;
    let mut most = most;
    let mut other = Vec::with_capacity(MAX_CHARS);
    for name in names {
        let length = name.chars().count();
        if length > MAX_CHARS || length.abs_diff(letters.len()) > most {
            continue;
        }
        other.clear();
        other.extend(name.chars());
        let distance = distance(&letters, &other, most);
        if distance < most || (distance == most && nearest.is_none()) {
            (nearest, most) = (Some(name), distance);
        }
    }
    nearest
}

/// More letters than any name has, and small enough that sums do not overflow.
const FAR: usize = 1_000;

/// Returns how many letters must be inserted, removed, replaced or swapped with the next letter, regardless of case; any
/// number above `most` if it is more than `most`. The lengths must differ by at most `most`.
fn distance(text: &[char], name: &[char], most: usize) -> usize {
    let is_same = |(one, other): &(&char, &char)| one.eq_ignore_ascii_case(other);
    let common = text.iter().zip(name).take_while(is_same).count();
    let (text, name) = (&text[common..], &name[common..]);
    let same = |a: usize, b: usize| text[a].eq_ignore_ascii_case(&name[b]);
    let mut before = [0; MAX_CHARS + 1];
    let mut above: [usize; MAX_CHARS + 1] = std::array::from_fn(|column| column);
    let mut least_above = 0;
    for row in 1..=text.len() {
        let mut here = [FAR; MAX_CHARS + 1];
        here[0] = row;
        // Farther from the diagonal, the distance exceeds `most`. The range is not empty, because the lengths differ by at
        // most `most`.
        let (from, to) = (row.saturating_sub(most), (row + most).min(name.len()));
        for column in from.max(1)..=to {
            let replaced = above[column - 1] + usize::from(!same(row - 1, column - 1));
            here[column] = replaced.min(above[column] + 1).min(here[column - 1] + 1);
            let may_swap = row > 1 && column > 1;
            if may_swap && same(row - 1, column - 2) && same(row - 2, column - 1) {
                here[column] = here[column].min(before[column - 2] + 1);
            }
        }
        // A swap reaches back over one row.
        let least = here[from..=to].iter().min().copied().unwrap_or(0);
        if least > most && least_above > most {
            return most + 1;
        }
        (before, above, least_above) = (above, here, least);
    }
    above[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the same without any shortcut.
    fn slowly(text: &[char], name: &[char]) -> usize {
        let (Some((a, text_rest)), Some((b, name_rest))) = (text.split_first(), name.split_first())
        else {
            return text.len().max(name.len());
        };
        let mut least = slowly(text_rest, name_rest) + usize::from(a != b);
        least = least.min(slowly(text_rest, name) + 1).min(slowly(text, name_rest) + 1);
        if let ([a, b, text_rest @ ..], [c, d, name_rest @ ..]) = (text, name)
            && (a, b) == (d, c)
        {
            least = least.min(slowly(text_rest, name_rest) + 1);
        }
        least
    }

    #[test]
    fn distance_is_the_same_with_and_without_shortcuts() {
        let words: Vec<Vec<char>> = (0..3_u32.pow(5))
            .map(|number| {
                (0..5)
                    .map(|place| ['a', 'b', 'c'][(number / 3_u32.pow(place) % 3) as usize])
                    .collect()
            })
            .collect();
        for (place, text) in words.iter().enumerate().step_by(7) {
            let text = &text[..3 + place % 3];
            for name in &words {
                let distance = distance(text, name, 2);
                assert_eq!(distance.min(3), slowly(text, name).min(3), "{text:?} {name:?}");
            }
        }
    }

    #[test]
    fn nearest_finds_typing_errors_and_not_other_words() {
        let names = ["capacity", "refill", "limit", "limits", "by"];
        for (text, meant) in [
            ("refil", Some("refill")),
            ("capcaity", Some("capacity")),
            ("Limit", Some("limit")),
            ("limts", Some("limits")),
            ("burst", None),
            ("b", None),
            ("", None),
            ("capäcity", Some("capacity")),
        ] {
            assert_eq!(nearest(text, names), meant, "{text}");
        }
    }
}
